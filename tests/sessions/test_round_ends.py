"""Requests that end within a round, at every index and around the end of a block, and what goes on from them.

Both engines: the one whose blocks become states at once, and the one that folds them when the next begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

import pytest
import torch

from ninfer.actors.engine import EngineLike
from ninfer.config import EngineSettings, SchedulerSettings
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.engine import Engine
from ninfer.engine.loading import bind_for
from tests.engine.driving import random_prompt
from tests.engine.test_speculation import MODEL
from tests.support.direct import Asked, Direct
from tests.support.tiny_device import tiny_model

IDS = 200
CONTEXT = 128
LANES = 2
GUESSES = 5
ENGINE = EngineSettings(
    device="cpu", max_context_tokens=CONTEXT, kv_capacity_tokens=LANES * CONTEXT, lanes=LANES, kv_dtype="bf16",
    compute_dtype="bf16", prefill_chunk_tokens=128, host_images=4,
)  # fmt: skip
GUESSING = replace(ENGINE, drafter="mtp", draft_tokens=GUESSES)
SCHEDULER = SchedulerSettings(
    lanes=LANES, max_context_tokens=CONTEXT, prefill_chunk_tokens=128, images=4, turn_checkpoints=1, steps_ahead=0
)
MORE = tuple(random_prompt(5, IDS, 99))
AT_BLOCK_END = (60, 63)
FARTHEST = 0.03  # of logits behind what an engine has decoded, where that has other bits than what it reads

Load = Callable[[EngineSettings], EngineLike]


class Rig:
    """A server that holds nothing, and one that guesses what that one has said.

    exact    whether what was decoded has the bits of what was read
    """

    def __init__(self, load: Load, *, exact: bool) -> None:
        self.load, self.exact = load, exact
        self.answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        self.wrong: set[tuple[int, ...]] = set()

    @cached_property
    def cold(self) -> Direct:
        pages = LANES * CONTEXT // 64
        return Direct(self.load(ENGINE), replace(SCHEDULER, prefix_reuse=False, images=0), pages)

    @cached_property
    def engine(self) -> EngineLike:
        return self.load(GUESSING)

    def server(self) -> Direct:
        self.engine.reset()
        return Direct(self.engine, replace(SCHEDULER, draft_tokens=GUESSES), LANES * CONTEXT // 64, self.guess)

    def answer(self, prompt: tuple[int, ...], limit: int) -> tuple[int, ...]:
        known = self.answers.get(prompt, ())
        if len(known) < limit:
            known = self.answers[prompt] = self.cold.serve(prompt, limit).output
        return known[:limit]

    def guess(self, asked: Asked) -> tuple[int, ...]:
        return self.answers[asked.prompt][len(asked.drawn) :][:GUESSES]

    def first_logits(self, server: Direct, prompt: tuple[int, ...]) -> torch.Tensor:
        """What the first token behind a prompt is drawn from."""
        number = server.ask(prompt, 1)
        server.run()
        server.release(number)
        engine = server.engine
        assert isinstance(engine, Engine | DeviceEngine)
        return engine.logits[0, :IDS].clone()

    def goes_on(self, server: Direct, history: tuple[int, ...]) -> None:
        """What follows is what a server says that holds nothing, first with wrong guesses, then with right ones."""
        for count, wrong in ((3, 1), (4, 0)):
            history += MORE
            wanted = self.answer(history, count)
            if not self.exact:
                got, cold = self.first_logits(server, history), self.first_logits(self.cold, history)
                assert float((got - cold).norm() / cold.norm()) < FARTHEST
            else:
                self.answers[history] = tuple((token + wrong) % IDS for token in wanted)
                told = server.serve(history, count)
                self.answers[history] = wanted
                assert told.output == wanted
            history += wanted
        server.machine.audit()


@pytest.fixture(scope="module", params=["at once", "late"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    torch.set_num_threads(1)
    if request.param == "at once":
        yield Rig(lambda settings: Engine.load(MODEL, settings, IDS), exact=True)
        return
    with tiny_model(tmp_path_factory.mktemp("model") / "tiny.ninfer", drafter=True) as artifact:
        yield Rig(lambda settings: DeviceEngine.load(bind_for(artifact, settings), settings, IDS), exact=False)


def prompt_of(length: int) -> tuple[int, ...]:
    return tuple(random_prompt(length, IDS, length))


@pytest.mark.parametrize("length", AT_BLOCK_END)
def test_a_limit_is_met_within_a_round(rig: Rig, length: int) -> None:
    prompt = prompt_of(length)
    truth = rig.answer(prompt, 9)
    for limit in (1, 4, 6, 7):
        server = rig.server()
        asked = server.serve(prompt, limit)
        assert (asked.output, asked.reason) == (truth[:limit], "output_limit")
        rig.goes_on(server, prompt + asked.output)


@pytest.mark.parametrize("length", AT_BLOCK_END)
def test_a_stop_token_is_drawn_within_a_round(rig: Rig, length: int) -> None:
    prompt = prompt_of(length)
    truth = rig.answer(prompt, 9)
    for stop in sorted({truth.index(token) for token in truth})[1:5]:
        server = rig.server()
        asked = server.serve(prompt, 12, stop_ids=(truth[stop],))
        assert (asked.output, asked.reason) == (truth[: stop + 1], "stop_token")
        rig.goes_on(server, prompt + asked.output)


@pytest.mark.parametrize("length", AT_BLOCK_END)
def test_a_client_leaves_during_a_round(rig: Rig, length: int) -> None:
    """Beside another one whose answer does not change for it; then both go on."""
    prompt, other = prompt_of(length), prompt_of(30)
    truth = rig.answer(prompt, 20)
    wanted = rig.answer(other, 20)
    for landings in (3, 4):
        server = rig.server()
        stays, leaves = server.ask(other, 20), server.ask(prompt, 20)
        for _ in range(landings):
            server.land()
        assert server.flight
        server.release(leaves)
        server.run()
        left, stayed = server.requests[leaves], server.requests[stays]
        assert left.output == truth[: len(left.output)]
        assert stayed.output == wanted
        server.release(stays)
        rig.goes_on(server, prompt + left.output)
        rig.goes_on(server, other + stayed.output)


def test_the_context_ends_within_a_round(rig: Rig) -> None:
    for length in (CONTEXT - 6, CONTEXT - 3, CONTEXT - 1):
        prompt = prompt_of(length)
        room = CONTEXT - length
        truth = rig.answer(prompt, room)
        server = rig.server()
        asked = server.serve(prompt, 1000)
        assert (asked.output, asked.reason) == (truth, "context_capacity")
        server.machine.audit()
        rig.goes_on(server, prompt[:70])
