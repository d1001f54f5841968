"""The GPU engine at the 27B's widths: against the plain route in fp32, and against itself, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import ninfer.engine.engine as plain_engine
from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.device_layout import LIBRARY_BYTES
from ninfer.engine.engine import Engine
from ninfer.kernels.served.compiled import note_compilations
from ninfer.model.rounds import Round, RoundShared, round_shared
from tests.engine.driving import Driver, assert_same, generate, random_prompt
from tests.gpu.models import VOCABULARY, cut

pytestmark = pytest.mark.gpu

SETTINGS = EngineSettings(
    device="cuda:0", max_context_tokens=4096, kv_capacity_tokens=8 * 4096, lanes=8, prefill_chunk_tokens=2048,
    kv_dtype="int8", compute_dtype="bf16",
)  # fmt: skip
PLAIN = replace(SETTINGS, device="cpu", kv_dtype="fp32", compute_dtype="fp32", lanes=1, kv_capacity_tokens=4096)
# Root of the mean squared difference over that of the values: bf16 activations between layers, int8 keys and values.
STREAM_ERROR = {"bf16": 0.02, "int8": 0.03}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[DeviceEngine]:
    yield DeviceEngine.load(cut(folder, "gggag"), SETTINGS, VOCABULARY)
    torch.cuda.empty_cache()


def error(actual: Tensor, expected: Tensor) -> float:
    difference = (actual.cpu().double() - expected.double()).square().mean(-1).sqrt()
    return float((difference / expected.double().square().mean(-1).sqrt()).max())


@pytest.mark.parametrize("layers", ["g", "a", "ga"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_every_column_is_near_the_plain_route(
    folder: Path, layers: str, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = cut(folder, layers)
    prompt = random_prompt(333, VOCABULARY, 1)
    streams: list[Tensor] = []
    forward = plain_engine.forward

    def watched(*arguments: object) -> Tensor:
        streams.append(forward(*arguments))  # type: ignore[arg-type]
        return streams[-1]

    monkeypatch.setattr(plain_engine, "forward", watched)
    plain = Driver(Engine.load(model, PLAIN, VOCABULARY))
    expected = plain.prefill(0, prompt, 2048)
    device = DeviceEngine.load(
        model, replace(SETTINGS, kv_dtype=kv_dtype, lanes=2, kv_capacity_tokens=8192), VOCABULARY
    )
    driver = Driver(device)  # type: ignore[arg-type]
    got = driver.prefill(0, prompt, 2048)
    stream = device._workspace.chunk.residual[: len(prompt)]
    worst = error(stream, streams[0])
    print(f"prefill, layers {layers}, {kv_dtype}: worst column {worst:.4f}")
    assert worst < STREAM_ERROR[kv_dtype]
    # The same tokens through rounds: what was drawn does not matter, every step is compared.
    for _ in range(5):
        worst = error(got.logits[-1][None, :VOCABULARY], expected.logits[-1][None])
        print(f"logits, layers {layers}, {kv_dtype}: {worst:.4f}")
        assert worst < STREAM_ERROR[kv_dtype]
        token = expected.tokens[-1]
        with torch.inference_mode():
            device._cache.drawing.anchors.fill_(token)
        driver.decode({0: got}, 1)
        plain.decode({0: expected}, 1)


def test_eight_lanes_draw_what_each_draws_alone(engine: DeviceEngine) -> None:
    prompts = [random_prompt(length, VOCABULARY, length) for length in (1, 63, 64, 65, 130, 500, 1000, 1999)]
    together = generate(engine, prompts, 70, 2048)  # type: ignore[arg-type]
    again = generate(engine, prompts, 70, 2048, seed=5)  # type: ignore[arg-type]
    for lane, prompt in enumerate(prompts):
        assert_same(together[lane], again[lane])
        (alone,) = generate(engine, [prompt], 70, 2048, seed=lane + 7)  # type: ignore[arg-type]
        assert_same(alone, together[lane])


def test_a_prompt_may_be_cut_anywhere(engine: DeviceEngine) -> None:
    prompt = random_prompt(4000, VOCABULARY, 3)
    (whole,) = generate(engine, [prompt], 5, 2048)  # type: ignore[arg-type]
    streams = []
    for chunk in (64, 256, 1024, 2048):
        (cut_up,) = generate(engine, [prompt], 5, chunk)  # type: ignore[arg-type]
        assert_same(cut_up, whole)
        streams.append(cut_up)
    assert len(streams) == 4


@pytest.mark.parametrize("parts", [2, 5])
def test_a_prompt_read_in_parts_beside_a_stream_is_the_same(engine: DeviceEngine, parts: int) -> None:
    """Chunks in parts of the layers, with rounds of another lane between them."""
    long, short = random_prompt(4000, VOCABULARY, 3), random_prompt(130, VOCABULARY, 4)
    whole, alone = generate(engine, [long, short], 40, 2048)  # type: ignore[arg-type]
    driver = Driver(engine, seed=9)  # type: ignore[arg-type]
    beside = driver.prefill(3, short, 2048)
    parted = driver.prefill(1, long, 512, parts=parts, between=lambda: driver.decode({3: beside}, 1))
    driver.decode({1: parted, 3: beside}, 5)
    assert len(beside.tokens) == 1 + 8 * (parts - 1) + 5
    assert parted.tokens == whole.tokens[:6]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(parted.logits, whole.logits[:6], strict=True))
    count = len(beside.tokens)
    assert beside.tokens == alone.tokens[:count]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(beside.logits, alone.logits[:count], strict=True))


def test_graphs_change_nothing(folder: Path, engine: DeviceEngine) -> None:
    prompts = [random_prompt(length, VOCABULARY, length) for length in (100, 200, 300)]
    captured = generate(engine, prompts, 20, 2048)  # type: ignore[arg-type]
    direct = DeviceEngine.load(cut(folder, "gggag"), replace(SETTINGS, cuda_graph=False), VOCABULARY)
    for left, right in zip(captured, generate(direct, prompts, 20, 2048), strict=True):  # type: ignore[arg-type]
        assert_same(left, right)


def shared_for(engine: DeviceEngine, lanes: int, per_lane: int) -> RoundShared:
    device = torch.device("cuda:0")
    multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    config = engine._chunks._config
    return round_shared(config, engine.weights, engine._cache, lanes, per_lane, multiprocessors, device)


def columns(engine: DeviceEngine, prompts: list[list[int]], ids: Tensor, per_lane: int) -> Tensor:
    """Logits [lanes, n, V] of the tokens `ids` [lanes, n] behind each prompt, `per_lane` of a lane at a time."""
    lanes, count = ids.shape
    shared, config = shared_for(engine, lanes, per_lane), engine._chunks._config
    round_ = Round(config, engine.weights, engine._cache, shared, VOCABULARY, lanes, per_lane)
    driver = Driver(engine)  # type: ignore[arg-type]
    blocks = []
    for lane, prompt in enumerate(prompts):
        driver.prefill(lane, prompt, 2048)
        engine._map(lane, driver._map(lane, len(prompt) + count), len(prompt) + count)
        blocks.append(engine._lanes[lane].state_block)
    logits = []
    for at in range(0, count, per_lane):
        positions = [len(prompt) + at for prompt in prompts]
        told = torch.tensor([list(range(lanes)), positions, blocks], dtype=torch.int32)
        shared.inputs.storage[:3, :lanes].copy_(told)
        round_.launch(ids[:, at : at + per_lane].reshape(-1).to("cuda:0", torch.int32))
        logits.append(round_.logits.view(lanes, per_lane, -1).clone())
        blocks = [position // 64 for position in positions]
    return torch.cat(logits, dim=1)


@torch.inference_mode()
def test_columns_of_a_lane_do_not_know_how_many_came_together(engine: DeviceEngine) -> None:
    prompts = [random_prompt(length, VOCABULARY, length) for length in (1, 50, 127, 1000)]
    ids = torch.randint(0, VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(3))
    one = columns(engine, prompts, ids, 1)
    for per_lane in (2, 4):
        assert torch.equal(columns(engine, prompts, ids, per_lane), one), per_lane
    for lane in range(4):
        for per_lane in (8, 16):
            alone = columns(engine, [prompts[lane]], ids[lane : lane + 1], per_lane)
            assert torch.equal(alone[0], one[lane]), (lane, per_lane)


def test_nothing_is_compiled_while_serving(engine: DeviceEngine) -> None:
    names = note_compilations()
    for tokens in (1, 17, 64, 65, 100, 128, 1000, 1024, 2047, 2048):
        generate(engine, [random_prompt(tokens, VOCABULARY, tokens)] * 2, 3, 2048)  # type: ignore[arg-type]
    generate(engine, [random_prompt(3000, VOCABULARY, 9)] * 8, 3, 1024)  # type: ignore[arg-type]
    assert names == []


def test_short_chunks_in_registers_draw_alike_and_compile_nothing(folder: Path, engine: DeviceEngine) -> None:
    """A token's logits move by what another order of sums moves them, and by nothing where chunks are long."""
    settings = replace(SETTINGS, lanes=2, kv_capacity_tokens=8192, short_chunk_products="in-register")
    other = DeviceEngine.load(cut(folder, "gggag"), settings, VOCABULARY)
    names = note_compilations()
    for tokens in (1, 16, 17, 32, 33, 64, 65, 100, 128, 129, 200, 512, 2048):
        prompt = random_prompt(tokens, VOCABULARY, tokens)
        (got,), (wanted,) = (generate(which, [prompt], 2, 2048) for which in (other, engine))  # type: ignore[arg-type]
        worst = error(got.logits[0][None, :VOCABULARY], wanted.logits[0][None, :VOCABULARY].cpu())
        print(f"in registers, {tokens} tokens: logits differ by {worst:.5f}")
        assert worst < 0.02
    assert names == []


def test_planned_bytes_are_allocated_bytes(engine: DeviceEngine) -> None:
    groups = dict(engine.memory.groups)
    planned = sum(groups[name] for name in ("weights", "kv", "state", "replay", "workspace"))
    # Beyond what is allocated stands the allowance for the library and for code.
    assert 0 <= planned - engine.allocated_bytes <= LIBRARY_BYTES + (32 << 20)
