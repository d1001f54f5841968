"""Guesses behind all actors: no text is another for them, on a strict engine, random weights, the embedded model."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest

from ninfer.actors.messages import Finished, GenerationRequest
from ninfer.artifact.binder import BoundArtifact
from ninfer.artifact.container import Artifact
from ninfer.artifact.tiny import build_tiny
from ninfer.config import SchedulerSettings, Settings
from ninfer.constraints.compiler import Compiler
from ninfer.constraints.constraint import ChoiceAnswer, Constraint
from ninfer.constraints.enforced import enforce
from ninfer.constraints.matcher import Reading
from ninfer.embedded import ARTIFACT
from ninfer.engine.loading import bind_for
from ninfer.ledger import PromptIdentity
from ninfer.served import open_served
from ninfer.speculation.statistics import DraftStatistics
from ninfer.text.tokenizer import Tokenizer
from ninfer.types import FinishReason
from tests.actors.test_same_text import ENGINE, SCHEDULER, WARM, Answer, requests, serve_all
from tests.support.engines import FakeEngine
from tests.support.system import GREEDY, TOKENIZER, collect, content, echo, last, request_for, running

pytestmark = pytest.mark.asyncio

LAYER = replace(ENGINE, drafter="mtp", draft_tokens=15)
TEXT = """<|im_start|>user
Repeat this list and then write it once more, as JSON: alpha, beta, gamma, delta, epsilon, alpha, beta, gamma, delta,
epsilon, alpha, beta, gamma<|im_end|>
<|im_start|>assistant
<think>

</think>

alpha, beta, gamma, delta, epsilon, alpha, beta, gamma, delta, epsilon, alpha, beta, gamma, delta, epsilon, alpha"""
REPEATED = TEXT.rpartition("\n")[2]


@dataclass(frozen=True)
class Way:
    """How tokens are guessed: by the layer, copied, and whether the window follows what guesses are worth."""

    own: int = 0
    copied: int = 0
    adaptive: bool = False

    def __str__(self) -> str:
        return f"{self.own}-{self.copied}" + "-auto" * self.adaptive


async def guessed(
    bound: BoundArtifact, tokenizer: Tokenizer, way: Way, asked: list[GenerationRequest]
) -> tuple[list[Answer], DraftStatistics]:
    """What is answered, and what guesses came to, which every counter agrees on."""
    scheduler = replace(
        SCHEDULER, steps_ahead=0, draft_tokens=way.own, copied_tokens=way.copied, adaptive_drafts=way.adaptive
    )
    engine = replace(LAYER, drafter="mtp" if way.own else None, draft_tokens=scheduler.guesses)
    told, ends, totals = await serve_all(bound, scheduler, engine, tokenizer, asked)
    counts = sum((end.speculation for end in ends if end.speculation is not None), DraftStatistics())
    assert (counts.drafted, counts.accepted) == (totals.drafted_tokens, totals.accepted_tokens)
    assert (counts.rounds, counts.fallback_steps) == (totals.draft_rounds, totals.fallback_steps)
    assert (counts.copied_drafted, counts.copied_accepted) == (totals.copied_tokens, totals.copied_accepted_tokens)
    if scheduler.guesses:
        void = totals.row_rounds - totals.draft_rounds - totals.fallback_steps
        assert 0 <= void <= sum(bool(request.stops) for request in asked)  # a row behind a stop string
    return told, counts


@pytest.mark.parametrize("way", [Way(3), Way(1, 15), Way(5, 0, adaptive=True)], ids=str)
async def test_random_weights_answer_the_same(tmp_path: Path, way: Way) -> None:
    path = tmp_path / "tiny.ninfer"
    build_tiny(path)
    with Artifact.open(path) as artifact:
        bound = bind_for(artifact, LAYER)
        plain, nothing = await guessed(bound, TOKENIZER, Way(), requests())
        told, counts = await guessed(bound, TOKENIZER, way, requests())
    assert told == plain
    assert nothing == DraftStatistics()
    assert counts.drafted > counts.accepted


@pytest.mark.parametrize("way", [Way(3), Way(2, 7), Way(5, 0, adaptive=True)], ids=str)
async def test_the_embedded_model_answers_the_same(way: Way) -> None:
    with Artifact.open(ARTIFACT) as artifact:
        served = open_served(artifact, Settings(ARTIFACT, engine=replace(LAYER, device="cpu")))
        tokenizer = served.model.tokenizer
        asked = embedded_requests(tokenizer)
        plain, _ = await guessed(served.bound, tokenizer, Way(), asked)
        told, counts = await guessed(served.bound, tokenizer, way, asked)
    assert told == plain
    assert [reason for _text, reason, _tokens in told].count(FinishReason.STOP_STRING) == 1
    assert counts.drafted > 0
    if not way.adaptive:  # else it depends on the machine
        assert counts.accepted > 10
        assert (counts.copied_accepted > 0) == (way.copied > 0)


async def test_the_embedded_model_thinks_the_same_in_front_of_a_held_answer() -> None:
    """Three ways at once to come to an end of it: a budget, a limit, and the model's own."""
    with Artifact.open(ARTIFACT) as artifact:
        served = open_served(artifact, Settings(ARTIFACT, engine=replace(LAYER, device="cpu")))
        tokenizer = served.model.tokenizer
        compiled = Compiler(tokenizer).compile(Constraint(ChoiceAnswer(("alpha", "beta"), "c")))

        def thinking() -> list[GenerationRequest]:
            asked = []
            for told, budget in ((REPEATED, 12), (REPEATED, None), ("It is alpha.\n", None)):
                reading = Reading(opens_think=True, thinking_budget=budget, max_tokens=60)
                text = f"{TEXT.partition('</think>')[0]}{told}"
                request = embedded_requests(tokenizer)[0]
                asked.append(
                    replace(
                        request,
                        prompt_ids=tuple(tokenizer.encode_with_control(text)),
                        opens_think=True,
                        max_tokens=60 if budget else 24,
                        enforced=enforce(compiled, reading),
                    )
                )
            return asked

        plain, _ = await guessed(served.bound, tokenizer, Way(), thinking())
        told, counts = await guessed(served.bound, tokenizer, Way(2, 7), thinking())
    assert told == plain
    assert [text in ("alpha", "beta") for text, _reason, _tokens in plain] == [True, False, True]
    assert counts.accepted - counts.copied_accepted > 10
    assert counts.copied_accepted > 10


