"""What going on from kept states and pages must give: scenarios for any engine, on any device.

Whatever was read by prefill has the bits of a cold prefill, however it came back. What was decoded has other bits on a
GPU; there the ways to come back are compared with each other, and with the run that was never interrupted up to a
tolerance.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.engine import Engine
from ninfer.kernels.kv_codec import op as kv_codec
from ninfer.model.carried import Carried
from ninfer.step import (
    PAGE_TOKENS,
    CaptureState,
    LoadPages,
    ParkPages,
    RestoreState,
    standing_block,
)
from tests.engine.driving import Driver, Generation, assert_same, random_prompt

SETTINGS = {"lanes": 4, "max_context_tokens": 512, "kv_capacity_tokens": 2048, "host_images": 4, "host_pages": 12}
ROUNDS = 3  # decoded behind every prompt


@dataclass(frozen=True)
class Subject:
    """load: another engine of the same model; decoded, appended: relative distances of logits behind a decoded state
    and behind a chunk that went on inside a block."""

    load: Callable[[], Engine | DeviceEngine]
    engine: Engine | DeviceEngine
    ids: int
    decoded: float = 0.0
    appended: float = 0.0

    def driver(self, engine: Engine | DeviceEngine | None = None, seed: int = 0) -> Driver:
        return Driver(engine or self.engine, seed)  # type: ignore[arg-type]

    def prompt(self, tokens: int, seed: int) -> list[int]:
        return random_prompt(tokens, self.ids, seed)

    def cold(self, prompt: Sequence[int], lane: int = 0) -> Generation:
        """The prompt read from its first token on, and some rounds."""
        driver = self.driver(seed=99)
        generation = driver.prefill(lane, prompt, 128)
        driver.decode({lane: generation}, ROUNDS)
        return generation


def carried(engine: Engine | DeviceEngine) -> Carried:
    return engine._arenas.cache.carried if isinstance(engine, Engine) else engine._cache.carried


def distance(got: Generation, wanted: Generation) -> float:
    """Relative distance of logits, up to where other tokens are drawn."""
    same = [ours == theirs for ours, theirs in zip(got.tokens, wanted.tokens, strict=True)]
    count = same.index(False) + 1 if False in same else len(same)
    pairs = zip(got.logits[:count], wanted.logits[:count], strict=True)
    return max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in pairs)


def own_block_start(subject: Subject, prompt_tokens: int, rounds: int, chunk: int) -> None:
    """A lane drops the open rows of its block, and what it had drawn, and reads something else there."""
    driver = subject.driver()
    prompt = subject.prompt(prompt_tokens, prompt_tokens)
    first = {0: driver.prefill(0, prompt, chunk)}
    driver.decode(first, rounds)
    history = (prompt + first[0].tokens)[: prompt_tokens + rounds]
    block = standing_block(len(history), drew=rounds > 0, folds_late=subject.engine.folds_late)
    begin = block * PAGE_TOKENS
    kept = min(len(history), begin + 7)
    follow = history[:kept] + subject.prompt(75, 5)
    resumed = driver.prefill(0, follow, chunk, kept=driver.table(0, begin))
    driver.decode({0: resumed}, ROUNDS)
    cold = subject.cold(follow)
    if begin <= prompt_tokens:
        assert_same(resumed, cold)
    else:
        assert distance(resumed, cold) <= subject.decoded


def own_block_start_behind_guesses(subject: Subject, prompt_tokens: int, tokens: int, drafts: int) -> None:
    """As above where rounds have drawn several tokens: the state that the lane holds is that of the block in which the
    last round began, if that engine folds late.
    """
    prompt = subject.prompt(prompt_tokens, prompt_tokens)
    plain = subject.driver()
    truth = {2: plain.prefill(2, prompt, 128)}
    plain.decode(truth, tokens)
    driver = subject.driver(seed=1)
    first = {0: driver.prefill(0, prompt, 128)}
    right = truth[2].tokens
    drawn = driver.speculate(
        first, tokens + 1, {0: drafts}, {0: lambda seen: tuple(right[len(seen) : len(seen) + drafts])}
    )
    assert first[0].tokens == right
    history = (prompt + right)[: prompt_tokens + tokens]
    block = standing_block(len(history), drew=len(drawn[-1].token_ids), folds_late=subject.engine.folds_late)
    follow = history[: block * PAGE_TOKENS + 7] + subject.prompt(75, 5)
    resumed = driver.prefill(0, follow, 128, kept=driver.table(0, block * PAGE_TOKENS))
    driver.decode({0: resumed}, ROUNDS)
    cold = subject.cold(follow)
    if block * PAGE_TOKENS <= prompt_tokens:
        assert_same(resumed, cold)
    else:
        assert distance(resumed, cold) <= subject.decoded


def inside_a_block(subject: Subject, prompt_tokens: int, rounds: int, more: int, chunk: int) -> None:
    """A lane reads on where it stands, while others have decoded beside it."""
    driver = subject.driver()
    prompt = subject.prompt(prompt_tokens, prompt_tokens)
    ends = []
    for lane in (0, 2):
        lanes = {lane: driver.prefill(lane, prompt, chunk), 1: driver.prefill(1, subject.prompt(70, 1), 128)}
        driver.decode(lanes, rounds)
        history = (prompt + lanes[lane].tokens)[: prompt_tokens + rounds]
        driver.decode({1: lanes[1]}, 2)
        follow = history + subject.prompt(more, 5)
        resumed = driver.prefill(lane, follow, chunk, kept=driver.table(lane, len(history)), stands=len(history))
        driver.decode({lane: resumed, 1: lanes[1]}, ROUNDS)
        ends.append(resumed)
    assert_same(*ends)
    near(subject, resumed, subject.cold(follow), rounds)


def near(subject: Subject, resumed: Generation, cold: Generation, decoded: int) -> None:
    """What went on inside a block, `decoded` positions of which rounds have run, is what was read anew."""
    allowed = max(subject.appended, subject.decoded if decoded else 0.0)
    if allowed:
        assert distance(resumed, cold) <= allowed
    else:
        assert_same(resumed, cold)


def inside_a_block_behind_guesses(subject: Subject, prompt_tokens: int, tokens: int, drafts: int, more: int) -> None:
    """As above where rounds have drawn several tokens: the drafter looks at what it has not seen, too."""
    prompt = subject.prompt(prompt_tokens, prompt_tokens)
    plain = subject.driver()
    truth = {2: plain.prefill(2, prompt, 128)}
    plain.decode(truth, tokens)
    right = truth[2].tokens
    driver = subject.driver(seed=1)
    first = {0: driver.prefill(0, prompt, 128)}
    if tokens:
        driver.speculate(first, tokens + 1, {0: drafts}, {0: lambda seen: tuple(right[len(seen) : len(seen) + drafts])})
    history = (prompt + right)[: prompt_tokens + tokens]
    follow = history + subject.prompt(more, 5)
    resumed = driver.prefill(0, follow, 128, kept=driver.table(0, len(history)), stands=len(history))
    seen = drafter_rows(subject.engine, driver.table(0, len(follow)))[:, : len(follow) - 1].clone()
    driver.decode({0: resumed}, ROUNDS)
    cold = subject.driver(seed=2)
    anew = cold.prefill(1, follow, 128)
    wanted = drafter_rows(subject.engine, cold.table(1, len(follow)))[:, : len(follow) - 1]
    cold.decode({1: anew}, ROUNDS)
    near(subject, resumed, anew, tokens)
    allowed = max(subject.appended, subject.decoded if tokens else 0.0)
    assert float((seen - wanted).norm() / wanted.norm()) <= allowed


def drafter_rows(engine: Engine | DeviceEngine, pages: Sequence[int]) -> Tensor:
    """[2, positions, HKV * D] fp32: keys and values of the drafter's layer."""
    chosen = torch.tensor(pages)
    if isinstance(engine, Engine):
        planes = [plane[chosen].float() for plane in engine._arenas.cache.drafter_planes]
    else:
        planes = list(kv_codec.decoded_pages(engine._cache.pools[-1], chosen.to(engine._device)))
    return torch.stack([plane.transpose(1, 2).flatten(0, 1).flatten(1) for plane in planes])


