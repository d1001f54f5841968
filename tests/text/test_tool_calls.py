"""Calls in the answer: the forms that are calls, what stays text, and what becomes of the values."""

from __future__ import annotations

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.text.output import ContentDelta, OutputParser, ToolCallArguments, ToolCallStarted, ToolUse
from ninfer.text.tool_arguments import HELD_CHARACTERS_MAX
from ninfer.text.tool_values import DeclaredTools
from tests.text.calling import STRING, TOOLS, Result, call, read, read_pieces, tool

READ = call("read", path="a.txt")
WROTE = '{"path": "a.txt"}'


def arguments(result: Result, n: int = 0) -> object:
    _, text, ended = result.calls[n]
    assert ended
    return json.loads(text)


def test_the_canonical_form() -> None:
    result = read("Let me look.\n\n" + READ)
    assert (result.content, result.calls) == ("Let me look.", (("read", WROTE, True),))
    assert result.seen is not None
    assert (result.seen.marker_seen, result.seen.structured_call_count, result.seen.fallback_reason) == (
        True,
        1,
        "none",
    )
    assert result.seen.discarded_bytes == 0


def test_without_declared_tools_markup_is_text() -> None:
    result = read("Hm.\n" + READ + " \n", tools=())
    assert (result.content, result.calls, result.seen) == ("Hm.\n" + READ + " \n", (), None)


@pytest.mark.parametrize(
    "text",
    [
        "Compare a<b and c<d. A <tool box> is no call, nor is <tool_ca or <function name.\nDone <",
        "trailing white \n\n",
        "<tool_call>",
        "<tool_call>\n",
        "<tool_call> prose",
        "<tool_call>\n<function=",
        "<tool_call>\n<function=re",
        "<tool_call>\n<function=read me>\n</function>\n</tool_call>",
        "<tool_call>\n<function=" + "x" * 129 + ">\n</function>\n</tool_call>",
        "<tool_call>\n<function=" + "x" * 400 + ">\n</function>\n</tool_call>",
        "<tool_call>\n<function=read\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call><tool_call> ",
        "a <function=read> b",
        "<function=read>\n",
        "<function=nope>\n<parameter=path>\na\n</parameter>\n</function>",
        "<function_calls>\n prose",
        "<function_calls>\n<function=nope>",
        "<function_calls>",
        "</tool_call></function></parameter></function_calls>",
        '<parameter name="x"/><function id="3"><invoke name=read>',
        "<tool_call>\n{not json}\n</tool_call>",
        '<tool_call>\n{"name": "read", "arguments": {}} tail',
        '<tool_call>\n{"name": "read", "arguments": {}}',
        '<tool_call>\n{"name": "read", "arguments": {"a": ]}}',
        '<tool_call>\n{"name": "read", "arguments": [1]}\n</tool_call>',
        '<tool_call>\n{"name": "read", "arguments": "[1]"}\n</tool_call>',
        '<tool_call>\n{"name": "read", "arguments": ""}\n</tool_call>',
        '<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": 5, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "read", "parameters": {}}\n</tool_call>',
        '<tool_call>\n{"name": "read", "arguments": {"n": NaN}}\n</tool_call>',
        '<tool_call>\n{"name": "re',
        call("nope", path="a"),
        call("nope", path=f"quoting\n{READ}\nin full"),
        "<tool_call>\n<function=nope>\n<parameter=path>\ncut",
    ],
)
@pytest.mark.parametrize("own_stop", [True, False])
def test_what_is_no_call_is_text_to_the_letter(text: str, own_stop: bool) -> None:
    result = read(text, own_stop=own_stop)
    assert (result.content, result.calls) == (text, ())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("plain", "none"),
        ("<tool_call> x", "malformed_structure"),
        ("<tool_call><function=a b>", "invalid_tool_name"),
        ("<tool_call><function=ab\n", "invalid_tool_name"),
        (call("nope"), "undeclared_tool"),
        ("<tool_call>{}</tool_call>", "malformed_structure"),
        ('<tool_call>{"name": "nope"}</tool_call>', "undeclared_tool"),
        ("<tool_call> x <tool_call><function=a b>", "malformed_structure"),
    ],
)
def test_the_first_reason_is_noted(text: str, reason: str) -> None:
    seen = read(text).seen
    assert seen is not None
    assert (seen.fallback_reason, seen.marker_seen) == (reason, reason != "none")


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call><function=read><parameter=path>a.txt</parameter></function></tool_call>",
        " \n<tool_call> \n <function=read> \n <parameter=path>\na.txt\n</parameter> \n </function> \n </tool_call> \n",
        "<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>",
        "<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>",
        "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>",
        "<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</tool_call>",
        f"<function_calls>\n{READ}\n</function_calls>",
        '<function_calls>\n<invoke name="read">\n<param name="path">a.txt</param>\n</invoke>\n</function_calls>',
        "<invoke name='read'><param name='path'>\na.txt\n</param></invoke>",
        '<function name="read"><param name="path" string="true">\na.txt\n</param></function>',
        '<tool_call><invoke name = "read"><parameter name="path">a.txt</parameter></invoke></tool_call>',
        '<tool_call>\n{"name": "read", "arguments": {"path": "a.txt"}}\n</tool_call>',
        '<tool_call>{"arguments": "{\\"path\\":\\"a.txt\\"}", "name": "read"}</tool_call>',
        '<function_calls><tool_call>{"name":"read","arguments":{"path":"a.txt"}}</tool_call></function_calls>',
    ],
)
def test_every_accepted_form(text: str) -> None:
    result = read(text)
    assert (result.content, result.calls) == ("", (("read", WROTE, True),))
    assert result.seen is not None
    assert (result.seen.discarded_bytes, result.seen.fallback_reason) == (0, "none")
    assert result.seen.incomplete_calls == 0


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=list_jobs>\n</function>\n</tool_call>",
        "<tool_call>\n<function=list_jobs>\n</tool_call>",
        "<tool_call><function=list_jobs></function>",
        "<function=list_jobs></function>",
        '<tool_call>{"name": "list_jobs"}</tool_call>',
        '<tool_call>{"name": "list_jobs", "arguments": null, "id": 3, "type": "x"}</tool_call>',
        '<tool_call>{"name": "list_jobs", "arguments": "null"}</tool_call>',
    ],
)
def test_a_call_without_arguments_has_an_empty_object(text: str) -> None:
    assert read(text).calls == (("list_jobs", "{}", True),)


