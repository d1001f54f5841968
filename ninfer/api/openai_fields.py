"""Fields that Chat and text completions share: sampling, stop strings, what both refuse (serving spec, 5.1)."""

from __future__ import annotations

from ninfer.api.fields import Object, integer, mapping, number, refusal, wrong
from ninfer.api.presets import SamplingRequest

STOPS_MAX = 4
CHOICES_MAX = 8


def sampling_fields(source: Object) -> SamplingRequest:
    """What a request says of sampling."""
    return SamplingRequest(
        temperature=number(source, "temperature", 0, 2),
        top_p=number(source, "top_p", 0, 1),
        top_k=integer(source, "top_k", -1),
        min_p=number(source, "min_p", 0, 1),
        presence_penalty=number(source, "presence_penalty", -2, 2),
        frequency_penalty=number(source, "frequency_penalty", -2, 2),
        seed=integer(source, "seed", -(1 << 63), (1 << 64) - 1),
    )


def stop_strings(source: Object) -> tuple[str, ...]:
    """Up to four strings; empty ones are dropped."""
    value = source.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong("stop", "a string or an array of strings")
    if len(stops) > STOPS_MAX:
        raise wrong("stop", f"at most {STOPS_MAX} strings")
    return tuple(stop for stop in stops if stop)


def choices(source: Object) -> int:
    """How many answers are wanted."""
    return integer(source, "n", 1, CHOICES_MAX) or 1


def check_logit_bias(source: Object) -> None:
    """A bias that does something is refused."""
    for value in (mapping(source, "logit_bias") or {}).values():
        if isinstance(value, bool) or not isinstance(value, int | float) or value != 0:
            raise refusal("logit_bias_not_supported", "logit_bias is not supported", "logit_bias")


def check_repetition_penalty(source: Object) -> None:
    """A penalty that does something is refused."""
    penalty = source.get("repetition_penalty")
    if penalty is not None and (isinstance(penalty, bool) or penalty != 1):
        raise refusal("repetition_penalty_not_supported", "repetition_penalty must be 1", "repetition_penalty")
