"""The GPU engine on the processor, through the kernels' plain routes, with the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION
from ninfer.artifact.container import Artifact
from ninfer.config import EngineSettings
from ninfer.embedded import ARTIFACT
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.device_layout import LIBRARY_BYTES
from ninfer.engine.engine import Engine
from ninfer.errors import DeviceFault, StartupError
from ninfer.kernels.low_bit_linear.chunk_route import Choice, Policy
from ninfer.kernels.low_bit_linear.op import product_chunk
from ninfer.kernels.low_bit_linear.pack import LowBitWeight
from ninfer.model import chunk_products
from ninfer.model.chunks import Chunks, even_parts
from ninfer.step import DecodeRound, DecodeRow, LaneSetup, NextPart, PageMapping, PrefillChunk
from tests.engine.driving import GREEDY, Driver, assert_same, assert_told, generate, random_prompt
from tests.support.random_model import SMALL, RandomModel

PUBLIC = 8000
SETTINGS = EngineSettings(
    device="cpu", max_context_tokens=512, kv_capacity_tokens=1024, lanes=3, prefill_chunk_tokens=128,
    kv_dtype="int8", compute_dtype="bf16",
)  # fmt: skip
PROMPTS = [random_prompt(length, PUBLIC, length) for length in (1, 64, 150)]


@pytest.fixture(scope="module")
def model() -> Iterator[BoundArtifact]:
    with Artifact.open(ARTIFACT) as artifact:
        yield bind(artifact)


@pytest.fixture(scope="module")
def engine(model: BoundArtifact) -> DeviceEngine:
    return DeviceEngine.load(model, SETTINGS, PUBLIC)


def test_it_draws_what_the_engine_of_the_processor_draws(engine: DeviceEngine, model: BoundArtifact) -> None:
    plain = Engine.load(model, replace(SETTINGS, kv_dtype="fp32", compute_dtype="fp32"), PUBLIC)
    expected = generate(plain, PROMPTS, 6, 128)
    for got, wanted in zip(generate(engine, PROMPTS, 6, 128), expected, strict=True):  # type: ignore[arg-type]
        assert got.tokens == wanted.tokens
        for mine, theirs in zip(got.logits, wanted.logits, strict=True):
            assert float((mine[:PUBLIC] - theirs).norm() / theirs.norm()) < 0.02  # bf16 activations, int8 keys


def test_a_lane_knows_nothing_of_the_others(engine: DeviceEngine) -> None:
    together = generate(engine, PROMPTS, 5, 128)  # type: ignore[arg-type]
    (alone,) = generate(engine, PROMPTS[2:], 5, 64, seed=9)  # type: ignore[arg-type]
    assert_same(alone, together[2])


def test_a_chunk_in_parts_is_the_same_chunk_whatever_runs_between_them(engine: DeviceEngine) -> None:
    assert engine.chunk_parts == (1, 2)
    whole, other = generate(engine, [PROMPTS[2], PROMPTS[1]], 6, 128)  # type: ignore[arg-type]
    driver = Driver(engine, seed=5)  # type: ignore[arg-type]
    beside = driver.prefill(0, PROMPTS[1], 128)

    def round_beside() -> None:
        row = DecodeRow(0, 63 + len(beside.tokens), driver._map(0, 64 + len(beside.tokens)))
        (drawn,) = engine.run(DecodeRound((row,))).drawn
        beside.add(drawn, engine.logits[0])

    parted = driver.prefill(2, PROMPTS[2], 128, parts=2, between=round_beside)
    driver.decode({2: parted}, 5)
    assert len(beside.tokens) == 3
    assert_same(parted, whole)
    for number, logits in enumerate(beside.logits):
        assert torch.equal(logits, other.logits[number])


def test_parts_come_one_behind_the_other(engine: DeviceEngine) -> None:
    engine.reset()
    with pytest.raises(AssertionError, match="no chunk has parts to come"):
        engine.launch(NextPart(0))
    chunk = PrefillChunk(0, 0, tuple(PROMPTS[1]), PageMapping(0, (0,)), LaneSetup(GREEDY, ()), sample=False, parts=2)
    engine.run(chunk)
    with pytest.raises(AssertionError, match="between the parts of another"):
        engine.launch(replace(chunk, lane=1))
    with pytest.raises(AssertionError, match="the chunk is of lane 0"):
        engine.launch(NextPart(1))
    engine.reset()  # a fault ends it
    with pytest.raises(AssertionError, match="no chunk has parts to come"):
        engine.launch(NextPart(0))


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [("g", (1,)), ("gg", (1, 2)), ("gga", (1,)), ("ggga" * 2, (1, 2)), ("ggga" * 10, (1, 2, 5, 10)), ("ga", (1,))],
)
def test_parts_have_the_same_kinds_of_layers(kinds: str, expected: tuple[int, ...], model: BoundArtifact) -> None:
    names = tuple(FULL_ATTENTION if kind == "a" else LINEAR_ATTENTION for kind in kinds)
    assert even_parts(replace(model.text, layer_types=names)) == expected


def test_steps_launched_ahead_see_what_was_drawn_before(engine: DeviceEngine) -> None:
    (expected,) = generate(engine, [PROMPTS[1]], 4, 128)  # type: ignore[arg-type]
    driver = Driver(engine)  # type: ignore[arg-type]
    first = driver.prefill(0, PROMPTS[1], 128)
    page = driver._map(0, 65)
    steps = [
        engine.launch(DecodeRound((DecodeRow(0, position, page if position == 64 else PageMapping(2, ())),)))
        for position in (64, 65, 66)
    ]
    drawn = [step.wait().drawn[0].token_ids[0] for step in steps]
    assert [*first.tokens, *drawn] == expected.tokens


def test_a_stop_token_is_seen_on_the_device(engine: DeviceEngine) -> None:
    (free,) = generate(engine, [PROMPTS[1]], 2, 128)  # type: ignore[arg-type]
    driver = Driver(engine)  # type: ignore[arg-type]
    driver.prefill(0, PROMPTS[1], 128, stop_ids=(5, free.tokens[1]))
    result = engine.run(DecodeRound((DecodeRow(0, 64, driver._map(0, 65)),)))
    assert result.drawn[0].stopped
    assert result.drawn[0].token_ids == (free.tokens[1],)


def only(*ids: int) -> bytes:
    """A mask that leaves these ids."""
    return sum(1 << n for n in ids).to_bytes(PUBLIC // 8, "little")


def test_a_mask_leaves_only_its_ids_to_its_row_and_to_no_later_one(engine: DeviceEngine) -> None:
    prompt = tuple(PROMPTS[1][:3])
    (free,) = generate(engine, [prompt], 3, 128)  # type: ignore[arg-type]
    chunk = PrefillChunk(0, 0, prompt, PageMapping(0, (0,)), LaneSetup(GREEDY, ()), sample=True, mask=only(7))
    first = engine.run(chunk).drawn
    assert first is not None
    assert first.token_ids == (7,)
    engine.run(replace(chunk, lane=1, mapping=PageMapping(0, (1,)), mask=None))
    nothing = PageMapping(1, ())
    rows = (DecodeRow(0, 3, nothing, only(9, 7040)), DecodeRow(1, 3, nothing))
    # The next round is launched before this one has landed: its masks must not reach this one's draws.
    steps = [
        engine.launch(DecodeRound(rows)),
        engine.launch(DecodeRound((DecodeRow(1, 4, nothing), DecodeRow(0, 4, nothing, only(11))))),
    ]
    (masked, unmasked), after = (step.wait().drawn for step in steps)
    assert masked.token_ids[0] in (9, 7040)
    assert [unmasked.token_ids[0], after[0].token_ids[0]] == free.tokens[1:]
    assert after[1].token_ids == (11,)
    again = engine.run(replace(chunk, mask=None)).drawn
    assert again is not None
    assert again.token_ids[0] == free.tokens[0]


def test_logprobs_are_told_of_the_lanes_that_ask(engine: DeviceEngine) -> None:
    driver = Driver(engine)  # type: ignore[arg-type]
    counts = {2: 20, 0: None, 1: 0}
    told = {lane: driver.prefill(lane, PROMPTS[lane], 128, logprobs=count) for lane, count in counts.items()}
    driver.decode(told, 4)
    assert_told(told[2], 20, PUBLIC)
    assert_told(told[1], 0, PUBLIC)
    assert told[0].logprobs == []


def test_logits_that_are_not_finite_are_a_fault(model: BoundArtifact) -> None:
    engine = DeviceEngine.load(model, replace(SETTINGS, lanes=1, kv_capacity_tokens=512), PUBLIC)
    with torch.inference_mode():
        engine.weights.final_norm.fill_(float("nan"))
    step = engine.launch(
        PrefillChunk(0, 0, (1, 2, 3), PageMapping(0, (0,)), LaneSetup(GREEDY, ()), sample=True)
    )  # fmt: skip
    with pytest.raises(DeviceFault, match="not finite"):
        step.wait()
    engine.reset()


def test_planned_bytes_are_allocated_bytes(engine: DeviceEngine) -> None:
    groups = dict(engine.memory.groups)
    planned = sum(groups[name] for name in ("weights", "kv", "state", "replay", "workspace"))
    # To the byte, but for what the allocator rounds up of each of the four arenas.
    assert abs(planned - LIBRARY_BYTES - engine.allocated_bytes) < 4 * 512


def test_what_has_no_kernel_is_refused(model: BoundArtifact) -> None:
    with pytest.raises(StartupError, match="use bf16 or int8"):
        DeviceEngine.load(model, replace(SETTINGS, kv_dtype="fp32"), PUBLIC)
    with pytest.raises(StartupError, match="short by"):
        DeviceEngine.load(model, replace(SETTINGS, device_memory_limit_bytes=1 << 20), PUBLIC)

    class Direct(RandomModel):
        def format_of(self, name: str) -> str:
            return "bf16"

    with pytest.raises(StartupError, match="convert the model with a groupwise-int recipe"):
        DeviceEngine.load(Direct(SMALL), SETTINGS, 200)  # type: ignore[arg-type]


@pytest.mark.parametrize(("tokens", "in_registers"), [(20, True), (64, True), (65, False)])
@torch.inference_mode()
def test_short_chunks_may_be_multiplied_in_registers(
    engine: DeviceEngine, tokens: int, in_registers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same arithmetic but for the order of sums; longer chunks go the other way, to the bit."""
    multiplied: list[int] = []

    def noted(x: Tensor, weight: LowBitWeight, out: Tensor) -> None:
        multiplied.append(weight.rows)
        product_chunk(x, weight, out)

    monkeypatch.setattr(chunk_products, "product_chunk", noted)
    workspace, cache = engine._workspace, engine._cache
    cache.tables[0, :2] = torch.tensor([3, 5], dtype=torch.int32)
    workspace.chunk.ids[:tokens] = torch.tensor(random_prompt(tokens, PUBLIC, 7), dtype=torch.int32)
    workspace.chunk.begin.zero_()
    streams = []
    for policy in (Policy(Choice.LIBRARY), Policy(Choice.IN_REGISTER)):
        made = Chunks(engine._layout.config, engine.weights, cache, workspace.shared, workspace.chunk, PUBLIC, policy)
        made.read(0, 0, tokens)
        streams.append(workspace.chunk.residual[:tokens].float().clone())
    # Two into the mixer, and one each out of it, into and out of the feed-forward.
    assert len(multiplied) == (5 * len(engine.weights.layers) if in_registers else 0)
    if in_registers:
        worst = (streams[1] - streams[0]).norm(dim=1) / streams[0].norm(dim=1)
        assert float(worst.max()) < 0.02  # bf16 activations
    else:
        assert torch.equal(*streams)