@pytest.mark.parametrize("between", ["", "\n", "\n\n", "</tool_call>", "\nAnd then:\n"])
def test_several_calls(between: str) -> None:
    result = read(f"Both.\n{READ}{between}{call('list_jobs')}{between}{READ}")
    assert [name for name, *_ in result.calls] == ["read", "list_jobs", "read"]
    assert result.content == "Both."
    assert result.seen is not None
    assert result.seen.discarded_bytes == 2 * len("".join(between.split()).encode())


def test_bare_calls_follow_each_other_but_not_prose() -> None:
    bare = "<function=list_jobs>\n</function>"
    assert len(read(f"{bare}\n{bare}</tool_call>\n{bare}").calls) == 3
    assert len(read(f"{bare}\nas in\n{bare}").calls) == 1
    assert len(read(f"<function_calls>{bare}{bare}</function_calls> so {READ}").calls) == 3


def test_behind_a_call_everything_else_is_dropped_and_counted() -> None:
    result = read(READ + "\n That is é. <tool_call> no\n" + call("nope", path="x") + " \n")
    assert (result.content, result.calls) == ("", (("read", WROTE, True),))
    assert result.seen is not None
    behind = "That is é. <tool_call> no" + call("nope", path="x")
    assert result.seen.discarded_bytes == len("".join(behind.split()).encode())


