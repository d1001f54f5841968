"""What may be guessed of a constrained answer: nothing is taken, and every mask is the one that comes."""

from __future__ import annotations

import pytest

from ninfer.constraints.ahead import NOTHING, legal, walk
from ninfer.constraints.calls import Tool
from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import Calls, ChoiceAnswer, Constraint, GrammarAnswer, JsonAnswer, RegexAnswer
from ninfer.constraints.enforced import enforce
from ninfer.constraints.matcher import EARLY_CLOSE, Matcher, Reading, Stage
from ninfer.errors import DeadEnd
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
        ahead = walker.ahead(most)
        ids, masks = ahead.ids, ahead.masks
        assert len(ids) == len(masks) <= most
        assert walker.ahead(most) == ahead, "nothing is taken"
        assert not ahead.guessed
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


MODES = {"type": "object", "properties": {"mode": {"enum": ["read only", "read and write"]}, "deep": {"type": "null"}},
         "required": ["mode", "deep"], "additionalProperties": False}  # fmt: skip
CALL = (
    "<tool_call>\n<function=open>\n<parameter=mode>\nread only\n</parameter>\n<parameter=deep>\nnull\n</parameter>\n"
    "</function>\n</tool_call>"
)
TOOLS = (Tool("open", MODES, strict=True, where="t"),)


@pytest.mark.parametrize(
    ("constraint", "text"),
    [
        (Constraint(calls=Calls(TOOLS, forced=True)), CALL),
        (Constraint(calls=Calls(TOOLS, forced=True, most_one=True)), CALL),
        (Constraint(calls=Calls(TOOLS, forced=True)), f"{CALL}\n{CALL}"),
        (Constraint(calls=Calls((*TOOLS, Tool("opener", MODES, strict=False, where="t")), forced=True)), CALL),
        (Constraint(calls=Calls(TOOLS)), CALL),
        (Constraint(JsonAnswer(MODES, "s"), Calls(TOOLS)), CALL),
        (Constraint(JsonAnswer(MODES, "s"), Calls(TOOLS)), '{"mode":"read and write","deep":null}'),
        (Constraint(GrammarAnswer('root ::= "(" root ")" | "deep inside"', "g")), "((deep inside))"),
        (Constraint(GrammarAnswer(f'root ::= Token({TOKENIZER.encode("x")[0]}) "and then" ', "g")), "xand then"),
    ],
    ids=[
        "a call",
        "one call",
        "two calls",
        "of two tools",
        "calls or text",
        "calls or JSON",
        "JSON or calls",
        "a grammar",
        "a token",
    ],
)
def test_looking_ahead_changes_nothing_whatever_the_output_is_held_to(constraint: Constraint, text: str) -> None:
    walker, other = matcher(constraint), matcher(constraint)
    written, guessed = TOKENIZER.encode_with_control(text), 0
    assert walker.ahead(7, written).ids == tuple(written[:7]), "guesses go on behind control tokens as well"
    for n, token_id in enumerate(written):
        ahead = walker.ahead(7)
        follower = matcher(constraint)
        follower.advance(written[:n])
        for guess, behind in zip(ahead.ids, ahead.masks, strict=True):
            follower.advance((guess,))
            assert follower.mask() == behind
        guessed += len(ahead.ids)
        assert walker.mask() == other.mask()
        for one in (walker, other):
            one.advance((token_id,))
    walker.ahead(7)
    assert walker.mask() == other.mask()
    assert walker.may_end
    assert guessed > 2


def test_where_there_is_a_choice_there_is_no_guess() -> None:
    assert matcher(Constraint(ChoiceAnswer(("yes", "no"), "c"))).ahead(5) == NOTHING
    assert matcher(reading=Reading(opens_think=True)).ahead(5) == NOTHING
    assert matcher().ahead(0) == NOTHING


RIGHT = TOKENIZER.encode('{"temperature": 21, "humidity": low}')
STOP = min(TOKENIZER.stop_ids)


