"""Precedence of section 11: greedy, request, flag, preset."""

from __future__ import annotations

import pytest

from ninfer.api.presets import Preset, SamplingRequest, capped_top_k, presets_for, resolve_sampling
from ninfer.config import GenerationSettings
from ninfer.types import Sampling

PRESET = Preset(0.7, 0.8, 20, 0.0, 1.5, 0.25)


@pytest.mark.parametrize("name", ["qwen3_8_27b", "qwen3.6-27b", "Qwen3.8-27B-Instruct", "bonsai2-27b"])
def test_presets_of_the_27b(name: str) -> None:
    presets = presets_for(name, {"temperature": 0.1})
    assert presets.thinking == Preset(1.0, 0.95, 20)
    assert presets.non_thinking == Preset(0.7, 0.80, 20, presence_penalty=1.5)


@pytest.mark.parametrize("name", ["qwen3_6_35b_a3b", "qwen3.5-0.8b", "qwen3_5_text"])
def test_presets_of_the_livelier_ones(name: str) -> None:
    presets = presets_for(name, {})
    assert presets.thinking == Preset(1.0, 0.95, 20, presence_penalty=1.5)
    assert presets.non_thinking == Preset(0.7, 0.80, 20, presence_penalty=1.5)


def test_others_take_their_generation_config() -> None:
    presets = presets_for("other", {"temperature": 0.5, "top_p": 0.9, "top_k": 50, "min_p": 0.1})
    assert presets.thinking == presets.non_thinking == Preset(0.5, 0.9, 20, 0.1)
    assert presets_for("other", {}).thinking == Preset(1.0, 1.0, 20)
    assert presets_for("other", {"temperature": "hot", "top_p": 7, "top_k": True}).thinking == Preset(1.0, 1.0, 20)


def test_the_preset_is_the_last_word() -> None:
    assert resolve_sampling(SamplingRequest(), GenerationSettings(), PRESET, 9) == Sampling(
        0.7, 20, 0.8, 0.0, 1.5, 0.25, 9
    )


def test_flags_come_before_the_preset_and_the_request_before_flags() -> None:
    flags = GenerationSettings(
        temperature=0.1, top_p=0.2, top_k=3, min_p=0.4, presence_penalty=0.5, frequency_penalty=0.6, seed=7
    )
    assert resolve_sampling(SamplingRequest(), flags, PRESET, 9) == Sampling(0.1, 3, 0.2, 0.4, 0.5, 0.6, 7)
    asked = SamplingRequest(0.0, 0.0, 1, 0.0, 0.0, 0.0, 0)
    assert resolve_sampling(asked, flags, PRESET, 9) == Sampling(0.0, 1, 0.0, 0.0, 0.0, 0.0, 0)


def test_greedy_drops_the_penalties_of_the_preset_only() -> None:
    greedy = GenerationSettings(greedy=True)
    assert resolve_sampling(SamplingRequest(temperature=1.0), greedy, PRESET, 0) == Sampling(
        0.0, 20, 0.8, 0.0, 0.0, 0.0, 0
    )
    asked = SamplingRequest(presence_penalty=1.0)
    flagged = GenerationSettings(greedy=True, frequency_penalty=-1.0)
    assert resolve_sampling(asked, flagged, PRESET, 0) == Sampling(0.0, 20, 0.8, 0.0, 1.0, -1.0, 0)


@pytest.mark.parametrize(("asked", "used"), [(-1, 20), (0, 20), (1, 1), (20, 20), (21, 20), (10**9, 20)])
def test_the_candidate_set_is_capped(asked: int, used: int) -> None:
    assert capped_top_k(asked) == used


@pytest.mark.parametrize(("asked", "key"), [(-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1), (5, 5)])
def test_seeds_are_reinterpreted_as_unsigned(asked: int, key: int) -> None:
    assert resolve_sampling(SamplingRequest(seed=asked), GenerationSettings(), PRESET, 9).seed == key
