"""Floors of the 27B are the figures of the specification, computed there by hand."""

from __future__ import annotations

import dataclasses

import pytest

from ninfer.artifact.config import LINEAR_ATTENTION
from ninfer.artifact.registered import REGISTERED
from ninfer.bench.floors import kv_token_bytes, prefill_flop, products, round_bytes, state_bytes
from ninfer.bench.linear_stack import MODELS
from ninfer.errors import StartupError
from ninfer.kernels.low_bit_linear.pack import packed_bytes

TEXT = REGISTERED["qwen3_8_27b"].components.text


def weight_bytes() -> int:
    shapes = MODELS["qwen3_8_27b"]
    return sum(packed_bytes(*shape) for kind in shapes.order() for shape in shapes.kinds[kind])


def test_a_token_of_the_27b_moves_sixteen_gigabytes() -> None:
    gates = 2 * TEXT.gdn_value_heads * TEXT.hidden_size * 2 * 48  # bf16
    moved = round_bytes(TEXT, "int8", weight_bytes() + gates, [1])
    assert moved.floor == pytest.approx(16.05e9, rel=0.002)
    assert moved.floor - moved.design == state_bytes(TEXT) * (1 - 1 / 64)
    assert state_bytes(TEXT) == 150_994_944


def test_lanes_share_the_weights_alone() -> None:
    one, eight = (round_bytes(TEXT, "int8", 1000, [64.0] * lanes).floor for lanes in (1, 8))
    assert eight - 1000 == 8 * (one - 1000)


def test_the_cache_at_131072_positions() -> None:
    assert kv_token_bytes(TEXT, "int8") == 16 * 2 * 4 * (256 + 2 * 4)
    assert kv_token_bytes(TEXT, "bf16") == 16 * 2 * 4 * 256 * 2
    assert 131072 * kv_token_bytes(TEXT, "int8") == pytest.approx(4.43e9, rel=0.002)


def test_prompts_take_linear_and_quadratic_work() -> None:
    assert 2 * sum(product.layers * product.parameters for product in products(TEXT)) == pytest.approx(48.7e9, rel=1e-3)
    linear = prefill_flop(TEXT, 131072) - prefill_flop(dataclasses.replace(TEXT, vocab_size=0), 131072)
    assert linear == 2 * 248320 * 5120
    assert prefill_flop(TEXT, 131072) == pytest.approx(6.4e15 + 3.4e15, rel=0.01)


def test_a_prompt_takes_as_much_in_pieces_but_for_the_heads() -> None:
    head = 2 * TEXT.vocab_size * TEXT.hidden_size
    pieces = prefill_flop(TEXT, 300) + prefill_flop(TEXT, 212, 300)
    assert pieces - head == pytest.approx(prefill_flop(TEXT, 512))


def test_a_model_of_one_kind_of_layer_has_no_products_of_the_other() -> None:
    recurrent = dataclasses.replace(TEXT, layer_types=(LINEAR_ATTENTION,) * 2)
    assert [product.name for product in products(recurrent)] == ["gdn in", "gdn out", "gate_up", "down"]
    assert kv_token_bytes(recurrent, "int8") == 0


def test_experts_are_refused() -> None:
    with pytest.raises(StartupError, match="mixture-of-experts"):
        products(REGISTERED["qwen3_6_35b_a3b"].components.text)
