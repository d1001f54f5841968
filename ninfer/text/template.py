"""Chat templates: a conversation in, a prompt out whose own control tokens are marked (model spec 14)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ninfer.errors import RequestRejected, StartupError
from ninfer.text.marks import Marks, mark_places, mark_probes
from ninfer.text.prompt import FAMILY_CONTROL_TOKENS, RenderedPrompt

# Stock templates of the model spec, section 2.7, for which our own renderer of the same generation stands in.
STOCK_DIGESTS = {
    "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259": "qwen3_6",
    "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041": "qwen3_8",
}
EFFORTS = ("low", "medium", "xhigh")

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """What a template can do, found by rendering probes (serving spec 10.1).

    thinks_by_default     the prompt opens a think block when the switch is not given
    has_thinking_switch   `enable_thinking` changes the prompt
    efforts               the levels it accepts, of `low`, `medium`, `xhigh`; empty when it knows no depth
    """

    thinks_by_default: bool
    has_thinking_switch: bool
    efforts: tuple[str, ...]


class ChatTemplate:
    """A template compiled once. Rendering is pure and may run on any thread.

    source    Jinja2 text; see :func:`template_source` for the resource of an artifact
    control   spellings of the tokenizer's control tokens
    raises StartupError for a source that cannot be compiled, or whose control tokens cannot be told from client text
    """

    def __init__(self, source: str, control: Sequence[str] = FAMILY_CONTROL_TOKENS) -> None:
        self._marks = Marks(control)
        environment = _environment()
        try:
            plain = environment.from_string(source)
            tree = environment.parse(source)
            self._marks.put_into(tree)
            self._template = environment.from_string(tree)
        except jinja2.TemplateError as error:
            raise StartupError(f"the chat template cannot be compiled: {error}") from None
        self._check_marks(plain)
        self.traits = self._probe_traits()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        preserve_thinking: bool | None = None,
        add_vision_id: bool = False,
    ) -> RenderedPrompt:
        """The prompt of a conversation, byte for byte what the template writes for it.

        messages   `role`, `content` (string, parts or None), `reasoning_content`, `tool_calls` with mappings as
                   arguments, as in model spec 14.1; `developer` has to be mapped to `system` before
        tools      declarations in the nested Chat form, written in insertion order
        An option that is None is left undefined in the template, which then takes its own default.
        raises RequestRejected (`invalid_prompt`) when the template refuses the conversation
        """
        variables: dict[str, object] = {
            "messages": messages,
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "add_vision_id": add_vision_id,
        }
        options = {
            "enable_thinking": enable_thinking,
            "reasoning_effort": reasoning_effort,
            "preserve_thinking": preserve_thinking,
        }
        variables |= {name: value for name, value in options.items() if value is not None}
        return self._render(variables)

    def _render(self, variables: Mapping[str, object]) -> RenderedPrompt:
        return self._marks.read(_written(self._template, variables))

    def _check_marks(self, plain: jinja2.Template) -> None:
        for benign, variables in mark_probes(self._marks.spellings):
            try:
                expected = _written(plain, variables)
            except RequestRejected:
                continue
            prompt = self._render(variables)
            if prompt.text != expected or (benign and self._marks.leaves_spelling(prompt)):
                raise StartupError(
                    "the chat template writes control tokens in a way that cannot be told from the text of a client; "
                    "write them as literals where they are output"
                )

    def _probe_traits(self) -> TemplateTraits:
        def probe(**options: bool | str) -> RenderedPrompt | None:
            try:
                return self._render(
                    {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True, **options}
                )
            except RequestRejected:
                return None

        default = probe()
        efforts = {level: probe(enable_thinking=True, reasoning_effort=level) for level in (*EFFORTS, "no such level")}
        knows_depth = len(set(efforts.values())) > 1
        return TemplateTraits(
            thinks_by_default=default is not None and default.opens_think,
            has_thinking_switch=probe(enable_thinking=True) != probe(enable_thinking=False),
            efforts=tuple(level for level in EFFORTS if knows_depth and efforts[level] is not None),
        )


def builtin_source(name: str) -> str:
    """Text of a template of ours: `qwen3_6` or `qwen3_8`."""
    return resources.files("ninfer.text.templates").joinpath(f"{name}.jinja").read_text(encoding="utf-8")


def template_source(resource: bytes) -> str:
    """The source to compile for an artifact's `chat_template.jinja`.

    Stock templates are known by their digest and replaced by our renderer of the same generation, which also takes
    later system messages and histories that begin with tool results (model spec 14.1, 14.5). Any other template stands
    as it is.
    raises StartupError when it is not UTF-8
    """
    name = STOCK_DIGESTS.get(hashlib.sha256(resource).hexdigest())
    if name is not None:
        return builtin_source(name)
    try:
        return resource.decode("utf-8")
    except UnicodeDecodeError as error:
        raise StartupError(f"the chat template is not UTF-8: {error}") from None


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the family's prompts have it: insertion order, `", "` and `": "`, nothing escaped that need not be."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _written(template: jinja2.Template, variables: Mapping[str, object]) -> str:
    try:
        if _holds_mark(variables):
            raise jinja2.TemplateError("A message holds text that is not Unicode.")
        return template.render(variables)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        # A template meets what it did not expect with any of these; it is the conversation that it cannot take.
        raise RequestRejected(f"{error}", code="invalid_prompt", param="messages") from None


def _holds_mark(value: object) -> bool:
    rest = [value]  # rather than recursion: a schema may be nested as deeply as a body may
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            if not item.isascii() and next(mark_places(item), None) is not None:
                return True
        elif isinstance(item, Mapping):
            rest += item.keys()
            rest += item.values()
        elif isinstance(item, list | tuple):
            rest += item
    return False
