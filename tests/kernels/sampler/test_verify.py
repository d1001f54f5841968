"""Drawing for guesses: token for token what is drawn without them, and by the target's law (speculation spec, 1.4)."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninfer.kernels.sampler.lanes import NOT_FINITE, STOPPED, LaneTables, draw_buffers, law_row
from ninfer.kernels.sampler.op import Purpose, random_bits, sample
from ninfer.kernels.sampler.ref import law_ref
from ninfer.kernels.sampler.verify import verify
from ninfer.types import Sampling
from tests.kernels.sampler.cases import (
    GREEDY,
    LAWS,
    Columns,
    check,
    columns_of,
    copied,
    drawn_one_by_one,
    guess_right,
    tables_of,
)

CASES = Path(__file__).with_name("interpreted.py")
V = 40
DRAWS = 200_000


def verified(case: Columns, tables: LaneTables) -> Tensor:
    results = torch.full((case.lanes.shape[0], 2 + case.columns), -9, dtype=torch.int32)
    verify(
        case.logits, case.public_ids, case.lanes, case.columns, case.ids, case.live, case.uniforms, tables,
        draw_buffers(case.ids.shape[0], case.logits.shape[1], "cpu"), results,
    )  # fmt: skip
    return results


@pytest.mark.parametrize("seed", range(20))
def test_what_is_drawn_is_drawn_one_by_one(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    columns = int(torch.randint(1, 17, (), generator=source))
    live = torch.randint(0, columns, (4,), generator=source).tolist()
    right = torch.randint(0, columns, (4,), generator=source).tolist()
    tables = tables_of(V, seed)
    case = columns_of(V, torch.randperm(4, generator=source).tolist(), columns, live, seed)
    guess_right(case, tables, right)
    before = copied(tables)
    results = verified(case, tables)
    check(case, before, tables, results)
    assert results[:, 0].tolist() == [min(pair) for pair in zip(live, right, strict=True)]


def test_nothing_is_drawn_behind_a_stop_token() -> None:
    tables = tables_of(V, 1)
    case = columns_of(V, [1], 4, [3], 1)
    guess_right(case, tables, [3])
    tables.stops[1, 31] = case.ids[2]
    before = copied(tables)
    results = verified(case, tables)
    check(case, before, tables, results)
    assert results[0, :4].tolist() == [1, STOPPED, int(case.ids[1]), int(case.ids[2])]


@pytest.mark.parametrize("place", range(4))
def test_nothing_is_drawn_behind_a_token_that_halts(place: int) -> None:
    """As the first, in the middle, as the last; beside a lane for which it is a token like any other."""
    tables = tables_of(V, 1)
    tables.laws[3] = tables.laws[1] = tables.laws[2]
    case = columns_of(V, [1, 3], 4, [3, 3], 1)
    case.logits[4:], case.uniforms[4:] = case.logits[:4].clone(), case.uniforms[:4].clone()
    tables.counts[3] = tables.counts[1]
    guess_right(case, tables, [3, 3])
    token = drawn_one_by_one(case, tables, 0)[place]
    tables.halts[1, token // 32] = 1 << token % 32 if token % 32 < 31 else -(1 << 31)
    tables.halts[0].fill_(-1)
    before = copied(tables)
    results = verified(case, tables)
    check(case, before, tables, results)
    assert results[:, :2].tolist() == [[place, 0], [3, 0]]
    assert int(results[0, 2 + place]) == token


def test_a_fault_counts_only_where_drawing_gets_to() -> None:
    tables = tables_of(V, 1)
    case = columns_of(V, [0, 2], 3, [2, 2], 1)
    guess_right(case, tables, [2, 0])
    case.logits[1, 7] = case.logits[4, 7] = float("nan")
    results = verified(case, tables)
    assert [int(flags) & NOT_FINITE for flags in results[:, 1]] == [NOT_FINITE, 0]


@pytest.mark.parametrize("guesses", [0, 1, 2, 5])
def test_the_text_does_not_depend_on_how_many_guesses_there_are(guesses: int) -> None:
    """Rounds over a little model whose logits depend on the last token and the position."""
    source = torch.Generator().manual_seed(3)
    model = 2 * torch.randn(8, 12, 12, generator=source)
    law = replace(LAWS[1], seed=11)

    def text(drafts: int) -> list[int]:
        tables = tables_of(12, 0)
        tables.laws[0] = torch.tensor(law_row(law))
        tables.counts.zero_()
        tokens, position = [5], 0
        while position < 60:
            ids = [tokens[-1], *torch.randint(0, 12, (drafts,), generator=source).tolist()]
            if drafts and position % 3:
                # Some guesses are what a model of the same kind finds likeliest.
                for at in range(drafts):
                    ids[at + 1] = int(model[(position + at) % 8, ids[at]].argmax())
            places = range(position, position + 1 + drafts)
            case = Columns(
                torch.stack([model[place % 8, token] for place, token in zip(places, ids, strict=True)]), 12,
                torch.tensor([0], dtype=torch.int32), 1 + drafts, torch.tensor(ids, dtype=torch.int32),
                torch.tensor([drafts], dtype=torch.int32),
                torch.tensor([random_bits(law.seed, place, Purpose.DECODE) * 2.0**-24 for place in places]),
            )  # fmt: skip
            accepted, _, *drawn = verified(case, tables)[0].tolist()
            tokens += drawn[: accepted + 1]
            position += accepted + 1
        return tokens[:61]

    assert text(guesses) == text(0)


TEMPERED = [
    Sampling(temperature, top_k, top_p, min_p, *penalties, seed=0)
    for temperature, top_k, top_p, min_p, penalties in itertools.product(
        (0.7, 1.4), (4, 20), (1.0, 0.8), (0.0, 0.1), ((0.0, 0.0), (0.8, 0.3))
    )
]


@pytest.mark.parametrize("law", [GREEDY, LAWS[0], *TEMPERED], ids=lambda law: "-".join(map(str, law_row(law)[:6])))
def test_the_law_over_200_000_draws(law: Sampling) -> None:
    """Tokens of three guesses of every likelihood, over as many seeds: as often as the float64 oracle says."""
    size, columns, position = 24, 4, 977
    source = torch.Generator().manual_seed(8)
    logits = 1.2 * torch.randn(columns, size, generator=source)
    counts = torch.randint(0, 2, (size,), generator=source, dtype=torch.int32)
    # The likeliest tokens, the second one twice, so that the counts of guesses matter.
    guesses = [int(logits[0].argmax())] * 2 + [int(logits[2].argmax())]
    with_guesses = [
        counts + torch.bincount(torch.tensor(guesses[:column], dtype=torch.int64), minlength=size).int()
        for column in range(columns)
    ]
    drawn = np.stack(
        [
            _draws(law, logits[column], with_guesses[column], _bits(position + column, DRAWS))
            for column in range(columns)
        ]
    )
    going, observed = np.ones(DRAWS, dtype=bool), {}
    reached, chances = 1.0, {}
    for column in range(columns):
        here = law_ref(logits[column], with_guesses[column], law)
        for token in range(size):
            if column == columns - 1 or token != guesses[column]:
                observed[column, token] = int((going & (drawn[column] == token)).sum())
                chances[column, token] = reached * float(here[token])
        if column < columns - 1:
            going &= drawn[column] == guesses[column]
            reached *= float(here[guesses[column]])
    assert sum(observed.values()) == DRAWS
    assert sum(chances.values()) == pytest.approx(1)
    _check_chi_square(observed, chances)
    _check_some(law, logits, counts, guesses, drawn, position)


def _check_chi_square(observed: dict[tuple[int, int], int], chances: dict[tuple[int, int], float]) -> None:
    rare_seen, rare_chance, total, cells = 0, 0.0, 0.0, 0
    for outcome, chance in chances.items():
        wanted = chance * DRAWS
        if wanted == 0:
            assert not observed[outcome], f"{outcome} has no chance"
        elif wanted < 10:
            rare_seen, rare_chance = rare_seen + observed[outcome], rare_chance + wanted
        else:
            total, cells = total + (observed[outcome] - wanted) ** 2 / wanted, cells + 1
    if rare_chance >= 10:
        total, cells = total + (rare_seen - rare_chance) ** 2 / rare_chance, cells + 1
    if cells == 1:
        assert total == pytest.approx(0, abs=1e-9)
        return
    freedom = cells - 1
    # Wilson and Hilferty's approximation; 3.7 is exceeded once in ten thousand.
    deviate = ((total / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert deviate < 3.7, (total, freedom)


def _check_some(
    law: Sampling, logits: Tensor, counts: Tensor, guesses: list[int], drawn: NDArray[np.int64], position: int
) -> None:
    """Some of these draws by `verify` itself."""
    columns, size = logits.shape
    for seed in range(0, DRAWS, DRAWS // 20):
        tables = tables_of(size, 0)
        tables.laws[0], tables.counts[0] = torch.tensor(law_row(law)), counts
        uniforms = [random_bits(seed, position + column, Purpose.DECODE) * 2.0**-24 for column in range(columns)]
        case = Columns(
            logits, size, torch.tensor([0], dtype=torch.int32), columns,
            torch.tensor([0, *guesses], dtype=torch.int32), torch.tensor([columns - 1], dtype=torch.int32),
            torch.tensor(uniforms),
        )  # fmt: skip
        accepted, _, *tokens = verified(case, tables)[0].tolist()
        assert tokens[: accepted + 1] == drawn[: accepted + 1, seed].tolist()
        assert accepted == columns - 1 or tokens[accepted] != guesses[accepted]


def _draws(law: Sampling, logits: Tensor, counts: Tensor, bits: NDArray[np.uint64]) -> NDArray[np.int64]:
    """What `sample` draws for each of these random numbers: it is a step function of them, found by bisection."""

    def token_at(bits: int) -> int:
        return int(sample(logits[None], counts[None], [law], [bits * 2.0**-24])[0])

    ends, tokens, begin = [], [], 0
    while begin < 1 << 24:
        token = token_at(begin)
        begin = _first_other(token_at, token, begin)
        ends.append(begin)
        tokens.append(token)
    assert len(set(tokens)) == len(tokens), "ranks come in order"
    return np.array(tokens)[np.searchsorted(np.array(ends, dtype=np.uint64), bits, side="right")]


def _first_other(token_at: Callable[[int], int], token: int, begin: int) -> int:
    low, high = begin, 1 << 24
    while high - low > 1:
        middle = (low + high) // 2
        if token_at(middle) == token:
            low = middle
        else:
            high = middle
    return high


def _bits(position: int, seeds: int) -> NDArray[np.uint64]:
    """`random_bits` of many seeds."""

    def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    key = np.uint64(position * 0xD1B54A32D192ED03 & (1 << 64) - 1)
    mixed = mix(mix(np.arange(seeds, dtype=np.uint64) ^ key) ^ np.uint64(Purpose.DECODE << 21)) >> np.uint64(40)
    assert [random_bits(seed, position, Purpose.DECODE) for seed in (0, seeds - 1)] == mixed[[0, -1]].tolist()
    return mixed


def test_the_triton_route_on_a_cpu() -> None:
    pytest.importorskip("triton", reason="Triton is published for Linux only")
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    done = subprocess.run(command, env=environment, cwd=CASES.parents[3], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
