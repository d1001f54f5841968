"""Rounds with guesses: ``python -m ninfer.bench.speculation MODEL [server options] [--acceptance LIST] [--json FILE]``.

Give ``--spec mtp --draft-tokens K``. Measured on one GPU, behind `--depth` random tokens, for one lane up to those of
the options, rounds half a block behind that, since a round also reads what its block has so far:

*rounds*  microseconds of a round with 0 to K guesses by graph replay, of a round without a drafter, and of the columns
          alone; what remains is the drafter's: a look at the last step's positions, and one step per guess
*rates*   tokens per second of all lanes through the engine, guesses and news included, when each guess is right with
          the given probability: the right tokens are known from a run without guesses and are handed in, and the
          drafter works as if it had guessed. What is drawn must be what was drawn then, token for token
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ninfer.bench.driver import GREEDY
from ninfer.bench.linear import read_ceiling, timed_s
from ninfer.bench.loading import open_model
from ninfer.bench.report import Json, columns, device_object
from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine
from ninfer.engine.devices import with_device
from ninfer.options import parse
from ninfer.step import PAGE_TOKENS, DecodeRound, DecodeRow, PageMapping, PrefillChunk, pages_for

REPEATS = 21
TOKENS = 192  # drawn by each lane in a run
DEPTH = 960


@dataclass(frozen=True, slots=True)
class RoundTime:
    """Microseconds of a round of `lanes` lanes with `drafts` guesses each.

    plain_us     of a round without a drafter and without guesses
    columns_us   of the decoder's columns alone, from tokens to logits
    step_us      what one more guess adds beside its column, on the average of the round's guesses
    """

    lanes: int
    drafts: int
    round_us: float
    plain_us: float
    columns_us: float
    step_us: float

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            str(self.lanes), str(self.drafts), f"{self.round_us:.0f}", f"{self.round_us / self.plain_us:.3f}",
            f"{self.columns_us:.0f}", f"{self.columns_us / self.plain_us:.3f}", f"{self.step_us:.0f}",
            f"{self.step_us / self.plain_us:.3f}",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens per second of all lanes together; `same` whether the tokens are those of the run without guesses."""

    lanes: int
    drafts: int
    acceptance: float
    tokens_per_s: float
    plain_tokens_per_s: float
    tokens_per_round: float
    same: bool

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            str(self.lanes), str(self.drafts), f"{self.acceptance:.1f}", f"{self.tokens_per_s:.0f}",
            f"{self.tokens_per_s / self.plain_tokens_per_s:.2f}", f"{self.tokens_per_round:.2f}", str(self.same),
        )  # fmt: skip


class _Lanes:
    """Lanes of an engine behind random prompts, and the tokens that each has drawn."""

    def __init__(self, engine: DeviceEngine, lanes: int, depth: int, chunk: int, vocabulary: int) -> None:
        self._engine, self._lanes = engine, lanes
        self._mapped = [0] * lanes
        self.positions = [depth] * lanes
        self.tokens: list[list[int]] = []
        for lane in range(lanes):
            source = random.Random(lane)
            ids = tuple(source.randrange(vocabulary) for _ in range(depth))
            for begin in range(0, depth, chunk):
                end = min(begin + chunk, depth)
                setup = GREEDY if begin == 0 else None
                plan = PrefillChunk(lane, begin, ids[begin:end], self._map(lane, end), setup, end == depth)
                result = engine.run(plan)
            assert result.drawn is not None
            self.tokens.append(list(result.drawn.token_ids))

    def run(self, tokens: int, drafts: int, truth: list[list[int]] | None, acceptance: float) -> tuple[float, int]:
        """Decode until every lane has drawn so many; seconds and rounds."""
        source = random.Random(1)
        rounds = 0
        begin = time.perf_counter()
        while going := [lane for lane in range(self._lanes) if len(self.tokens[lane]) < tokens]:
            rows = []
            for lane in going:
                drawn, position = self.tokens[lane], self.positions[lane]
                most = min(drafts, tokens - len(drawn) - 1)
                copied = None if truth is None else _guesses(source, truth[lane][len(drawn) :], most, acceptance)
                rows.append(DecodeRow(lane, position, self._map(lane, position + 1 + most), None, most, copied))
            for row in self._engine.run(DecodeRound(tuple(rows))).drawn:
                self.tokens[row.lane] += row.token_ids
                self.positions[row.lane] += len(row.token_ids)
            rounds += 1
        return time.perf_counter() - begin, rounds

    def _map(self, lane: int, end: int) -> PageMapping:
        first, self._mapped[lane] = self._mapped[lane], max(self._mapped[lane], pages_for(end))
        return PageMapping(first, tuple(block * self._lanes + lane for block in range(first, self._mapped[lane])))


def _guesses(source: random.Random, right: list[int], count: int, acceptance: float) -> tuple[int, ...]:
    """Each is right with the given probability; a wrong one is an id that was not drawn there."""
    return tuple(token if source.random() < acceptance else token ^ 1 for token in right[:count])


