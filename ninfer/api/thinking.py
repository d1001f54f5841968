"""Whether a request thinks, and how hard (serving spec, 10.1 to 10.3). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ninfer.api.fields import refusal
from ninfer.config import GenerationSettings
from ninfer.text.template import TemplateTraits

EFFORT_WORDS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_LEVEL_OF: Mapping[str, str] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "xhigh",
    "xhigh": "xhigh",
    "max": "xhigh",
}


@dataclass(frozen=True, slots=True)
class ThinkingRequest:
    """What a request says: its switch, its effort word, and whether old reasoning stays; None is silence."""

    enable: bool | None = None
    effort: str | None = None
    preserve: bool | None = None


@dataclass(frozen=True, slots=True)
class Thinking:
    """The resolution.

    on               whether the answer begins with thinking
    enable           `enable_thinking` for the template; None leaves it undefined
    level            `reasoning_effort` for the template, of `low`, `medium`, `xhigh`; None leaves it undefined
    preserve         `preserve_thinking` for the template; None leaves it undefined
    ignored_effort   an effort that was asked for and has no effect, to be logged
    """

    on: bool
    enable: bool | None
    level: str | None
    preserve: bool | None
    ignored_effort: str | None


def resolve_thinking(request: ThinkingRequest, server: GenerationSettings, traits: TemplateTraits) -> Thinking:
    """Apply steps 1 to 7 of section 10.1, and the precedence of 10.3.

    raises RequestRejected (`conflicting_template_option`, `reasoning_effort_not_supported`)
    """
    if request.enable is True and request.effort == "none":
        raise refusal("conflicting_template_option", "thinking is enabled and the effort is 'none'", "reasoning_effort")
    asked = request.effort if request.effort != "none" else None
    enable = request.enable
    if enable is None and request.effort is not None:
        enable = request.effort != "none"
    if enable is None:
        enable = server.thinking
    on = enable if enable is not None else traits.thinks_by_default
    preserve = request.preserve if request.preserve is not None else server.preserve_thinking
    effort = asked if asked is not None else server.reasoning_effort
    if not on or effort is None:
        return Thinking(on, enable, None, preserve, ignored_effort=asked)
    if not traits.efforts:
        return Thinking(on, enable, None, preserve, ignored_effort=effort)
    level = _LEVEL_OF[effort]
    if level not in traits.efforts:
        supported = ", ".join(traits.efforts)
        raise refusal(
            "reasoning_effort_not_supported",
            f"reasoning effort '{effort}' is not supported by this model; it has {supported}",
            "reasoning_effort",
        )
    return Thinking(on, enable, level, preserve, ignored_effort=None)
