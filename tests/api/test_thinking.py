"""The table of section 10.1, row by row."""

from __future__ import annotations

import itertools

import pytest

from ninfer.api.thinking import EFFORT_WORDS, Thinking, ThinkingRequest, resolve_thinking
from ninfer.config import GenerationSettings
from ninfer.errors import RequestRejected
from ninfer.text.template import TemplateTraits

DEEP = TemplateTraits(thinks_by_default=True, has_thinking_switch=True, efforts=("low", "medium", "xhigh"))
SWITCH = TemplateTraits(thinks_by_default=True, has_thinking_switch=True, efforts=())
QUIET = TemplateTraits(thinks_by_default=False, has_thinking_switch=True, efforts=())
PLAIN = GenerationSettings()


def resolve(
    enable: bool | None = None,
    effort: str | None = None,
    server: GenerationSettings = PLAIN,
    traits: TemplateTraits = DEEP,
) -> Thinking:
    return resolve_thinking(ThinkingRequest(enable, effort), server, traits)


@pytest.mark.parametrize(
    ("word", "level"),
    [
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "medium"),
        ("high", "xhigh"),
        ("xhigh", "xhigh"),
        ("max", "xhigh"),
    ],
)
def test_words_map_to_levels_and_switch_thinking_on(word: str, level: str) -> None:
    for enable, server in itertools.product((None, True), (PLAIN, GenerationSettings(thinking=False))):
        thinking = resolve(enable, word, server)
        assert (thinking.on, thinking.enable, thinking.level) == (True, True, level)
        assert thinking.ignored_effort is None


def test_none_switches_off() -> None:
    assert resolve(effort="none") == Thinking(False, False, None, None, None)
    assert resolve(False, "none").on is False
    with pytest.raises(RequestRejected) as caught:
        resolve(True, "none")
    assert caught.value.code == "conflicting_template_option"


@pytest.mark.parametrize("word", EFFORT_WORDS)
def test_an_explicit_off_wins_over_any_effort(word: str) -> None:
    thinking = resolve(False, word)
    assert (thinking.on, thinking.enable, thinking.level) == (False, False, None)
    assert thinking.ignored_effort == (word if word != "none" else None)


def test_silence_is_the_server_then_the_template() -> None:
    assert resolve() == Thinking(True, None, None, None, None)
    assert resolve(traits=QUIET) == Thinking(False, None, None, None, None)
    assert resolve(server=GenerationSettings(thinking=False)) == Thinking(False, False, None, None, None)
    assert resolve(True, server=GenerationSettings(thinking=False)).on is True


def test_the_servers_effort_never_enables_thinking() -> None:
    server = GenerationSettings(reasoning_effort="low")
    assert resolve(server=server).level == "low"
    assert resolve(effort="max", server=server).level == "xhigh"
    assert resolve(traits=QUIET, server=server) == Thinking(False, None, None, None, None)
    assert resolve(False, server=server) == Thinking(False, False, None, None, None)


def test_a_template_with_only_the_switch_ignores_the_depth() -> None:
    assert resolve(effort="high", traits=SWITCH) == Thinking(True, True, None, None, "high")


def test_a_level_that_the_template_lacks_is_refused() -> None:
    traits = TemplateTraits(thinks_by_default=True, has_thinking_switch=True, efforts=("low", "xhigh"))
    assert resolve(effort="low", traits=traits).level == "low"
    with pytest.raises(RequestRejected) as caught:
        resolve(effort="medium", traits=traits)
    assert caught.value.code == "reasoning_effort_not_supported"


@pytest.mark.parametrize(
    ("asked", "flag", "result"),
    [(None, None, None), (None, True, True), (False, True, False), (True, None, True)],
)
def test_preserving_is_the_request_then_the_flag(asked: bool | None, flag: bool | None, result: bool | None) -> None:
    server = GenerationSettings(preserve_thinking=flag)
    assert resolve_thinking(ThinkingRequest(preserve=asked), server, DEEP).preserve is result
