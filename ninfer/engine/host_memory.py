"""Host memory that a device copies from and to while the host goes on: allocated once, at its exact size."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from ninfer.errors import StartupError


class HostMemory:
    """`data` [rows, row_bytes] uint8, not cleared; page-locked for a GPU as long as this object lives.

    Raises StartupError if the host cannot give or lock so much; `purpose` says what it is for.
    """

    def __init__(self, rows: int, row_bytes: int, device: torch.device, purpose: str) -> None:
        size = rows * row_bytes
        try:
            self.data = torch.empty(rows, row_bytes, dtype=torch.uint8)
            if device.type == "cuda" and size:
                _lock(self.data)
                # Nothing is left to unlock for when the process ends.
                weakref.finalize(self, _unlock, self.data).atexit = False
        except RuntimeError as error:
            raise StartupError(f"cannot allocate {size} bytes of host memory for {purpose}: {error}") from None


# torch's own page-locked allocations are rounded up to powers of two.
def _lock(data: Tensor) -> None:
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostRegister(data.data_ptr(), data.nbytes, 0)))  # type: ignore[no-untyped-call]


def _unlock(data: Tensor) -> None:
    torch.cuda.check_error(int(torch.cuda.cudart().cudaHostUnregister(data.data_ptr())))  # type: ignore[no-untyped-call]
