"""The masks against what they have to be: every id of a small vocabulary tried, and what random drawing writes."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.constraints.calls import Tool
from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import (
    Calls,
    ChoiceAnswer,
    Constraint,
    GrammarAnswer,
    JsonAnswer,
    RegexAnswer,
)
from ninfer.constraints.matcher import EARLY_CLOSE, Branch, Reading, Stage, effective_budget
from ninfer.errors import DeadEnd
from ninfer.text.output import ContentDelta, OutputParser, ToolCallArguments, ToolCallStarted, ToolUse
from ninfer.text.tool_values import DeclaredTools
from tests.constraints.vocabulary import STOPS, TOKENIZER, at, ids_of, legal_by_trial, write

COMPILER = Compiler(TOKENIZER)
CHOICES = ("yes", "yes, but", "no", "")
CHOICE = Constraint(ChoiceAnswer(CHOICES, "structured_outputs.choice"))
WHERE = "response_format.json_schema.schema"


def json_answer(schema: object) -> Constraint:
    return Constraint(JsonAnswer(schema, WHERE))


@pytest.mark.parametrize("text", ["", "y", "yes", "yes,", "yes, but", "no", "n"])
def test_a_choice_leaves_exactly_the_ids_that_go_on_or_end(text: str) -> None:
    legal = legal_by_trial(text, lambda t: any(c.startswith(t) for c in CHOICES), lambda t: t in CHOICES)
    matcher = at(CHOICE, text, compiler=COMPILER)
    assert ids_of(matcher.mask()) == legal
    assert matcher.may_end == (text in CHOICES)


@pytest.mark.parametrize("text", ["", "a", "ab", "abb", "7"])
def test_a_regex_leaves_exactly_the_ids_that_go_on_or_end(text: str) -> None:
    def begins(t: str) -> bool:
        return any(re.fullmatch(r"ab{0,2}|\d", t + rest) for rest in ("", "b", "bb"))

    legal = legal_by_trial(text, begins, lambda t: bool(re.fullmatch(r"ab{0,2}|\d", t)))
    assert ids_of(at(Constraint(RegexAnswer(r"ab{0,2}|\d", "r")), text, compiler=COMPILER).mask()) == legal


def balanced(text: str) -> int | None:
    """How many brackets are open behind the text; None if it begins no text of the grammar."""
    opened, closed = text.count("("), text.count(")")
    fits = re.fullmatch(r"\(*x?\)*", text) and ("x" in text or not closed) and closed <= opened
    return opened - closed if fits else None


@pytest.mark.parametrize("text", ["", "(", "((", "((x", "((x)", "((x))", "x"])
def test_a_recursive_grammar_leaves_exactly_the_ids_that_go_on_or_end(text: str) -> None:
    grammar = Constraint(GrammarAnswer('root ::= "(" root ")" | "x"', "g"))
    legal = legal_by_trial(text, lambda t: balanced(t) is not None, lambda t: balanced(t) == 0 and "x" in t)
    assert ids_of(at(grammar, text, compiler=COMPILER).mask()) == legal


def test_a_grammar_reads_character_by_character_not_longest_first() -> None:
    """`enxend` begins like the literal `end` and is not it; so it has to go on as letters."""
    for root in ('root ::= [a-z]* "end"', 'root ::= x "end"\nx ::= "" | [a-z] x'):
        matcher = at(Constraint(GrammarAnswer(root, "g")), "enxend", compiler=COMPILER)
        assert matcher.may_end
        assert at(Constraint(GrammarAnswer(root, "g")), "en", compiler=COMPILER).may_end is False


def test_a_grammar_may_name_tokens() -> None:
    first, second = TOKENIZER.encode("a")[0], TOKENIZER.encode("b")[0]
    grammar = Constraint(GrammarAnswer(f"root ::= Token({first}, {second}) ExcludeToken({first})", "g"))
    matcher = COMPILER.compile(grammar).matcher(Reading())
    assert ids_of(matcher.mask()) == {first, second}
    matcher.advance([first])
    ordinary = {n for n in range(TOKENIZER.id_count) if not TOKENIZER.is_control(n)}
    assert ids_of(matcher.mask()) == ordinary - {first}
    matcher.advance([second])
    assert ids_of(matcher.mask()) == set(STOPS)


def test_control_tokens_are_never_legal_in_an_answer() -> None:
    control = set(TOKENIZER.control_ids.values()) - STOPS
    assert not ids_of(at(json_answer(True), '"', compiler=COMPILER).mask()) & control


class Planet(msgspec.Struct, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(max_length=24)]
    moons: Annotated[int, msgspec.Meta(ge=0, le=999)]
    ringed: bool
    next: Planet | None
    tags: Annotated[list[Annotated[str, msgspec.Meta(pattern="[0-9]", max_length=8)]], msgspec.Meta(max_length=2)] = []


PLANET = {
    "$defs": {
        "planet": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 24},
                "moons": {"type": "integer", "minimum": 0, "maximum": 999},
                "ringed": {"type": "boolean"},
                "next": {"anyOf": [{"$ref": "#/$defs/planet"}, {"type": "null"}]},
                "tags": {"type": "array", "maxItems": 2, "items": {"type": "string", "pattern": "\\d", "maxLength": 8}},
            },
            "required": ["name", "moons", "ringed", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/planet",
}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 30))
def test_what_is_written_under_a_schema_satisfies_it(seed: int) -> None:
    text = write(COMPILER.compile(json_answer(PLANET)).matcher(Reading()), seed)
    planet = msgspec.json.decode(text, type=Planet)
    assert planet.moons <= 999
    assert re.search(r"[\[{,:] ", re.sub(r'"(\\.|[^"\\])*"', '""', text)) is None, "separators are compact"


def test_a_schema_may_have_a_thousand_properties_of_which_any_may_be_missing() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "integer"} for n in range(1000)}}
    matcher = at(json_answer(schema), '{"p3":12,"p997":3,"other":null}', compiler=COMPILER)
    matcher.mask()
    assert matcher.may_end


def test_a_value_that_could_never_end_is_not_begun() -> None:
    endless = {"type": "array", "items": {"$ref": "#/$defs/endless"}, "minItems": 1}
    leaf = {"anyOf": [{"$ref": "#/$defs/endless"}, {"type": "null"}]}
    schema = {"$defs": {"endless": endless}, "type": "object", "properties": {"a": endless, "b": leaf}}
    compiled = COMPILER.compile(json_answer({**schema, "required": ["b"], "additionalProperties": False}))
    assert {write(compiled.matcher(Reading()), seed) for seed in range(5)} == {'{"b":null}'}


THINKING = Reading(opens_think=True)


def test_thinking_is_free_and_ends_only_by_its_closing_token() -> None:
    matcher = at(CHOICE, 'Is it "no"?\n', THINKING, compiler=COMPILER)
    legal = ids_of(matcher.mask())
    ordinary = {n for n in range(TOKENIZER.id_count) if not TOKENIZER.is_control(n)}
    close = TOKENIZER.control_id("</think>")
    assert legal == ordinary | {close}
    assert not matcher.may_end
    matcher.advance([close])
    for token_id in TOKENIZER.encode("\n\n"):
        assert ids_of(matcher.mask()) == {token_id}
        matcher.advance([token_id])
    assert ids_of(matcher.mask()) == ids_of(at(CHOICE, "", compiler=COMPILER).mask())


def test_the_closing_marker_cannot_be_spelled_out() -> None:
    matcher = at(CHOICE, "", THINKING, compiler=COMPILER)
    matcher.advance(TOKENIZER.encode("a </think"))
    bracket = TOKENIZER.encode(">")[0]
    assert bracket not in ids_of(matcher.mask())
    matcher.advance(TOKENIZER.encode("er"))
    assert bracket in ids_of(matcher.mask())


def test_behind_every_id_of_thinking_that_does_not_halt_the_mask_is_the_same() -> None:
    compiled = COMPILER.compile(CHOICE)
    free = compiled.matcher(THINKING)
    mask, halts = free.mask(), ids_of(free.halts)
    assert free.free > 1 << 20
    for token in ids_of(mask):
        matcher = compiled.matcher(THINKING)
        matcher.advance([token])
        assert matcher.mask() == mask or token in halts, token
        assert (matcher.free > 0) == (token not in halts), token
    assert {TOKENIZER.control_id("</think>"), TOKENIZER.encode("<")[0]} <= halts <= ids_of(mask)


def test_thinking_is_free_again_when_what_began_like_its_marker_goes_on_otherwise() -> None:
    matcher = at(CHOICE, "a </th", THINKING, compiler=COMPILER)
    assert matcher.free == 0
    matcher.advance(TOKENIZER.encode("e"))
    assert matcher.free > 0


def test_an_answer_is_not_free_and_thinking_is_up_to_its_budget() -> None:
    reading = Reading(opens_think=True, thinking_budget=3, max_tokens=1000)
    matcher = COMPILER.compile(CHOICE).matcher(reading)
    for left in (3, 2, 1):
        assert matcher.free == left
        matcher.advance(TOKENIZER.encode("a")[:1])
    assert matcher.stage is Stage.CLOSING
    assert matcher.free == 0
    assert at(CHOICE, "", compiler=COMPILER).free == 0


def test_a_budget_closes_the_thinking_with_its_own_words() -> None:
    reading = Reading(opens_think=True, thinking_budget=3, max_tokens=1000)
    matcher = COMPILER.compile(CHOICE).matcher(reading)
    thought = TOKENIZER.encode("abc")[:1] * 3
    matcher.advance(thought)
    written = list[int]()
    while matcher.stage is Stage.CLOSING:
        (forced,) = ids_of(matcher.mask())
        written.append(forced)
        matcher.advance([forced])
    assert TOKENIZER.decode(written) == EARLY_CLOSE
    assert ids_of(matcher.mask()) == ids_of(at(CHOICE, "", compiler=COMPILER).mask())


@pytest.mark.parametrize(
    ("budget", "producible", "expected"),
    [(100, 100, 100), (100, 50, 100), (100, 126, 100), (100, 125, 99), (100, 101, 75), (10, 26, None), (10, 27, 1)],
)
def test_a_budget_leaves_room_for_the_close(budget: int, producible: int, expected: int | None) -> None:
    assert effective_budget(budget, producible, 26) == expected


def test_a_free_answer_behind_a_budget_has_no_masks() -> None:
    matcher = COMPILER.compile(Constraint()).matcher(Reading(opens_think=True, thinking_budget=5))
    assert ids_of(matcher.mask())
    matcher.advance([TOKENIZER.control_id("</think>"), *TOKENIZER.encode("\n\n")])
    assert matcher.is_free
    assert matcher.mask() is None


def test_a_prefix_is_part_of_the_answer() -> None:
    matcher = COMPILER.compile(CHOICE).matcher(Reading(prefix="ye"))
    assert ids_of(matcher.mask()) == ids_of(at(CHOICE, "ye", compiler=COMPILER).mask())


def test_an_illegal_id_is_a_dead_end() -> None:
    with pytest.raises(DeadEnd):
        at(CHOICE, "maybe", compiler=COMPILER)


FILE = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "enum": ["a.txt", "b.txt"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 99}, "maxItems": 3},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["path", "lines"],
    "additionalProperties": False,
}
READ = Tool("read_file", FILE, strict=True, where="tools[0].function.parameters")
FREE = Tool("search", {"type": "object", "properties": {}}, strict=False, where="tools[1].function.parameters")
DECLARED = DeclaredTools(
    [{"type": "function", "function": {"name": t.name, "parameters": t.schema}} for t in (READ, FREE)]
)


class Arguments(msgspec.Struct, forbid_unknown_fields=True):
    path: Annotated[str, msgspec.Meta(pattern=r"^[ab]\.txt$")]
    lines: Annotated[list[Annotated[int, msgspec.Meta(ge=1, le=99)]], msgspec.Meta(max_length=3)]
    note: Annotated[str, msgspec.Meta(max_length=12)] = ""


def parsed(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls (name, arguments) as a client gets them."""
    parser = OutputParser(
        lambda n: b"", stop_ids=STOPS, opens_think=False, tool_use=ToolUse(DECLARED, lambda: "call_1")
    )
    deltas = [*parser.feed_bytes([text.encode()]), *parser.finish(own_stop=True)]
    content, calls = "", list[tuple[str, str]]()
    for delta in deltas:
        match delta:
            case ContentDelta(text):
                content += text
            case ToolCallStarted():
                calls.append((delta.name, ""))
            case ToolCallArguments():
                calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
    return content, calls


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1 << 30))
def test_forced_strict_calls_are_read_back_with_valid_arguments(seed: int) -> None:
    matcher = COMPILER.compile(Constraint(calls=Calls((READ,), forced=True))).matcher(Reading())
    content, calls = parsed(write(matcher, seed))
    assert content == ""
    assert calls
    for name, arguments in calls:
        assert name == "read_file"
        msgspec.json.decode(arguments, type=Arguments)
    assert matcher.branch is Branch.TOOLS