@pytest.mark.parametrize("most", [1, 4, 60])
@pytest.mark.parametrize("wrong", [None, 0, 2, 20])
def test_guesses_go_on_from_forced_text_and_that_from_guesses(most: int, wrong: int | None) -> None:
    """Wherever the guesses begin, masks behind them are those that come; the first that is not legal ends the row."""
    walker = matcher()
    guesses = [token if at != wrong else STOP for at, token in enumerate(RIGHT)]
    for at, token in enumerate(RIGHT):
        ahead = walker.ahead(most, guesses[at:])
        assert walker.ahead(most, guesses[at:]) == ahead, "nothing is taken"
        follower = matcher()
        follower.advance(RIGHT[:at])
        mask = follower.mask()
        for guess, behind in zip(ahead.ids, ahead.masks, strict=True):
            assert mask is not None
            assert legal(mask, guess)
            follower.advance((guess,))
            mask = follower.mask()
            assert mask == behind
        forced = bool(matcher_at(at).ahead(1).ids)
        assert ahead.guessed == (bool(ahead.ids) and not forced)
        if wrong is None or wrong < at:
            assert ahead.ids == tuple(RIGHT[at : at + most])
        walker.advance((token,))


def matcher_at(place: int) -> Matcher:
    walker = matcher()
    walker.advance(RIGHT[:place])
    return walker


def test_a_guess_that_ends_the_answer_or_that_the_grammar_refuses_is_left_out() -> None:
    walker = matcher(Constraint(RegexAnswer("[ab]+", "r")))
    a, c = TOKENIZER.encode("a")[0], TOKENIZER.encode("c")[0]
    walker.advance((a,))
    mask = walker.mask()
    assert mask is not None
    assert legal(mask, STOP)
    for guesses, ids in (((STOP, a), ()), ((c, a), ()), ((a, STOP, a), (a,)), ((a, c), (a,)), ((a, a, a), (a, a))):
        ahead = walker.ahead(2, guesses)
        assert (ahead.ids, ahead.guessed) == (ids, bool(ids))
    assert walker.ahead(0, (a,)) == NOTHING


def test_a_row_that_begins_with_a_guess_has_no_more_tokens_than_there_are_guesses() -> None:
    """Whoever wanted no more of them wants no more masks, though the text behind them is certain."""
    walker = matcher(Constraint(RegexAnswer("[ab]cdefgh|efgh", "r")))
    a, cdef = TOKENIZER.encode("a")[0], TOKENIZER.encode("cdefgh")
    assert len(cdef) > 1
    assert walker.ahead(9, (a,)).ids == (a,)
    assert walker.ahead(9, (a, cdef[0])).ids == (a, cdef[0])
    assert walker.ahead(9, (a, a)).ids == (a, cdef[0]), "where the text is certain a guess counts for nothing"
    walker.advance((a,))
    assert walker.ahead(9, (cdef[0],)).ids == tuple(cdef)


class DeadPlace:
    """Takes what it is told, and nothing may be drawn behind that."""

    def __init__(self, *, takes: bool) -> None:
        self.takes = takes

    def mask(self) -> bytes:
        raise DeadEnd

    def forced(self) -> list[int]:
        return []

    def take(self, token_id: int) -> bool:
        return self.takes


@pytest.mark.parametrize("takes", [True, False])
def test_a_guess_that_leads_nowhere_is_left_out(takes: bool) -> None:
    assert walk(DeadPlace(takes=takes), b"\xff", (1, 2), 5, frozenset()) == NOTHING


def test_a_mask_leaves_no_id_behind_its_end() -> None:
    assert [legal(b"\x05", token_id) for token_id in (0, 1, 2, 8)] == [True, False, True, False]


def test_what_closes_thinking_is_not_guessed_and_the_text_behind_it_is() -> None:
    walker = matcher(reading=Reading(opens_think=True))
    walker.advance((TOKENIZER.control_id("</think>"),))
    told = tuple(TOKENIZER.encode("\n\n"))
    for most in range(1, 8):
        ahead = walker.ahead(most, (7, 8, 9))
        assert ahead.ids == (*told, *RIGHT)[:most]
        assert not ahead.guessed
    free = enforce(COMPILER.compile(Constraint()), Reading(opens_think=True, thinking_budget=2, max_tokens=900)).matcher
    while free.stage is Stage.THINKING:
        free.advance((TOKENIZER.encode("a")[0],))
    ahead = free.ahead(1000)
    assert len(ahead.ids) == len(TOKENIZER.encode_with_control(EARLY_CLOSE)) - 1, "the last has no mask behind it"
    assert free.ahead(3).ids == ahead.ids[:3]
