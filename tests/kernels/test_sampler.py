"""The sampling law and the counter-based random numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ninfer.kernels.sampler.masks import mask_words, masked
from ninfer.kernels.sampler.op import Purpose, random_bits, sample, uniform
from ninfer.kernels.sampler.ref import law_ref
from ninfer.types import Sampling
from tests.kernels.data import normal

GREEDY = Sampling(0.0, 20, 1.0, 0.0, 0.0, 0.0, 0)
LAW = Sampling(0.8, 20, 0.9, 0.0, 0.0, 0.0, 0)
V = 97


@pytest.mark.parametrize(
    ("seed", "position", "purpose", "bits", "value"),
    [
        (0, 0, 0, 10946269, 0.65244848),
        (0, 1, 1, 16604622, 0.98971260),
        (1, 7, 2, 15770651, 0.94000405),
        (42, 128, 3, 8014010, 0.47767222),
        (42, 129, 4, 14984793, 0.89316326),
        (7632647173703958409, 7680, 0, 16049686, 0.95663583),
        (7632647173703958409, 7683, 5, 7802204, 0.46504760),
    ],
)
def test_vectors_of_the_spec(seed: int, position: int, purpose: int, bits: int, value: float) -> None:
    assert random_bits(seed, position, Purpose(purpose)) == bits
    assert uniform(seed, position, Purpose(purpose)) == pytest.approx(value, abs=5e-9)


def draw(logits: torch.Tensor, law: Sampling, u: float, counts: torch.Tensor | None = None) -> int:
    if counts is None:
        counts = torch.zeros(logits.shape[-1], dtype=torch.int32)
    return int(sample(logits.unsqueeze(0), counts.unsqueeze(0), [law], [u])[0])


@pytest.mark.parametrize(
    "law",
    [
        GREEDY,
        LAW,
        replace(LAW, top_p=1.0),
        replace(LAW, top_k=1),
        replace(LAW, top_k=5, top_p=0.5),
        replace(LAW, top_k=40, top_p=1.0),
        replace(LAW, top_k=0, top_p=1.0, temperature=2.0),
        replace(LAW, min_p=0.2, top_p=1.0),
        replace(LAW, min_p=1.0, top_p=1.0),
        replace(LAW, top_p=0.0),
        replace(LAW, presence_penalty=1.5, frequency_penalty=-0.5),
        replace(GREEDY, presence_penalty=2.0, frequency_penalty=2.0),
    ],
    ids=lambda law: f"T{law.temperature}k{law.top_k}p{law.top_p}m{law.min_p}",
)
def test_draws_follow_the_law(law: Sampling) -> None:
    """A fine grid of uniform numbers hits each token as often as its probability says."""
    logits = normal(V) * 2
    counts = torch.randint(0, 3, (V,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    grid = 400
    drawn = torch.zeros(V, dtype=torch.float64)
    for i in range(grid):
        drawn[draw(logits, law, (i + 0.5) / grid, counts)] += 1 / grid
    assert float((drawn - law_ref(logits, counts, law)).abs().max()) <= 1.5 / grid


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = torch.zeros(V)
    logits[[13, 40, 96]] = 3.0
    assert draw(logits, GREEDY, 0.9) == 13
    logits[5] = -0.0
    assert draw(-logits.abs(), GREEDY, 0.5) == 0, "zeros of both signs are equal"


def test_ties_at_the_edge_of_the_candidates_go_to_low_ids() -> None:
    logits = torch.ones(V)
    seen = {draw(logits, replace(LAW, top_k=7, top_p=1.0), (i + 0.5) / 70) for i in range(70)}
    assert seen == set(range(7))


def test_the_twenty_largest_are_the_most_a_law_can_reach() -> None:
    logits = torch.arange(V).float() * 1e-3
    law = replace(LAW, top_k=20, top_p=1.0, temperature=2.0)
    assert {draw(logits, law, (i + 0.5) / 200) for i in range(200)} == set(range(V - 20, V))


def test_penalties_move_the_argmax() -> None:
    logits = torch.tensor([1.0, 0.9, 0.8])
    counts = torch.tensor([1, 0, 0], dtype=torch.int32)
    assert draw(logits, GREEDY, 0.0, counts) == 0
    assert draw(logits, replace(GREEDY, presence_penalty=0.15), 0.0, counts) == 1
    assert draw(logits, replace(GREEDY, frequency_penalty=0.05), 0.0, counts * 4) == 1


def test_rows_have_their_own_laws_and_a_draw_ends_at_the_last_candidate() -> None:
    logits = normal(3, V)
    counts = torch.zeros(3, V, dtype=torch.int32)
    laws = [GREEDY, LAW, replace(LAW, temperature=2.0, top_p=1.0)]
    uniforms = [0.1, 0.5, 1 - 2.0**-24]
    together = sample(logits, counts, laws, uniforms)
    alone = [int(sample(logits[i : i + 1], counts[:1], [laws[i]], [uniforms[i]])[0]) for i in range(3)]
    assert together.tolist() == alone
    assert alone[2] == int(logits[2].topk(20).indices[-1])


def test_a_vocabulary_smaller_than_the_candidates() -> None:
    assert draw(torch.tensor([0.0, 5.0, 1.0]), replace(LAW, top_p=1.0), 0.0) == 1


@pytest.mark.parametrize("law", [GREEDY, LAW, replace(LAW, top_p=1.0, min_p=0.1)], ids=["greedy", "law", "min_p"])
def test_a_masked_law_is_the_law_of_the_legal_ids(law: Sampling) -> None:
    """What is masked is gone before the candidates are formed; everything behind that is unchanged (spec 6.2)."""
    logits, counts = normal(1, V), torch.zeros(1, V, dtype=torch.int32)
    legal = [3, 31, 32, 63, 64, 90, 96]
    bits = sum(1 << n for n in legal).to_bytes(mask_words(V) * 4, "little")
    masked_logits = masked(logits, [bits])
    for u in (0.0, 0.3, 0.77, 1 - 2.0**-24):
        (alone,) = sample(logits[:, legal], counts[:, : len(legal)], [law], [u])
        (drawn,) = sample(masked_logits, counts, [law], [u])
        assert int(drawn) == legal[int(alone)]
    assert masked(logits, [None]) is logits


def test_ids_behind_the_last_word_of_a_mask_are_not_legal() -> None:
    logits = torch.zeros(1, V)
    assert torch.isinf(masked(logits, [(1).to_bytes(4, "little")]))[0].tolist() == [False, *[True] * (V - 1)]
