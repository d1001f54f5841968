"""``ninfer-bench engine``: prompts and decoding without HTTP, against what the machine allows (speculation spec, 15.5).

The machine's ceilings are measured first. A test is then repeated; its share of the floor is the time that the ceilings
allow for the bytes or operations of ``ninfer.bench.floors`` over the mean of the measured wall times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import torch

from ninfer.artifact.config import TextConfig
from ninfer.bench.ceilings import Ceilings, measure_ceilings
from ninfer.bench.corpus import corpus_ids
from ninfer.bench.driver import Driver, Taken
from ninfer.bench.engine_options import EngineBench, Test, parse_engine
from ninfer.bench.engine_table import table
from ninfer.bench.floors import prefill_flop, round_bytes
from ninfer.bench.loading import Model, open_model, token_weight_bytes
from ninfer.bench.report import Json, device_object, head, spread
from ninfer.bench.rounds import measure_columns, profile_rounds
from ninfer.config import EngineSettings
from ninfer.engine.devices import with_device
from ninfer.engine.engine import Engine
from ninfer.engine.loading import load_engine
from ninfer.errors import StartupError

if TYPE_CHECKING:
    from ninfer.engine.device_engine import DeviceEngine


@dataclass(slots=True)
class Samples:
    """What the repetitions of one test took."""

    prefill: list[Taken] = field(default_factory=list)
    decode: list[Taken] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """A loaded engine, and everything its tests have in common."""

    engine: Engine | DeviceEngine
    config: TextConfig
    settings: EngineSettings
    ids: Sequence[int]
    weight_bytes: int
    ceilings: Ceilings

    def once(self, test: Test, into: Samples) -> float:
        """Run a test; returns the seconds it took."""
        begin = time.perf_counter()
        driver = Driver(self.engine, test.lanes, self.settings.prefill_chunk_tokens)
        if test.assumed:
            driver.assume(_on_gpu(self.engine, "--assume-depth"), test.prompt)
        else:
            taken = driver.read(self.ids[: test.prompt])
            if test.measures_prefill:
                into.prefill.append(taken)
        if test.output:
            into.decode.append(driver.decode(test.output))
        return time.perf_counter() - begin

    def run(self, asked: EngineBench) -> list[Samples]:
        """All repetitions of all tests."""
        samples = [Samples() for _ in asked.tests]
        seconds = [0.0] * len(asked.tests)
        if asked.interleave:
            order = [(repeat, at) for repeat in range(asked.warmup + asked.repetitions) for at in range(len(samples))]
        else:
            order = [(repeat, at) for at in range(len(samples)) for repeat in range(asked.warmup + asked.repetitions)]
        for repeat, at in order:
            if seconds[at] > asked.long_s:
                continue
            warming = Samples()
            took = self.once(asked.tests[at], warming if repeat < asked.warmup else samples[at])
            if repeat == 0:
                seconds[at] = took
                if took > asked.long_s:
                    samples[at] = warming if asked.warmup else samples[at]
        return samples

    def row(self, test: Test, samples: Samples) -> Json:
        """The report's object of a test."""
        prefill_s = [taken.wall_s for taken in samples.prefill]
        decode_s = [taken.wall_s for taken in samples.decode]
        prefill_floor, decode_floor = self._prefill_floor(test), self._decode_floor(test)
        return {
            "name": test.name,
            "prompt_tokens": test.prompt,
            "output_tokens": test.output,
            "lanes": test.lanes,
            "assumed_depth": test.assumed,
            "prefill_seconds": prefill_s,
            "decode_seconds": decode_s,
            "prefill_device_seconds": [taken.device_s for taken in samples.prefill],
            "decode_device_seconds": [taken.device_s for taken in samples.decode],
            "prefill_tok_s": spread([test.lanes * test.prompt / seconds for seconds in prefill_s]),
            "decode_output_tok_s": spread([test.lanes * test.output / seconds for seconds in decode_s]),
            "decode_engine_tok_s": spread([test.lanes * test.output / seconds for seconds in decode_s]),
            "round_ms": 1e3 * statistics.fmean(decode_s) / test.output if decode_s else None,
            "prefill_floor": prefill_floor if prefill_s else None,
            "decode_floor": decode_floor if decode_s else None,
            "prefill_share_of_floor": _share(prefill_floor, prefill_s),
            "decode_share_of_floor": _share(decode_floor, decode_s),
            "speculative": None,
        }

    def _prefill_floor(self, test: Test) -> dict[str, float]:
        flop = test.lanes * prefill_flop(self.config, test.prompt)
        return {"flop": flop, "seconds": flop / self.ceilings.flop}

    def _decode_floor(self, test: Test) -> dict[str, float]:
        """Of one round in the middle of the test, and of all its rounds."""
        context = test.prompt + (test.output + 1) / 2
        moved = round_bytes(self.config, self.settings.kv_dtype, self.weight_bytes, [context] * test.lanes)
        return {
            "round_bytes": moved.floor,
            "round_design_bytes": moved.design,
            "round_ms": 1e3 * moved.floor / self.ceilings.read,
            "seconds": test.output * moved.floor / self.ceilings.read,
        }


