"""What may be guessed of a constrained answer: nothing is taken, and every mask is the one that comes."""

from __future__ import annotations

import pytest

from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import ChoiceAnswer, Constraint, RegexAnswer
from ninfer.constraints.enforced import enforce
from ninfer.constraints.matcher import Matcher, Reading
from tests.support.system import TOKENIZER

COMPILER = Compiler(TOKENIZER)
RECORD = Constraint(RegexAnswer('\\{"temperature": [0-9]{1,3}, "humidity": (high|low)\\}', "r"))


def matcher(constraint: Constraint = RECORD, reading: Reading | None = None) -> Matcher:
    return enforce(COMPILER.compile(constraint), reading or Reading()).matcher


def lowest(mask: bytes) -> int:
    return next(token_id for token_id in range(8 * len(mask)) if mask[token_id // 8] >> token_id % 8 & 1)


@pytest.mark.parametrize("most", [1, 3, 15])
@pytest.mark.parametrize("reading", [Reading(), Reading(opens_think=True, thinking_budget=3, max_tokens=1000)], ids=str)
def test_masks_behind_guesses_are_those_that_come(reading: Reading, most: int) -> None:
    walker = matcher(reading=reading)
    guessed = 0
    while not walker.is_free:
        ids, masks = walker.ahead(most)
        assert len(ids) == len(masks) <= most
        assert walker.ahead(most) == (ids, masks), "nothing is taken"
        mask = walker.mask()
        assert mask is not None
        guessed += len(ids)
        for token_id, behind in zip(ids, masks, strict=True):
            assert mask[token_id // 8] >> token_id % 8 & 1, "a guess that is not allowed"
            walker.advance((token_id,))
            mask = walker.mask()
            assert mask == behind
        if mask is not None:
            walker.advance((lowest(mask),))
    assert guessed > 10


def test_where_there_is_a_choice_there_is_no_guess() -> None:
    assert matcher(Constraint(ChoiceAnswer(("yes", "no"), "c"))).ahead(5) == ((), ())
    assert matcher(reading=Reading(opens_think=True)).ahead(5) == ((), ())
    assert matcher().ahead(0) == ((), ())
