"""The sampling law of a request: presets, flags of the server and the request itself (serving spec, 11). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ninfer.config import GenerationSettings
from ninfer.types import Sampling

CANDIDATES_MAX = 20

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Preset:
    """Sampling of one mode of one model, before anybody asks for something else."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class Presets:
    """The two modes of a model."""

    thinking: Preset
    non_thinking: Preset


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What a request says; None is silence."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None


_NON_THINKING = Preset(0.7, 0.80, 20, presence_penalty=1.5)
_CALM = Presets(Preset(1.0, 0.95, 20), _NON_THINKING)
_LIVELY = Presets(Preset(1.0, 0.95, 20, presence_penalty=1.5), _NON_THINKING)
# Plain thinking and non-thinking rows of the model spec, 16.1, by the beginning of the architecture name.
_BY_NAME: tuple[tuple[str, Presets], ...] = (
    ("qwen3_8_27b", _CALM),
    ("qwen3_6_27b", _CALM),
    ("qwen3_6_35b_a3b", _LIVELY),
    ("qwen3_5", _LIVELY),
    ("bonsai2_27b", _CALM),
)


def presets_for(name: str, generation_config: Mapping[str, object]) -> Presets:
    """Presets of a model by its architecture name; one without a row takes both modes from its generation config.

    What that config leaves open is the library's own default: temperature 1, no nucleus.
    """
    plain = name.lower().replace(".", "_").replace("-", "_")
    for prefix, presets in _BY_NAME:
        if plain.startswith(prefix):
            return presets
    preset = Preset(
        temperature=_in_range(generation_config.get("temperature"), 0.0, 2.0, 1.0),
        top_p=_in_range(generation_config.get("top_p"), 0.0, 1.0, 1.0),
        top_k=capped_top_k(int(_in_range(generation_config.get("top_k"), 0.0, math.inf, float(CANDIDATES_MAX)))),
        min_p=_in_range(generation_config.get("min_p"), 0.0, 1.0, 0.0),
    )
    return Presets(preset, preset)


def _in_range(value: object, low: float, high: float, default: float) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    return float(value) if fits and isinstance(value, int | float) and math.isfinite(value) else default


def capped_top_k(value: int) -> int:
    """Size of the candidate set: -1, 0 and everything above the sampler's cap mean the cap."""
    return value if 1 <= value <= CANDIDATES_MAX else CANDIDATES_MAX


def resolve_sampling(
    request: SamplingRequest, server: GenerationSettings, preset: Preset, random_seed: int
) -> Sampling:
    """``--greedy`` before the request before flags before the preset.

    Greedy sets temperature 0 and drops the preset's penalties; those of the request or of a flag stay.
    random_seed   unsigned 64-bit, for when neither the request nor the server names one
    """
    seed = _first(request.seed, server.seed, random_seed)
    return Sampling(
        temperature=0.0 if server.greedy else _first(request.temperature, server.temperature, preset.temperature),
        top_k=capped_top_k(_first(request.top_k, server.top_k, preset.top_k)),
        top_p=_first(request.top_p, server.top_p, preset.top_p),
        min_p=_first(request.min_p, server.min_p, preset.min_p),
        presence_penalty=_first(
            request.presence_penalty, server.presence_penalty, 0.0 if server.greedy else preset.presence_penalty
        ),
        frequency_penalty=_first(
            request.frequency_penalty, server.frequency_penalty, 0.0 if server.greedy else preset.frequency_penalty
        ),
        seed=seed % (1 << 64),
    )


def _first(asked: N | None, flag: N | None, default: N) -> N:
    if asked is not None:
        return asked
    return flag if flag is not None else default
