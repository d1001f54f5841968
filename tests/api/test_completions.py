"""Text in, text out: fields, refusals, whole and streamed answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ninfer.api.completions_request import CompletionRequest, parse_completion
from ninfer.api.presets import SamplingRequest
from ninfer.config import GenerationSettings, SchedulerSettings
from ninfer.errors import RequestRejected
from tests.support.engines import FakeEngine
from tests.support.http import MODEL_ID, UNIX_TIME, Served, chunks, frames, model, says, served, settle
from tests.support.system import TOKENIZER

ANSWER = "I <think>see</think> and <tool_call>."


def body(prompt: object = "Once", **fields: object) -> dict[str, object]:
    return {"model": MODEL_ID, "prompt": prompt, **fields}


async def complete(state: Served, prompt: object = "Once", **fields: object) -> Any:
    return await state.send("/v1/completions", body(prompt, **{"max_tokens": 100, **fields}))


def test_what_a_request_says() -> None:
    assert parse_completion(body()) == CompletionRequest(
        model=MODEL_ID,
        prompt="Once",
        max_tokens=16,
        says_max_tokens=False,
        sampling=SamplingRequest(),
        stops=(),
        stream=False,
        include_usage=False,
        ignore_eos=False,
    )
    harmless = {"n": 1, "best_of": 1, "suffix": "", "echo": False, "logprobs": None, "user": "u", "logit_bias": {}}
    said = parse_completion(
        body(
            ["Once"],
            **harmless,
            max_tokens=0,
            temperature=0,
            seed=7,
            stop=["a", ""],
            stream=True,
            ignore_eos=True,
            stream_options={"include_usage": True},
            unknown=1,
        )
    )
    assert (said.prompt, said.max_tokens, said.says_max_tokens, said.stops) == ("Once", 0, True, ("a",))
    assert (said.stream, said.include_usage, said.ignore_eos) == (True, True, True)
    assert said.sampling == SamplingRequest(temperature=0.0, seed=7)


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1, 2, 3]]])
def test_a_prompt_of_ids(prompt: object) -> None:
    assert parse_completion(body(prompt)).prompt == (1, 2, 3)


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"prompt": ""}, None, "prompt"),
        ({"prompt": None}, None, "prompt"),
        ({"prompt": []}, None, "prompt"),
        ({"prompt": [[]]}, None, "prompt"),
        ({"prompt": [True]}, None, "prompt"),
        ({"prompt": [1, "a"]}, None, "prompt"),
        ({"prompt": ["a", "b"]}, "parameter_not_supported", "prompt"),
        ({"prompt": [[1], [2]]}, "parameter_not_supported", "prompt"),
        ({"model": ""}, None, "model"),
        ({"suffix": "end"}, "parameter_not_supported", "suffix"),
        ({"echo": True}, "parameter_not_supported", "echo"),
        ({"best_of": 2}, "parameter_not_supported", "best_of"),
        ({"n": 2, "best_of": 3}, "parameter_not_supported", "best_of"),
        ({"n": 9}, None, "n"),
        ({"n": True}, None, "n"),
        ({"logprobs": 6}, None, "logprobs"),
        ({"logprobs": True}, None, "logprobs"),
        ({"logit_bias": {"1": 1}}, "logit_bias_not_supported", "logit_bias"),
        ({"repetition_penalty": 1.1}, "repetition_penalty_not_supported", "repetition_penalty"),
        ({"max_tokens": -1}, None, "max_tokens"),
        ({"temperature": 3}, None, "temperature"),
        ({"stop": ["a"] * 5}, None, "stop"),
        ({"stream_options": {"include_usage": 1}}, None, "stream_options.include_usage"),
        ({"user": 1}, None, "user"),
    ],
    ids=str,
)
def test_refusals(fields: dict[str, object], code: str | None, param: str) -> None:
    with pytest.raises(RequestRejected) as refused:
        parse_completion({**body(), **fields})
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.asyncio
async def test_a_whole_answer_is_the_text_as_the_model_wrote_it() -> None:
    async with served(says(ANSWER)) as state:
        found = await (await complete(state)).get_json()
        assert found.pop("id").startswith("cmpl-")
        timings = found.pop("timings")
        count = len(TOKENIZER.encode_with_control(ANSWER)) + 1
        assert found == {
            "object": "text_completion",
            "created": int(UNIX_TIME),
            "model": MODEL_ID,
            "choices": [{"index": 0, "text": ANSWER, "logprobs": None, "finish_reason": "stop"}],
            "usage": {
                "prompt_tokens": len(TOKENIZER.encode("Once")),
                "completion_tokens": count,
                "total_tokens": len(TOKENIZER.encode("Once")) + count,
                "prompt_tokens_details": {"cached_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
            "id_slot": 0,
        }
        assert timings["predicted_n"] == count
        await settle(state)


@pytest.mark.asyncio
@pytest.mark.parametrize("include_usage", [True, False])
async def test_a_streamed_answer_joins_to_the_whole(include_usage: bool) -> None:
    async with served(says(ANSWER)) as state:
        options = {"stream_options": {"include_usage": True}} if include_usage else {}
        response = await complete(state, stream=True, **options)
        assert response.headers["content-type"] == "text/event-stream"
        parts = chunks(await response.get_data())
        whole = await (await complete(state)).get_json()
    texts = [part["choices"][0]["text"] for part in parts if part["choices"]]
    assert "".join(texts) == ANSWER
    reasons = [part["choices"][0]["finish_reason"] for part in parts if part["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert {part["object"] for part in parts} == {"text_completion"}
    assert ("timings" in parts[-1], parts[-1]["id_slot"]) == (True, 0)
    if include_usage:
        assert parts[-1]["choices"] == []
        assert parts[-1]["usage"] == whole["usage"]
        assert [part["usage"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    else:
        assert not any("usage" in part for part in parts)


@pytest.mark.asyncio
async def test_ends() -> None:
    async with served(says("one two three")) as state:
        for fields, text, reason in (
            ({"max_tokens": 2}, TOKENIZER.decode(TOKENIZER.encode("one two three")[:2]), "length"),
            ({"stop": "two"}, "one ", "stop"),
            ({"max_tokens": 0}, "", "length"),
        ):
            choice = (await (await complete(state, **fields)).get_json())["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == (text, reason)


@pytest.mark.asyncio
async def test_control_spellings_are_control_tokens_and_ids_are_ids() -> None:
    seen: list[tuple[int, ...]] = []

    def words(prompt: tuple[int, ...]) -> list[int]:
        seen.append(prompt)
        return []

    async with served(FakeEngine(words)) as state:
        seen.clear()
        await complete(state, "<|fim_prefix|>a<|fim_suffix|>")
        await complete(state, [[5, 6]])
    control = TOKENIZER.control_ids
    assert seen == [(control["<|fim_prefix|>"], *TOKENIZER.encode("a"), control["<|fim_suffix|>"]), (5, 6)]


@pytest.mark.asyncio
async def test_refusals_of_a_running_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with served(says("x"), the_model=model(max_context_tokens=10), log_path=log) as state:
        for fields, status, code in (
            ({"model": "other"}, 404, "model_not_found"),
            ({"prompt": "word " * 50}, 400, "context_length_exceeded"),
            ({"prompt": [TOKENIZER.id_count]}, 400, None),
            ({"prompt": [-1]}, 400, None),
        ):
            response = await state.send("/v1/completions", {**body(), **fields})
            error = (await response.get_json())["error"]
            assert (response.status_code, error["code"]) == (status, code)
        assert (await complete(state)).status_code == 200
        await settle(state)
        events = [record["event"] for record in state.log_records()]
        assert events == ["request_rejected"] * 3 + ["request_start", "request_done"]
        assert {record["request"]["protocol"] for record in state.log_records()} == {"openai_completions"}


@pytest.mark.asyncio
async def test_the_law_is_that_of_the_default_mode(tmp_path: Path) -> None:
    for generation, temperature in ((GenerationSettings(), 1.0), (GenerationSettings(thinking=False), 0.7)):
        log = tmp_path / f"log-{temperature}"
        async with served(says("x"), generation=generation, log_path=log) as state:
            await complete(state)
            assert state.log_records()[0]["request"]["sampling"]["temperature"] == temperature


@pytest.mark.asyncio
async def test_a_stream_that_breaks_off_says_so_in_band() -> None:
    from ninfer.errors import DeviceFault

    async with served(says(ANSWER), scheduler=SchedulerSettings()) as state:
        state.state.engine.fail_next = DeviceFault("secret")
        data = await (await complete(state, stream=True)).get_data()
        assert [frame[:14] for frame in frames(data)] == ['data: {"error"']
        await settle(state)


@pytest.mark.asyncio
async def test_a_long_body_is_parsed_aside() -> None:
    async with served(says("x"), the_model=model(max_context_tokens=10)) as state:
        response = await complete(state, "word " * 20_000)
        assert (await response.get_json())["error"]["code"] == "context_length_exceeded"