def test_what_stands_between_parameters_is_dropped_and_counted() -> None:
    text = (
        "<tool_call>\n<function=write>\nfirst\n</invoke>\n<parameter=path>\na\n</parameter>\n<parameter=lost\nx\n</parameter>\n"
        "<parameter=content>\nb\n</parameter>\n</function>\n</tool_call>\n" + READ
    )
    result = read(text)
    assert result.calls == (("write", '{"path": "a", "content": "b"}', True), ("read", WROTE, True))
    assert result.seen is not None
    assert result.seen.discarded_bytes == len("first</invoke><parameter=lostx</parameter>")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "\n",
        "\n\n\n",
        "  two spaces each  ",
        '{"a": 1}',
        "null",
        "007",
        "line\r\nline\r\n",
        'tab\t "quote" back\\slash / \u2028 \u0001 \x7f 🧪 é',
        "mentions </parameter> and </function></tool_call> in a line",
        "</parameter>",
        "</parameter>\n</parameter>",
        "</parameter>\n</tool_call>\nand on",
        "</parameter></invoke>",
        "</param>",
        "</function>\n</tool_call>",
        "<parameter=city>",
        "<parameter=city>\nwithout a partner",
        "<parameter=a>\n<parameter=b>",
        "<parameter=a>\none\n</parameter>\ntwo",
        "<parameter=a>one</parameter> <parameter=b>two</parameter>",
        "<parameter=not closed\n",
        "<parameter name='x'>1</parameter>\n<parameter name='y'>2</parameter>\n",
        "<parameter name='x'/>",
        "<parameter>1</parameter>\n<parameter>2</parameter>",
        "<function=f> and <parameter=k> as words",
        "</function>",
        "<function=f>\n</function> balanced",
        READ,
        f"Example:\n{READ}\n{READ}\nEnd.",
        f"```\n{call('write', path='x', content='y')}\n```",
        call("write", path="x", content=READ),
        '<tool_call>\n{"name": "read"}\n</tool_call>',
        "x" * 500,
    ],
)
def test_a_string_comes_back_as_it_was_written(value: str) -> None:
    text = call("write", path="p", content=value) + "\n" + call("list_jobs")
    result = read(text)
    assert arguments(result) == {"path": "p", "content": value}
    assert [name for name, *_ in result.calls] == ["write", "list_jobs"]


def test_a_full_mention_of_the_openers_ends_with_the_turn() -> None:
    """The closers could be the example's own; only that nothing follows tells that they are the call's."""
    value = "Write <tool_call>, <function=NAME>, <parameter=KEY>."
    text = call("write", content=value)
    assert arguments(read(text)) == {"content": value}
    cut = read(text, own_stop=False)
    assert not cut.calls[0][2]
    assert cut.seen is not None
    assert cut.seen.incomplete_calls == 1


def test_an_unmatched_opener_takes_what_follows_up_to_the_closer_of_the_function() -> None:
    result = read(call("write", content="opener\n<parameter=city>\nalone", path="p"))
    inside = "opener\n<parameter=city>\nalone\n</parameter>\n<parameter=path>\np"
    assert arguments(result) == {"content": inside}


@pytest.mark.parametrize(
    ("key", "raw", "text"),
    [
        ("n", "5", "5"),
        ("n", " 9007199254740993 ", "9007199254740993"),
        ("n", "1" * 5000, "1" * 5000),
        ("n", "-0.50e+1", "-0.50e+1"),
        ("n", '"5"', '"5"'),
        ("n", "null", "null"),
        ("n", "2031-05-09", '"2031-05-09"'),
        ("n", "NaN", '"NaN"'),
        ("n", "1, 2", '"1, 2"'),
        ("n", "True", '"True"'),
        ("b", "True", "true"),
        ("b", " FALSE\n", "false"),
        ("b", "1", "1"),
        ("b", "yes", '"yes"'),
        ("o", '{"a": [true, null, 1.50]}', '{"a": [true, null, 1.50]}'),
        ("o", '{"a": "two\nlines"}', '{"a": "two\\nlines"}'),
        ("o", "{'a': 1}", "\"{'a': 1}\""),
        ("o", "none", '"none"'),
        ("a", '[1, "\\ud800"]', '[1, "\\ud800"]'),
        ("a", "[" * 5000, '"' + "[" * 5000 + '"'),
        ("a", "5", "5"),
        ("s", "5", '"5"'),
        ("x", "5", "5"),
        ("x", " five ", '" five "'),
        ("x", "", '""'),
        ("x", '{"a": "two\nlines"}', '"{\\"a\\": \\"two\\nlines\\"}"'),
        ("k y", "1", "1"),
        ('k"', "1", "1"),
        ("ключ", "1", "1"),
    ],
)
def test_values_by_their_declared_type(key: str, raw: str, text: str) -> None:
    result = read(f"<tool_call>\n<function=mix>\n<parameter={key}>\n{raw}\n</parameter>\n</function>", cuts=[40, 60])
    assert result.calls == (("mix", f"{{{json.dumps(key, ensure_ascii=False)}: {text}}}", True),)
    assert result.seen is not None
    misfits = key in ("n", "b", "o", "a") and text.startswith('"') and not raw.startswith('"')
    assert result.seen.schema_mismatch_arguments == misfits


