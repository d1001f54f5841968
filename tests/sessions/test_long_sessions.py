"""Sessions of many turns: with guesses, right and wrong ones, every answer is the one without.

Two sessions take turns on one server: the real scheduler and the real engine on random weights. 300 turns of each:
``make sessions-long``.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ninfer.artifact.config import DENSE_ARCHITECTURE, MTP_ARCHITECTURES, MtpConfig
from ninfer.config import EngineSettings, SchedulerSettings
from ninfer.engine.engine import Engine
from tests.sessions.conversations import CONTEXT, IDS, PAGES, SESSIONS, Conversations
from tests.support.direct import Asked, Direct
from tests.support.random_model import RandomModel

IMAGES = 8
PLACES = 20
ENGINE = EngineSettings(
    max_context_tokens=CONTEXT,
    kv_capacity_tokens=PAGES * 64,
    lanes=SESSIONS,
    prefill_chunk_tokens=256,
    kv_dtype="bf16",
    host_images=IMAGES,
    host_pages=PLACES,
)
SCHEDULER = SchedulerSettings(
    lanes=SESSIONS,
    max_context_tokens=CONTEXT,
    prefill_chunk_tokens=256,
    images=IMAGES,
    host_pages=PLACES,
    turn_checkpoints=3,
    max_shared_prefixes=2,
)
MODEL = RandomModel(mtp=MtpConfig(MTP_ARCHITECTURES[DENSE_ARCHITECTURE]))
DRAFTS = 3
COPIES = 5


def nothing(number: int, asked: Asked) -> None:
    """No copied guesses."""


def compare(rounds: int, seed: int) -> tuple[Conversations, Conversations]:
    """The same sessions without guesses and with them, and some turns read by a server that holds nothing."""
    torch.set_num_threads(1)
    plain = Conversations(Engine.load(MODEL, ENGINE, IDS), SCHEDULER, seed, nothing)
    plain.play(rounds)

    def guess(number: int, asked: Asked) -> tuple[int, ...] | None:
        """Copied guesses for two rounds of three, right up to some place."""
        at = len(asked.drawn)
        if (number + at) % 3 == 0 or number >= len(plain.turns):
            return None
        wrong = (number * 7 + at * 5) % (COPIES + 2)
        answer = plain.turns[number].answer[at : at + COPIES]
        return tuple(token if place != wrong else (token + 1) % IDS for place, token in enumerate(answer))

    engine = Engine.load(MODEL, replace(ENGINE, drafter="mtp", draft_tokens=COPIES), IDS)
    settings = replace(SCHEDULER, steps_ahead=0, draft_tokens=DRAFTS, copied_tokens=COPIES)
    guessing = Conversations(engine, settings, seed, guess)
    guessing.play(rounds)
    assert guessing.turns == plain.turns
    return plain, guessing


def cold(plain: Conversations, every: int) -> None:
    """One turn of `every` is what a server says that has nothing to reuse."""
    settings = replace(SCHEDULER, lanes=1, steps_ahead=0, prefix_reuse=False, images=0, host_pages=0)
    engine = replace(ENGINE, lanes=1, kv_capacity_tokens=CONTEXT, host_images=0, host_pages=0)
    server = Direct(Engine.load(MODEL, engine, IDS), settings, CONTEXT // 64)
    for turn in plain.turns[::every]:
        asked = server.serve(turn.prompt, turn.limit, stop_ids=turn.stop_ids, sampling=turn.sampling)
        assert asked.output == turn.answer


def test_twenty_turns_of_two_sessions_are_the_same_with_guesses() -> None:
    plain, guessing = compare(20, seed=3)
    assert len(guessing.turns) == 40
    assert guessing.accepted > guessing.copied > 20
    cold(plain, every=4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_three_hundred_turns_of_two_sessions_are_the_same_with_guesses(seed: int) -> None:
    plain, guessing = compare(300, seed)
    assert {"append_frontier", "fork_shared_prefix", "full_reset", "restore_turn_checkpoint"} <= set(guessing.ways)
    assert min(guessing.events[name] for name in ("strangers", "saved", "restored", "restarts", "left")) > 5
    assert {turn.reason for turn in plain.turns} == {"output_limit", "stop_token"}
    assert guessing.drafted > guessing.accepted > guessing.copied > 1000
    cold(plain, every=5)
