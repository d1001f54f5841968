"""Weights of the text decoder in compute form: decoded, and joined where one product can serve several maps.

Matrices have the compute dtype; norms, convolution taps and recurrence constants are fp32. Parents hold the rows of
their members in the order of the docstrings below, which is that of the artifact's packing groups where there is one.
Matrices of products are prepared for their route one by one, each in a storage of its own; everything else lies in an
arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninfer.artifact.config import FULL_ATTENTION, TextConfig
from ninfer.errors import StartupError
from ninfer.kernels.linear.op import LinearWeight, can_pack, plain, prepare, prepared_rows
from ninfer.model.arena import DTYPES, Arena, TensorSpec

_DRAFTER_LAYER = "mtp/layers/0/"
_LOAD_ELEMENTS = 1 << 25  # decoded at a time: 128 MiB of fp32 beside the weights themselves


class ParameterValues(Protocol):
    """What loading needs of a bound artifact."""

    def values(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[np.float32]:
        """Decoded values of a logical parameter, or of its rows [begin, end)."""

    def token_ids(self) -> NDArray[np.int32]:
        """Tokens of the short head's rows; asked for only with such a head."""


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """Projections of one full-attention layer.

    into         [2Q + 2KV, H]: rows of query, gate, key, value
    query_norm, key_norm  [D] fp32, offset
    out          [H, Q]
    """

    into: LinearWeight
    query_norm: Tensor
    key_norm: Tensor
    out: LinearWeight


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """Projections and constants of one gated DeltaNet layer.

    into         [C + VG + 2*HV, H]: rows of query, key, value, z, a, b
    taps         [W, C] fp32
    decay_rate   [HV] fp32, -exp(A_log)
    dt_bias      [HV] fp32
    norm         [DV] fp32, plain
    out          [H, VG]
    """

    into: LinearWeight
    taps: Tensor
    decay_rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    out: LinearWeight


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; `gate_up` is [2I, H], rows of gate and then of up."""

    input_norm: Tensor
    mixer: AttentionWeights | GdnWeights
    post_norm: Tensor
    gate_up: LinearWeight
    down: LinearWeight


@dataclass(frozen=True, slots=True)
class DrafterWeights:
    """The multi-token prediction layer (model spec 9.1); it shares the decoder's embedding.

    embedding_norm, hidden_norm, final_norm  [H] fp32, offset
    join         [H, 2H], columns of the embedding half and then of the hidden half
    layer        of the attention kind
    head         rows of the short head, or the decoder's
    head_ids     [rows] int64: the token of each row of a short head; None if a row is its own token
    """

    embedding_norm: Tensor
    hidden_norm: Tensor
    join: LinearWeight
    layer: LayerWeights
    final_norm: Tensor
    head: LinearWeight
    head_ids: Tensor | None


@dataclass(frozen=True, slots=True)
class DrafterShape:
    """What of a drafter is to be loaded; head_rows: of the short head, None to use the decoder's."""

    head_rows: int | None = None


