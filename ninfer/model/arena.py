"""Where long-lived tensors lie: named regions of one allocation, so that planned bytes are allocated bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 256  # kv-and-state spec 14.1

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
}
ITEM_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be: its name, shape, and dtype by a key of :data:`DTYPES`."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def region_bytes(self) -> int:
        """Bytes the tensor takes in an arena, alignment included."""
        return -(-math.prod(self.shape) * ITEM_BYTES[self.dtype] // ALIGNMENT) * ALIGNMENT


def arena_bytes(specs: Sequence[TensorSpec]) -> int:
    """Size of the one allocation that holds all of `specs`."""
    return sum(spec.region_bytes for spec in specs)


class Arena:
    """One zeroed allocation on `device`, cut into the tensors of `specs` in order."""

    def __init__(self, specs: Sequence[TensorSpec], device: torch.device) -> None:
        assert len({spec.name for spec in specs}) == len(specs)
        self._bytes = torch.zeros(arena_bytes(specs), dtype=torch.uint8, device=device)
        self._tensors: dict[str, Tensor] = {}
        offset = 0
        for spec in specs:
            size = math.prod(spec.shape) * ITEM_BYTES[spec.dtype]
            self._tensors[spec.name] = self._bytes[offset : offset + size].view(DTYPES[spec.dtype]).view(spec.shape)
            offset += spec.region_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the storage behind every tensor of the arena."""
        return self._bytes.untyped_storage().nbytes()

    @property
    def device(self) -> torch.device:
        return self._bytes.device

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of the specs."""
        return tuple(self._tensors.values())

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def stacked(self, names: Sequence[str]) -> Tensor:
        """[n, ...]: tensors of one shape and dtype, at a constant distance from each other, as one."""
        tensors = [self._tensors[name] for name in names]
        first = tensors[0]
        distances = [tensor.storage_offset() - first.storage_offset() for tensor in tensors]
        apart = distances[1] if len(tensors) > 1 else first.numel()
        assert all(tensor.shape == first.shape and tensor.dtype == first.dtype for tensor in tensors)
        assert distances == [apart * number for number in range(len(tensors))]
        return first.as_strided((len(tensors), *first.shape), (apart, *first.stride()))
