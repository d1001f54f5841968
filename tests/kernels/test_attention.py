"""Paged attention and the writing of its cache."""

from __future__ import annotations

import math

import pytest
import torch

from ninfer.kernels.kv_append.op import kv_append
from ninfer.kernels.kv_append.ref import kv_append_ref
from ninfer.kernels.paged_attention.op import paged_attention
from ninfer.kernels.paged_attention.ref import paged_attention_ref
from ninfer.kernels.paged_attention.torch_pages import GROUP_PAGES
from tests.kernels.data import DTYPES, normal
from tests.support.tolerance import BF16_ROUNDED, FP32_REDUCTION, assert_within

SHAPES = [(4, 2, 32), (3, 3, 64), (6, 1, 96), (8, 2, 40), (1, 1, 16)]  # query heads, key heads, width


def pools(kv_heads: int, width: int, end: int, pages: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    """A key and a value pool that hold NaN wherever the sequence of `end` positions has nothing."""
    out = []
    for seed in (1, 2):
        pool = torch.full((40, kv_heads, 64, width), math.nan, dtype=dtype)
        position = torch.arange(end)
        pool[pages[position // 64], :, position % 64] = normal(end, kv_heads, width, seed=seed, dtype=dtype)
        out.append(pool)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), SHAPES, ids=str)
@pytest.mark.parametrize(("begin", "tokens"), [(0, 1), (0, 64), (64, 3), (150, 1), (191, 1), (192, 7)], ids=str)
def test_attention(heads: int, kv_heads: int, width: int, begin: int, tokens: int, dtype: torch.dtype) -> None:
    end = begin + tokens
    pages = torch.randperm(40, generator=torch.Generator().manual_seed(3))[: -(-end // 64)]
    keys, values = pools(kv_heads, width, end, pages, dtype)
    q = normal(tokens, heads, width, seed=4, dtype=dtype) * 2
    got = paged_attention(q, keys, values, pages, begin)
    expected = paged_attention_ref(q, keys, values, pages, begin)
    assert_within(FP32_REDUCTION if dtype == torch.float32 else BF16_ROUNDED, got, expected)


@pytest.mark.parametrize("begin", [0, 64, 64 * (GROUP_PAGES - 1), 64 * GROUP_PAGES, 64 * (2 * GROUP_PAGES + 2)])
def test_a_query_does_not_know_its_tile(begin: int) -> None:
    """Also on both sides of the border between two groups of pages."""
    heads, kv_heads, width, end = 6, 2, 32, begin + 64
    pages = torch.randperm(40, generator=torch.Generator().manual_seed(3))[: end // 64]
    keys, values = pools(kv_heads, width, end, pages, torch.float32)
    q = normal(64, heads, width, seed=4)
    whole = paged_attention(q, keys, values, pages, begin)
    for first, count in ((0, 1), (1, 1), (62, 1), (63, 1), (5, 2), (0, 33)):
        part = paged_attention(q[first : first + count], keys, values, pages, begin + first)
        assert torch.equal(part, whole[first : first + count])
    assert_within(FP32_REDUCTION, whole, paged_attention_ref(q, keys, values, pages, begin))


def test_large_scores_do_not_overflow() -> None:
    pages = torch.tensor([2, 0])
    keys, values = pools(1, 16, 100, pages, torch.float32)
    q = normal(1, 1, 16, seed=4) * 1e4
    assert_within(
        FP32_REDUCTION, paged_attention(q, keys, values, pages, 99), paged_attention_ref(q, keys, values, pages, 99)
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_append(dtype: torch.dtype) -> None:
    k, v = normal(70, 3, 8), normal(70, 3, 8, seed=1)
    order = torch.randperm(5 * 64, generator=torch.Generator().manual_seed(2))[:70]
    pages, offsets = order // 64, order % 64
    before = torch.full((5, 3, 64, 8), 7.0, dtype=dtype)
    keys, values = before.clone(), before.clone()
    kv_append(k, v, pages, offsets, keys, values)
    assert torch.equal(keys, kv_append_ref(k, pages, offsets, before))
    assert torch.equal(values, kv_append_ref(v, pages, offsets, before))
