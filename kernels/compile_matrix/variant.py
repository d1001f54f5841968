"""One binary that is used: a kernel with its compile-time values and launch options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """name        of the variant, unique in a matrix
    kernel         a Triton kernel
    pointers       element types of its tensor arguments by name ("bf16"); other run-time arguments are 32-bit integers
    floats         names of its fp32 scalars
    constants      values of its constexpr arguments
    warps          per program
    registers      limit per thread, or None
    dependent      launched before its predecessor has ended
    streams        whether it must keep data where it is loaded: no shared memory, no shuffles, 16-byte loads only
    stack_bytes    local memory per thread that is tolerated, with the reason beside the number where it is not 0
    """

    name: str
    kernel: Any
    pointers: Mapping[str, str]
    constants: Mapping[str, object]
    warps: int
    dependent: bool
    floats: frozenset[str] = field(default_factory=frozenset)
    registers: int | None = None
    streams: bool = False
    stack_bytes: int = 0

    def signature(self) -> dict[str, str]:
        """Type of every argument in order, as Triton's ahead-of-time interface wants it."""
        types = {}
        for name in self.kernel.arg_names:
            if name in self.constants:
                types[name] = "constexpr"
            elif name in self.pointers:
                types[name] = f"*{self.pointers[name]}"
            else:
                types[name] = "fp32" if name in self.floats else "i32"
        assert set(self.constants) | set(self.pointers) | self.floats <= set(types), f"{self.name} names no argument"
        return types
