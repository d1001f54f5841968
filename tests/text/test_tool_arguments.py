"""Members of arguments in their order, held and sent."""

from __future__ import annotations

import json

from ninfer.text.tool_arguments import HELD_CHARACTERS_MAX, ArgumentsWriter

LONG = "l" * (HELD_CHARACTERS_MAX + 1)


def string(writer: ArgumentsWriter, key: str, text: str) -> None:
    writer.begin_string(key)
    writer.string(text)
    writer.end_string()


def test_a_long_string_takes_what_stands_before_it_along() -> None:
    writer = ArgumentsWriter()
    writer.member("a", "1")
    string(writer, "b", "short")
    assert writer.take() == "{"
    string(writer, "c", LONG)
    assert writer.take() == f'"a": 1, "b": "short", "c": "{LONG}"'
    writer.member("d", "2")
    assert writer.take() == ""
    writer.close()
    assert writer.take() == ', "d": 2}'


def test_a_held_value_is_replaced_at_its_place() -> None:
    writer = ArgumentsWriter()
    for key in "abc":
        string(writer, key, "old")
    string(writer, "b", LONG)
    assert writer.take() == f'{{"a": "old", "b": "{LONG}"'
    string(writer, "c", "new")
    writer.close()
    assert writer.take() == ', "c": "new"}'
    assert writer.repeated == 2


def test_a_value_that_was_sent_is_written_once_more() -> None:
    writer = ArgumentsWriter()
    string(writer, "a", LONG)
    string(writer, "a", "last")
    writer.close()
    assert json.loads(writer.take()) == {"a": "last"}
    assert writer.repeated == 1


def test_a_cut_sends_what_is_known() -> None:
    for text in ("", "open", LONG):
        writer = ArgumentsWriter()
        writer.member("a", "1")
        writer.begin_string("b")
        if text:
            writer.string(text)
        writer.cut(in_string=True)
        assert writer.take() == f'{{"a": 1, "b": "{text}'
    writer = ArgumentsWriter()
    writer.member("a", "1")
    writer.cut(in_string=False)
    assert writer.take() == '{"a": 1'
