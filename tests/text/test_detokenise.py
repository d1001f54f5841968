from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.text.detokenise import Detokeniser

# Whole characters of every length, truncated ones, over-long forms, surrogates, bytes that never occur.
SHARDS = st.sampled_from(
    [
        *(c.encode() for c in "aé값🎉\ufffd"),
        b"\xf0\x9f",
        b"\x8e\x89",
        b"\xe4\xba",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xff",
        b"\x80",
    ]
)
DATA = st.lists(SHARDS | st.binary(max_size=3), max_size=12).map(b"".join)


def decoded(pieces: list[bytes]) -> tuple[list[str], str]:
    detokeniser = Detokeniser()
    return [detokeniser.push(piece) for piece in pieces], detokeniser.finish()


@settings(deadline=None)
@given(DATA, st.data())
def test_every_split_joins_to_the_whole(data: bytes, draw: st.DataObject) -> None:
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=6)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    pushed, last = decoded(pieces)
    assert "".join(pushed) + last == data.decode(errors="replace")
    assert all(text.encode() for text in pushed if text)


@settings(deadline=None)
@given(st.text(max_size=20))
def test_valid_text_never_shows_a_replacement(text: str) -> None:
    pushed, last = decoded([bytes([byte]) for byte in text.encode()])
    assert "".join(pushed) == text
    assert last == ""


def test_incomplete_characters_are_held() -> None:
    assert decoded([b"a\xf0\x9f", b"\x8e", b"\x89!", b"\xe4\xba"]) == (["a", "", "🎉!", ""], "\ufffd")


@pytest.mark.parametrize(("token", "holds"), [(b"", False), (b"a", False), (b"a\xf0\x9f", True), (b"\xff", False)])
def test_holds_bytes(token: bytes, holds: bool) -> None:
    detokeniser = Detokeniser()
    detokeniser.push(token)
    assert detokeniser.holds_bytes is holds