def test_an_empty_block_leaves_a_parameter_out_that_is_no_string() -> None:
    result = read(call("mix", n=" ", s="", b="true", x=""))
    assert result.calls == (("mix", '{"s": "", "b": true, "x": ""}', True),)
    assert result.seen is not None
    assert result.seen.empty_arguments_omitted == 1


def test_a_repeated_key_has_its_last_value_at_its_first_place() -> None:
    text = call("write", path="one", content="c").replace(
        "</function>", "<parameter=path>\ntwo\n</parameter>\n</function>"
    )
    result = read(text)
    assert result.calls == (("write", '{"path": "two", "content": "c"}', True),)
    assert result.seen is not None
    assert result.seen.duplicate_parameters_repaired == 1


def test_a_repeated_key_in_the_json_form() -> None:
    result = read('<tool_call>{"name": "read", "arguments": {"path": 1, "n": 2, "path": 1e400}}</tool_call>')
    assert result.calls == (("read", '{"path": 1e400, "n": 2}', True),)
    assert result.seen is not None
    assert result.seen.duplicate_parameters_repaired == 1


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ('{"s": "</tool_call> \\" \\\\ {["}', '{"s": "</tool_call> \\" \\\\ {["}'),
        ('{"s": "two\nlines"}', '{"s": "two\\nlines"}'),
        ('{"s": "\\ud83e\\uddea é \\ud800"}', '{"s": "\\ud83e\\uddea \\u00e9 \\ud800"}'),
        (
            '{"a":[1,{"b":null}],"t":true,"n":12345678901234567890}',
            '{"a": [1, {"b": null}], "t": true, "n": 12345678901234567890}',
        ),
        ("{}", "{}"),
    ],
)
def test_arguments_of_the_json_form(inside: str, text: str) -> None:
    body = f'<tool_call>\n{{"name": "mix", "arguments": {inside}}}\n</tool_call>'
    assert read(body).calls == (("mix", text, True),)


def test_json_that_is_nested_too_deeply_is_text() -> None:
    text = '<tool_call>{"name": "mix", "arguments": {"a": ' + "[" * 300 + "]" * 300 + "}}</tool_call>"
    assert read(text, cuts=[20, 400]).content == text


@pytest.mark.parametrize(
    "text",
    [
        f"Write `{READ}` so.",
        f"```xml\n{READ}\n```\nThat is all.",
        f"~~~\n{READ}\n~~~",
        f"``a ` b {READ}`` end",
        f"- so:\n\n    ````\n    ```\n    {READ}\n    ````\n",
        f"```\n{READ}",
        f"`a\n<function=read>\n<parameter=path>\n{READ}",
    ],
)
def test_quoted_examples_are_text(text: str) -> None:
    if text.startswith("`a\n"):
        text = text[: text.index("<tool_call>")] + "`"
    assert (read(text).content, read(text).calls) == (text, ())


@pytest.mark.parametrize(
    "before",
    [
        "Use `<tool_call>` now.",
        "```\nexample: <tool_call>\n```",
        "``` a `` b ```",
        "A stray ` here.",
        "```js` is odd",
        "~~~\n``` ~~~\n~~~~",
        "a ~~~ b",
    ],
)
def test_a_call_behind_quoted_examples_is_a_call(before: str) -> None:
    result = read(f"{before}\n\n{READ}")
    assert (result.content, result.calls) == (before, (("read", WROTE, True),))


def test_an_example_behind_a_call_is_none() -> None:
    assert len(read(f"{READ}\nLike `{READ}`.\n```\n{READ}\n```").calls) == 1


