"""The plain route of a chunk."""

from __future__ import annotations

import pytest
import torch

from ninfer.kernels.kv_codec.pool import Codec
from ninfer.kernels.paged_attention import op
from tests.kernels.paged_attention.cases import expected_prompt, prompt, tolerance
from tests.support.tolerance import assert_within


@pytest.mark.parametrize("codec", ["int8", "bf16"])
@pytest.mark.parametrize(("tokens", "heads", "kv_heads", "width"), [(1, 6, 1, 256), (150, 4, 2, 64)], ids=str)
def test_a_chunk(tokens: int, heads: int, kv_heads: int, width: int, codec: Codec) -> None:
    made = prompt(tokens, heads, kv_heads, codec, width=width)
    assert_within(tolerance(codec), made.run(op.attention_chunk, ()), expected_prompt(made))


@pytest.mark.parametrize("codec", ["int8", "bf16"])
def test_a_token_does_not_know_its_chunk(codec: Codec) -> None:
    whole = prompt(300, 4, 2, codec, width=64)
    got = whole.run(op.attention_chunk, ())
    for cuts in ((64,), (128, 192), (64, 128, 192, 256)):
        assert torch.equal(prompt(300, 4, 2, codec, width=64).run(op.attention_chunk, cuts), got)