def test_at_most_one_call_ends_behind_the_first() -> None:
    values = "<parameter=path>\na.txt\n</parameter>\n<parameter=lines>\n[1, 2]\n</parameter>\n"
    call = f"<tool_call>\n<function=read_file>\n{values}</function>\n</tool_call>"
    one = at(Constraint(calls=Calls((READ,), forced=True, most_one=True)), call, compiler=COMPILER)
    assert ids_of(one.mask()) == set(STOPS)
    several = at(Constraint(calls=Calls((READ,), forced=True)), call, compiler=COMPILER)
    assert ids_of(several.mask()) > set(STOPS)


def test_a_forced_call_begins_with_the_opener_and_a_declared_name() -> None:
    matcher = at(Constraint(calls=Calls((READ, FREE), forced=True)), "", compiler=COMPILER)
    assert ids_of(matcher.mask()) == {TOKENIZER.control_id("<tool_call>")}
    matcher.advance(TOKENIZER.encode_with_control("<tool_call>\n<function="))
    starts = {TOKENIZER.token_bytes(n)[:1] for n in ids_of(matcher.mask())}
    assert starts == {b"r", b"s"}


def test_unforced_calls_may_follow_text_or_not_come_at_all() -> None:
    free = Constraint(calls=Calls((READ, FREE)))
    matcher = at(free, "Let me look.", compiler=COMPILER)
    assert matcher.may_end
    opener = TOKENIZER.control_id("<tool_call>")
    assert opener in ids_of(matcher.mask())
    matcher.advance([opener])
    assert (matcher.may_end, matcher.branch) == (False, Branch.TOOLS)


def test_json_or_calls_is_decided_by_the_first_id() -> None:
    both = Constraint(JsonAnswer({"type": "object"}, WHERE), Calls((READ,)))
    undecided = at(both, "", compiler=COMPILER)
    assert undecided.branch == "undecided"
    opener = TOKENIZER.control_id("<tool_call>")
    legal = ids_of(undecided.mask())
    assert opener in legal
    assert {TOKENIZER.token_bytes(n)[:1] for n in legal - {opener}} == {b"{"}
    answered = at(both, '{"a":', compiler=COMPILER)
    assert answered.branch is Branch.CONTENT
    assert opener not in ids_of(answered.mask())


def test_a_raw_value_cannot_hold_the_tags_of_the_markup() -> None:
    schema = {
        "type": "object",
        "properties": {"s": {"type": "string"}},
        "required": ["s"],
        "additionalProperties": False,
    }
    tool = Tool("f", schema, strict=True, where="w")
    begun = "<tool_call>\n<function=f>\n<parameter=s>\nx <parameter"
    matcher = at(Constraint(calls=Calls((tool,), forced=True)), begun, compiler=COMPILER)
    assert TOKENIZER.encode("=")[0] not in ids_of(matcher.mask())
