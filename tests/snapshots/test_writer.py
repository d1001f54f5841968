"""A slot file is the old one or the new one: whatever the disk says, and whenever the process dies."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ninfer.errors import InvalidFilename, SlotSaveFailed
from ninfer.snapshots.folder import clean_folder
from ninfer.snapshots.format import PIECE_BYTES
from ninfer.snapshots.writer import Disk, write_snapshot
from tests.snapshots.sessions import CONFIG, read, snapshot

ROOT = Path(__file__).parents[2]
OLD, NEW = snapshot(130, seed=1), snapshot(400, ring=(64, 192), seed=2)
Parts = Sequence[bytes | memoryview]


class Recorder:
    """A disk that writes down what it is asked for and fails at one call.

    most   bytes that one write takes at most
    """

    def __init__(self, fails_at: int = -1, error: int = errno.ENOSPC, most: int = 1 << 30) -> None:
        self.calls: list[str] = []
        self._fails_at, self._error, self._most = fails_at, error, most
        self.disk = Disk(self.pwritev, self.fsync, self.rename)

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if len(self.calls) - 1 == self._fails_at:
            raise OSError(self._error, os.strerror(self._error))

    def pwritev(self, file: int, parts: Parts, offset: int) -> int:
        self._called("write")
        return os.pwrite(file, b"".join(parts)[: self._most], offset)

    def fsync(self, file: int) -> None:
        self._called("flush folder" if os.path.isdir(f"/proc/self/fd/{file}") else "flush file")
        os.fsync(file)

    def rename(self, directory: int, source: str, target: str) -> None:
        self._called("rename")
        os.rename(source, target, src_dir_fd=directory, dst_dir_fd=directory)


ORDER = ["write", "write", "flush file", "rename", "flush folder"]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path) -> None:
    recorder = Recorder()
    write_snapshot(tmp_path, "a.bin", NEW, disk=recorder.disk)
    assert recorder.calls == ORDER


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", range(4))
def test_a_failed_call_leaves_the_old_file(tmp_path: Path, call: int, error: int) -> None:
    write_snapshot(tmp_path, "a.bin", OLD)
    with pytest.raises(SlotSaveFailed) as caught:
        write_snapshot(tmp_path, "a.bin", NEW, disk=Recorder(call, error).disk)
    assert caught.value.message == f"The slot file 'a.bin' cannot be written: {os.strerror(error)}."
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert read(tmp_path) == OLD


def test_a_folder_that_cannot_be_flushed_is_reported_as_such(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "a.bin", OLD)
    with pytest.raises(SlotSaveFailed, match=r"is replaced, and may be the old one after a power loss: Input/output"):
        write_snapshot(tmp_path, "a.bin", NEW, disk=Recorder(4, errno.EIO).disk)
    assert read(tmp_path) == NEW


def test_bytes_that_turn_out_wrong_replace_nothing(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "a.bin", OLD)
    recorder = Recorder()
    with pytest.raises(SlotSaveFailed, match="The device has failed while the session was saved"):
        write_snapshot(tmp_path, "a.bin", NEW, disk=recorder.disk, is_right=lambda: False)
    assert "rename" not in recorder.calls
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]
    assert read(tmp_path) == OLD


def test_short_writes_are_written_on(tmp_path: Path) -> None:
    recorder = Recorder(most=7)
    write_snapshot(tmp_path, "a.bin", NEW, disk=recorder.disk)
    assert len(recorder.calls) > 1000
    assert read(tmp_path) == NEW


def test_a_disk_that_takes_nothing_does_not_hang(tmp_path: Path) -> None:
    with pytest.raises(SlotSaveFailed, match="the disk takes no more bytes"):
        write_snapshot(tmp_path, "a.bin", NEW, disk=Recorder(most=0).disk)
    assert not list(tmp_path.iterdir())


def test_a_piece_that_fails_on_its_thread_fails_the_save(tmp_path: Path) -> None:
    session = snapshot(130, config=replace(CONFIG, recurrent_slot_bytes=PIECE_BYTES))
    with pytest.raises(SlotSaveFailed, match="No space left on device"):
        write_snapshot(tmp_path, "a.bin", session, disk=Recorder(1).disk)
    assert not list(tmp_path.iterdir())


def test_nothing_but_a_file_is_replaced(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("stays")
    folder = tmp_path / "slots"
    folder.mkdir()
    (folder / "link.bin").symlink_to("../outside.txt")
    (folder / "dangling.bin").symlink_to("../nowhere.txt")
    (folder / "folder.bin").mkdir()
    os.mkfifo(folder / "fifo.bin")
    before = sorted(os.listdir(folder))
    for name, reason in (
        ("link.bin", "it is a link, and links are not followed"),
        ("dangling.bin", "it is a link, and links are not followed"),
        ("folder.bin", "it is not a regular file"),
        ("fifo.bin", "it is not a regular file"),
    ):
        with pytest.raises(SlotSaveFailed) as caught:
            write_snapshot(folder, name, NEW)
        assert caught.value.message == f"The slot file '{name}' cannot be replaced: {reason}."
    for name in ("../outside.txt", str(outside), ".a"):
        with pytest.raises(InvalidFilename):
            write_snapshot(folder, name, NEW)
    assert outside.read_text() == "stays"
    assert not (tmp_path / "nowhere.txt").exists()
    assert sorted(os.listdir(folder)) == before


def test_a_file_that_is_being_written_is_not_swept_up(tmp_path: Path) -> None:
    swept: list[int] = []

    def fsync(file: int) -> None:
        swept.append(clean_folder(tmp_path))
        os.fsync(file)

    write_snapshot(tmp_path, "a.bin", NEW, disk=Disk(fsync=fsync))
    assert swept == [0, 0]
    assert read(tmp_path) == NEW


def test_a_second_name_of_a_file_keeps_its_bytes(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "b.bin", OLD)
    before = (tmp_path / "b.bin").read_bytes()
    os.link(tmp_path / "b.bin", tmp_path / "a.bin")
    write_snapshot(tmp_path, "a.bin", NEW)
    assert (tmp_path / "b.bin").read_bytes() == before
    assert read(tmp_path) == NEW


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SlotSaveFailed, match="No such file or directory"):
        write_snapshot(tmp_path / "nowhere", "a.bin", NEW)


def test_saves_and_restores_of_one_name_side_by_side(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "a.bin", OLD)

    def work(index: int) -> bool:
        if index % 2:
            write_snapshot(tmp_path, "a.bin", (OLD, NEW)[index // 2 % 2])
        return read(tmp_path) in (OLD, NEW)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(40)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_a_slot_file_is_nobody_elses_to_read(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "a.bin", NEW)
    assert (tmp_path / "a.bin").stat().st_mode & 0o777 == 0o600


def saver(*arguments: object) -> Any:
    command = [sys.executable, "-m", "tests.snapshots.saver", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_hundred_kills_leave_every_file_old_or_new(tmp_path: Path) -> None:
    ends: dict[str, int] = saver("killed", tmp_path, 200)
    assert sum(ends.values()) == 200
    assert set(ends) <= {f"{what}+{left}" for what in ("old", "new", "nothing") for left in (0, 1)}
    # The kills did fall into saves: files were left half written, and names pointed at either session.
    assert sum(count for end, count in ends.items() if end.endswith("+1")) > 0, ends
    assert any(end.startswith("old") for end in ends), ends
    assert any(end.startswith("new") for end in ends), ends


def test_a_kill_at_every_step_of_a_save_leaves_the_old_file_until_the_renaming(tmp_path: Path) -> None:
    assert saver("steps", tmp_path) == [
        ["write", "old+1"],
        ["half a write", "old+1"],
        ["write", "old+1"],
        ["half a write", "old+1"],
        ["flush", "old+1"],
        ["rename", "old+1"],
        ["flush", "new+0"],
        ["end", "new+0"],
    ]


def test_a_full_disk_is_reported_and_the_old_file_stays(tmp_path: Path) -> None:
    assert saver("full", tmp_path) == ["The slot file 'a.bin' cannot be written: File too large."]
