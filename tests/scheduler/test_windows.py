"""How many guesses a row may have, what it holds for them, and what a round may come back with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ninfer.config import SchedulerSettings
from ninfer.errors import IllegalTransition
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.machine import Scheduler
from ninfer.speculation.window import Seen
from ninfer.step import PAGE_TOKENS, PageMapping
from tests.scheduler.driving import Driver, text
from tests.scheduler.test_machine import serving

GUESSING = {"steps_ahead": 0, "draft_tokens": 4}


def rounds(driver: Driver) -> Iterator[cmd.RowStart]:
    return (row for command in driver.out if isinstance(command, cmd.StartRound) for row in command.rows)


def test_no_guess_is_behind_the_last_token_and_every_one_has_a_page() -> None:
    driver = Driver(**GUESSING)
    driver.say(text(60), limit=14)
    # The first token comes with the prompt, five with each round.
    assert [(row.position, row.drafts) for row in rounds(driver)] == [(60, 4), (65, 4), (70, 2)]
    assert [row.mapping for row in rounds(driver)] == [PageMapping(1, (1,)), PageMapping(2, ()), PageMapping(2, ())]
    totals = driver.machine.statistics().totals
    assert (totals.decode_tokens, totals.rounds, totals.drafted_tokens, totals.accepted_tokens) == (13, 3, 10, 10)
    assert (totals.draft_rounds, totals.fallback_steps) == (3, 0)


def test_the_longest_sequence_ends_where_it_does_without_guesses() -> None:
    driver = Driver(max_context_tokens=64, **GUESSING)
    request = driver.ask(text(60), limit=1000)
    driver.run()
    (end,) = (command for command in driver.out if isinstance(command, cmd.Finish))
    assert (end.request_id, end.reason, end.retained_tokens) == (request, "context_capacity", 64)
    assert [(row.position, row.drafts) for row in rounds(driver)] == [(60, 2)]


@pytest.mark.parametrize("folds_late", [False, True])
@pytest.mark.parametrize("accepts", range(5))
def test_what_follows_goes_on_from_the_block_that_a_round_has_led_into(accepts: int, folds_late: bool) -> None:
    driver = Driver(folds_late=folds_late, **GUESSING)
    driver.accepts = accepts
    first = driver.say(text(PAGE_TOKENS - 3), limit=40)
    history = driver.histories[first]
    second = driver.say(history + text(70, 1), limit=3)
    _lane, way, cached = driver.reused(second)
    assert (way, cached) == ("append_frontier", PAGE_TOKENS)


def test_a_stop_token_within_a_round_ends_the_session_there() -> None:
    driver = Driver(**GUESSING)
    request = driver.ask(text(70), limit=40)
    driver.land()
    driver.accepts = 1
    driver.land()
    (end,) = (command for command in driver.land(stop=request) if isinstance(command, cmd.Finish))
    # The second round was launched when all guesses were right.
    assert (end.reason, end.retained_tokens) == ("stop_token", 70 + 1 + 5 + 2)


def test_requests_that_draw_under_masks_have_no_guesses() -> None:
    machine = serving(**GUESSING, copied_tokens=4)
    machine.handle(ev.Arrived(1), 0.0)
    machine.handle(ev.Prepared(1, 70, 20, masked=True), 0.0)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)
    (start,) = machine.handle(ev.MaskReady(1), 0.0)
    assert isinstance(start, cmd.StartRound)
    assert [(row.drafts, row.copies) for row in start.rows] == [(0, 0)]


def test_under_masks_only_tokens_with_masks_behind_them_are_guessed() -> None:
    machine = serving(**GUESSING, adaptive_drafts=True)
    machine.handle(ev.Arrived(1), 0.0)
    machine.handle(ev.Prepared(1, 70, 6, masked=True), 0.0)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)
    (start,) = machine.handle(ev.MaskReady(1, 3), 0.0)
    assert isinstance(start, cmd.StartRound)
    assert [(row.drafts, row.copies) for row in start.rows] == [(0, 3)]
    assert machine.handle(ev.RoundLanded(2, (ev.RowLanded(1, 3, False, (), 3, 2, True),), 0.1), 0.0) == []
    (start,) = machine.handle(ev.MaskReady(1, 3), 0.0)
    assert isinstance(start, cmd.StartRound)
    assert [(row.position, row.copies) for row in start.rows] == [(73, 1)], "one behind the next is the last"


@pytest.mark.parametrize(
    ("free", "guesses"), [(1 << 31, (4, 7)), (8, (4, 7)), (7, (4, 6)), (3, (2, 2)), (1, (0, 0)), (0, (0, 0))]
)
def test_under_a_mask_that_lasts_guesses_are_free_up_to_its_last_token(free: int, guesses: tuple[int, int]) -> None:
    machine = serving(**GUESSING, copied_tokens=7)
    machine.handle(ev.Arrived(1), 0.0)
    machine.handle(ev.Prepared(1, 70, 20, masked=True), 0.0)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)
    (start,) = machine.handle(ev.MaskReady(1, free=free), 0.0)
    assert isinstance(start, cmd.StartRound)
    assert [(row.drafts, row.copies) for row in start.rows] == [guesses]


def test_what_is_seen_of_guesses_under_a_mask_that_lasts_counts_as_of_any_and_under_others_not_at_all() -> None:
    machine = serving(**GUESSING, adaptive_drafts=True)
    machine.handle(ev.Arrived(1), 0.0)
    machine.handle(ev.Prepared(1, 70, 60, masked=True), 0.0)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1, free=50), 0.0)
    request = machine.requests[1]
    for step in (2, 3):  # what a round without guesses takes is measured first
        assert not request.guesses.seen
        machine.handle(ev.RoundLanded(step, (ev.RowLanded(1, 1, False, free=50),), 0.1), 0.0)
    machine.handle(ev.RoundLanded(4, (ev.RowLanded(1, 2, False, (), 2, 1, free=0),), 0.1), 0.0)
    seen = request.guesses
    assert len(seen.seen) == 2
    machine.handle(ev.MaskReady(1), 0.0)
    machine.handle(ev.RoundLanded(5, (ev.RowLanded(1, 1, False),), 0.1), 0.0)
    assert request.guesses is seen


def held(machine: Scheduler, limit: int) -> None:
    """A request of 70 tokens whose masks depend on what it draws has drawn its first token."""
    machine.handle(ev.Arrived(1), 0.0)
    machine.handle(ev.Prepared(1, 70, limit, masked=True), 0.0)
    machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)


def masked(machine: Scheduler, ahead: int = 0, guessed: int = 0, mask_s: float = 0.0) -> cmd.RowStart:
    """Its mask is there; its next row."""
    (start,) = machine.handle(ev.MaskReady(1, ahead, guessed=guessed, mask_s=mask_s), 0.0)
    assert isinstance(start, cmd.StartRound)
    (row,) = start.rows
    return row


def land_row(machine: Scheduler, drawn: int, drafted: int = 0, copied: bool = False, seconds: float = 0.1) -> None:
    step = machine.flight.steps[0].number
    row = ev.RowLanded(1, drawn, False, (), drafted, drawn - 1, copied)
    machine.handle(ev.RoundLanded(step, (row,), seconds), 0.0)


def test_a_row_whose_masks_depend_on_what_it_draws_has_its_guesses_told_a_round_ahead() -> None:
    machine = serving(**GUESSING, copied_tokens=7)
    held(machine, 12)
    row = masked(machine)
    assert (row.drafts, row.copies, row.foresee, row.recall) == (0, 0, 4, 7)
    land_row(machine, 1)
    row = masked(machine, ahead=3, guessed=4)
    assert (row.drafts, row.copies, row.foresee, row.recall) == (3, 0, 4, 7)
    land_row(machine, 4, 3)
    row = masked(machine, ahead=5)
    assert (row.drafts, row.copies, row.foresee, row.recall) == (0, 5, 4, 4), (
        "six are left, one is drawn and one behind"
    )
    land_row(machine, 3, 5, copied=True)
    row = masked(machine, ahead=4, guessed=4)
    assert (row.drafts, row.copies, row.foresee, row.recall) == (2, 0, 1, 1)
    land_row(machine, 2, 2)
    row = masked(machine, ahead=4, guessed=4)
    assert (row.drafts, row.copies, row.foresee, row.recall) == (0, 0, 0, 0)


@pytest.mark.parametrize("adaptive", [False, True])
def test_no_masks_are_made_behind_guesses_where_one_takes_longer_than_a_round(adaptive: bool) -> None:
    machine = serving(**GUESSING, copied_tokens=7, adaptive_drafts=adaptive)
    held(machine, 90)
    for _ in range(3):  # what a round without guesses takes is measured first
        row = masked(machine, mask_s=0.01)
        land_row(machine, 1)
    assert masked(machine, mask_s=0.01).foresee > 0
    land_row(machine, 1)
    row = masked(machine, ahead=2, mask_s=1.0)
    assert (row.foresee, row.recall) == (0, 0)
    assert row.copies == 2, "what has masks may be verified"
    for _ in range(30):
        land_row(machine, 1)
        row = masked(machine, mask_s=0.01)
    assert (row.foresee > 0, row.recall) == (True, 7)


@pytest.mark.parametrize(
    ("settings", "limit", "is_masked", "told"),
    [
        (GUESSING, 90, True, (4, 0)),
        ({**GUESSING, "copied_tokens": 7}, 90, True, (4, 7)),
        ({**GUESSING, "copied_tokens": 7}, 5, True, (3, 3)),
        ({**GUESSING, "copied_tokens": 7}, 2, True, (0, 0)),
        ({**GUESSING, "copied_tokens": 7}, 90, False, (0, 0)),
        ({**GUESSING, "copied_tokens": 7, "adaptive_drafts": True}, 90, True, (0, 7)),
        ({}, 90, True, (0, 0)),
    ],
)
def test_the_first_row_has_its_guesses_told_with_the_first_token(
    settings: dict[str, Any], limit: int, is_masked: bool, told: tuple[int, int]
) -> None:
    machine = serving(**settings)
    machine.handle(ev.Arrived(1), 0.0)
    commands = machine.handle(ev.Prepared(1, 1030, limit, masked=is_masked), 0.0)
    chunks = []
    while machine.flight.steps and machine.flight.steps[0].end:
        chunks += [command for command in commands if isinstance(command, cmd.StartChunk)]
        step = machine.flight.steps[0]
        commands = machine.handle(ev.ChunkLanded(step.number, int(step.end == 1030), False, 0.1), 0.0)
    *others, last = chunks
    assert others
    assert {(chunk.foresee, chunk.recall) for chunk in others} == {(0, 0)}
    assert (last.foresee, last.recall) == told


def adaptive_row(machine: Scheduler) -> tuple[Seen, ...]:
    """What the request has seen of its guesses."""
    return machine.requests[1].guesses.seen


def test_of_guesses_under_masks_those_that_the_grammar_refuses_count_as_wrong() -> None:
    machine = serving(steps_ahead=0, draft_tokens=2, adaptive_drafts=True)
    held(machine, 90)
    for _ in range(2):
        assert masked(machine).foresee == 0
        land_row(machine, 1)
    idle = machine.requests[1].guesses.idle
    assert idle == 2
    assert masked(machine).foresee == 2
    land_row(machine, 1)
    assert (adaptive_row(machine), machine.requests[1].guesses.idle) == ((), idle), "none was there"
    masked(machine, ahead=0, guessed=2)
    land_row(machine, 1)
    assert adaptive_row(machine) == (Seen(1.0, 0.0),)
    masked(machine, ahead=1, guessed=2)
    land_row(machine, 2, 1)
    first, second = adaptive_row(machine)
    assert (first.right, second) == (1.0, Seen(1.0, 0.0))
    masked(machine, ahead=2, guessed=2)
    land_row(machine, 1, 0)  # at the end of a block
    assert adaptive_row(machine) == (first, second)
    masked(machine, ahead=2)
    land_row(machine, 3, 2, copied=True)
    assert adaptive_row(machine) == (first, second)
    masked(machine, ahead=2, guessed=2)
    land_row(machine, 3, 2)
    assert [seen.right > 0.9 for seen in adaptive_row(machine)] == [True, True]


def test_a_round_in_which_guesses_were_made_for_the_next_says_what_as_many_cost_or_nothing() -> None:
    machine = serving(steps_ahead=0, draft_tokens=2, adaptive_drafts=True)
    held(machine, 90)
    for _ in range(2):
        masked(machine)
        land_row(machine, 1, seconds=0.1)
    measured = machine._windows._costs.measured
    masked(machine)
    land_row(machine, 1, seconds=0.7)  # makes two and verifies none
    assert machine._windows._costs.measured is measured
    row = masked(machine, ahead=2, guessed=2)
    assert (row.drafts, row.foresee) == (2, 2)
    land_row(machine, 3, 2, seconds=0.2)
    assert machine._windows._costs.measured[1, 2].seconds == 0.2


def test_copied_guesses_have_a_limit_and_counters_of_their_own() -> None:
    machine = serving(steps_ahead=0, copied_tokens=7)
    (start,) = first_round(machine)
    assert [(row.drafts, row.copies) for row in start.rows] == [(0, 7)]
    machine.handle(ev.RoundLanded(2, (ev.RowLanded(1, 3, False, (), 5, 2, True),), 0.1), 0.0)
    totals = machine.statistics().totals
    assert (totals.copied_tokens, totals.copied_accepted_tokens, totals.accepted_tokens) == (5, 2, 2)


@pytest.mark.parametrize(
    "row",
    [
        ev.RowLanded(1, 0, False),
        ev.RowLanded(1, 2, False),
        ev.RowLanded(1, 3, False, (), 4, 1),
        ev.RowLanded(1, 1, False, (), 1, 2),
        ev.RowLanded(1, 6, False, (), 5, 5),
        ev.RowLanded(1, 2, False, (), 1, 1, True),
    ],
)
def test_a_round_cannot_draw_more_than_it_was_launched_for(row: ev.RowLanded) -> None:
    machine = serving(**GUESSING)
    first_round(machine)
    with pytest.raises(IllegalTransition, match="request 1 drew"):
        machine.handle(ev.RoundLanded(2, (row,), 0.1), 0.0)


def test_no_step_is_ahead_of_a_round_with_guesses() -> None:
    for settings in (SchedulerSettings(draft_tokens=1), SchedulerSettings(copied_tokens=1)):
        with pytest.raises(IllegalTransition, match="no step can be ahead"):
            Scheduler(settings)
        Scheduler(replace(settings, steps_ahead=0))


def test_guesses_that_are_never_right_stop_and_those_that_are_go_on() -> None:
    """Rounds of 10 ms, a millisecond more for every guess."""
    drafts = {}
    for accepts in (0, 5):
        driver = Driver(lanes=1, steps_ahead=0, draft_tokens=5, adaptive_drafts=True, max_context_tokens=1024)
        driver.accepts = accepts
        driver.ask(text(60), limit=300)
        driver.land()
        while driver.machine.flight.steps:
            driver.round_s = 0.01 + 0.001 * list(rounds(driver))[-1].drafts
            driver.land()
        drafts[accepts] = [row.drafts for row in rounds(driver)]
    assert sum(drafts[0][-100:]) < 20
    assert drafts[5][-5] == 5
    assert drafts[0][:2] == drafts[5][:2] == [0, 0], "what a round without guesses takes is measured first"


def first_round(machine: Scheduler) -> list[cmd.StartRound]:
    """A request of 70 tokens that may draw 20, up to its first round."""
    machine.handle(ev.Arrived(1), 0.0)
    machine.handle(ev.Prepared(1, 70, 20), 0.0)
    commands = machine.handle(ev.ChunkLanded(1, 1, False, 0.1), 0.0)
    return [command for command in commands if isinstance(command, cmd.StartRound)]
