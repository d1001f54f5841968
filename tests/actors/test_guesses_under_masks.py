"""Guesses inside constrained answers: no text is another for them, greedy or drawn, alone or beside free requests."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from ninfer.actors.eventlog import EventLog
from ninfer.actors.messages import Finished, GenerationRequest
from ninfer.artifact.container import Artifact
from ninfer.artifact.tiny import build_tiny
from ninfer.config import SchedulerSettings, Settings
from ninfer.constraints.calls import Tool
from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import Calls, Constraint, GrammarAnswer, JsonAnswer, RegexAnswer
from ninfer.constraints.enforced import enforce
from ninfer.constraints.matcher import Reading
from ninfer.embedded import ARTIFACT
from ninfer.engine.loading import bind_for
from ninfer.replay import Onlooker, replay
from ninfer.scheduler import commands as cmd
from ninfer.scheduler import events as ev
from ninfer.scheduler.statistics import TotalsView
from ninfer.served import open_served
from ninfer.text.tokenizer import Tokenizer
from ninfer.types import FinishReason, Sampling
from tests.actors.test_guesses import LAYER, Way, embedded_requests, guessed
from tests.actors.test_same_text import WARM
from tests.support.engines import FakeEngine
from tests.support.system import GREEDY, TOKENIZER, collect, content, last, request_for, running

pytestmark = pytest.mark.asyncio

PROMPT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n<think>\n{}"
NO_THINKING = "\n</think>\n\n"
SENTENCE = "Extract name, age and city as JSON. Maria is 34 years old, lives in Berlin and likes tennis."
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "day": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    strict=True,
    where="tools[0]",
)
MEMBERS = Constraint(RegexAnswer(r'\{("[a-z]+": ("[A-Za-z ]+"|[0-9]+)(, )?)+\}', "r"))
LISTS = Constraint(GrammarAnswer('root ::= "{" pair (", " pair)* "}"\npair ::= string ": " (string | [0-9]+)\n'
                                 'string ::= "\\"" [A-Za-z ]+ "\\""', "g"))  # fmt: skip
SCHEMA = Constraint(JsonAnswer(PERSON, "response_format.json_schema.schema"))
FORCED = Constraint(calls=Calls((WEATHER,), forced=True))
MAYBE = Constraint(calls=Calls((WEATHER,)))
EVERY_WAY = [Way(3), Way(2, 7), Way(5, adaptive=True)]


def constrained(
    tokenizer: Tokenizer,
    compiler: Compiler,
    constraint: Constraint,
    *,
    sampling: Sampling = GREEDY,
    max_tokens: int = 30,
    thinks: str | None = None,
    text: str = SENTENCE,
) -> GenerationRequest:
    """A question to the embedded model; `thinks` is what of its thinking stands in the prompt already."""
    ids = tokenizer.encode_with_control(PROMPT.format(text, NO_THINKING if thinks is None else thinks))
    reading = Reading(opens_think=thinks is not None, max_tokens=max_tokens)
    return GenerationRequest(
        prompt_ids=tuple(ids),
        opens_think=thinks is not None,
        sampling=sampling,
        max_tokens=max_tokens,
        stops=(),
        stop_ids=tuple(sorted(tokenizer.stop_ids)),
        enforced=enforce(compiler.compile(constraint), reading),
    )


async def test_the_embedded_model_answers_the_same_under_every_kind_of_constraint() -> None:
    with Artifact.open(ARTIFACT) as artifact:
        served = open_served(artifact, Settings(ARTIFACT, engine=replace(LAYER, device="cpu")))
        tokenizer = served.model.tokenizer
        compiler = Compiler(tokenizer)
        warm = replace(WARM, presence_penalty=0.0)

        def asked() -> list[GenerationRequest]:
            """Some are cut, some end; one thinks first, and one is free."""
            return [
                constrained(tokenizer, compiler, LISTS),
                constrained(tokenizer, compiler, FORCED, max_tokens=20),
                constrained(tokenizer, compiler, MEMBERS, thinks="The text says it.\n"),
                constrained(tokenizer, compiler, MAYBE, sampling=warm, max_tokens=14),
                replace(embedded_requests(tokenizer)[1], max_tokens=14),
                constrained(tokenizer, compiler, SCHEMA, sampling=warm, max_tokens=14),
            ]

        plain, _ = await guessed(served.bound, tokenizer, Way(), asked())
        for way in (Way(3), Way(2, 7)):
            told, counts = await guessed(served.bound, tokenizer, way, asked())
            assert told == plain
            assert counts.accepted - counts.copied_accepted > 20
    assert plain[0][0] == '{"name": "Maria", "age": 34, "city": "Berlin"}'
    assert {reason for _text, reason, _tokens in plain} == {FinishReason.STOP_TOKEN, FinishReason.OUTPUT_LIMIT}


@pytest.mark.parametrize("way", EVERY_WAY, ids=str)
async def test_random_weights_answer_the_same_under_constraints(tmp_path: Path, way: Way) -> None:
    path = tmp_path / "tiny.ninfer"
    build_tiny(path)
    compiler = Compiler(TOKENIZER)
    letters = Constraint(RegexAnswer("[a-z ]{3,40}", "r"))

    def asked() -> list[GenerationRequest]:
        laws = (GREEDY, WARM, replace(WARM, seed=3))
        kinds = (letters, SCHEMA, None, LISTS, FORCED, MEMBERS, MAYBE)
        return [
            replace(
                request_for("", max_tokens=20 + number),
                prompt_ids=tuple(TOKENIZER.encode("of the questions " * 99))[: 501 if number == 5 else 9 + 20 * number],
                sampling=laws[number % 3],
                enforced=enforce(compiler.compile(kind), Reading()) if kind is not None else None,
            )
            for number, kind in enumerate(kinds)
        ]

    with Artifact.open(path) as artifact:
        bound = bind_for(artifact, LAYER)
        plain, _ = await guessed(bound, TOKENIZER, Way(), asked())
        told, counts = await guessed(bound, TOKENIZER, way, asked())
    assert told == plain
    assert FinishReason.CONTEXT_CAPACITY in [reason for _text, reason, _tokens in plain]
    assert counts.drafted > counts.accepted


WORDS = Constraint(RegexAnswer("[abeghlmpt ]{5,300}", "r"))
OPINION = "alpha gamma beta beta alpha gamma gamma alpha beta " * 4
GUESSING = SchedulerSettings(lanes=3, prefix_reuse=False, steps_ahead=0, draft_tokens=5)


class Watching(Onlooker):
    """Notes what a log tells of masks."""

    def __init__(self) -> None:
        self.masks: list[ev.MaskReady] = []

    def decided(self, number: int, now: float, event: ev.Event, commands: Sequence[cmd.Command]) -> None:
        if isinstance(event, ev.MaskReady):
            self.masks.append(event)


async def said(settings: SchedulerSettings, accepts: int = 15) -> tuple[list[str], TotalsView, list[ev.MaskReady]]:
    """Three at once, one of them free, to an engine with an opinion, of whose guesses so many are right; replayed."""
    compiler = Compiler(TOKENIZER)
    ids = TOKENIZER.encode(OPINION)
    file = io.BytesIO()
    texts: dict[int, str] = {}
    engine = FakeEngine(lambda _prompt: ids, accepts=lambda _position: accepts, round_s=10.0)
    async with running(settings, engine=engine, log=EventLog(file)) as state:

        async def ask(number: int) -> None:
            request = request_for(f"question {number}", max_tokens=140 + number)
            if number:
                request = replace(request, enforced=enforce(compiler.compile(WORDS), Reading()))
            ticket = await state.system.gateway.arrive()
            await ticket.submit(request)
            replies = await collect(ticket.replies)
            await ticket.release()
            assert isinstance(last(replies), Finished)
            texts[number] = content(replies)

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(ask, number)
        while state.system.machine.requests:
            await anyio.lowlevel.checkpoint()
        totals = state.system.machine.statistics().totals
    watching = Watching()
    assert replay(file.getvalue().splitlines(keepends=True), onlooker=watching).requests == 3
    return [texts[number] for number in range(3)], totals, watching.masks


@pytest.mark.parametrize("accepts", [15, 2, 0])
async def test_guesses_under_masks_are_counted_and_replayed(accepts: int) -> None:
    plain, _, _ = await said(replace(GUESSING, draft_tokens=0))
    told, totals, masks = await said(GUESSING, accepts=accepts)
    assert told == plain
    assert any(mask.guessed for mask in masks)
    own = totals.accepted_tokens - totals.copied_accepted_tokens
    assert own > 60 if accepts else own >= 0
    assert totals.drafted_tokens - totals.copied_tokens >= own


async def test_what_is_copied_goes_before_what_the_engine_guesses() -> None:
    plain, _, _ = await said(replace(GUESSING, draft_tokens=0))
    told, totals, masks = await said(replace(GUESSING, draft_tokens=0, copied_tokens=7))
    assert told == plain
    assert totals.copied_accepted_tokens > 30
    assert {mask.guessed for mask in masks} == {0}
    told, both, _ = await said(replace(GUESSING, copied_tokens=7))
    assert told == plain
    assert both.copied_accepted_tokens > 30
    assert both.accepted_tokens > both.copied_accepted_tokens