def half_a_block(engine: DeviceEngine, lanes: int, depth: int, chunk: int, vocabulary: int) -> None:
    """Have each of the first lanes stand in the middle of a block."""
    _Lanes(engine, lanes, depth, chunk, vocabulary).run(1 + PAGE_TOKENS // 2, 0, None, 0.0)


def round_times(
    engine: DeviceEngine,
    plain: dict[int, float],
    only: dict[tuple[int, int], float],
    stand: Callable[[DeviceEngine, int], None],
) -> list[RoundTime]:
    """Every round of an engine with a drafter, behind a `stand` of its lanes; `plain` and `only` are seconds without
    one, and of columns alone.
    """
    device = torch.device("cuda")
    rows: list[RoundTime] = []
    for (lanes, drafts), round_ in sorted(engine.draft_rounds.items()):
        if drafts == 0:
            stand(engine, lanes)
        with torch.inference_mode():
            engine.tell_draft_round(lanes, drafts)
            seconds = timed_s(round_.launch, device, REPEATS)
        bare = rows[-drafts] if drafts else None
        own_us = 1e6 * (seconds - only[lanes, drafts])
        step = (own_us - (bare.round_us - bare.columns_us)) / drafts if bare is not None else 0.0
        rows.append(RoundTime(lanes, drafts, 1e6 * seconds, 1e6 * plain[lanes], 1e6 * only[lanes, drafts], step))
    return rows


def main(argv: list[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    acceptances = [float(word) for word in _taken(words, "--acceptance", "0.5,0.7,0.9").split(",")]
    depth = int(_taken(words, "--depth", str(DEPTH)))
    output = _taken(words, "--json", "")
    parsed = parse(words)
    settings = with_device(parsed.engine)
    if torch.device(settings.device).type != "cuda" or settings.drafter is None:
        sys.stderr.write("error: give --spec mtp --draft-tokens K, and a machine with a GPU\n")
        return 1
    report = measure(Path(parsed.artifact), settings, acceptances, depth)
    if output:
        Path(output).write_text(json.dumps(report, indent=1))
    return 0


def measure(path: Path, settings: EngineSettings, acceptances: list[float], depth: int) -> Json:
    """Everything, printed as it comes."""
    bare = replace(settings, drafter=None, draft_tokens=0, draft_head=False)
    device = torch.device(settings.device)
    lane_counts = [lanes for lanes in (1, 2, 4, 8) if lanes <= settings.lanes]
    truth: dict[int, list[list[int]]] = {}
    plain_rates: dict[int, float] = {}
    with open_model(path, bare) as model:
        engine = DeviceEngine.load(model.bound, bare, model.tokenizer.id_count)
        vocabulary = model.tokenizer.id_count
        stand = partial(half_a_block, depth=depth, chunk=settings.prefill_chunk_tokens, vocabulary=vocabulary)
        for lanes in lane_counts:
            state = _Lanes(engine, lanes, depth, settings.prefill_chunk_tokens, vocabulary)
            seconds, _ = state.run(TOKENS, 0, None, 0.0)
            plain_rates[lanes] = lanes * (TOKENS - 1) / seconds
            truth[lanes] = state.tokens
        plain: dict[int, float] = {}
        only: dict[tuple[int, int], float] = {}
        widest = min(settings.draft_tokens, 32 // settings.lanes - 1)
        ids = torch.zeros(32, dtype=torch.int32, device=device)
        for lanes in range(1, settings.lanes + 1):
            stand(engine, lanes)
            with torch.inference_mode():
                plain[lanes] = timed_s(engine.rounds[lanes - 1].launch, device, REPEATS)
                for drafts in range(widest + 1):
                    launch = engine.extra_round(lanes, 1 + drafts).launch
                    only[lanes, drafts] = timed_s(partial(launch, ids[: lanes * (1 + drafts)]), device, REPEATS)
        del engine, launch
    torch.cuda.empty_cache()
    rates: list[Rate] = []
    with open_model(path, settings) as model:
        engine = DeviceEngine.load(model.bound, settings, model.tokenizer.id_count)
        for lanes in lane_counts:
            for drafts in sorted({1, 3, widest} & set(range(1, widest + 1))):
                for acceptance in acceptances:
                    state = _Lanes(engine, lanes, depth, settings.prefill_chunk_tokens, vocabulary)
                    seconds, rounds = state.run(TOKENS, drafts, truth[lanes], acceptance)
                    drawn = lanes * (TOKENS - 1)
                    rates.append(
                        Rate(
                            lanes, drafts, acceptance, drawn / seconds, plain_rates[lanes],
                            (TOKENS - 1) / rounds, state.tokens == truth[lanes],
                        )
                    )  # fmt: skip
            state = _Lanes(engine, lanes, depth, settings.prefill_chunk_tokens, vocabulary)
            state.run(TOKENS, widest, None, 0.0)
            same = state.tokens == truth[lanes]
            print(f"{lanes} lanes, the drafter's own guesses: the same tokens: {same}", flush=True)
        times = round_times(engine, plain, only, stand)
        groups = dict(engine.memory.groups)
    print(
        columns([
            ("lanes", "guesses", "round us", "of plain", "columns us", "of plain", "step us", "of plain"),
            *(row.cells for row in times),
        ])
    )  # fmt: skip
    print(
        columns([
            ("lanes", "guesses", "right", "tokens/s", "of plain", "tokens/round", "same"),
            *(row.cells for row in rates),
        ])
    )  # fmt: skip
    return {
        "device": device_object(device),
        "read_ceiling": read_ceiling(device, 4 << 30, 5),
        "depth": depth,
        "plain_us": {str(lanes): 1e6 * seconds for lanes, seconds in plain.items()},
        "rounds": [asdict(row) for row in times],
        "rates": [asdict(row) for row in rates],
        "memory": groups,
    }


def _taken(words: list[str], name: str, default: str) -> str:
    """The value of an option that is not the server's, taken out of the words."""
    if name not in words:
        return default
    at = words.index(name)
    value = words[at + 1]
    del words[at : at + 2]
    return value


if __name__ == "__main__":
    sys.exit(main())
