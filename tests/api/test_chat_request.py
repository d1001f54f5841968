"""Every field of section 5.1: what it may be, and what it says when it may not."""

from __future__ import annotations

from typing import Any

import pytest

from ninfer.api.chat_request import ChatRequest, parse_chat
from ninfer.api.presets import SamplingRequest
from ninfer.api.thinking import ThinkingRequest
from ninfer.errors import RequestRejected

BASE: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "q"}]}


def parsed(**fields: object) -> ChatRequest:
    return parse_chat({**BASE, **fields})


def refused(**fields: object) -> tuple[str | None, str | None, str]:
    with pytest.raises(RequestRejected) as caught:
        parsed(**fields)
    assert caught.value.http_status == 400
    return caught.value.code, caught.value.param, caught.value.message


def test_defaults() -> None:
    request = parsed()
    assert (request.model, request.max_tokens, request.stops) == ("m", None, ())
    assert request.sampling == SamplingRequest()
    assert request.thinking == ThinkingRequest()
    assert not any((request.stream, request.include_usage, request.ignore_eos))
    assert not any((request.timings_per_token, request.return_progress))


def test_null_is_not_given() -> None:
    names = [
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "tool_constraints",
        "response_format",
        "structured_outputs",
        "reasoning_effort",
        "enable_thinking",
        "preserve_thinking",
        "chat_template_kwargs",
        "thinking_budget",
        "ignore_eos",
        "timings_per_token",
        "return_progress",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "graft",
        "n",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "modalities",
        "audio",
        "prediction",
        "metadata",
        "user",
        "safety_identifier",
        "service_tier",
        "verbosity",
        "store",
        "functions",
        "function_call",
        "web_search_options",
        "moderation",
        "repetition_penalty",
        "mm_processor_kwargs",
        "grammar",
        "guided_json",
        "guided_regex",
        "guided_choice",
        "guided_grammar",
    ]
    assert parsed(**dict.fromkeys(names)) == parsed()


def test_values() -> None:
    request = parsed(
        max_tokens=5, temperature=0, top_p=1, top_k=-1, min_p=0.5, presence_penalty=-2, frequency_penalty=2,
        seed=2**64 - 1, stop=["a", "", "b"], stream=True, stream_options={"include_usage": True, "other": 1},
        ignore_eos=True, timings_per_token=True, return_progress=True, prompt_cache_key="k",
    )  # fmt: skip
    assert request.sampling == SamplingRequest(0.0, 1.0, -1, 0.5, -2.0, 2.0, 2**64 - 1)
    assert (request.max_tokens, request.stops, request.cache_key) == (5, ("a", "b"), "k")
    assert all((request.stream, request.include_usage, request.ignore_eos))
    assert all((request.timings_per_token, request.return_progress))
    assert parsed(stop="x").stops == ("x",)
    assert parsed(stop="").stops == ()


def test_the_newer_limit_wins() -> None:
    assert parsed(max_completion_tokens=0, max_tokens=9).max_tokens == 0
    assert parsed(max_completion_tokens=None, max_tokens=9).max_tokens == 9


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"])
def test_numbers_are_checked(name: str) -> None:
    for value in ("1", True, [], {}):
        assert refused(**{name: value}) == (None, name, f"{name} must be a number")
    code, param, message = refused(**{name: 2.5})
    assert (code, param) == (None, name)
    assert message.startswith(f"{name} must be in [")
    assert refused(**{name: -2.5})[1] == name


def test_the_message_of_the_contract() -> None:
    assert refused(temperature=3) == (None, "temperature", "temperature must be in [0,2]")


@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("max_tokens", (-1, 2**31)),
        ("max_completion_tokens", (-1, 2**31)),
        ("top_k", (-2,)),
        ("seed", (2**64, -(2**63) - 1, 1.8446744073709552e19)),
        ("top_logprobs", (-1, 21)),
        ("n", (0, 9)),
        ("thinking_budget", (0,)),
    ],
)
def test_integers_are_checked(name: str, out: tuple[float, ...]) -> None:
    for value in ("1", True, 1.5, 1.0, []):
        assert refused(**{name: value}) == (None, name, f"{name} must be an integer")
    for value in out:
        assert refused(**{name: value}) == (None, name, f"{name} is out of range")


@pytest.mark.parametrize(
    "name",
    [
        *("stream", "enable_thinking", "preserve_thinking", "ignore_eos", "timings_per_token", "return_progress"),
        *("logprobs", "store", "parallel_tool_calls"),
    ],
)
def test_booleans_are_checked(name: str) -> None:
    for value in (1, 0, "true", []):
        assert refused(**{name: value}) == (None, name, f"{name} must be a boolean")


@pytest.mark.parametrize(
    "name", ["user", "safety_identifier", "service_tier", "verbosity", "prompt_cache_key", "graft", "model"]
)
def test_strings_are_checked(name: str) -> None:
    for value in (1, True, []):
        code, param, message = refused(**{name: value})
        assert (code, param) == (None, name)
        assert message.startswith(f"{name} must be a")


