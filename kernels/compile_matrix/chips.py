"""The GPUs that kernels are compiled for (design, section 4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """capability: compute capability times ten; shared_bytes: most shared memory of one program; multiprocessors: of
    the card that variants which depend on it are listed for."""

    capability: int
    shared_bytes: int
    multiprocessors: int

    @property
    def dependent_launch(self) -> bool:
        """Whether a kernel may start before its predecessor has ended."""
        return self.capability >= 90


CHIPS: dict[int, Chip] = {
    chip.capability: chip
    for chip in (
        Chip(80, 163 * 1024, 108),
        Chip(86, 99 * 1024, 82),
        Chip(89, 99 * 1024, 128),
        Chip(90, 227 * 1024, 132),
        Chip(100, 227 * 1024, 148),
        Chip(120, 99 * 1024, 170),
    )
}
