"""Replies to a client that listens, that has gone, or that listens to several streams at once."""

from __future__ import annotations

import math

import anyio
import pytest

from ninfer.actors.runtime.replies import NoticedSender, send_last, send_reply

pytestmark = pytest.mark.asyncio


async def test_replies_and_the_end_arrive_in_order() -> None:
    sender, receiver = anyio.create_memory_object_stream[str](math.inf)
    send_reply(sender, "one")
    send_last(sender, "two")
    async with receiver:
        assert [reply async for reply in receiver] == ["one", "two"]


async def test_a_client_that_has_gone_is_no_fault() -> None:
    sender, receiver = anyio.create_memory_object_stream[str](math.inf)
    receiver.close()
    send_reply(sender, "one")
    send_last(sender, "two")
    send_reply(sender, "behind the end")


async def test_each_reply_and_the_end_are_noticed_once_they_are_there() -> None:
    sender, receiver = anyio.create_memory_object_stream[str](math.inf)
    seen: list[int] = []
    noticed = NoticedSender(sender)
    send_reply(noticed, "nobody hears of")
    noticed.news = lambda: seen.append(receiver.statistics().current_buffer_used)
    send_reply(noticed, "one")
    noticed.news = None
    send_reply(noticed, "nor of this")
    noticed.news = lambda: seen.append(receiver.statistics().current_buffer_used)
    send_last(noticed, "two")
    assert seen == [2, 4, 4]
    async with receiver:
        assert [reply async for reply in receiver] == ["nobody hears of", "one", "nor of this", "two"]


async def test_an_end_that_nobody_hears_of() -> None:
    sender, receiver = anyio.create_memory_object_stream[str](math.inf)
    send_last(NoticedSender(sender), "one")
    async with receiver:
        assert [reply async for reply in receiver] == ["one"]