@pytest.mark.parametrize("folds_late", [False, True])
@pytest.mark.parametrize("way", [Way(1), Way(5), Way(15, 3), Way(5, 0, adaptive=True)], ids=str)
async def test_a_strict_engine_says_the_same_words_however_many_come_at_once(way: Way, *, folds_late: bool) -> None:
    """It finds out whoever goes on from the wrong pages, positions or states; prompts share beginnings."""
    settings = SchedulerSettings(
        lanes=3, max_context_tokens=1024, prefill_chunk_tokens=128, max_pending=40, images=8, host_pages=4
    )
    guessing = replace(
        settings, steps_ahead=0, draft_tokens=way.own, copied_tokens=way.copied, adaptive_drafts=way.adaptive
    )
    plain, _ = await said(settings, folds_late=folds_late)
    told, drafted = await said(guessing, folds_late=folds_late)
    assert told == plain
    assert all(digest for _text, _reason, digest in told)
    assert {reason for _text, reason, _digest in told} == {
        FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.OUTPUT_LIMIT
    }  # fmt: skip
    assert drafted > 100


@pytest.mark.parametrize(("beyond", "copies"), [(-20, True), (0, True), (1, False)])
async def test_guesses_are_copied_from_behind_as_many_tokens_as_were_asked_for(beyond: int, *, copies: bool) -> None:
    """The answer is the prompt again, whose tokens are all different."""
    letters = [chr(number) for number in range(97, 97 + 26)]
    random.Random(3).shuffle(letters)
    request = request_for("".join(letters))
    ids = request.prompt_ids
    assert len(set(ids)) == len(ids) > 20
    settings = SchedulerSettings(steps_ahead=0, copied_tokens=3, prefix_reuse=False)
    engine = FakeEngine(list)
    async with running(settings, engine=engine, copy_min_match=len(ids) + beyond) as state:
        ticket = await state.system.gateway.arrive()
        await ticket.submit(replace(request, identity=PromptIdentity.of(ticket.names, ids)))
        assert content(await collect(ticket.replies)) == "".join(letters)
        await ticket.release()
        totals = state.system.machine.statistics().totals
    assert (totals.copied_tokens > 0) is copies


async def said(settings: SchedulerSettings, *, folds_late: bool) -> tuple[list[tuple[str, FinishReason, str]], int]:
    """The answers to a seeded crowd and the sessions that they leave, and how many guesses there were."""
    source = random.Random(11)
    texts = [source.choice(["abc ", "xyz "]) * source.randint(1, 90) + str(number) for number in range(16)]
    asked = [
        request_for(text, max_tokens=source.choice([1, 7, 64, 500]), stops=("b",) if number % 5 == 0 else ())
        for number, text in enumerate(texts)
    ]
    answers: dict[int, tuple[str, FinishReason, str]] = {}
    decoded: list[int] = []
    async with running(settings, engine=FakeEngine(echo, folds_late=folds_late)) as state:

        async def ask(number: int) -> None:
            ticket = await state.system.gateway.arrive()
            identity = PromptIdentity.of(ticket.names, asked[number].prompt_ids)
            await ticket.submit(replace(asked[number], identity=identity))
            replies = await collect(ticket.replies)
            end = last(replies)
            assert isinstance(end, Finished)
            answers[number] = content(replies), end.reason, end.session_digest
            decoded.append(end.usage.completion_tokens - 1)
            await ticket.release()

        async with anyio.create_task_group() as tasks:
            for number in range(len(asked)):
                tasks.start_soon(ask, number)
        totals = state.system.gateway.statistics().totals
        drafted = totals.drafted_tokens
        assert totals.decode_tokens == sum(decoded), "what stood behind a stop string in its round counts nowhere"
    return [answers[number] for number in range(len(asked))], drafted


def embedded_requests(tokenizer: Tokenizer) -> list[GenerationRequest]:
    """One greedy, one that draws, one that ends at a stop string, which comes in the middle of a round."""
    ids = tuple(tokenizer.encode_with_control(TEXT))
    request = GenerationRequest(
        prompt_ids=ids,
        opens_think=False,
        sampling=GREEDY,
        max_tokens=30,
        stops=(),
        stop_ids=tuple(sorted(tokenizer.stop_ids)),
    )
    warm = replace(request, sampling=replace(WARM, presence_penalty=0.0))
    return [request, warm, replace(request, stops=("is is is",))]
