"""Compiling, refusing and keeping grammars."""

from __future__ import annotations

import threading

import pytest

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
from ninfer.constraints.matcher import Reading
from ninfer.constraints.vocabulary import Vocabulary
from ninfer.errors import DeadEnd, RequestRejected
from ninfer.text.tokenizer import Tokenizer
from tests.constraints.vocabulary import TOKENIZER, at

COMPILER = Compiler(TOKENIZER)
STRICT = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


def tool(schema: object, n: int = 0) -> Tool:
    return Tool(f"f{n}", schema, strict=True, where=f"tools[{n}].function.parameters")


def of_a(part: object) -> dict[str, object]:
    return {**STRICT, "properties": {"a": part}}


def refused(constraint: Constraint) -> tuple[str | None, str | None]:
    with pytest.raises(RequestRejected) as error:
        COMPILER.compile(constraint)
    return error.value.code, error.value.param


@pytest.mark.parametrize(
    ("schema", "code", "at"),
    [
        (False, "unsatisfiable_json_schema", ""),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "unsatisfiable_json_schema", ""),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 4}]}, "unsupported_json_schema", ""),
        ({"type": "string", "format": "date"}, "unsupported_json_schema", "/format"),
        ({"type": 1}, "invalid_json_schema", "/type"),
    ],
    ids=str,
)
def test_a_schema_that_cannot_be_enforced_is_refused_at_its_place(schema: object, code: str, at: str) -> None:
    assert refused(Constraint(JsonAnswer(schema, "text.format.schema"))) == (code, f"text.format.schema{at}")


def test_what_is_beyond_the_library_is_refused_in_our_words() -> None:
    deep: object = {"type": "null"}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(RequestRejected, match="nested too deeply") as error:
        COMPILER.compile(Constraint(JsonAnswer(deep, "s")))
    assert error.value.code == "unsupported_json_schema"
    words = " | ".join(f'"word{n}"' for n in range(9000))
    with pytest.raises(RequestRejected, match="g cannot be enforced: the grammar is too large") as error:
        COMPILER.compile(Constraint(GrammarAnswer(f'root ::= "(" root ")" | {words}', "g")))
    assert error.value.code == "invalid_grammar"


def test_a_grammar_may_have_thousands_of_words() -> None:
    words = " | ".join(f'"word{n}"' for n in range(8000))
    assert at(Constraint(GrammarAnswer(f"root ::= {words}", "g")), "word7999", compiler=COMPILER).may_end


def test_a_schema_without_a_value_is_unsatisfiable() -> None:
    endless = {"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]}
    assert refused(Constraint(JsonAnswer(endless, "s"))) == ("unsatisfiable_json_schema", "s")


def test_the_message_has_the_place_as_well() -> None:
    with pytest.raises(RequestRejected, match=r"\(at output_config\.format\.schema/type\)"):
        COMPILER.compile(Constraint(JsonAnswer({"type": 1}, "output_config.format.schema")))


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"type": "object", "properties": {}}, ""),
        ({"type": "array"}, ""),
        (True, ""),
        ({**STRICT, "anyOf": [True]}, ""),
        (of_a({"type": ["string", "null"]}), "/properties/a"),
        (of_a({"anyOf": [{"type": "string"}, {"type": "integer"}]}), "/properties/a"),
        (of_a(True), "/properties/a"),
        (of_a({"type": "array", "items": {"$ref": "#"}}), "/properties/a"),
        (of_a({"oneOf": [{"type": "string"}, {"const": "x"}]}), "/properties/a/oneOf"),
        ({**STRICT, "properties": {"a>b": {"type": "null"}}}, "/properties/a>b"),
        (of_a({"type": "integer", "multipleOf": 2}), "/properties/a/multipleOf"),
    ],
    ids=str,
)
def test_a_strict_tool_that_cannot_be_enforced_is_refused_at_its_place(schema: object, at: str) -> None:
    calls = Calls((tool(STRICT), tool(schema, 1)))
    assert refused(Constraint(calls=calls)) == ("unsupported_json_schema", f"tools[1].function.parameters{at}")


@pytest.mark.parametrize("nothing", [False, {"$ref": "#/$defs/endless"}], ids=str)
def test_a_parameter_that_no_value_satisfies_is_left_out_and_must_not_be_required(nothing: object) -> None:
    endless = {"type": "array", "items": {"$ref": "#/$defs/endless"}, "minItems": 1}
    schema = {**STRICT, "$defs": {"endless": endless}, "properties": {"a": nothing, "b": {"type": "null"}}}
    calls = Constraint(calls=Calls((tool(schema),), forced=True))
    written = "<tool_call>\n<function=f0>\n<parameter={}>\nnull\n</parameter>\n</function>\n</tool_call>"
    assert at(calls, written.format("b"), compiler=COMPILER).may_end
    with pytest.raises(DeadEnd):
        at(calls, written.format("a"), compiler=COMPILER)
    needed = Constraint(calls=Calls((tool({**schema, "required": ["a"]}),)))
    assert refused(needed) == ("unsatisfiable_json_schema", "tools[0].function.parameters")


