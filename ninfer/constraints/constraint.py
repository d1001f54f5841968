"""What a request asks of its output, and the grammar of it (serving spec, 6.1, 7.2 to 7.4)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ninfer.constraints import calls, gbnf
from ninfer.constraints.calls import Tool
from ninfer.constraints.characters import literal_text
from ninfer.constraints.gbnf import BadGrammar, EmptyLanguage
from ninfer.constraints.matcher import Branch
from ninfer.constraints.regex import BadRegex, whole
from ninfer.constraints.schema import SchemaError, normalised
from ninfer.errors import RequestRejected
from ninfer.text.prompt import TOOL_CALL_OPEN

# Where only one text can follow, the library would leave only its usual tokens, and change what is drawn (6.2).
_ALL_SPELLINGS = '%llguidance {"no_forcing": true}\n'
_COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}
_TEXT = f"TEXT: /(?s:.+)/ & ~/(?s:.*){literal_text(TOOL_CALL_OPEN)}(?s:.*)/"


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """JSON that satisfies a schema; `where` is the request field that holds it."""

    schema: object = field(repr=False)
    where: str


@dataclass(frozen=True, slots=True)
class GrammarAnswer:
    """A text of a GBNF grammar."""

    text: str = field(repr=False)
    where: str


@dataclass(frozen=True, slots=True)
class RegexAnswer:
    """A text that a regular expression matches from end to end."""

    pattern: str = field(repr=False)
    where: str


@dataclass(frozen=True, slots=True)
class ChoiceAnswer:
    """One of several texts."""

    options: tuple[str, ...] = field(repr=False)
    where: str


Answer = JsonAnswer | GrammarAnswer | RegexAnswer | ChoiceAnswer


@dataclass(frozen=True, slots=True)
class Calls:
    """Tool calls that are held to their form.

    forced     whether there must be one; without it the answer may be text, or what `Constraint.answer` says
    most_one   whether there is at most one
    """

    tools: tuple[Tool, ...]
    forced: bool = False
    most_one: bool = False


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the output is held to behind the thinking; with both it is one or the other, and the first byte decides."""

    answer: Answer | None = None
    calls: Calls | None = None

    @property
    def kind(self) -> str | None:
        """As the request log has it: what the answer is held to, or `tools` where only calls are (spec 16.3)."""
        match self.answer:
            case JsonAnswer(_, where):
                return "json_schema" if where.endswith(".schema") else "json_object"
            case GrammarAnswer():
                return "grammar"
            case RegexAnswer():
                return "regex"
            case ChoiceAnswer():
                return "choice"
        return "tools" if self.calls is not None else None

    @property
    def forces_calls(self) -> bool:
        """Whether the answer is calls and nothing else."""
        return self.calls is not None and self.calls.forced

    @property
    def is_exclusive(self) -> bool:
        """Whether the answer is constrained text or calls, never both."""
        return self.calls is not None and not self.calls.forced and self.answer is not None


def branch_of(constraint: Constraint) -> Branch:
    """What the answer can be before it begins."""
    if constraint.calls is None:
        return Branch.CONTENT
    return Branch.TOOLS if constraint.calls.forced else Branch.UNDECIDED


def lark(constraint: Constraint, is_ordinary: Callable[[int], bool]) -> str:
    """The grammar in the library's notation; raises RequestRejected for one that cannot be enforced.

    is_ordinary   whether an id is that of a token that a grammar may name
    """
    answer, called = constraint.answer, constraint.calls
    parts: list[str] = []
    entries: list[str] = []
    if called is not None:
        parts.append(_calls(called))
        entries.append("calls")
    if answer is not None and not constraint.forces_calls:
        entry, rules = _answer(answer, is_ordinary)
        parts.append(rules)
        entries.append(entry)
    elif called is not None and not called.forced:
        entries = ["TEXT? calls?"]
        parts.append(_TEXT + "\n")
    return "".join((_ALL_SPELLINGS, f"start: {' | '.join(entries)}\n", *parts))


def _calls(called: Calls) -> str:
    for tool in called.tools:  # each alone first, so that an error is known to be of that tool
        try:
            calls.lark((tool,), most_one=True)
        except SchemaError as error:
            raise error.rejection(tool.where) from None
    return calls.lark(called.tools, most_one=called.most_one)


def _answer(answer: Answer, is_ordinary: Callable[[int], bool]) -> tuple[str, str]:
    match answer:
        case JsonAnswer(schema, where):
            try:
                checked = normalised(schema)
            except SchemaError as error:
                raise error.rejection(where) from None
            document: object = {**checked, "x-guidance": _COMPACT} if isinstance(checked, Mapping) else checked
            if document is True:
                document = {"x-guidance": _COMPACT}
            return "json", f"json: %json {json.dumps(document, ensure_ascii=False)}\n"
        case GrammarAnswer(text, where):
            try:
                return "gbnf", gbnf.lark(text, is_ordinary)
            except BadGrammar as error:
                raise RequestRejected(f"{where}: {error}", code="invalid_grammar", param=where) from None
            except EmptyLanguage as error:
                raise RequestRejected(f"{where}: {error}", code="constraint_dead_end", param=where) from None
        case RegexAnswer(pattern, where):
            try:
                return "REGEX", f"REGEX: /{whole(pattern)}/\n"
            except BadRegex as error:
                raise RequestRejected(f"{where}: {error}", code="invalid_regex", param=where) from None
        case ChoiceAnswer(options):
            return "CHOICE", f"CHOICE: /{'|'.join(f'(?:{literal_text(option)})' for option in options)}/\n"


__all__ = [
    "Answer",
    "Calls",
    "ChoiceAnswer",
    "Constraint",
    "GrammarAnswer",
    "JsonAnswer",
    "RegexAnswer",
    "Tool",
    "branch_of",
    "lark",
]