def entry_columns(subject: Subject) -> None:
    """They are what was read in front of the block, however far the lane has moved on behind it."""
    driver = subject.driver()
    lane = {2: driver.prefill(2, subject.prompt(125, 1), 128)}
    driver.decode(lane, 3)
    in_front = carried(subject.engine).recent[:, 2].clone()
    for _ in range(3):
        driver.decode(lane, 1)
        assert torch.equal(carried(subject.engine).entry[:, 2], in_front)
    assert torch.isfinite(in_front).all()
    assert in_front.count_nonzero() > in_front.numel() // 2


def images_and_a_fork(subject: Subject) -> None:
    """One prefix read once: an image from behind the chunk goes into the same and into another lane, which share pages
    and decode together, after somebody else was in the lane."""
    driver = subject.driver()
    prefix = subject.prompt(128, 1)
    driver.prefill(0, prefix + subject.prompt(20, 2), 128, after=(CaptureState(0, 2),))
    pages = driver.table(0, 128)
    driver.decode({0: driver.prefill(0, subject.prompt(140, 3), 128)}, 2)
    prompts = {0: prefix + subject.prompt(9, 4), 3: prefix + subject.prompt(64, 5)}
    forks = {
        lane: driver.prefill(lane, prompt, 64, kept=pages, before=(RestoreState(2, lane),))
        for lane, prompt in prompts.items()
    }
    driver.decode(forks, ROUNDS)
    for lane, prompt in prompts.items():
        assert_same(forks[lane], subject.cold(prompt))


