"""Constrained requests through the actors: what they may draw, what they tell, and how they end."""

from __future__ import annotations

import io
import threading
from dataclasses import dataclass, replace

import anyio
import pytest

from ninfer.actors.eventlog import EventLog
from ninfer.actors.masks import Guesses, Masks
from ninfer.actors.messages import ConstraintReport, Failed, Finished, GenerationRequest, TextDelta
from ninfer.config import SchedulerSettings
from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import ChoiceAnswer, Constraint, RegexAnswer
from ninfer.constraints.enforced import Enforced, enforce
from ninfer.constraints.matcher import EARLY_CLOSE, Matcher, Reading, Stage
from ninfer.errors import DeadEnd, EngineFailure
from ninfer.replay import replay
from ninfer.scheduler.events import Event, MaskReady
from ninfer.scheduler.statistics import TotalsView
from ninfer.text.deltas import ReasoningDelta
from ninfer.types import FinishReason
from tests.support.engines import FakeEngine
from tests.support.system import TOKENIZER, Running, collect, content, echo, last, request_for, running

pytestmark = pytest.mark.asyncio
COMPILER = Compiler(TOKENIZER)
CHOICE = Constraint(ChoiceAnswer(("yes", "no"), "c"))


def constrained(constraint: Constraint, text: str = "hello", **options: int) -> GenerationRequest:
    return replace(request_for(text, **options), enforced=enforce(COMPILER.compile(constraint), Reading()))  # type: ignore[arg-type]


def says(text: str) -> FakeEngine:
    ids = TOKENIZER.encode(text)
    return FakeEngine(lambda _prompt: ids)


async def ask(state: Running, request: GenerationRequest) -> tuple[str, Finished | Failed]:
    ticket = await state.system.gateway.arrive()
    await ticket.submit(request)
    replies = await collect(ticket.replies)
    await ticket.release()
    return content(replies), last(replies)


def finished(end: Finished | Failed) -> ConstraintReport:
    assert isinstance(end, Finished)
    assert end.constraint is not None
    return end.constraint


