"""The digest is the contract's, however the ledger arrives."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.snapshots.digest import SessionDigest

INT32 = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize(
    ("ids", "digest"),
    [
        ([], "14650fb0739d0383"),
        ([0], "315446a086a23133"),
        ([1], "91599a98306c74a2"),
        ([1, 2, 3], "6fdedb25bbb27e53"),
        ([248045, 872, 198], "92c11010dd6b1992"),
        (range(64), "d8c9ecce2df5b983"),
    ],
)
def test_vectors_of_the_contract(ids: list[int], digest: str) -> None:
    assert SessionDigest(ids).value == digest


def plainly(ids: list[int]) -> str:
    state = 1469598103934665603
    for token in ids:
        for byte in token.to_bytes(4, "little", signed=True):
            state = (state ^ byte) * 1099511628211 % 2**64
    return f"{state:016x}"


@given(st.lists(st.one_of(st.integers(0, 2**18), INT32), max_size=40), st.integers(0, 40))
def test_every_split_gives_the_digest_of_the_whole(ids: list[int], cut: int) -> None:
    digest = SessionDigest(ids[:cut])
    before = digest.copy()
    digest.extend(array("i", ids[cut:]))
    assert digest.value == plainly(ids)
    assert before.value == plainly(ids[:cut])  # a copy goes its own way


def test_an_id_beyond_32_bits_is_no_id() -> None:
    with pytest.raises(OverflowError):
        SessionDigest([2**31])