@pytest.mark.parametrize(
    ("cut", "arguments_text"),
    [
        (
            "<parameter=content>\nINSERT INTO t VALUES (1);\nINSERT IN",
            '{"path": "p", "content": "INSERT INTO t VALUES (1);\\nINSERT IN',
        ),
        ("<parameter=content>\nshort\n", '{"path": "p", "content": "short'),
        ("<parameter=content>\nshort</para", '{"path": "p", "content": "short'),
        ("<parameter=content>\nshort\n</parameter>\n", '{"path": "p", "content": "short"'),
        ("<parameter=content>\nshort\n</parameter>\n</func", '{"path": "p", "content": "short"'),
        ("<parameter=content>\na <parameter=k> b\n</parameter>\n", '{"path": "p", "content": "a <parameter=k> b'),
        ("<parameter=content>", '{"path": "p", "content": "'),
        ("<parameter=n>\n12", '{"path": "p"'),
        ("", '{"path": "p"'),
    ],
)
@pytest.mark.parametrize("own_stop", [True, False])
def test_a_cut_call_stays_open(cut: str, arguments_text: str, own_stop: bool) -> None:
    head = "<tool_call>\n<function=write>\n<parameter=path>\np\n</parameter>\n"
    result = read(head + cut, own_stop=own_stop)
    assert result.calls == (("write", arguments_text, False),)
    assert result.content == ""
    assert result.seen is not None
    assert result.seen.incomplete_calls == 1


@pytest.mark.parametrize(
    "text", ["<tool_call>", "<tool_call>\n<function=re", '<tool_call>\n{"name"', "<function=read>\n"]
)
def test_a_second_call_that_is_cut_before_it_is_named(text: str) -> None:
    """By a limit it is a call cut short; a model that stops there by itself has said nothing more."""
    for own_stop in (True, False):
        result = read(f"{READ}\n{text}", own_stop=own_stop)
        assert result.calls == (("read", WROTE, True),)
        assert result.seen is not None
        assert result.seen.incomplete_calls == (not own_stop)


def test_a_stop_string_inside_a_call_cuts_it() -> None:
    result = read(READ, stops=["a.t"])
    assert result.calls == (("read", '{"path": "', False),)


def test_long_strings_flow_and_short_ones_wait() -> None:
    use = ToolUse(DeclaredTools(TOOLS), lambda: "id")
    parser = OutputParser(lambda token_id: b"", stop_ids=frozenset(), opens_think=False, tool_use=use)
    parser.feed_bytes([b"<tool_call>\n<function=write>\n<parameter=path>\np\n</parameter>\n<parameter=content>\n"])
    assert parser.feed_bytes([b"x" * HELD_CHARACTERS_MAX]) == []
    sent = '"path": "p", "content": "' + "x" * (HELD_CHARACTERS_MAX + 1)
    assert parser.feed_bytes([b"x"]) == [ToolCallArguments(0, sent)]
    assert parser.feed_bytes([b"y"]) == [ToolCallArguments(0, "y")]
    assert parser.feed_bytes([b" z\n"]) == [ToolCallArguments(0, " z")]
    assert parser.feed_bytes([b"\n</par"]) == [ToolCallArguments(0, "\\n")]


def test_text_flows_up_to_what_may_be_markup() -> None:
    use = ToolUse(DeclaredTools(TOOLS), lambda: "id")
    parser = OutputParser(lambda token_id: b"", stop_ids=frozenset(), opens_think=False, tool_use=use)
    assert parser.feed_bytes([b"Hello"]) == [ContentDelta("Hello")]
    assert parser.feed_bytes([b" \n"]) == []
    assert parser.feed_bytes([b"you <"]) == [ContentDelta(" \nyou")]
    assert parser.feed_bytes([b"b"]) == [ContentDelta(" <b")]
    assert parser.feed_bytes([b" <tool_call>"]) == []
    assert parser.feed_bytes([b" x"]) == [ContentDelta(" <tool_call> x")]


def test_only_callable_tools_count() -> None:
    tools: list[dict[str, object]] = [
        tool("read", path=STRING),
        {"type": "function", "function": {}},
        {"type": "function"},
    ]
    assert read(call("list_jobs"), tools=tools).calls == ()
    assert len(read(READ, tools=tools).calls) == 1


