"""The division of on-chip memory that kernels ask for.

A multiprocessor divides 256 KiB (less on other chips) between its first-level cache and shared memory. It keeps the
division of the last kernel that needed shared memory, and it has to run empty to change it. Left to the driver, the
mixers of a decode round get all the shared memory there is: the products behind them, which use none, then find their
x columns in the second-level cache only, and no kernel can begin before the one before it has ended. With the smallest
division that holds them, a round of the 27B on an H200 took 5.72 ms instead of 6.10 with one lane, 6.69 instead of 8.77
with eight. The bits are the same.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from typing import Any

from ninfer.errors import StartupError

# Percent of the memory that may be shared; a kernel that needs more gets what it needs.
SHARED_PERCENT = 14
_PREFERRED_SHARED_MEMORY_CARVEOUT = 9  # CUfunction_attribute of the CUDA driver's interface


def prefer_cache(kernels: Iterable[Any]) -> int:
    """Ask for a small shared memory for every binary of Triton kernels that is loaded; returns how many there are.

    kernels  Triton kernels; their launches before this one have loaded their binaries
    effects  later launches and captures of these binaries. Raises StartupError if the driver refuses
    """
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    count = 0
    for kernel in kernels:
        for binaries in kernel.device_caches.values():
            for binary in binaries[0].values():
                handle, percent = ctypes.c_void_p(binary.function), ctypes.c_int(SHARED_PERCENT)
                status = driver.cuFuncSetAttribute(handle, _PREFERRED_SHARED_MEMORY_CARVEOUT, percent)
                if status != 0:
                    raise StartupError(f"the CUDA driver refused a kernel's attribute with status {status}")
                count += 1
    return count
