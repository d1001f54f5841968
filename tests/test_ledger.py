"""With how much of a history a prompt begins."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ninfer.ledger import BlockNames, Ledger, PromptIdentity

NAMES = BlockNames(b"tests")


def ids(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(1000), k=count)


def ledger(prompt: Sequence[int], drawn: Sequence[int], at_once: int = 3) -> Ledger:
    made = Ledger(NAMES, prompt, PromptIdentity.of(NAMES, prompt))
    for begin in range(0, len(drawn), at_once):
        made.extend(drawn[begin : begin + at_once])
    return made


@pytest.mark.parametrize("tokens", [0, 5, 63, 64, 100, 128, 150])
@pytest.mark.parametrize("drawn", [0, 1, 27, 64, 200])
def test_a_prompt_that_goes_on_begins_with_all_of_it(tokens: int, drawn: int) -> None:
    history = ids(tokens + drawn)
    for more in (0, 1, 80):
        prompt = history + ids(more, 1)
        blocks = NAMES.names(prompt)
        assert ledger(history[:tokens], history[tokens:]).in_common(prompt, blocks) == tokens + drawn


@pytest.mark.parametrize("at", [128, 129, 140, 150, 191, 192, 200, 255, 256, 300, 349])
def test_they_part_where_a_token_is_another(at: int) -> None:
    history = ids(350)
    prompt = [*history[:at], history[at] + 1000, *history[at + 1 :], *ids(9, 2)]
    assert ledger(history[:150], history[150:]).in_common(prompt, NAMES.names(prompt)) == at


def test_with_less_than_the_blocks_of_its_prompt_it_is_another_history() -> None:
    history = ids(350)
    for prompt in (history[:127], ids(400, 3), [*history[:127], 1000, *history[128:]]):
        assert ledger(history[:150], history[150:]).in_common(prompt, NAMES.names(prompt)) == 0


def test_names_that_are_not_known_make_no_history_the_same() -> None:
    history = ids(100)
    assert ledger(history, []).in_common(history, ()) == 0