def _share(floor: dict[str, float], seconds: Sequence[float]) -> float | None:
    return floor["seconds"] / statistics.fmean(seconds) if seconds else None


def _on_gpu(engine: Engine | DeviceEngine, option: str) -> DeviceEngine:
    if isinstance(engine, Engine):
        raise StartupError(f"{option} needs the engine of a GPU")
    return engine


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises NinferError for what is wrong with the options, the model or the device."""
    asked = parse_engine(argv)
    settings = with_device(asked.settings.engine)
    path = None if asked.settings.default_artifact else asked.settings.artifact
    with open_model(path) as model:
        report = _measure(asked, settings, model, argv)
    asked.output.deliver(report, lambda: table(report))
    if asked.output.plot is not None:
        from ninfer.bench.plot import plot_engine

        plot_engine(report, asked.output.plot)
    return 0


def _measure(asked: EngineBench, settings: EngineSettings, model: Model, argv: Sequence[str]) -> Json:
    device = torch.device(settings.device)
    config = model.bound.text
    ids = corpus_ids(model.tokenizer, asked.corpus, max([1, *(test.prompt for test in asked.tests)]))
    ceilings = measure_ceilings(config, device)
    begin = time.perf_counter()
    engine = load_engine(model.bound, settings, model.tokenizer.id_count)
    load_s = time.perf_counter() - begin
    if engine.memory.kv_capacity_tokens < asked.capacity_tokens:
        raise StartupError(
            f"the tests need {asked.capacity_tokens} tokens of attention cache, there are "
            f"{engine.memory.kv_capacity_tokens}"
        )
    memory = _memory(engine, device)
    bench = Bench(engine, config, settings, ids, token_weight_bytes(engine, model), ceilings)
    samples = bench.run(asked)
    report = {
        **head("ninfer_bench_report", argv),
        "model": model.to_json(),
        "device": device_object(device),
        "settings": {
            **asdict(settings),
            "repetitions": asked.repetitions,
            "warmup": asked.warmup,
            "long_s": asked.long_s,
            "interleave": asked.interleave,
            "corpus": None if asked.corpus is None else str(asked.corpus),
        },
        "acceptance_representative": False,
        "ceilings": ceilings.to_json(),
        "load_seconds": load_s,
        "token_weight_bytes": bench.weight_bytes,
        "memory": memory,
        "tests": [bench.row(test, taken) for test, taken in zip(asked.tests, samples, strict=True)],
    }
    if asked.columns:
        gpu = _on_gpu(engine, "--columns")
        rows = measure_columns(gpu, config, settings, asked.columns, asked.column_position, ceilings.read)
        report["columns"] = [row.to_json() for row in rows]
    if asked.profile_rounds:
        gpu = _on_gpu(engine, "--profile-rounds")
        profiles = [profile_rounds(gpu, settings, lanes, asked.profile_rounds) for lanes in asked.lanes]
        report["rounds"] = [profile.to_json() for profile in profiles]
    return report


def _memory(engine: Engine | DeviceEngine, device: torch.device) -> Json:
    """Planned and real bytes. reserved: what the allocator holds; in_use: of the device, by whomever."""
    found: Json = {
        "planned_bytes": engine.memory.required,
        "groups": dict(engine.memory.groups),
        "allocated_bytes": engine.allocated_bytes,
        "reserved_bytes": None,
        "in_use_bytes": None,
    }
    if device.type == "cuda":
        free, whole = torch.cuda.mem_get_info(device)
        found |= {"reserved_bytes": torch.cuda.memory_reserved(device), "in_use_bytes": whole - free}
    return found
