"""Fields that several protocols share, checked alike (serving spec, 5.1, 8.1, 9.1, 10.1, 14.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ninfer.api.fields import Object, boolean, integer, mapping, refusal, text, word, wrong
from ninfer.api.thinking import EFFORT_WORDS, ThinkingRequest

TOKENS_MAX = (1 << 31) - 1
V = TypeVar("V")
_OPTIONS = ("enable_thinking", "reasoning_effort", "preserve_thinking")


def model_name(source: Object) -> str:
    """The ``model`` of a request, a non-empty string."""
    model = text(source, "model")
    if not model:
        raise wrong("model", "a non-empty string")
    return model


def thinking_fields(source: Object, enable: tuple[str, bool | None], effort: tuple[str, str | None]) -> ThinkingRequest:
    """What a request says of thinking: its own fields, each by name and value, and ``chat_template_kwargs``."""
    options = mapping(source, "chat_template_kwargs") or {}
    for name, value in options.items():
        if value is not None and name not in _OPTIONS:
            param = f"chat_template_kwargs.{name}"
            raise refusal("chat_template_option_not_supported", f"{param} is not supported", param)
    switch, level, preserve = _OPTIONS
    return ThinkingRequest(
        enable=_agreed(*enable, switch, boolean(options, switch, f"chat_template_kwargs.{switch}")),
        effort=_agreed(*effort, level, word(options, level, EFFORT_WORDS, f"chat_template_kwargs.{level}")),
        preserve=_agreed(
            preserve,
            boolean(source, preserve),
            preserve,
            boolean(options, preserve, f"chat_template_kwargs.{preserve}"),
        ),
    )


def _agreed(name: str, above: V | None, option: str, inside: V | None) -> V | None:
    """The one value of an option that may be spelled as a field of the protocol and among the template's options."""
    if above is not None and inside is not None and above != inside:
        message = f"{name} and chat_template_kwargs.{option} disagree"
        raise refusal("conflicting_template_option", message, name)
    return above if above is not None else inside


def check_graft(source: Object) -> None:
    """No grafts exist."""
    graft = text(source, "graft")
    if graft is not None:
        raise refusal("unknown_graft", f"there is no graft '{graft}'", "graft")


def thinking_budget(source: Object) -> int | None:
    """The ``thinking_budget`` of Chat and Responses: most tokens of thinking."""
    return integer(source, "thinking_budget", 1, TOKENS_MAX)


def metadata(source: Object) -> Mapping[str, str]:
    """The ``metadata`` of a request: up to 16 pairs of strings."""
    found: dict[str, str] = {}
    for key, value in (mapping(source, "metadata") or {}).items():
        if len(key) > 64 or not isinstance(value, str) or len(value) > 512:
            raise wrong("metadata", "an object of strings, keys of at most 64 and values of at most 512 characters")
        found[key] = value
    if len(found) > 16:
        raise wrong("metadata", "an object of at most 16 members")
    return found


def check_cache_hints(source: Object) -> None:
    """Hints of the OpenAI protocols about the prompt cache: checked, without effect in this build."""
    word(source, "prompt_cache_retention", ("in_memory", "in-memory", "24h"))
    options = source.get("prompt_cache_options")
    if options is None:
        return
    if not isinstance(options, dict) or set(options) - {"mode", "ttl"}:
        message = "prompt_cache_options must be an object with the members mode and ttl"
        raise refusal("parameter_not_supported", message, "prompt_cache_options")
    word(options, "mode", ("implicit", "explicit"), "prompt_cache_options.mode")
    text(options, "ttl", "prompt_cache_options.ttl")
