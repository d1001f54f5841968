"""A process of its own that saves, dies or runs out of room, and looks at what its children left.

python -m tests.snapshots.saver killed FOLDER KILLS | steps FOLDER | full FOLDER      prints one JSON object
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from ninfer.errors import SlotSaveFailed
from ninfer.snapshots.folder import clean_folder
from ninfer.snapshots.format import Snapshot
from ninfer.snapshots.writer import Disk, write_snapshot
from tests.snapshots.sessions import read, snapshot

OLD, NEW = snapshot(130, seed=1), snapshot(400, ring=(64, 192), seed=2)
NAME = "a.bin"


def child(work: Callable[[], object]) -> int:
    """The process id of a child that does only this."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def found(folder: Path) -> str:
    """What stands under the name after a child has died; temporary files are gone afterwards."""
    left = clean_folder(folder)
    names = os.listdir(folder)
    assert set(names) <= {NAME}, names
    if not names:
        return f"nothing+{left}"
    session = read(folder)  # raises for anything but a whole file
    return f"{'old' if session == OLD else 'new' if session == NEW else 'other'}+{left}"


def killed(folder: Path, kills: int) -> Counter[str]:
    """Kill a loop of saves at random moments of one to two saves."""
    started = time.perf_counter()
    for session in (OLD, NEW) * 3:
        write_snapshot(folder, NAME, session)
    two_saves = (time.perf_counter() - started) / 3
    draw = random.Random(7)
    ends: Counter[str] = Counter()

    def save_on(order: Sequence[Snapshot], ready: int) -> None:
        os.write(ready, b"!")
        while True:
            for session in order:
                write_snapshot(folder, NAME, session)

    for turn in range(kills):
        if turn % 4 == 0:
            (folder / NAME).unlink(missing_ok=True)
        listening, ready = os.pipe()
        order = draw.sample((OLD, NEW), 2)
        pid = child(lambda order=order, ready=ready: save_on(order, ready))  # type: ignore[misc]
        os.read(listening, 1)
        select.select([], [], [], draw.uniform(0, two_saves))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(listening)
        os.close(ready)
        ends[found(folder)] += 1
    return ends


def die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def steps(folder: Path) -> list[list[str]]:
    """Kill a save in front of each of its calls and, where it writes, half-way through: [call, what is found]."""
    seen: list[list[str]] = []
    while len(seen) < 100:
        write_snapshot(folder, NAME, OLD)
        listening, telling = os.pipe()
        wanted = len(seen)

        def save(telling: int = telling, wanted: int = wanted) -> None:
            moment = -1

            def reached(call: str) -> None:
                nonlocal moment
                moment += 1
                if moment == wanted:
                    os.write(telling, call.encode())
                    die()

            def pwritev(file: int, parts: Sequence[bytes | memoryview], offset: int) -> int:
                reached("write")
                half = b"".join(parts)[: sum(map(len, parts)) // 2]
                written = os.pwrite(file, half, offset)
                reached("half a write")
                return written + os.pwrite(file, b"".join(parts)[written:], offset + written)

            def fsync(file: int) -> None:
                reached("flush")
                os.fsync(file)

            def rename(directory: int, source: str, target: str) -> None:
                reached("rename")
                os.rename(source, target, src_dir_fd=directory, dst_dir_fd=directory)

            write_snapshot(folder, NAME, NEW, disk=Disk(pwritev, fsync, rename))
            os.write(telling, b"end")

        os.waitpid(child(save), 0)
        what = os.read(listening, 100).decode()
        os.close(listening)
        os.close(telling)
        seen.append([what, found(folder)])
        if what == "end":
            break
    return seen


def full(folder: Path) -> list[str]:
    """Save with room for fewer and fewer bytes: no room is a refusal, and the old file stays."""
    size = write_snapshot(folder, NAME, NEW)
    write_snapshot(folder, NAME, OLD)
    said: set[str] = set()
    for room in range(size - 1, 0, -97):
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        try:
            write_snapshot(folder, NAME, NEW)
        except SlotSaveFailed as error:
            said.add(error.message)
        assert os.listdir(folder) == [NAME]
        assert read(folder) == OLD
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    write_snapshot(folder, NAME, NEW)
    assert read(folder) == NEW
    return sorted(said)


def main() -> None:
    mode, folder = sys.argv[1], Path(sys.argv[2])
    if mode == "killed":
        print(json.dumps(killed(folder, int(sys.argv[3]))))
    else:
        print(json.dumps({"steps": steps, "full": full}[mode](folder)))


if __name__ == "__main__":
    main()
