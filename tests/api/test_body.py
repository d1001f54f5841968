"""Bodies: one JSON object, not too deep, order kept."""

from __future__ import annotations

import pytest

from ninfer.api.body import NESTING_MAX, parse_object
from ninfer.errors import MalformedField

NOT_JSON = "request body is not valid JSON"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"{'a': 1}", b'{"a": NaN}', b"\xff", b'{"a": "\xff"}', b'{"a": "\\ud800"}', b"{} {}"]
)
def test_what_is_not_json(body: bytes) -> None:
    with pytest.raises(MalformedField, match=NOT_JSON) as caught:
        parse_object(body)
    assert (caught.value.code, caught.value.param) == (None, None)


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"a"'])
def test_what_is_not_an_object(body: bytes) -> None:
    with pytest.raises(MalformedField, match="must be a JSON object"):
        parse_object(body)


def nested(depth: int, inside: bytes = b"") -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + inside + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize("inside", [b"", b"1", b'"[[[["'])
def test_nesting_is_bounded(inside: bytes) -> None:
    parse_object(nested(NESTING_MAX, inside))
    with pytest.raises(MalformedField, match=NOT_JSON):
        parse_object(nested(NESTING_MAX + 1, inside))
    with pytest.raises(MalformedField, match=NOT_JSON):
        parse_object(nested(100_000, inside))


def test_brackets_in_text_are_not_nesting() -> None:
    assert parse_object(b'{"a": "' + b"[" * 2000 + b'", "b": [' + b"[]," * 999 + b"{}]}")


def test_order_stays_and_the_last_of_a_repeated_key_counts() -> None:
    assert list(parse_object(b'{"z": 1, "a": 2, "m": 3}')) == ["z", "a", "m"]
    assert parse_object(b'{"a": 1, "b": 2, "a": 3}') == {"a": 3, "b": 2}
