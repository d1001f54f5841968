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
    descriptors    blocks of its tensor descriptors by name ("fp16[64, 256]")
    floats         names of its fp32 scalars
    constants      values of its constexpr arguments
    warps          per program
    registers      limit per thread, or None
    dependent      launched before its predecessor has ended
    streams        whether it must keep data where it is loaded: no shared memory, no shuffles, 16-byte loads only
    after_stream   shuffles and narrower loads that are tolerated all the same, for what follows the streaming loop
    stack_bytes    local memory per thread that is tolerated, with the reason beside the number where it is not 0
    """

    name: str
    kernel: Any
    pointers: Mapping[str, str]
    constants: Mapping[str, object]
    warps: int
    dependent: bool
    floats: frozenset[str] = field(default_factory=frozenset)
    descriptors: Mapping[str, str] = field(default_factory=dict)
    registers: int | None = None
    streams: bool = False
    after_stream: tuple[int, int] = (0, 0)
    stack_bytes: int = 0

    def signature(self) -> dict[str, str]:
        """Type of every argument in order, as Triton's ahead-of-time interface wants it."""
        types = {}
        for name in self.kernel.arg_names:
            if name in self.constants:
                types[name] = "constexpr"
            elif name in self.pointers:
                types[name] = f"*{self.pointers[name]}"
            elif name in self.descriptors:
                types[name] = f"tensordesc<{self.descriptors[name]}>"
            else:
                types[name] = "fp32" if name in self.floats else "i32"
        named = {*self.constants, *self.pointers, *self.descriptors, *self.floats}
        assert named <= set(types), f"{self.name} names no argument"
        return types
