"""What a prompt is known by does not depend on how its ids are handed over."""

from __future__ import annotations

import pytest

from ninfer.api.session import packed
from ninfer.ledger import BlockNames, PromptIdentity


@pytest.mark.parametrize("count", [0, 1, 64, 4095, 4096, 4097, 20_000])
def test_packed_ids_name_the_same_prompt(count: int) -> None:
    ids = tuple(at * 7919 % 248_000 for at in range(count))
    names = BlockNames(b"k" * 32)
    assert packed(ids).tolist() == list(ids)
    identity, expected = PromptIdentity.of(names, packed(ids)), PromptIdentity.of(names, ids)
    assert identity == expected
    assert identity.digest.value == expected.digest.value