@pytest.mark.parametrize(
    ("name", "value", "code", "param"),
    [
        ("model", "", None, "model"),
        ("model", None, None, "model"),
        ("n", True, None, "n"),
        ("top_logprobs", 1, "invalid_value", "top_logprobs"),
        ("logit_bias", {"1": 0.5}, "logit_bias_not_supported", "logit_bias"),
        ("logit_bias", [], None, "logit_bias"),
        ("modalities", ["text", "audio"], "modality_not_supported", "modalities"),
        ("modalities", [1], None, "modalities"),
        ("modalities", "text", None, "modalities"),
        ("store", True, "store_not_supported", "store"),
        ("functions", [{}], "legacy_tools_not_supported", "functions"),
        ("function_call", {"name": "f"}, "legacy_tools_not_supported", "function_call"),
        ("web_search_options", {}, "web_search_not_supported", "web_search_options"),
        ("moderation", {}, "moderation_not_supported", "moderation"),
        ("repetition_penalty", 1.1, "repetition_penalty_not_supported", "repetition_penalty"),
        ("mm_processor_kwargs", {"x": 1}, "mm_processor_kwargs_not_supported", "mm_processor_kwargs.x"),
        ("grammar", "root ::= x", "parameter_not_supported", "grammar"),
        ("guided_json", {}, "parameter_not_supported", "guided_json"),
        ("guided_regex", "", "parameter_not_supported", "guided_regex"),
        ("guided_choice", [], "parameter_not_supported", "guided_choice"),
        ("guided_grammar", "", "parameter_not_supported", "guided_grammar"),
        ("response_format", {"type": "json_schema"}, None, "response_format.json_schema"),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {}},
            "invalid_json_schema",
            "response_format.json_schema.schema",
        ),
        ("response_format", {"type": "xml"}, "response_format_not_supported", "response_format.type"),
        ("response_format", "text", None, "response_format"),
        ("structured_outputs", {}, None, "structured_outputs"),
        ("thinking_budget", 0, None, "thinking_budget"),
        ("graft", "x", "unknown_graft", "graft"),
        ("reasoning_effort", "huge", "invalid_value", "reasoning_effort"),
        ("reasoning_effort", 1, None, "reasoning_effort"),
        ("chat_template_kwargs", {"foo": 1}, "chat_template_option_not_supported", "chat_template_kwargs.foo"),
        ("chat_template_kwargs", [], None, "chat_template_kwargs"),
        ("chat_template_kwargs", {"enable_thinking": 1}, None, "chat_template_kwargs.enable_thinking"),
        ("chat_template_kwargs", {"reasoning_effort": "x"}, "invalid_value", "chat_template_kwargs.reasoning_effort"),
        ("stream_options", True, None, "stream_options"),
        ("stream_options", {"include_usage": 1}, None, "stream_options.include_usage"),
        ("stop", 1, None, "stop"),
        ("stop", ["a", 1], None, "stop"),
        ("stop", ["a", "b", "c", "d", ""], None, "stop"),
        ("audio", "x", None, "audio"),
        ("prediction", "x", None, "prediction"),
        ("metadata", {str(n): "x" for n in range(17)}, None, "metadata"),
        ("metadata", {"x" * 65: ""}, None, "metadata"),
        ("metadata", {"x": "y" * 513}, None, "metadata"),
        ("metadata", {"x": 1}, None, "metadata"),
        ("prompt_cache_retention", "forever", "invalid_value", "prompt_cache_retention"),
        ("prompt_cache_options", "x", "parameter_not_supported", "prompt_cache_options"),
        ("prompt_cache_options", {"x": 1}, "parameter_not_supported", "prompt_cache_options"),
        ("prompt_cache_options", {"mode": "x"}, "invalid_value", "prompt_cache_options.mode"),
    ],
)
def test_refusals(name: str, value: object, code: str | None, param: str) -> None:
    assert refused(**{name: value})[:2] == (code, param)


def test_harmless_values_of_refused_fields_and_hints_pass() -> None:
    assert parsed(
        n=1, logprobs=False, top_logprobs=0, logit_bias={"5": 0}, modalities=["text"], store=False, functions=[],
        function_call="auto", repetition_penalty=1.0, mm_processor_kwargs={"x": None}, grammar="",
        response_format={"type": "text"}, audio={}, prediction={}, metadata={"a": "b"}, user="u",
        safety_identifier="s", service_tier="flex", verbosity="low", prompt_cache_retention="24h",
        prompt_cache_options={"mode": "explicit", "ttl": "5m"}, id_slot=3, cache_prompt=True, n_predict=4, foo={},
    ) == parsed()  # fmt: skip


def test_twins_have_to_agree() -> None:
    for name, value, other in (
        ("enable_thinking", True, False),
        ("preserve_thinking", False, True),
        ("reasoning_effort", "high", "xhigh"),
    ):
        assert parsed(**{name: value, "chat_template_kwargs": {name: value}}) == parsed(**{name: value})
        assert parsed(chat_template_kwargs={name: value, "foo": None}) == parsed(**{name: value})
        code, param, _ = refused(**{name: value, "chat_template_kwargs": {name: other}})
        assert (code, param) == ("conflicting_template_option", name)
