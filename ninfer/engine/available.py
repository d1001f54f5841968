"""How much memory a device has free. The one file that knows where the operating system says so."""

from __future__ import annotations

from pathlib import Path

import torch

from ninfer.errors import StartupError

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_CGROUP_USED = Path("/sys/fs/cgroup/memory.current")


def available_bytes(device: torch.device, limit: int | None, resident: int = 0) -> int:
    """Bytes of `device` that a plan may use in all, other processes' use already taken off.

    limit     the device is treated as having only this much in all; None is its real size
    resident  bytes of the plan that are allocated already, which the device no longer counts as free
    """
    free = (_free_ram() if device.type == "cpu" else int(torch.cuda.mem_get_info(device)[0])) + resident
    return free if limit is None else min(free, limit)


def _free_ram() -> int:
    free = _meminfo_available()
    limit = _cgroup_number(_CGROUP_LIMIT)
    if limit is None:
        return free
    return min(free, max(0, limit - (_cgroup_number(_CGROUP_USED) or 0)))


def _meminfo_available() -> int:
    try:
        lines = _MEMINFO.read_text().splitlines()
    except OSError as error:
        raise StartupError(f"cannot read {_MEMINFO}, which tells the free memory: {error}") from None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise StartupError(f"{_MEMINFO} has no MemAvailable line: set --device-memory-limit on a newer kernel")


def _cgroup_number(path: Path) -> int | None:
    """A cgroup v2 number; None outside a cgroup and for ``max``."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
