"""Loading: every parameter ends up in the rows it belongs to, in the planned tensors and no others."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ninfer.artifact.config import MoeConfig
from ninfer.errors import StartupError
from ninfer.kernels.linear.op import LinearWeight, linear
from ninfer.model import weights as module
from ninfer.model.arena import Arena, TensorSpec, arena_bytes
from ninfer.model.weights import AttentionWeights, GdnWeights, TextWeights, load_weights, weight_specs
from tests.support.random_model import SMALL, TIED, RandomModel

CPU = torch.device("cpu")
MODEL = RandomModel()


def loaded(model: RandomModel = MODEL, dtype: str = "fp32") -> TextWeights:
    weights = load_weights(model.text, model, dtype, CPU)
    assert weights.nbytes == arena_bytes(weight_specs(model.text, dtype))
    return weights


def parameter(name: str) -> torch.Tensor:
    return torch.from_numpy(MODEL.values(f"text/{name}"))


def matrix(weight: LinearWeight) -> torch.Tensor:
    """The matrix [N, K] that a prepared weight multiplies by, read back through the product."""
    dtype = torch.float32 if weight.packed else weight.storage.dtype
    return linear(torch.eye(weight.inner, dtype=dtype), weight).t()


def joined(layer: int, *roles: str) -> torch.Tensor:
    return torch.cat([parameter(f"layers/{layer}/{role}") for role in roles])


@pytest.mark.parametrize("elements", [1 << 25, 500], ids=["at once", "in pieces"])
def test_parents_hold_their_members_in_order(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOAD_ELEMENTS", elements)
    weights = loaded()
    linear, attention = weights.layers
    assert isinstance(linear.mixer, GdnWeights)
    gdn = ("query", "key", "value", "z", "a_projection", "b_projection")
    assert torch.equal(matrix(linear.mixer.into), joined(0, *[f"gdn/{role}" for role in gdn]))
    assert torch.equal(linear.mixer.taps, parameter("layers/0/gdn/convolution"))
    assert torch.equal(linear.mixer.decay_rate, -torch.exp(parameter("layers/0/gdn/a_log")))
    assert torch.equal(linear.mixer.dt_bias, parameter("layers/0/gdn/dt_bias"))
    assert torch.equal(linear.mixer.norm, parameter("layers/0/gdn/norm"))
    assert torch.equal(matrix(linear.mixer.out), parameter("layers/0/gdn/output"))
    assert isinstance(attention.mixer, AttentionWeights)
    roles = [f"attention/{role}" for role in ("query", "gate", "key", "value")]
    assert torch.equal(matrix(attention.mixer.into), joined(1, *roles))
    assert torch.equal(attention.mixer.query_norm, parameter("layers/1/attention/query_norm"))
    assert torch.equal(attention.mixer.key_norm, parameter("layers/1/attention/key_norm"))
    assert torch.equal(matrix(attention.mixer.out), parameter("layers/1/attention/output"))
    for number, layer in enumerate(weights.layers):
        assert torch.equal(matrix(layer.gate_up), joined(number, "mlp/gate", "mlp/up"))
        assert torch.equal(matrix(layer.down), parameter(f"layers/{number}/mlp/down"))
        assert torch.equal(layer.input_norm, parameter(f"layers/{number}/input_norm"))
        assert torch.equal(layer.post_norm, parameter(f"layers/{number}/post_attention_norm"))
    assert torch.equal(weights.embedding, parameter("token_embedding"))
    assert torch.equal(matrix(weights.head), parameter("output_head"))
    assert torch.equal(weights.final_norm, parameter("final_norm"))


def test_matrices_take_the_compute_dtype_and_constants_stay_fp32() -> None:
    weights = loaded(dtype="bf16")
    assert torch.equal(weights.embedding, parameter("token_embedding").bfloat16())
    assert weights.layers[0].gate_up.storage.dtype == torch.bfloat16
    assert weights.layers[0].input_norm.dtype == torch.float32
    mixer = weights.layers[0].mixer
    assert isinstance(mixer, GdnWeights)
    assert {mixer.taps.dtype, mixer.decay_rate.dtype, mixer.norm.dtype} == {torch.float32}


def test_a_tied_head_multiplies_by_the_embedding() -> None:
    """In fp32 by a packed copy, which the plan counts; in bf16 by the embedding itself."""
    weights = loaded(RandomModel(TIED))
    assert torch.equal(matrix(weights.head), parameter("token_embedding"))
    assert arena_bytes(weight_specs(TIED, "fp32")) == arena_bytes(weight_specs(SMALL, "fp32"))
    weights = loaded(RandomModel(TIED), "bf16")
    assert weights.head.storage is weights.embedding
    head = TensorSpec("head", (203, 48), "bf16")
    assert arena_bytes(weight_specs(SMALL, "bf16")) - arena_bytes(weight_specs(TIED, "bf16")) == head.region_bytes


def test_experts_are_refused() -> None:
    config = replace(SMALL, intermediate_size=None, moe=MoeConfig(4, 2, 8, 8))
    with pytest.raises(StartupError, match="mixture-of-experts models are not supported yet"):
        weight_specs(config, "fp32")


def test_arena_regions_are_aligned_apart_and_counted() -> None:
    specs = (TensorSpec("a", (3, 5), "fp32"), TensorSpec("b", (7,), "bf16"), TensorSpec("c", (2, 2), "int64"))
    arena = Arena(specs, CPU)
    assert arena.nbytes == arena_bytes(specs) == 3 * 256
    for number, (spec, dtype) in enumerate(zip(specs, (torch.float32, torch.bfloat16, torch.int64), strict=True)):
        tensor = arena[spec.name]
        assert (tuple(tensor.shape), tensor.dtype) == (spec.shape, dtype)
        assert tensor.storage_offset() * tensor.element_size() == 256 * number
        assert not tensor.any()
        tensor.fill_(number + 1)
    assert [float(arena[spec.name].double().mean()) for spec in specs] == [1, 2, 3]


def test_an_arena_of_nothing() -> None:
    assert Arena((), CPU).nbytes == 0