@dataclass(frozen=True, slots=True)
class TextWeights:
    """The whole decoder; with tied weights `head` reads `embedding` itself unless it is packed.

    nbytes   bytes of every storage, each counted once
    drafter  the layer that guesses the tokens behind the next one, if there is to be one
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: LinearWeight
    nbytes: int
    drafter: DrafterWeights | None = None


@dataclass(frozen=True, slots=True)
class _Planned:
    """A tensor, and the parameters whose rows it joins with their numbers of rows.

    product   the tensor is the matrix of a linear map, with rows of zeros at the end that its route asks for
    """

    spec: TensorSpec
    sources: tuple[tuple[str, int], ...]
    product: bool = False

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.sources)


def _planned(name: str, shape: tuple[int, ...], dtype: str) -> _Planned:
    return _Planned(TensorSpec(name, shape, dtype), ((name, shape[0]),))


def _matrix(prefix: str, role: str, members: Mapping[str, int], columns: int, dtype: str) -> _Planned:
    shape = (prepared_rows(sum(members.values()), DTYPES[dtype]), columns)
    sources = tuple((prefix + name, rows) for name, rows in members.items())
    return _Planned(TensorSpec(prefix + role, shape, dtype), sources, product=True)


def _attention_tensors(config: TextConfig, prefix: str, dtype: str) -> Iterator[_Planned]:
    hidden, query, kv = config.hidden_size, config.query_width, config.kv_width
    members = {"attention/query": query, "attention/gate": query, "attention/key": kv, "attention/value": kv}
    yield _matrix(prefix, "attention/into", members, hidden, dtype)
    yield _planned(prefix + "attention/query_norm", (config.head_dim,), "fp32")
    yield _planned(prefix + "attention/key_norm", (config.head_dim,), "fp32")
    yield _matrix(prefix, "attention/output", {"attention/output": hidden}, query, dtype)


def _gdn_tensors(config: TextConfig, prefix: str, dtype: str) -> Iterator[_Planned]:
    hidden, heads = config.hidden_size, config.gdn_value_heads
    key, value = config.gdn_key_width, config.gdn_value_width
    members = {"gdn/query": key, "gdn/key": key, "gdn/value": value, "gdn/z": value}
    members |= {"gdn/a_projection": heads, "gdn/b_projection": heads}
    yield _matrix(prefix, "gdn/into", members, hidden, dtype)
    yield _planned(prefix + "gdn/convolution", (config.conv_kernel, config.conv_channels), "fp32")
    yield _planned(prefix + "gdn/a_log", (heads,), "fp32")
    yield _planned(prefix + "gdn/dt_bias", (heads,), "fp32")
    yield _planned(prefix + "gdn/norm", (config.gdn_value_dim,), "fp32")
    yield _matrix(prefix, "gdn/output", {"gdn/output": hidden}, value, dtype)


def _layer_tensors(config: TextConfig, inner: int, prefix: str, kind: str, dtype: str) -> Iterator[_Planned]:
    hidden = config.hidden_size
    yield _planned(prefix + "input_norm", (hidden,), "fp32")
    yield from (_attention_tensors if kind == FULL_ATTENTION else _gdn_tensors)(config, prefix, dtype)
    yield _planned(prefix + "post_attention_norm", (hidden,), "fp32")
    yield _matrix(prefix, "mlp/gate_up", {"mlp/gate": inner, "mlp/up": inner}, hidden, dtype)
    yield _matrix(prefix, "mlp/down", {"mlp/down": hidden}, inner, dtype)


def _drafter_tensors(config: TextConfig, drafter: DrafterShape, inner: int, dtype: str) -> Iterator[_Planned]:
    hidden = config.hidden_size
    for norm in ("embedding_norm", "hidden_norm", "final_norm"):
        yield _planned(f"mtp/{norm}", (hidden,), "fp32")
    yield _matrix("mtp/", "input_projection", {"input_projection": hidden}, 2 * hidden, dtype)
    yield from _layer_tensors(config, inner, _DRAFTER_LAYER, FULL_ATTENTION, dtype)
    if drafter.head_rows is not None:
        yield _matrix("proposal/", "head", {"head": drafter.head_rows}, hidden, dtype)


def _planned_tensors(config: TextConfig, dtype: str, drafter: DrafterShape | None) -> Iterator[_Planned]:
    hidden, inner = config.hidden_size, config.intermediate_size
    if inner is None:
        raise StartupError("mixture-of-experts models are not supported yet: use a dense model of the family")
    yield _planned("text/token_embedding", (config.vocab_size, hidden), dtype)
    for layer, kind in enumerate(config.layer_types):
        yield from _layer_tensors(config, inner, f"text/layers/{layer}/", kind, dtype)
    yield _planned("text/final_norm", (hidden,), "fp32")
    if drafter is not None:
        yield from _drafter_tensors(config, drafter, inner, dtype)
    if config.tie_word_embeddings and can_pack(DTYPES[dtype]):
        # The embedding is read by rows, the head by a product: a packed copy is worth its bytes on a processor.
        yield _matrix("text/", "output_head", {"token_embedding": config.vocab_size}, hidden, dtype)
    elif not config.tie_word_embeddings:
        yield _matrix("text/", "output_head", {"output_head": config.vocab_size}, hidden, dtype)


def weight_specs(config: TextConfig, dtype: str, drafter: DrafterShape | None = None) -> tuple[TensorSpec, ...]:
    """Every tensor that loading a model of these dimensions creates, in order; `dtype` is that of the matrices.

    Raises StartupError for a mixture-of-experts model, which has no route yet.
    """
    return tuple(planned.spec for planned in _planned_tensors(config, dtype, drafter)) + _head_ids(drafter)


def _head_ids(drafter: DrafterShape | None) -> tuple[TensorSpec, ...]:
    if drafter is None or drafter.head_rows is None:
        return ()
    return (TensorSpec("proposal/token_ids", (drafter.head_rows,), "int64"),)


def load_weights(
    config: TextConfig,
    source: ParameterValues,
    dtype: str,
    device: torch.device,
    drafter: DrafterShape | None = None,
) -> TextWeights:
    """Decode every parameter of `source` into the tensors of :func:`weight_specs`, and prepare the matrices.

    Beside them, one matrix and :data:`_LOAD_ELEMENTS` decoded elements are held at a time.
    """
    planned = tuple(_planned_tensors(config, dtype, drafter))
    arena = Arena([tensor.spec for tensor in planned if not tensor.product], device)
    matrices: dict[str, LinearWeight] = {}
    for tensor in planned:
        if not tensor.product:
            _fill(arena[tensor.spec.name], tensor.sources, source)
            continue
        matrix = Arena([tensor.spec], device)[tensor.spec.name]
        _fill(matrix[: tensor.rows], tensor.sources, source)
        matrices[tensor.spec.name] = prepare(matrix, tensor.rows)
    embedding = arena["text/token_embedding"]
    kinds = enumerate(config.layer_types)
    head = matrices["text/output_head"] if "text/output_head" in matrices else plain(embedding)
    ids = Arena(_head_ids(drafter), device)
    if ids.tensors:
        ids["proposal/token_ids"].copy_(torch.from_numpy(source.token_ids().astype(np.int64)))
    return TextWeights(
        embedding=embedding,
        layers=tuple(_layer(arena, matrices, f"text/layers/{layer}/", kind) for layer, kind in kinds),
        final_norm=arena["text/final_norm"],
        head=head,
        nbytes=arena.nbytes + ids.nbytes + sum(matrix.nbytes for matrix in matrices.values()),
        drafter=_drafter(arena, matrices, head, ids) if drafter is not None else None,
    )


def _drafter(arena: Arena, matrices: Mapping[str, LinearWeight], head: LinearWeight, ids: Arena) -> DrafterWeights:
    return DrafterWeights(
        embedding_norm=arena["mtp/embedding_norm"],
        hidden_norm=arena["mtp/hidden_norm"],
        join=matrices["mtp/input_projection"],
        layer=_layer(arena, matrices, _DRAFTER_LAYER, FULL_ATTENTION),
        final_norm=arena["mtp/final_norm"],
        head=matrices.get("proposal/head", head),
        head_ids=ids["proposal/token_ids"] if ids.tensors else None,
    )


def _fill(target: Tensor, sources: tuple[tuple[str, int], ...], values: ParameterValues) -> None:
    """Copy the sources' rows one after the other, a bounded number of decoded elements at a time."""
    step = max(1, _LOAD_ELEMENTS * target.shape[0] // target.numel())
    first = 0
    for name, rows in sources:
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            piece = np.ascontiguousarray(values.values(name, (begin, end)), dtype=np.float32)
            target[first + begin : first + end].copy_(torch.tensor(piece))
        first += rows
    assert first == target.shape[0]


def _layer(arena: Arena, matrices: Mapping[str, LinearWeight], prefix: str, kind: str) -> LayerWeights:
    return LayerWeights(
        input_norm=arena[prefix + "input_norm"],
        mixer=(_attention if kind == FULL_ATTENTION else _gdn)(arena, matrices, prefix),
        post_norm=arena[prefix + "post_attention_norm"],
        gate_up=matrices[prefix + "mlp/gate_up"],
        down=matrices[prefix + "mlp/down"],
    )


def _attention(arena: Arena, matrices: Mapping[str, LinearWeight], prefix: str) -> AttentionWeights:
    return AttentionWeights(
        into=matrices[prefix + "attention/into"],
        query_norm=arena[prefix + "attention/query_norm"],
        key_norm=arena[prefix + "attention/key_norm"],
        out=matrices[prefix + "attention/output"],
    )


def _gdn(arena: Arena, matrices: Mapping[str, LinearWeight], prefix: str) -> GdnWeights:
    decay_rate = arena[prefix + "gdn/a_log"]
    # In place: A_log itself has no other use.
    decay_rate.copy_(-torch.exp(decay_rate))
    return GdnWeights(
        into=matrices[prefix + "gdn/into"],
        taps=arena[prefix + "gdn/convolution"],
        decay_rate=decay_rate,
        dt_bias=arena[prefix + "gdn/dt_bias"],
        norm=arena[prefix + "gdn/norm"],
        out=matrices[prefix + "gdn/output"],
    )