def test_a_fault_that_the_library_finds_is_told_of_the_right_tool() -> None:
    calls = Calls((tool(STRICT), tool({**of_a({"type": "integer", "minimum": 3, "maximum": 2}), "required": ["a"]}, 1)))
    assert refused(Constraint(calls=calls)) == ("unsatisfiable_json_schema", "tools[1].function.parameters")


@pytest.mark.parametrize(
    "part",
    [
        {"$ref": "#/$defs/name"},
        {"type": "string", "pattern": "^x", "maxLength": 5},
        {"oneOf": [{"const": "a"}, {"enum": ["b", ""]}]},
        {"type": "array", "items": {"$ref": "#/$defs/name"}},
        {"allOf": [{"type": ["string", "null"]}, {"type": "string"}]},
        {"type": ["integer", "boolean", "null"]},
    ],
    ids=str,
)
def test_a_strict_tool_takes_what_a_schema_can_say(part: object) -> None:
    schema = {**STRICT, "properties": {"a": part}, "$defs": {"name": {"type": "string", "minLength": 1}}}
    assert COMPILER.compile(Constraint(calls=Calls((tool(schema),), forced=True))).grammar is not None


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("root ::= foo", 1, 10),
        ('root ::= "a\n', 1, 12),
        ('x ::= "a"', 1, 10),
        ('root ::= "a"\nroot ::= "b"', 2, 1),
        ('root ::= "a" )', 1, 14),
        ("root ::= [b-a]", 1, 14),
        ("root ::= []", 1, 10),
        (r'root ::= "\q"', 1, 12),
        ("root = x", 1, 6),
        ("root ::= Token(99999999)", 1, 16),
        ('root ::= "a"{3,1}', 1, 18),
    ],
)
def test_a_fault_in_a_grammar_has_line_and_column(text: str, line: int, column: int) -> None:
    with pytest.raises(RequestRejected, match=f"line {line}, column {column}:") as error:
        COMPILER.compile(Constraint(GrammarAnswer(text, "structured_outputs.grammar")))
    assert (error.value.code, error.value.param) == ("invalid_grammar", "structured_outputs.grammar")


@pytest.mark.parametrize("text", ['root ::= root "a"', 'root ::= "a" x\nx ::= "b" x'])
def test_a_grammar_without_any_text_is_a_dead_end(text: str) -> None:
    assert refused(Constraint(GrammarAnswer(text, "g"))) == ("constraint_dead_end", "g")


@pytest.mark.parametrize(
    "pattern", ["(", "a)", "[a", "a**", "*", r"\b", r"\1", "(?=a)", "(?<!a)", r"\p{L}", r"\uD800", "x$y", "(^a)",
                "a{2,1}", r"\q", "[b-a]", "[]", "{", "a{1,9999}"],
)  # fmt: skip
def test_a_regex_that_is_malformed_or_not_supported_is_refused(pattern: str) -> None:
    assert refused(Constraint(RegexAnswer(pattern, "r"))) == ("invalid_regex", "r")


def test_a_prefix_outside_the_language_is_refused() -> None:
    compiled = COMPILER.compile(Constraint(ChoiceAnswer(("yes",), "c")))
    with pytest.raises(RequestRejected) as error:
        compiled.matcher(Reading(prefix="no"))
    assert error.value.code == "constraint_dead_end"


def test_what_is_warm_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tokenizer] = []

    def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
        made.append(tokenizer)
        return Vocabulary(tokenizer)

    monkeypatch.setattr("ninfer.constraints.compiler.Vocabulary", vocabulary)
    compiler = Compiler(TOKENIZER)
    compiler.warm()
    assert made == [TOKENIZER]
    compiler.compile(Constraint(JsonAnswer({"type": "array"}, "f")))
    assert made == [TOKENIZER]


def test_a_grammar_is_built_once() -> None:
    compiler = Compiler(TOKENIZER)
    constraint = Constraint(JsonAnswer({"type": "object"}, "f"))
    first, second = compiler.compile(constraint), compiler.compile(constraint)
    assert (first.cache, second.cache) == ("built", "hit")
    assert first.grammar is second.grammar
    assert compiler.compile(Constraint(JsonAnswer({"type": "array"}, "f"))).cache == "built"


def test_a_refused_grammar_is_not_kept_and_does_not_block_the_next() -> None:
    bad = Constraint(JsonAnswer(False, "f"))
    assert refused(bad) == refused(bad)


def test_a_full_cache_forgets_the_grammar_that_was_used_longest_ago() -> None:
    compiler = Compiler(TOKENIZER, cache_bytes=150 << 10)
    one, two, three = (Constraint(ChoiceAnswer((c,), "c")) for c in "abc")
    for constraint in (one, two, one, three):
        compiler.compile(constraint)
    assert compiler.compile(one).cache == "hit"
    assert compiler.compile(two).cache == "built"


def test_many_threads_that_want_the_same_share_one_build() -> None:
    compiler = Compiler(TOKENIZER)
    constraint = Constraint(JsonAnswer({"enum": [f"e{n}" for n in range(2000)]}, "f"))
    found, start = [], threading.Barrier(6)

    def compile_it() -> None:
        start.wait()
        found.append(compiler.compile(constraint))

    threads = [threading.Thread(target=compile_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(compiled.grammar) for compiled in found}) == 1
    assert [compiled.cache for compiled in found].count("built") == 1