MARKUP = [
    *("<tool_call>", "</tool_call>", "<function=write>", "<function=nope>", "<function=a b>", "</function>"),
    *(
        "<parameter=path>",
        "<parameter=n>",
        "<parameter=lost\n",
        "</parameter>",
        "<function_calls>",
        "</function_calls>",
    ),
    *(
        '<invoke name="read">',
        "</invoke>",
        "<param name='path'>",
        "</param>",
        "<|im_start|>",
        "<=read>",
        "function=read>",
    ),
    *("<", "</", "<function=", "`", "```", "\n", "\n", " ", "a", "é🧪", "5", '"', "{", "}", "x" * 40, "STOP"),
    *(
        '{"name": "read", "arguments": {"path": "p"}}',
        "<think>",
        "</think>",
        READ,
        call("write", content="c", path="p"),
    ),
]


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.sampled_from(MARKUP), max_size=14).map("".join),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([[], ["STOP"]]),
    st.data(),
)
def test_every_split_gives_the_same_and_nothing_is_lost(
    text: str, own_stop: bool, tolerant: bool, opens_think: bool, stops: list[str], draw: st.DataObject
) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    result = read(text, own_stop=own_stop, tolerant=tolerant, opens_think=opens_think, stops=stops, cuts=cuts[:2])
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    split = read_pieces(pieces, own_stop=own_stop, tolerant=tolerant, opens_think=opens_think, stops=stops)
    assert (split.content, split.reasoning, split.calls, split.seen) == (
        result.content,
        result.reasoning,
        result.calls,
        result.seen,
    )
    if not result.calls:
        plain = read_pieces([text], tools=(), own_stop=own_stop, opens_think=opens_think, stops=stops)
        assert (plain.content, plain.reasoning) == (result.content, result.reasoning)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["path", "content"]), st.text(max_size=60)), min_size=1, max_size=4))
def test_strings_without_markup_come_back(members: list[tuple[str, str]]) -> None:
    values = {key: value.replace("<", "‹").encode(errors="replace").decode() for key, value in members}
    assert arguments(read(call("write", **values), cuts=[30])) == values


def calls_made(pieces: list[str]) -> int:
    """How many functions reading the pieces calls."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        read_pieces(pieces)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        ("a", "\n" * 8),
        ("<tool_call>", "\n" * 8),
        (READ, "\n" * 8),
        (READ[:40], "\n" * 8),
        (READ[: READ.index("</function>")], "\n" * 8),
        ("", "<tool_call>"),
        ('<tool_call>{"', "<tool_call>{ "),
        ("", "<function_calls>"),
        ("", "<tool_call>\n<function=nope>\n"),
        ("", "<function=read>\n"),
        ("<tool_call>\n<function=write>\n<parameter=content>\n", "<parameter=a>\n</parameter>\n"),
    ],
)
def test_what_never_ends_costs_no_more_than_its_length(head: str, piece: str) -> None:
    once, twice = (calls_made([head, *[piece] * n, "b"]) for n in (200, 400))
    assert twice < 2.2 * once


@pytest.mark.parametrize("pieces", [["\n", '{"a": "<tool_call>"}'], ['{"a": ', '"<tool_call>', '"}']])
def test_an_answer_that_begins_with_something_else_has_no_calls(pieces: list[str]) -> None:
    use = ToolUse(DeclaredTools(TOOLS), lambda: "id", exclusive=True)
    parser = OutputParser(lambda _id: b"", stop_ids=frozenset(), opens_think=False, tool_use=use)
    deltas = [delta for piece in pieces for delta in parser.feed_bytes([piece.encode()])] + parser.finish()
    assert all(isinstance(delta, ContentDelta) for delta in deltas)
    assert "".join(delta.text for delta in deltas if isinstance(delta, ContentDelta)).strip() == "".join(pieces).strip()


def test_an_answer_that_begins_with_a_call_is_calls() -> None:
    use = ToolUse(DeclaredTools(TOOLS), lambda: "id", exclusive=True)
    parser = OutputParser(lambda _id: b"", stop_ids=frozenset(), opens_think=False, tool_use=use)
    name = "read"
    text = f"<tool_call>\n<function={name}>\n</function>\n</tool_call>"
    deltas = parser.feed_bytes([text[:1].encode(), text[1:].encode()]) + parser.finish()
    assert [type(delta) for delta in deltas][:1] == [ToolCallStarted]
