"""Weights of the text decoder for the kernels of a GPU: matrices repacked as they are stored, never widened.

Every matrix of a product keeps its 4 to 8 bits; members that share an input and a width lie in one matrix, gate and up
of the feed-forward in pairs. The embedding stays in its stored planes, since it is read by rows. Norms and the small
constants are fp32, the two gate projections of a GDN layer bf16. All of it is one arena, filled block by block, so that
loading needs one block beside the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ninfer.artifact.config import FULL_ATTENTION, TextConfig
from ninfer.artifact.formats import find_format, row_split
from ninfer.artifact.layouts import GroupedRows
from ninfer.errors import StartupError
from ninfer.kernels.embedding.stored import StoredRows
from ninfer.kernels.low_bit_linear.pack import LowBitWeight, Planes, pack_pairs, pack_rows
from ninfer.kernels.low_bit_linear.packing import PACKINGS, TILE_ROWS, tiles
from ninfer.model.arena import Arena, TensorSpec
from ninfer.model.weights import DrafterShape

_DRAFTER = ("mtp/", "proposal/")  # names of what only a drafter reads
_DRAFTER_LAYER = "mtp/layers/0/"
_HEAD_IDS = "proposal/token_ids"
_LOAD_BYTES = 1 << 26  # stored bytes on their way to the device at a time
_COPY_THREADS = 4


class StoredModel(Protocol):
    """What planning and loading need of a bound artifact."""

    @property
    def text(self) -> TextConfig: ...

    def format_of(self, name: str) -> str: ...

    def grouped_rows(self, name: str, rows: tuple[int, int]) -> Iterator[GroupedRows]: ...

    def values(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[np.float32]: ...

    def token_ids(self) -> NDArray[np.int32]: ...


@dataclass(frozen=True, slots=True)
class AttentionMatrices:
    """One full-attention layer.

    first    rows of query and key: [Q + KV, H]
    second   rows of gate and value: [Q + KV, H]
    query_norm, key_norm  [D] fp32, offset
    out      [H, Q]
    """

    first: LowBitWeight
    second: LowBitWeight
    query_norm: Tensor
    key_norm: Tensor
    out: LowBitWeight


@dataclass(frozen=True, slots=True)
class GdnMatrices:
    """One gated DeltaNet layer.

    first       rows of query and key: [2 HK DK, H]
    second      rows of value and z: [2 HV DV, H]
    gates       [2 HV, H] bf16: rows of a and then of b
    taps        [W, C] fp32
    decay_rate  [HV] fp32, -exp(A_log)
    dt_bias     [HV] fp32
    norm        [DV] fp32, plain
    out         [H, HV DV]
    """

    first: LowBitWeight
    second: LowBitWeight
    gates: Tensor
    taps: Tensor
    decay_rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    out: LowBitWeight


@dataclass(frozen=True, slots=True)
class LayerMatrices:
    """One decoder layer; `gate_up` is paired. Norms are [H] fp32, offset."""

    input_norm: Tensor
    mixer: AttentionMatrices | GdnMatrices
    post_norm: Tensor
    gate_up: LowBitWeight
    down: LowBitWeight


@dataclass(frozen=True, slots=True)
class DrafterMatrices:
    """The multi-token prediction layer (model spec 9.1); it shares the decoder's embedding.

    embedding_norm, hidden_norm, final_norm  [H] fp32, offset
    join         [H, 2H], columns of the embedding half and then of the hidden half
    layer        of the attention kind
    head         rows of the short head, or the decoder's
    head_ids     [rows] int32: the token of each row of a short head; None if a row is its own token
    step_bytes   what one guess of one lane reads of the weights
    """

    embedding_norm: Tensor
    hidden_norm: Tensor
    join: LowBitWeight
    layer: LayerMatrices
    final_norm: Tensor
    head: LowBitWeight
    head_ids: Tensor | None
    step_bytes: int


@dataclass(frozen=True, slots=True)
class TextMatrices:
    """The whole decoder. nbytes: of the one arena; round_bytes: what one decoded token reads of it."""

    embedding: StoredRows
    layers: tuple[LayerMatrices, ...]
    final_norm: Tensor
    head: LowBitWeight
    nbytes: int
    round_bytes: int
    drafter: DrafterMatrices | None = None


@dataclass(frozen=True, slots=True)
class MatrixPlan:
    """A packed matrix to be: the parameters whose rows it joins, with their numbers of rows."""

    name: str
    members: tuple[tuple[str, int], ...]
    columns: int
    bits: int
    paired: bool

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.members)

    @property
    def spec(self) -> TensorSpec:
        packing = PACKINGS[self.bits]
        return TensorSpec(self.name, (tiles(self.rows), packing.quanta(self.columns), packing.words), "int32")

    def weight(self, arena: Arena) -> LowBitWeight:
        """The matrix in its place."""
        return LowBitWeight(arena[self.name], self.rows, self.columns, self.bits, self.paired)


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """Everything that loading a model creates, in order."""

    config: TextConfig
    matrices: tuple[MatrixPlan, ...]
    constants: tuple[TensorSpec, ...]
    embedding: tuple[TensorSpec, ...]
    embedding_format: str
    drafter: DrafterShape | None = None

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        return (*self.embedding, *self.constants, *(matrix.spec for matrix in self.matrices))


def plan_weights(model: StoredModel, drafter: DrafterShape | None = None) -> WeightPlan:
    """Plan the weights of a model from its directory alone, with those of a drafter if there is to be one.

    Raises StartupError for a mixture of experts, and for matrices that no kernel reads: they must be groupwise-int
    codes of 4, 5, 6 or 8 bits, one width in a matrix.
    """
    config = model.text
    if config.intermediate_size is None:
        raise StartupError("mixture-of-experts models are not supported yet: use a dense model of the family")
    embedding_format = model.format_of("text/token_embedding")
    return WeightPlan(
        config=config,
        matrices=tuple(_matrices(model, config, drafter)),
        constants=tuple(_constants(config, drafter)),
        embedding=_embedding_specs(config, embedding_format),
        embedding_format=embedding_format,
        drafter=drafter,
    )


def _matrices(model: StoredModel, config: TextConfig, drafter: DrafterShape | None) -> Iterator[MatrixPlan]:
    hidden = config.hidden_size
    for layer, kind in enumerate(config.layer_types):
        yield from _layer_matrices(model, config, f"text/layers/{layer}/", kind)
    head = "token_embedding" if config.tie_word_embeddings else "output_head"
    yield _matrix(model, "text/", "output_head", {head: config.vocab_size}, hidden)
    if drafter is not None:
        yield _matrix(model, "mtp/", "join", {"input_projection": hidden}, 2 * hidden)
        yield from _layer_matrices(model, config, _DRAFTER_LAYER, FULL_ATTENTION)
        if drafter.head_rows is not None:
            yield _matrix(model, "proposal/", "head", {"head": drafter.head_rows}, hidden)


def _layer_matrices(model: StoredModel, config: TextConfig, prefix: str, kind: str) -> Iterator[MatrixPlan]:
    hidden, inner = config.hidden_size, config.intermediate_size
    assert inner is not None
    if kind == FULL_ATTENTION:
        query, kv = config.query_width, config.kv_width
        yield _matrix(model, prefix + "attention/", "first", {"query": query, "key": kv}, hidden)
        yield _matrix(model, prefix + "attention/", "second", {"gate": query, "value": kv}, hidden)
        yield _matrix(model, prefix + "attention/", "output", {"output": hidden}, query)
    else:
        key, value = config.gdn_key_width, config.gdn_value_width
        yield _matrix(model, prefix + "gdn/", "first", {"query": key, "key": key}, hidden)
        yield _matrix(model, prefix + "gdn/", "second", {"value": value, "z": value}, hidden)
        yield _matrix(model, prefix + "gdn/", "output", {"output": hidden}, value)
    yield _matrix(model, prefix + "mlp/", "gate_up", {"gate": inner, "up": inner}, hidden, paired=True)
    yield _matrix(model, prefix + "mlp/", "down", {"down": hidden}, inner)


def _matrix(
    model: StoredModel, prefix: str, role: str, members: dict[str, int], columns: int, *, paired: bool = False
) -> MatrixPlan:
    joined = prefix + "+".join(members)
    formats = {model.format_of(prefix + member) for member in members}
    if len(formats) > 1:
        raise StartupError(f"{joined} mix the formats {sorted(formats)}: no kernel reads them together")
    (name,) = formats
    format = find_format(name)
    if not format.is_grouped or PACKINGS.get(format.bits) is None or PACKINGS[format.bits].group != format.group:
        raise StartupError(
            f"{joined} is stored as {name}; the GPU kernels read groupwise-int matrices of "
            "4, 5, 6 or 8 bits: convert the model with a groupwise-int recipe, or use --device cpu"
        )
    if any(rows % TILE_ROWS for rows in list(members.values())[:-1]):
        raise StartupError(f"{joined} have {members} rows; the kernels join multiples of {TILE_ROWS}")
    pairs = tuple((prefix + member, rows) for member, rows in members.items())
    return MatrixPlan(f"{prefix}{role}", pairs, columns, format.bits, paired)


def _constants(config: TextConfig, drafter: DrafterShape | None) -> Iterator[TensorSpec]:
    hidden = config.hidden_size
    for layer, kind in enumerate(config.layer_types):
        yield from _layer_constants(config, f"text/layers/{layer}/", kind)
    yield TensorSpec("text/final_norm", (hidden,), "fp32")
    if drafter is not None:
        for norm in ("embedding_norm", "hidden_norm", "final_norm"):
            yield TensorSpec(f"mtp/{norm}", (hidden,), "fp32")
        yield from _layer_constants(config, _DRAFTER_LAYER, FULL_ATTENTION)
        if drafter.head_rows is not None:
            yield TensorSpec(_HEAD_IDS, (drafter.head_rows,), "int32")


def _layer_constants(config: TextConfig, prefix: str, kind: str) -> Iterator[TensorSpec]:
    hidden, heads = config.hidden_size, config.gdn_value_heads
    yield TensorSpec(prefix + "input_norm", (hidden,), "fp32")
    if kind == FULL_ATTENTION:
        yield TensorSpec(prefix + "attention/query_norm", (config.head_dim,), "fp32")
        yield TensorSpec(prefix + "attention/key_norm", (config.head_dim,), "fp32")
    else:
        yield TensorSpec(prefix + "gdn/gates", (2 * heads, hidden), "bf16")
        yield TensorSpec(prefix + "gdn/convolution", (config.conv_kernel, config.conv_channels), "fp32")
        yield TensorSpec(prefix + "gdn/a_log", (heads,), "fp32")
        yield TensorSpec(prefix + "gdn/dt_bias", (heads,), "fp32")
        yield TensorSpec(prefix + "gdn/norm", (config.gdn_value_dim,), "fp32")
    yield TensorSpec(prefix + "post_attention_norm", (hidden,), "fp32")


def _embedding_specs(config: TextConfig, name: str) -> tuple[TensorSpec, ...]:
    rows, columns = config.vocab_size, config.hidden_size
    format = find_format(name)
    if name == "bf16":
        return (TensorSpec("embedding/base", (rows, columns), "bf16"),)
    if not format.is_grouped or format.bits not in PACKINGS:
        raise StartupError(f"the token embedding is stored as {name}; the GPU kernels read groupwise-int or bf16")
    planes = row_split(format, (rows, columns))
    specs = [TensorSpec("embedding/base", (rows, planes.base_row), "uint8")]
    if planes.high_row:
        specs.append(TensorSpec("embedding/high", (rows, planes.high_row), "uint8"))
    return (*specs, TensorSpec("embedding/scales", (rows, planes.groups), "fp16"))


def load_matrices(plan: WeightPlan, model: StoredModel, device: torch.device) -> TextMatrices:
    """Fill one arena with every parameter of the plan."""
    arena = Arena(plan.specs, device)
    upload = _Upload(device)
    _load_embedding(plan, model, arena, upload)
    for spec in plan.constants:
        _load_constant(spec, model, arena)
    for matrix in plan.matrices:
        _load_matrix(matrix, matrix.weight(arena), model, upload)
    upload.finish()
    return gathered(plan, arena)


def _load_constant(spec: TensorSpec, model: StoredModel, arena: Arena) -> None:
    target = arena[spec.name]
    if spec.name == _HEAD_IDS:
        target.copy_(torch.from_numpy(model.token_ids()))
        return
    if spec.name.endswith("gdn/gates"):
        prefix = spec.name.removesuffix("gates")
        values = np.concatenate([model.values(prefix + "a_projection"), model.values(prefix + "b_projection")])
    else:
        values = model.values(spec.name)
    target.copy_(torch.from_numpy(np.ascontiguousarray(values)))
    if spec.name.endswith("gdn/a_log"):
        target.exp_().neg_()


def _load_embedding(plan: WeightPlan, model: StoredModel, arena: Arena, upload: _Upload) -> None:
    rows = plan.config.vocab_size
    if plan.embedding_format == "bf16":
        step = max(1, _LOAD_BYTES // (4 * plan.config.hidden_size))
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            arena["embedding/base"][begin:end] = torch.from_numpy(model.values("text/token_embedding", (begin, end)))
        return
    first = 0
    for stored in model.grouped_rows("text/token_embedding", (0, rows)):
        for begin, planes in upload.blocks(stored, 1):
            at = slice(first + begin, first + begin + planes.rows)
            arena["embedding/base"][at] = planes.base
            arena["embedding/scales"][at] = planes.scales
            if planes.high is not None:
                arena["embedding/high"][at] = planes.high
        first += stored.base.shape[0]


def _load_matrix(matrix: MatrixPlan, weight: LowBitWeight, model: StoredModel, upload: _Upload) -> None:
    members = [_whole(list(model.grouped_rows(name, (0, rows)))) for name, rows in matrix.members]
    if matrix.paired:
        (upper, lower), unit = members, TILE_ROWS // 2
        for (begin, above), (_, below) in zip(upload.blocks(upper, unit), upload.blocks(lower, unit), strict=True):
            pack_pairs(weight, begin, above, below)
        return
    first = 0
    for stored in members:
        for begin, planes in upload.blocks(stored, TILE_ROWS):
            pack_rows(weight, first + begin, planes)
        first += stored.base.shape[0]


def _whole(parts: Sequence[GroupedRows]) -> GroupedRows:
    if len(parts) == 1:
        return parts[0]
    highs = [part.high for part in parts if part.high is not None]
    return GroupedRows(
        base=np.concatenate([part.base for part in parts]),
        high=np.concatenate(highs) if highs else None,
        scales=np.concatenate([part.scales for part in parts]),
    )


class _Upload:
    """Stored rows onto the device in blocks, through page-locked memory where the device is a GPU.

    A file that is mapped is read by the copy, so several threads copy at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = ThreadPoolExecutor(_COPY_THREADS, thread_name_prefix="ninfer-load")

    def finish(self) -> None:
        self._pool.shutdown()
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def blocks(self, stored: GroupedRows, unit: int) -> Iterator[tuple[int, Planes]]:
        """Consecutive blocks of rows, each a multiple of `unit` but the last, with the row each begins at."""
        rows = stored.base.shape[0]
        row_bytes = stored.base.shape[1] + 2 * stored.scales.shape[1]
        row_bytes += 0 if stored.high is None else stored.high.shape[1]
        step = max(1, _LOAD_BYTES // (row_bytes * unit)) * unit
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            high = None if stored.high is None else self._moved(stored.high[begin:end])
            yield begin, Planes(self._moved(stored.base[begin:end]), high, self._moved(stored.scales[begin:end]))

    def _moved(self, block: NDArray[np.uint8] | NDArray[np.float16]) -> Tensor:
        dtype = torch.uint8 if block.dtype == np.uint8 else torch.float16
        staged = torch.empty(block.shape, dtype=dtype, pin_memory=self._device.type == "cuda")
        target = staged.numpy()
        step = -(-block.shape[0] // _COPY_THREADS)
        jobs = [
            self._pool.submit(np.copyto, target[at : at + step], block[at : at + step])
            for at in range(0, block.shape[0], step)
        ]
        for job in jobs:
            job.result()
        return staged.to(self._device, non_blocking=True)


def gathered(plan: WeightPlan, arena: Arena) -> TextMatrices:
    """Give the tensors of an arena that was made from `plan.specs` their meaning."""
    config = plan.config
    weights = {matrix.name: matrix.weight(arena) for matrix in plan.matrices}
    format = find_format(plan.embedding_format)
    names = {spec.name for spec in plan.embedding}
    embedding = StoredRows(
        base=arena["embedding/base"],
        high=arena["embedding/high"] if "embedding/high" in names else None,
        scales=arena["embedding/scales"] if "embedding/scales" in names else None,
        columns=config.hidden_size,
        bits=format.bits or 16,
        group=format.group or 1,
    )
    kinds = enumerate(config.layer_types)
    read = [(name, weight.nbytes) for name, weight in weights.items()]
    read += [(spec.name, spec.region_bytes) for spec in plan.constants]
    step_bytes = sum(size for name, size in read if name.startswith(_DRAFTER))
    round_bytes = sum(size for _, size in read) - step_bytes
    head = weights["text/output_head"]
    drafter = None
    if plan.drafter is not None:
        own = plan.drafter.head_rows is not None
        drafter = DrafterMatrices(
            embedding_norm=arena["mtp/embedding_norm"],
            hidden_norm=arena["mtp/hidden_norm"],
            join=weights["mtp/join"],
            layer=_layer(arena, weights, _DRAFTER_LAYER, FULL_ATTENTION),
            final_norm=arena["mtp/final_norm"],
            head=weights["proposal/head"] if own else head,
            head_ids=arena[_HEAD_IDS] if own else None,
            step_bytes=step_bytes if own else step_bytes + head.nbytes,
        )
    return TextMatrices(
        embedding=embedding,
        layers=tuple(_layer(arena, weights, f"text/layers/{layer}/", kind) for layer, kind in kinds),
        final_norm=arena["text/final_norm"],
        head=head,
        nbytes=arena.nbytes,
        round_bytes=round_bytes,
        drafter=drafter,
    )


def _layer(arena: Arena, weights: dict[str, LowBitWeight], prefix: str, kind: str) -> LayerMatrices:
    mixer: AttentionMatrices | GdnMatrices
    if kind == FULL_ATTENTION:
        path = prefix + "attention/"
        mixer = AttentionMatrices(
            first=weights[path + "first"],
            second=weights[path + "second"],
            query_norm=arena[path + "query_norm"],
            key_norm=arena[path + "key_norm"],
            out=weights[path + "output"],
        )
    else:
        path = prefix + "gdn/"
        mixer = GdnMatrices(
            first=weights[path + "first"],
            second=weights[path + "second"],
            gates=arena[path + "gates"],
            taps=arena[path + "convolution"],
            decay_rate=arena[path + "a_log"],
            dt_bias=arena[path + "dt_bias"],
            norm=arena[path + "norm"],
            out=weights[path + "output"],
        )
    return LayerMatrices(
        input_norm=arena[prefix + "input_norm"],
        mixer=mixer,
        post_norm=arena[prefix + "post_attention_norm"],
        gate_up=weights[prefix + "mlp/gate_up"],
        down=weights[prefix + "mlp/down"],
    )
