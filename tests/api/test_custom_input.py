"""The text of custom tool calls, for every split of the arguments."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.api.custom_input import CustomInput


def fed(*fragments: str) -> str:
    reader = CustomInput()
    return "".join(reader.feed(fragment) for fragment in fragments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("{}", ""),
        ('{"input":"*** nothing\\n  to {do}"}', "*** nothing\n  to {do}"),
        ('{"input": ""}', ""),
        ('{ "a": "x, \\"y\\\\", "b": [1, {"input": "no"}], "input" : "yes", "input": "late" }', "yes"),
        ('{"input": {"a": ["}", 1]}, "b": 2}', '{"a": ["}", 1]}'),
        ('{"input": 12}', "12"),
        ('{"in\\u0070ut": "\\ud83d\\ude42\\u00fc\\/\\"\\\\"}', '\U0001f642ü/"\\'),
        ('{"input": "cut', "cut"),
        ('{"input": "cut\\', "cut"),
        ('{"input": "raw\nline"}', "raw\nline"),
    ],
)
def test_the_text_for_every_split(arguments: str, text: str) -> None:
    assert fed(arguments) == text
    assert fed(*arguments) == text
    for at in range(len(arguments)):
        assert fed(arguments[:at], arguments[at:]) == text


@given(st.text(), st.booleans(), st.integers(1, 7))
def test_any_text_survives(text: str, ascii_only: bool, step: int) -> None:
    arguments = json.dumps({"other": {"input": text}, "input": text}, ensure_ascii=ascii_only)
    assert fed(*(arguments[n : n + step] for n in range(0, len(arguments), step))) == text
