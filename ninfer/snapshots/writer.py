"""Writing a slot file: the old one or the new one, never anything between (serving spec, 15.1 and 15.4)."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ninfer.errors import SlotSaveFailed
from ninfer.snapshots.folder import check_filename, kind_fault, lock, opened_folder, temporary_name
from ninfer.snapshots.format import (
    END,
    MAX_BINDING_BYTES,
    MAX_RING_ENTRIES,
    PLAIN,
    WITH_RING,
    WORD,
    Snapshot,
    encode_header,
)
from ninfer.snapshots.pieces import for_each_piece
from ninfer.snapshots.rules import ring_fault, session_fault


@dataclass(frozen=True, slots=True)
class Disk:
    """The calls that put bytes on a disk. Tests give others, which fail as disks do."""

    pwritev: Callable[[int, Sequence[bytes | memoryview], int], int] = os.pwritev
    fsync: Callable[[int], None] = os.fsync
    rename: Callable[[int, str, str], None] = lambda directory, source, target: os.rename(
        source, target, src_dir_fd=directory, dst_dir_fd=directory
    )


DISK = Disk()


def _always() -> bool:
    return True


def write_snapshot(
    folder: Path, filename: str, snapshot: Snapshot, *, disk: Disk = DISK, is_right: Callable[[], bool] = _always
) -> int:
    """Save a session as `filename` in the slot folder, in place of what has that name; returns the size of the file.

    Blocks, on the disk. The bytes go to a temporary file of the folder, which is flushed and then renamed, and the
    folder is flushed; whatever fails before the renaming, the temporary file is gone and the old file as it was.

    is_right   asked when all bytes are on the disk: if not, they are not what they should be and nothing is replaced

    Raises InvalidFilename, and SlotSaveFailed for a session that cannot be kept, for a link or something else that is
    not a file under that name, and for what the disk says.
    """
    check_filename(filename)
    sections = encode(snapshot)
    try:
        with opened_folder(folder) as directory:
            _check_target(directory, filename)
            return _publish(directory, filename, sections, disk, is_right)
    except OSError as error:
        raise SlotSaveFailed(f"The slot file '{filename}' cannot be written: {error.strerror}.") from error


def encode(snapshot: Snapshot) -> list[memoryview]:
    """All bytes before the checksums; raises SlotSaveFailed for a session that no file can hold."""
    config, session = snapshot.config, snapshot.session
    ring_frontiers = [frontier for frontier, _ in snapshot.ring]
    fields = {
        "tokens": session.tokens,
        "execution_frontier": session.execution_frontier,
        "state_frontier": session.state_frontier,
        "ledger_frontier": len(snapshot.ledger),
        "text_kv_valid": session.text_kv_valid,
        "backend_kv_valid": 0,
        "rope_delta": 0,
        "tail_hidden_valid": 0,
        "checkpoint_valid": int(snapshot.checkpoint is not None),
        "checkpoint_frontier": 0 if snapshot.checkpoint is None else snapshot.checkpoint[0],
        "text_pages": len(snapshot.pages) // config.text_page_bytes,
        "backend_pages": 0,
    }
    fault = (
        _short(session.tokens)
        or session_fault(fields, session.tokens)
        or ring_fault(ring_frontiers, session.text_kv_valid)
        or _size_fault(snapshot)
    )
    if fault is not None:
        raise SlotSaveFailed(f"This session cannot be saved: {fault}.")
    header = encode_header(config, WITH_RING if snapshot.ring else PLAIN, fields, snapshot.ledger)
    sections = [memoryview(header), snapshot.state]
    if snapshot.checkpoint is not None:
        sections.append(snapshot.checkpoint[1])
    sections.append(snapshot.pages)
    if snapshot.ring:
        sections.append(memoryview(WORD.pack(len(snapshot.ring))))
    for frontier, image in snapshot.ring:
        sections += [memoryview(WORD.pack(frontier)), image]
    return sections


def _short(tokens: int) -> str | None:
    return None if tokens >= 2 else f"it has {tokens} tokens, and a slot file holds at least 2"


def _size_fault(snapshot: Snapshot) -> str | None:
    config = snapshot.config
    held = (snapshot.checkpoint,) if snapshot.checkpoint is not None else ()
    images = [snapshot.state, *(image for _, image in (*held, *snapshot.ring))]
    if any(len(image) != config.image_bytes for image in images):
        return f"a state image is not of {config.image_bytes} bytes"
    if len(snapshot.pages) % config.text_page_bytes:
        return f"its pages are not whole pages of {config.text_page_bytes} bytes"
    if len(snapshot.ring) > MAX_RING_ENTRIES:
        return f"its ring has {len(snapshot.ring)} entries, and a slot file holds at most {MAX_RING_ENTRIES}"
    if len(config.binding()) > MAX_BINDING_BYTES:
        return f"the names of its model are longer than {MAX_BINDING_BYTES} bytes"
    return None


def _check_target(directory: int, filename: str) -> None:
    try:
        mode = os.stat(filename, dir_fd=directory, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    fault = kind_fault(mode)
    if fault is not None:
        raise SlotSaveFailed(f"The slot file '{filename}' cannot be replaced: {fault}.")


def _publish(
    directory: int, filename: str, sections: Sequence[memoryview], disk: Disk, is_right: Callable[[], bool]
) -> int:
    temporary = temporary_name(filename)
    # Exclusive creation follows no link and opens nobody else's file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        # Who cleans the folder in the moment before this removes the name, and the renaming reports it.
        lock(file)
        size = _write(file, sections, disk)
        disk.fsync(file)
        if not is_right():
            raise SlotSaveFailed("The device has failed while the session was saved: nothing was written.")
        disk.rename(directory, temporary, filename)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(file)
    try:
        disk.fsync(directory)
    except OSError as error:
        reason = f"The slot file '{filename}' is replaced, and may be the old one after a power loss: {error.strerror}."
        raise SlotSaveFailed(reason) from error
    return size


def _write(file: int, sections: Sequence[memoryview], disk: Disk) -> int:
    """Write the sections and their checksums behind each other; returns the size of the file."""
    offsets = [0]
    for section in sections:
        offsets.append(offsets[-1] + len(section))
    end = offsets[-1]

    def write_piece(begin: int, stop: int) -> int:
        parts = [
            section[max(begin - first, 0) : stop - first]
            for section, first in zip(sections, offsets[:-1], strict=True)
            if first < stop and first + len(section) > begin
        ]
        checksum = 0
        for part in parts:
            checksum = zlib.crc32(part, checksum)
        _write_all(file, parts, begin, disk)
        return checksum

    checksums = for_each_piece(write_piece, end)
    tail = b"".join((*map(WORD.pack, checksums), WORD.pack(len(checksums)), END))
    _write_all(file, [memoryview(tail)], end, disk)
    return end + len(tail)


def _write_all(file: int, parts: list[memoryview], offset: int, disk: Disk) -> None:
    """Write on until every byte has been taken: a disk that fills up takes some, and refuses the next call."""
    while parts:
        written = disk.pwritev(file, parts, offset)
        if written == 0:
            raise OSError(errno.EIO, "the disk takes no more bytes")
        offset += written
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][written:]
