"""Mailboxes: bounded, closed cleanly, and nothing inside is forgotten."""

from __future__ import annotations

import math

import anyio
import pytest

from ninfer.actors.runtime.clock import LoopClock
from ninfer.actors.runtime.mailbox import IN_ONE_GO, Mailbox
from ninfer.actors.runtime.question import Question
from ninfer.actors.runtime.replies import send_last, send_reply
from ninfer.errors import ActorStopped

pytestmark = pytest.mark.asyncio


async def test_messages_come_in_order_until_the_mailbox_is_closed() -> None:
    mailbox: Mailbox[int] = Mailbox("numbers", 3)
    mailbox.put_nowait(1)
    await mailbox.put(2)
    assert mailbox.waiting == 2
    mailbox.close()
    assert [message async for message in mailbox.messages()] == [1, 2]
    with pytest.raises(ActorStopped, match="numbers"):
        mailbox.put_nowait(3)
    with pytest.raises(ActorStopped, match="numbers"):
        await mailbox.put(3)
    assert mailbox.drain() == []


async def test_a_full_mailbox_refuses_at_once() -> None:
    mailbox: Mailbox[int] = Mailbox("one", 1)
    mailbox.put_nowait(1)
    with pytest.raises(anyio.WouldBlock):
        mailbox.put_nowait(2)
    assert mailbox.take_all() == [1]
    mailbox.put_nowait(3)
    assert mailbox.drain() == [3]


async def test_a_reader_that_waits_hears_of_the_drain() -> None:
    mailbox: Mailbox[int] = Mailbox("quiet", math.inf)

    async def read() -> None:
        assert [message async for message in mailbox.messages()] == []

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        mailbox.drain()


async def test_a_mailbox_without_room_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="room for at least one"):
        Mailbox("none", 0)


async def test_a_question_is_answered_or_refused() -> None:
    answered: Question[str, int] = Question("how many?")
    answered.answer(4)
    assert await answered.wait_answer() == 4
    refused: Question[str, int] = Question("how many?")
    refused.refuse(ActorStopped("gone"))
    with pytest.raises(ActorStopped, match="gone"):
        await refused.wait_answer()


async def test_replies_to_a_client_that_is_gone_go_nowhere() -> None:
    send, receive = anyio.create_memory_object_stream[int](math.inf)
    send_reply(send, 1)
    send_last(send, 2)
    send_reply(send, 3)
    send_last(send, 3)
    assert [reply async for reply in receive] == [1, 2]
    receive.close()


async def test_the_clock_is_the_loop_s() -> None:
    clock = LoopClock()
    now = clock.now()
    await clock.wait_until(now + 0.001)
    assert clock.now() >= now + 0.001


async def test_many_messages_leave_others_their_turn() -> None:
    mailbox: Mailbox[int] = Mailbox("numbers", math.inf)
    for number in range(3 * IN_ONE_GO):
        mailbox.put_nowait(number)
    mailbox.close()
    turns: list[int] = []

    async def other() -> None:
        for _ in range(3):
            turns.append(-1)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        async for message in mailbox.messages():
            turns.append(message)
    mailbox.drain()
    assert turns[:IN_ONE_GO] == list(range(IN_ONE_GO)), "they are taken in one go"
    assert len(turns) == 3 * IN_ONE_GO + 3


async def test_a_reader_that_waits_hears_of_each_message_and_of_the_end() -> None:
    mailbox: Mailbox[int] = Mailbox("one", 1)
    seen: list[int] = []

    async def read() -> None:
        seen.extend([message async for message in mailbox.messages()])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        mailbox.put_nowait(1)
        with pytest.raises(anyio.WouldBlock):
            mailbox.put_nowait(2)  # the reader has not come to it yet
        await mailbox.put(2)
        await anyio.wait_all_tasks_blocked()
        await mailbox.put(3)
        await anyio.wait_all_tasks_blocked()
        mailbox.close()
    mailbox.drain()
    assert seen == [1, 2, 3]