def a_decoded_state(subject: Subject) -> None:
    """A state that rounds have made: the image of it is as good as the lane that holds it."""
    driver = subject.driver()
    prompt = subject.prompt(126, 6)
    lane = {1: driver.prefill(1, prompt, 128)}
    driver.decode(lane, 4)
    history = prompt + lane[1].tokens[:4]
    subject.engine.capture(1, 0)
    follow = history[:129] + subject.prompt(10, 7)
    pages = driver.table(1, 128)
    own = driver.prefill(1, follow, 128, kept=pages)
    driver.decode({1: own}, ROUNDS)
    other = driver.prefill(2, follow, 64, kept=pages, before=(RestoreState(0, 2),))
    driver.decode({2: other}, ROUNDS)
    assert_same(own, other)
    assert distance(own, subject.cold(follow, 3)) <= subject.decoded


def parked_pages(subject: Subject) -> None:
    """Pages go to the host, are overwritten, and come back elsewhere; all in front of one chunk."""
    driver = subject.driver()
    prompt = subject.prompt(200, 8)
    driver.prefill(0, prompt, 128, after=(CaptureState(0, 1),))
    pages = driver.table(0, 192)
    places = (7, 8, 2)
    driver.prefill(1, subject.prompt(10, 9), 128, before=(ParkPages(pages, places),))
    spoil(subject, pages)
    others = driver.take(3)
    back = (RestoreState(1, 2), LoadPages((2, 7, 8), (others[2], others[0], others[1])))
    resumed = driver.prefill(2, prompt, 128, kept=others, before=back)
    driver.decode({2: resumed}, ROUNDS)
    assert_same(resumed, subject.cold(prompt))


def a_lane_that_is_taken(subject: Subject) -> None:
    """A state goes out in front of the chunk that overwrites it, and comes back in front of another's."""
    driver = subject.driver()
    prompt = subject.prompt(130, 10)
    driver.prefill(0, prompt, 128)
    pages = driver.table(0, 128)
    driver.prefill(0, subject.prompt(70, 11), 128, before=(CaptureState(0, 3),))
    resumed = driver.prefill(0, prompt, 128, kept=pages, before=(RestoreState(3, 0),))
    driver.decode({0: resumed}, ROUNDS)
    assert_same(resumed, subject.cold(prompt, 1))


def another_engine(subject: Subject) -> None:
    """What is read out of one engine goes on in another; read pages are copies."""
    driver = subject.driver()
    prompt = subject.prompt(260, 12)
    driver.prefill(0, prompt, 128)
    subject.engine.capture(0, 0)
    pages = driver.table(0, 256)
    data, image = subject.engine.read_pages(pages), bytes(subject.engine.read_image(0))
    assert data.nbytes == 4 * subject.engine.page_bytes
    assert len(image) == subject.engine.image_bytes
    assert subject.engine.read_pages(pages[2:3]) == data[2 * subject.engine.page_bytes : 3 * subject.engine.page_bytes]
    spoil(subject, pages)
    engine = subject.load()
    other = subject.driver(engine, seed=4)
    taken = other.take(4)
    engine.write_image(3, memoryview(image))
    engine.write_pages(taken, data.toreadonly())
    resumed = other.prefill(1, prompt, 128, kept=taken, before=(RestoreState(3, 1),))
    other.decode({1: resumed}, ROUNDS)
    assert_same(resumed, subject.cold(prompt))


def spoil(subject: Subject, pages: Sequence[int]) -> None:
    """Write over pages, with rows of other pages."""
    engine = subject.engine
    others = random.Random(1).sample([page for page in range(engine.memory.pages) if page not in pages], len(pages))
    engine.write_pages(pages, engine.read_pages(others))


def image_parts(subject: Subject, image: memoryview) -> tuple[Tensor, Tensor]:
    """Columns and states of an image."""
    views = carried(subject.engine)
    columns, states = views.entry[:, 0], views.states[:, 0]
    data = torch.frombuffer(bytearray(image), dtype=torch.uint8)
    cut = columns.numel() * columns.itemsize
    return data[:cut].view(columns.dtype).view(columns.shape), data[cut:].view(states.dtype).view(states.shape)