async def test_a_model_that_says_something_else_says_one_of_the_choices() -> None:
    async with running(engine=says("maybe")) as state:
        text, end = await ask(state, constrained(CHOICE))
        report = finished(end)
    assert text in ("yes", "no")
    assert (report.complete, report.terminated, report.branch) == (True, True, "content")
    assert report.mask_positions == finished_tokens(end)
    assert report.mask_upload_bytes == report.mask_positions * -(-TOKENIZER.id_count // 32) * 4


def finished_tokens(end: Finished | Failed) -> int:
    assert isinstance(end, Finished)
    return end.usage.completion_tokens


async def test_a_model_that_says_what_it_may_is_not_changed() -> None:
    async with running(engine=says("no")) as state:
        assert (await ask(state, constrained(CHOICE)))[0] == "no"


async def test_a_limit_may_cut_the_answer() -> None:
    async with running(engine=says("aaaa")) as state:
        text, end = await ask(state, constrained(Constraint(RegexAnswer("(aa)*b", "r")), max_tokens=1))
        report = finished(end)
    assert isinstance(end, Finished)
    assert end.reason is FinishReason.OUTPUT_LIMIT
    assert set(text) <= {"a", "b"}
    assert (report.complete, report.terminated) == (text.endswith("b"), False)


async def test_how_complete_a_cut_answer_is_counts_its_last_token() -> None:
    """The last words wait for the matcher, which may still be at the token before."""
    async with running(engine=says("yes")) as state:
        tokens = len(TOKENIZER.encode("yes"))
        text, end = await ask(state, constrained(CHOICE, max_tokens=tokens))
    assert text == "yes"
    assert (finished(end).complete, finished(end).terminated) == (True, False)


async def test_many_at_once_and_others_beside_them_are_replayed_decision_for_decision() -> None:
    file = io.BytesIO()
    answers: dict[int, tuple[str, Finished | Failed]] = {}
    async with (
        running(SchedulerSettings(lanes=4), engine=FakeEngine(echo), log=EventLog(file)) as state,
        anyio.create_task_group() as tasks,
    ):

        async def one(n: int) -> None:
            request = constrained(CHOICE, f"prompt {n}") if n % 2 else request_for(f"prompt {n}")
            answers[n] = await ask(state, request)

        for n in range(8):
            tasks.start_soon(one, n)
    assert all(answers[n][0] in ("yes", "no") for n in range(1, 8, 2))
    assert all(answers[n][0] == TOKENIZER.decode(echo(tuple(TOKENIZER.encode(f"prompt {n}")))) for n in range(0, 8, 2))
    assert replay(file.getvalue().splitlines(keepends=True)).requests == 8


class SlowMatcher(Matcher):
    """Takes until somebody opens the gate, then may fail."""

    gate = threading.Event()
    error: Exception | None = None

    def mask(self) -> bytes | None:
        if self._thought < 0:
            assert self.gate.wait(30), "the test never opened the gate"
            if self.error is not None:
                raise self.error
        self._thought = -1
        return super().mask()


def slow(error: Exception | None = None) -> tuple[GenerationRequest, SlowMatcher]:
    """A request whose first mask is there, and whose second waits."""
    compiled = COMPILER.compile(CHOICE)
    assert compiled.grammar is not None
    matcher = SlowMatcher(compiled.vocabulary, compiled.grammar.deep_copy(), Reading())
    matcher.gate, matcher.error = threading.Event(), error
    enforced = Enforced(CHOICE, "hit", matcher, matcher.mask(), 0.0, 0.0)
    return replace(request_for("hello"), enforced=enforced), matcher


@pytest.mark.parametrize("error", [DeadEnd(), ValueError("broken")], ids=["dead end", "bug"])
async def test_a_mask_that_cannot_be_made_ends_the_request_and_no_other(error: Exception) -> None:
    async with running(engine=says("yes")) as state:
        request, matcher = slow(error)
        matcher.gate.set()
        _, end = await ask(state, request)
        assert isinstance(end, Failed)
        assert isinstance(end.error, DeadEnd if isinstance(error, DeadEnd) else EngineFailure)
        assert (await ask(state, constrained(CHOICE)))[0] == "yes"


async def test_others_go_on_and_the_client_may_leave_while_a_mask_is_made() -> None:
    async with running(SchedulerSettings(lanes=2), engine=says("yes")) as state:
        request, matcher = slow()
        ticket = await state.system.gateway.arrive()
        await ticket.submit(request)
        assert (await ask(state, request_for("beside it")))[0] == "yes"
        await ticket.release()
        assert (await ask(state, request_for("and behind it")))[0] == "yes"
        matcher.gate.set()
        while state.system.machine.requests:
            await anyio.lowlevel.checkpoint()
        assert (await ask(state, constrained(CHOICE)))[0] == "yes"
        state.system.machine.audit()


async def test_tokens_of_requests_without_a_constraint_make_no_masks() -> None:
    events: list[Event] = []
    masks = Masks(events.append, lambda _request_id, _mask, _ahead: None)
    masks.drawn(7, [1])
    assert masks.mask(7) is None
    assert masks.report(7, terminated=True) is None
    await masks.settled(7)
    masks.begin(7, slow()[0].enforced)  # type: ignore[arg-type]
    assert masks.mask(7) is not None
    masks.forget(7)
    assert masks.mask(7) is None
    masks.mailbox.drain()
    assert events == []


async def test_what_a_constraint_leaves_no_choice_about_comes_several_tokens_at_once() -> None:
    record = Constraint(RegexAnswer('\\{"temperature": [0-9]{1,3}, "humidity": "(high|low)"\\}', "r"))
    guessing = SchedulerSettings(prefix_reuse=False, steps_ahead=0, draft_tokens=5)
    for opinion in ('{"temperature": 21, "humidity": "low"}', "I would rather talk about something else."):
        texts, reports = [], []
        for settings in (replace(guessing, draft_tokens=0), guessing):
            async with running(settings, engine=says(opinion)) as state:
                text, end = await ask(state, constrained(record))
                totals = state.system.machine.statistics().totals
            texts.append(text)
            reports.append(finished(end))
            assert (totals.accepted_tokens > 10) == (settings is guessing)
        assert texts[0] == texts[1]
        assert reports[1].complete
        assert reports[1].mask_positions >= reports[0].mask_positions


THOUGHT = "First: is 1 < 2? It is, so </thin air> it is." * 3
YES = f"{THOUGHT}</think>\n\nyes"
WITHOUT_GUESSES = SchedulerSettings(prefix_reuse=False)
GUESSING = replace(WITHOUT_GUESSES, steps_ahead=0, draft_tokens=5, copied_tokens=7)
WAYS = [WITHOUT_GUESSES, replace(GUESSING, copied_tokens=0), GUESSING, replace(GUESSING, adaptive_drafts=True)]


@dataclass(frozen=True)
class Thought:
    """An answer behind thinking: what was said and how it ended, how it was guessed, and what was waited for."""

    reasoning: str
    text: str
    report: ConstraintReport
    totals: TotalsView
    waited: int

    @property
    def same(self) -> tuple[object, ...]:
        """What does not depend on guesses."""
        report = self.report
        return (self.reasoning, self.text, report.branch, report.complete, report.terminated)


async def thinks(
    settings: SchedulerSettings, output: str, constraint: Constraint, budget: int | None = None
) -> Thought:
    """One request whose prompt leaves thinking open, beside one that is held to nothing; replayed as well."""
    ids = TOKENIZER.encode_with_control(output)
    reading = Reading(opens_think=True, thinking_budget=budget, max_tokens=1000)
    request = replace(request_for("hello"), opens_think=True, enforced=enforce(COMPILER.compile(constraint), reading))
    file = io.BytesIO()
    engine = FakeEngine(lambda _prompt: ids)
    async with running(settings, engine=engine, log=EventLog(file)) as state, anyio.create_task_group() as tasks:
        tasks.start_soon(ask, state, request_for("and besides"))
        ticket = await state.system.gateway.arrive()
        await ticket.submit(request)
        replies = await collect(ticket.replies)
        await ticket.release()
        while state.system.machine.requests:
            await anyio.lowlevel.checkpoint()
        totals = state.system.machine.statistics().totals
    lines = file.getvalue().splitlines(keepends=True)
    assert replay(lines).requests == 2
    deltas = [delta for reply in replies if isinstance(reply, TextDelta) for delta in reply.deltas]
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    report = finished(last(replies))
    return Thought(reasoning, content(replies), report, totals, sum(b'"MaskReady"' in line for line in lines))


@pytest.mark.parametrize("settings", WAYS, ids=["plain", "own", "copied", "auto"])
async def test_thinking_in_front_of_a_held_answer_is_guessed_and_waits_for_nothing(settings: SchedulerSettings) -> None:
    told = await thinks(settings, YES, CHOICE)
    assert (told.reasoning, told.text) == (THOUGHT, "yes")
    assert (told.report.complete, told.report.terminated) == (True, True)
    tokens = len(TOKENIZER.encode_with_control(YES)) + 1
    assert told.report.mask_positions >= tokens
    # The marker's beginnings cost two waits each; the rest is the close and the answer.
    assert told.waited < 40 < tokens
    if settings.guesses:
        assert told.totals.accepted_tokens > 30
        assert (told.totals.copied_accepted_tokens > 10) == (settings.copied_tokens > 0), "few are forced"


@pytest.mark.parametrize("budget", [1, 2, 7, 40])
async def test_a_budget_ends_thinking_where_it_does_without_guesses(budget: int) -> None:
    plain, *guessed = [await thinks(settings, YES, CHOICE, budget) for settings in WAYS]
    assert plain.text in ("yes", "no")
    assert plain.reasoning.startswith(TOKENIZER.decode(TOKENIZER.encode_with_control(YES)[:budget]))
    for told in guessed:
        assert told.same == plain.same


async def test_what_comes_behind_a_budget_alone_is_free() -> None:
    output = f"{THOUGHT}</think>\n\n" + "It was a long night, and nobody slept. " * 5
    plain, *guessed = [await thinks(settings, output, Constraint(), 20) for settings in WAYS]
    for told in (plain, *guessed):
        assert told.same == plain.same
        closing = len(TOKENIZER.encode_with_control(EARLY_CLOSE))
        assert told.waited < closing + 5 < len(TOKENIZER.encode_with_control(output)), "none behind the closing words"
        assert told.report.mask_positions <= 20 + closing + 5
    assert guessed[0].totals.accepted_tokens > 60


async def test_tokens_under_a_mask_that_lasts_are_taken_in_passing() -> None:
    noted: list[int] = []
    masks = Masks(lambda _event: None, lambda request_id, _mask, _ahead: noted.append(request_id))
    enforced = enforce(COMPILER.compile(CHOICE), Reading(opens_think=True, thinking_budget=9, max_tokens=1000))
    masks.begin(1, enforced)
    letters = TOKENIZER.encode("abc")
    assert masks.halts(1) == enforced.matcher.halts
    assert masks.drawn(1, letters[:1]) == 8
    assert masks.drawn(1, letters[:1] * 3) == 5
    assert masks.mask(1) == enforced.mask
    assert noted == [1], "the first alone"
    report = masks.report(1, terminated=False)
    assert report is not None
    assert (report.mask_positions, report.mask_upload_bytes) == (5, len(enforced.mask or b""))
    assert masks.drawn(1, letters[:1] * 5) == 0
    assert masks.halts(1) is None
    assert enforced.matcher.stage is Stage.CLOSING
    assert len(masks.mailbox.drain()) == 1


async def test_the_report_of_a_free_answer_knows_of_the_round_that_ended_it_and_of_none_behind() -> None:
    masks = Masks(lambda _event: None, lambda _request_id, _mask, _ahead: None)
    enforced = enforce(COMPILER.compile(Constraint()), Reading())
    masks.begin(1, enforced)
    stop, call = min(TOKENIZER.stop_ids), TOKENIZER.control_id("<tool_call>")
    for ended, branch in (
        ([*TOKENIZER.encode("ab"), stop], "content"),
        ([call, *TOKENIZER.encode("ab"), stop], "tools"),
    ):
        masks.begin(1, replace(enforced, matcher=COMPILER.compile(Constraint()).matcher(Reading())))
        assert masks.drawn(1, TOKENIZER.encode("a")) == 0
        masks.stopped(1, ended)
        masks.drawn(1, [call])  # a row that was launched ahead
        report = masks.report(1, terminated=True)
        assert report is not None
        assert (report.branch, report.complete, report.mask_positions) == (branch, True, 0)
    masks.stopped(2, [stop])
    assert masks.mailbox.drain() == []


async def test_what_a_mask_takes_is_told_and_how_many_guesses_were_looked_at() -> None:
    events: list[Event] = []
    ticks = iter(range(100))
    masks = Masks(events.append, lambda _request_id, _mask, _ahead: None, lambda: float(next(ticks)), most=5)
    letters = Constraint(RegexAnswer("[a-z]{3,40}c", "r"))
    masks.begin(1, enforce(COMPILER.compile(letters), Reading()))
    a, b, stop = *TOKENIZER.encode("ab"), min(TOKENIZER.stop_ids)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(masks.run)
        for guesses in (Guesses((a, b), own=True), Guesses((b, a)), Guesses((stop, a), own=True), Guesses(own=True)):
            assert masks.drawn(1, (a,), guesses) == 0
            await masks.settled(1)
        masks.mailbox.close()
    assert masks.mailbox.drain() == []
    # Between two looks at the clock a second passes; one mask for the request and one behind each guess was made.
    assert events == [
        MaskReady(1, ahead=2, guessed=2, mask_s=1 / 3),
        MaskReady(1, ahead=2, guessed=0, mask_s=1 / 3),
        MaskReady(1, ahead=0, guessed=2, mask_s=1.0),
        MaskReady(1, ahead=0, guessed=0, mask_s=1.0),
    ]
    report = masks.report(1, terminated=False)
    assert report is not None
    assert (report.mask_positions, report.matcher_s) == (1 + 8, 4.0)
