"""Decode rounds by themselves: how much more several columns cost than one, and whether the device rests in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from ninfer.artifact.config import TextConfig
from ninfer.bench.driver import STEPS_AHEAD, Driver
from ninfer.bench.engine_options import OPEN_ROWS, WARM_ROUNDS
from ninfer.bench.floors import round_bytes
from ninfer.bench.linear import timed_s
from ninfer.bench.report import Json, percentiles
from ninfer.config import EngineSettings

if TYPE_CHECKING:
    from ninfer.engine.device_engine import DeviceEngine

REPEATS = 21


@dataclass(frozen=True, slots=True)
class RoundRow:
    """A round of `lanes` lanes with `columns` columns each, from the tokens to the logits, at `position`.

    us                median of graph replays on a GPU, of calls elsewhere
    of_one_column     times the round of one lane with one column, measured in the same way
    share_of_floor    of the bytes it must read and write
    """

    lanes: int
    columns: int
    position: int
    us: float
    floor_bytes: float
    share_of_floor: float
    of_one_column: float

    def to_json(self) -> Json:
        return asdict(self)


def measure_columns(
    engine: DeviceEngine,
    config: TextConfig,
    settings: EngineSettings,
    shapes: Sequence[tuple[int, int]],
    position: int,
    read_ceiling: float,
    repeats: int = REPEATS,
) -> list[RoundRow]:
    """The round of one column and those of `shapes`, each (lanes, columns per lane)."""
    device = torch.device(settings.device)
    rows: list[RoundRow] = []
    for lanes, columns in [(1, 1), *(shape for shape in shapes if shape != (1, 1))]:
        driver = Driver(engine, lanes, settings.prefill_chunk_tokens)
        driver.assume(engine, position - OPEN_ROWS)
        driver.decode(OPEN_ROWS)
        round_ = engine.extra_round(lanes, columns)
        ids = (torch.arange(lanes * columns, dtype=torch.int32, device=device) * 97 + 11) % config.vocab_size
        with torch.inference_mode():
            seconds = timed_s(lambda: round_.launch(ids), device, repeats)  # noqa: B023
        floor = round_bytes(config, settings.kv_dtype, engine.weights.round_bytes, [position + columns] * lanes).floor
        share = floor / read_ceiling / seconds
        of_one = 1e6 * seconds / rows[0].us if rows else 1.0
        rows.append(RoundRow(lanes, columns, position, 1e6 * seconds, floor, share, of_one))
    return rows


@dataclass(frozen=True, slots=True)
class Profile:
    """Rounds launched one ahead of the device.

    round_us      what the device spent on a round, copies included
    replay_us     the same round by graph replay alone
    gap_us        from the end of a round to the begin of the next, on the device's clock
    idle_share    of the gaps in the time from the first begin to the last end
    """

    lanes: int
    rounds: int
    round_us: Json | None
    replay_us: float
    gap_us: Json | None
    idle_share: float

    def to_json(self) -> Json:
        return asdict(self)


def profile_rounds(engine: DeviceEngine, settings: EngineSettings, lanes: int, rounds: int) -> Profile:
    """Decode `rounds` rounds of so many lanes behind one prompt token each."""
    driver = Driver(engine, lanes, settings.prefill_chunk_tokens)
    driver.read([0])
    driver.decode(WARM_ROUNDS)
    steps, busy_s = [], []
    for number in range(rounds):
        steps.append(engine.launch(driver.next_round()))
        if number >= STEPS_AHEAD:
            busy_s.append(steps[number - STEPS_AHEAD].wait().device_s)
    busy_s += [step.wait().device_s for step in steps[len(busy_s) :]]
    gaps_s = [after.idle_since(before) for before, after in pairwise(steps)]
    replayed = engine.rounds[lanes - 1]
    with torch.inference_mode():
        replay_s = timed_s(replayed.launch, torch.device(settings.device), REPEATS)
    return Profile(
        lanes=lanes,
        rounds=rounds,
        round_us=percentiles([1e6 * value for value in busy_s]),
        replay_us=1e6 * replay_s,
        gap_us=percentiles([1e6 * value for value in gaps_s], mean=False),
        idle_share=sum(gaps_s) / (sum(gaps_s) + sum(busy_s)),
    )
