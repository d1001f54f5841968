"""Work on the pieces of a file side by side; reading, writing and checksums all run without the interpreter's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ninfer.snapshots.format import PIECE_BYTES

# Memory, not cores, is the limit beyond this.
MAX_THREADS = 16


def for_each_piece(work: Callable[[int, int], int], size: int) -> list[int]:
    """[n pieces] what `work(begin, end)` returns for every piece of `[0, size)`, in order; raises what that raises."""
    begins = range(0, size, PIECE_BYTES)
    ends = [min(begin + PIECE_BYTES, size) for begin in begins]
    threads = min(len(begins), len(os.sched_getaffinity(0)), MAX_THREADS)
    if threads <= 1:
        return [work(begin, end) for begin, end in zip(begins, ends, strict=True)]
    with ThreadPoolExecutor(threads, thread_name_prefix="snapshot") as pool:
        return list(pool.map(work, begins, ends))
