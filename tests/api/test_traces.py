"""Every request is traced once, however it ends, over every protocol that generates."""

from __future__ import annotations

import pytest

from ninfer.config import SchedulerSettings
from ninfer.tracing import Ended, stretches
from tests.support.http import MODEL_ID, ask, says, served, settle

pytestmark = pytest.mark.asyncio

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_requests_of_every_protocol_and_end() -> None:
    ended: list[Ended] = []
    async with served(says("</think>\n\nHello."), trace=ended.append, scheduler=SchedulerSettings(lanes=2)) as state:
        await (await state.post(ask(), traceparent=PARENT)).get_data()
        await (await state.post(ask(stream=True))).get_data()
        await (await state.post(ask(n=2))).get_data()
        messages = {"model": "m", "max_tokens": 20, "messages": [{"role": "user", "content": "Hi"}]}
        await (await state.send("/v1/messages", messages)).get_data()
        await (await state.send("/v1/completions", {"model": MODEL_ID, "prompt": "Hi", "max_tokens": 3})).get_data()
        refused = await state.post(ask("long " * 20_000))
        assert refused.status_code == 400
        await settle(state)
    assert [(one.protocol.split("_")[0], one.outcome) for one in ended] == [
        *[("openai", "completed")] * 4,
        ("anthropic", "completed"),
        ("openai", "completed"),
        ("openai", "rejected"),
    ]
    assert [one.parent for one in ended] == [PARENT, *[""] * 6]
    assert [one.stream for one in ended][:2] == [False, True]
    for one in ended[:6]:
        assert [part.name for part in stretches(one.timeline)] == ["prepare", "queue", "prefill", "decode"]
        assert one.model == MODEL_ID
    assert [part.name for part in stretches(ended[6].timeline)] == ["prepare"]
