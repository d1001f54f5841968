"""Several answers to one prompt: each as it would be alone, all admitted or none, each ending once."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from ninfer.config import SchedulerSettings
from ninfer.errors import DeviceFault
from ninfer.step import Drawn
from tests.support.engines import FakeEngine
from tests.support.http import MODEL_ID, Served, ask, chunks, model, served, settle
from tests.support.system import TOKENIZER

pytestmark = pytest.mark.asyncio

FOUR = SchedulerSettings(lanes=4, prefix_reuse=False)
FORMAT = {"type": "json_schema", "json_schema": {"name": "out", "schema": {"enum": ["x", "y"]}}}


class Seeded(FakeEngine):
    """Says its seed, in as many words as that says."""

    def __init__(self) -> None:
        super().__init__(lambda _prompt: [])

    def _draw(self, index: int, mask: bytes | None) -> Drawn:
        lane = self._lane(index)
        if lane.words is None:
            seed = lane.setup.sampling.seed
            lane.words = TOKENIZER.encode_with_control(f"hm\n</think>\n\n{seed}" + " more" * (seed % 5))
        return super()._draw(index, mask)


def said(seed: int) -> str:
    return f"{seed}" + " more" * (seed % 5)


async def whole(state: Served, **fields: object) -> dict[str, Any]:
    response = await state.post(ask(**fields))
    assert response.status_code == 200, await response.get_data()
    return await response.get_json()  # type: ignore[no-any-return]


@pytest.mark.parametrize("lanes", [1, 2, 4])
async def test_each_choice_is_what_its_seed_says_alone(lanes: int) -> None:
    async with served(Seeded(), scheduler=SchedulerSettings(lanes=lanes, prefix_reuse=False)) as state:
        body = await whole(state, n=3, seed=2**64 - 2)
        alone = [await whole(state, seed=seed) for seed in (2**64 - 2, 2**64 - 1, 0)]
        await settle(state)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"] for choice in body["choices"]] == [one["choices"][0]["message"] for one in alone]
    assert [choice["message"]["content"] for choice in body["choices"]] == [said(2**64 - 2), said(2**64 - 1), said(0)]
    usage, usages = body["usage"], [one["usage"] for one in alone]
    assert usage["prompt_tokens"] == usages[0]["prompt_tokens"]
    assert usage["completion_tokens"] == sum(one["completion_tokens"] for one in usages)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    reasoning = [one["completion_tokens_details"]["reasoning_tokens"] for one in (usage, *usages)]
    assert reasoning[0] == sum(reasoning[1:])
    assert body["timings"]["predicted_n"] == usage["completion_tokens"]
    assert "id_slot" not in body
    assert {choice["id_slot"] for choice in body["choices"]} <= set(range(lanes))


@pytest.mark.parametrize("include_usage", [False, True])
async def test_a_stream_of_choices_joins_to_the_whole(include_usage: bool) -> None:
    async with served(Seeded(), scheduler=FOUR) as state:
        body = await whole(state, n=4, seed=11)
        options = {"include_usage": include_usage}
        response = await state.post(ask(n=4, seed=11, stream=True, stream_options=options, timings_per_token=True))
        parts = chunks(await response.get_data())
        await settle(state)
    pieces = [part["choices"][0] for part in parts if part["choices"]]
    assert [piece["index"] for piece in pieces[:4]] == [0, 1, 2, 3]
    for choice in body["choices"]:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(piece["delta"].get("content") or "" for piece in own) == choice["message"]["content"]
        assert [piece["finish_reason"] for piece in own] == [None] * (len(own) - 1) + ["stop"]
    order = [piece["index"] for piece in pieces]
    assert order != sorted(order, key=order.index)  # they take turns
    assert sum("timings" in part and not part["choices"] for part in parts) == include_usage
    assert "timings" in parts[-1]
    assert parts[-1].get("usage") == (body["usage"] if include_usage else None)


async def test_completions_have_choices_too() -> None:
    async with served(Seeded(), scheduler=FOUR) as state:
        fields = {
            "model": MODEL_ID,
            "prompt": "Once",
            "max_tokens": 100,
            "n": 2,
            "best_of": 2,
            "seed": 3,
            "logprobs": 1,
        }
        body = await (await state.send("/v1/completions", fields)).get_json()
        streamed = await state.send("/v1/completions", {**fields, "stream": True})
        parts = chunks(await streamed.get_data())
    assert [choice["text"] for choice in body["choices"]] == [f"hm\n</think>\n\n{said(seed)}" for seed in (3, 4)]
    for choice in body["choices"]:
        own = [part["choices"][0] for part in parts if part["choices"][0]["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        offsets = [at for piece in own if piece["logprobs"] for at in piece["logprobs"]["text_offset"]]
        assert offsets == choice["logprobs"]["text_offset"]
        assert own[-1]["finish_reason"] == choice["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == parts[-1]["timings"]["predicted_n"]


async def test_the_prompt_is_read_once() -> None:
    scheduler = SchedulerSettings(lanes=4, prefill_chunk_tokens=128, images=8)
    async with served(Seeded(), scheduler=scheduler) as state:
        body = await whole(state, content="word " * 300, n=4, seed=1)
        totals = state.state.system.gateway.statistics().totals
        await settle(state)
    prompt = body["usage"]["prompt_tokens"]
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert prompt <= totals.prefill_tokens < 1.5 * prompt
    assert totals.reused_tokens > 2.5 * prompt


async def test_each_constrained_choice_has_a_constraint_of_its_own() -> None:
    async with served(Seeded(), scheduler=FOUR, the_model=model(enforces=True)) as state:
        body = await whole(state, n=3, response_format=FORMAT, enable_thinking=False)
    for choice in body["choices"]:
        assert choice["message"]["content"] in ('"x"', '"y"')
        assert choice["constraint"]["complete"]
    assert "constraint" not in body


async def refused(state: Served, **fields: object) -> tuple[int, str | None, str | None]:
    response = await state.post(ask(**fields))
    error = (await response.get_json())["error"]
    return response.status_code, error["code"], error["param"]


async def test_all_are_admitted_or_none(tmp_path: Path) -> None:
    scheduler = SchedulerSettings(lanes=2, max_pending=1)
    async with served(Seeded(), scheduler=scheduler, log_path=tmp_path / "log") as state:
        assert await refused(state, n=4) == (400, "invalid_value", "n")
        completion = {"model": MODEL_ID, "prompt": "Once", "n": 4}
        assert (await state.send("/v1/completions", completion)).status_code == 400
        held = await state.state.system.gateway.arrive()
        assert await refused(state, n=3) == (429, "server_overloaded", None)
        assert (await whole(state, n=2, seed=1))["choices"][1]["message"]["content"] == said(2)
        await held.release()
        await settle(state)  # a step in flight keeps a place for a moment longer than its answer lasts
        assert len((await whole(state, n=3))["choices"]) == 3
        await settle(state)
        kinds = Counter(record["event"] for record in state.log_records())
    assert kinds == {"request_start": 5, "request_done": 5}


async def test_what_cannot_be_prepared_is_refused_once_for_each(tmp_path: Path) -> None:
    async with served(Seeded(), scheduler=FOUR, log_path=tmp_path / "log") as state:
        assert (await refused(state, content="word " * 9000, n=3))[1] == "context_length_exceeded"
        await settle(state)
        records = state.log_records()
    assert [(record["event"], record["error"]["code"]) for record in records] == [
        ("request_rejected", "context_length_exceeded")
    ] * 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fault_ends_every_choice_once(stream: bool, tmp_path: Path) -> None:
    engine = Seeded()
    async with served(engine, scheduler=FOUR, log_path=tmp_path / "log") as state:
        engine.fail_next = DeviceFault("broken")
        response = await state.post(ask(n=3, stream=stream))
        body = await response.get_data()
        await settle(state)
        kinds = Counter(record["event"] for record in state.log_records())
    assert b"internal_error" in body
    assert body.count(b'"error"') == 1
    assert b"[DONE]" not in body
    assert kinds == {"request_start": 3, "request_error": 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_all(stream: bool, tmp_path: Path) -> None:
    engine = Seeded()
    async with served(engine, scheduler=SchedulerSettings(lanes=2), log_path=tmp_path / "log") as state:
        engine.gate = threading.Event()
        async with state.app.test_client().request("/v1/chat/completions", method="POST") as connection:
            await connection.send(orjson.dumps(ask(n=3, stream=stream)))
            await connection.send_complete()
            while len(state.state.system.machine.requests) < 3 or not engine.in_flight:
                await anyio.lowlevel.checkpoint()
            await connection.disconnect()
        engine.gate.set()
        await settle(state)
        records = [record for record in state.log_records() if record["event"] != "request_start"]
    assert len(records) == 3
    for record in records:  # whoever was not in the queue yet was refused, for the same reason
        assert record["event"] in ("request_error", "request_rejected")
        assert record["error"]["message"] == "client disconnected"
