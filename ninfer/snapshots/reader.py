"""Reading a slot file: a session right to the last bit, or an error that says what is wrong (serving spec, 15.4)."""

from __future__ import annotations

import mmap
import os
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ninfer.errors import SlotRestoreFailed
from ninfer.snapshots.digest import id_bytes
from ninfer.snapshots.folder import check_filename, kind_fault, opened_folder
from ninfer.snapshots.format import (
    CONFIG,
    CONFIG_FIELDS,
    COUNT,
    END,
    MAGIC,
    MAX_BINDING_BYTES,
    MAX_RING_ENTRIES,
    PIECE_BYTES,
    PLAIN,
    POSITION_AXES,
    PREFIX,
    SESSION,
    SESSION_FIELDS,
    WITH_RING,
    WORD,
    Layout,
    Session,
    Snapshot,
    SnapshotConfig,
    StoredImage,
    decode_ids,
    identity_bytes,
    layout_of,
)
from ninfer.snapshots.pieces import for_each_piece
from ninfer.snapshots.rules import config_fault, ring_fault, session_fault

# The state begins on a page of memory, so that copies to a device and views as numbers are aligned.
ALIGNMENT = mmap.PAGESIZE


@dataclass(frozen=True, slots=True)
class Limits:
    """What this server can hold of a session.

    max_context_tokens  longest ledger
    vocabulary          ids are below this
    turn_checkpoints    newest ring entries that are kept; 0 leaves the ring in the file
    """

    max_context_tokens: int
    vocabulary: int
    turn_checkpoints: int = 0


def read_snapshot(folder: Path, filename: str, expected: SnapshotConfig, limits: Limits) -> Snapshot:
    """Load a session from the slot folder. Its views stay valid as long as they are held; nothing refers to the file.

    Blocks, on the disk. The header is checked before the rest is read, and all checksums before anything is returned.

    Raises InvalidFilename, and SlotRestoreFailed for a file that is missing, not a regular file, damaged, of another
    model or configuration, or beyond the limits; the message names the group that failed.
    """
    with _opened(folder, filename) as file:
        return _Reading(file, expected, limits).snapshot()


@dataclass(frozen=True, slots=True)
class Seen:
    """What the header of a file says, nothing of it checked by a sum.

    frontiers   that it holds states of, ascending; the last is that of the session's own state
    """

    ledger: array[int]
    frontiers: tuple[int, ...]
    file_bytes: int


def peek_snapshot(folder: Path, filename: str, expected: SnapshotConfig, limits: Limits) -> Seen:
    """Look at the header and the size of a file; blocks and raises like :func:`read_snapshot`."""
    with _opened(folder, filename) as file:
        return _Reading(file, expected, limits).seen()


@contextmanager
def _opened(folder: Path, filename: str) -> Iterator[int]:
    """A descriptor of a slot file; what the disk says meanwhile is refused as well."""
    check_filename(filename)
    try:
        with opened_folder(folder) as directory:
            mode = os.stat(filename, dir_fd=directory, follow_symlinks=False).st_mode
            fault = kind_fault(mode)
            if fault is not None:
                raise SlotRestoreFailed(f"The slot file '{filename}' cannot be read: {fault}.")
            # A fifo that takes the file's place meanwhile must not block.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(filename, flags, dir_fd=directory)
    except OSError as error:
        raise SlotRestoreFailed(f"The slot file '{filename}' cannot be opened: {error.strerror}.") from error
    try:
        yield file
    except OSError as error:
        raise SlotRestoreFailed(f"The slot file '{filename}' cannot be read: {error.strerror}.") from error
    finally:
        os.close(file)


def _refuse(fault: str) -> SlotRestoreFailed:
    return SlotRestoreFailed(f"session snapshot {fault}")


class _Reading:
    """One file under way from its header to a session."""

    def __init__(self, file: int, expected: SnapshotConfig, limits: Limits) -> None:
        self._file = file
        self._expected = expected
        self._limits = limits
        self._head = b""

    def snapshot(self) -> Snapshot:
        fields, version = self._fields()
        ledger = self._ledger(fields["tokens"])
        layout, entries = self._layout(fields, version)
        memory, data = _aligned_memory(layout)
        self._fill(data, layout)
        image_bytes = self._expected.image_bytes

        def image(offset: int) -> memoryview:
            return data[offset : offset + image_bytes]

        ring: list[StoredImage] = []
        for index in range(entries):
            begin = layout.ring + WORD.size + index * (WORD.size + image_bytes)
            ring.append((WORD.unpack_from(data, begin)[0], image(begin + WORD.size)))
        fault = ring_fault([frontier for frontier, _ in ring], fields["text_kv_valid"])
        if fault is not None:
            raise _refuse(fault)
        kept = ring[max(entries - self._limits.turn_checkpoints, 0) :]
        _forget(memory, len(memory) - len(data) + layout.ring, (entries - len(kept)) * (WORD.size + image_bytes))
        held = (fields["checkpoint_frontier"], image(layout.checkpoint)) if fields["checkpoint_valid"] else None
        return Snapshot(
            config=self._expected,
            session=Session(
                fields["tokens"], fields["execution_frontier"], fields["state_frontier"], fields["text_kv_valid"]
            ),
            ledger=ledger,
            state=image(layout.state),
            checkpoint=held,
            pages=data[layout.pages : layout.ring],
            ring=tuple(kept),
            file_bytes=layout.file_bytes,
        )

    def seen(self) -> Seen:
        fields, version = self._fields()
        ledger = self._ledger(fields["tokens"])
        layout, entries = self._layout(fields, version)
        size = WORD.size + self._expected.image_bytes
        places = (layout.ring + WORD.size + index * size for index in range(entries))
        ring = [WORD.unpack(os.pread(self._file, WORD.size, place))[0] for place in places]
        fault = ring_fault(ring, fields["text_kv_valid"])
        if fault is not None:
            raise _refuse(fault)
        state = fields["state_frontier"]
        held = {fields["checkpoint_frontier"]} if fields["checkpoint_valid"] else set()
        frontiers = sorted(frontier for frontier in {*ring, *held} if 0 < frontier < state)
        return Seen(ledger, (*frontiers, state), layout.file_bytes)

    def _fields(self) -> tuple[dict[str, int], int]:
        """Sections 1 to 5: what section 5 says, and the version."""
        magic, version, length = PREFIX.unpack(self._read_head(PREFIX.size))
        if magic != MAGIC:
            raise _refuse("magic is not that of a slot file")
        if version not in (PLAIN, WITH_RING):
            raise _refuse(f"version {version} is not one that this server reads")
        if length > MAX_BINDING_BYTES:
            raise _refuse(f"binding of {length} bytes is too long")
        if self._read_head(length) != self._expected.binding():
            raise _refuse("binding does not match the server: it was saved with another model")
        found = dict(zip(CONFIG_FIELDS, CONFIG.unpack(self._read_head(CONFIG.size)), strict=True))
        fault = config_fault(found, self._expected.fields())
        if fault is not None:
            raise _refuse(fault)
        fields = dict(zip(SESSION_FIELDS, SESSION.unpack(self._read_head(SESSION.size)), strict=True))
        fault = session_fault(fields, self._limits.max_context_tokens)
        if fault is not None:
            raise _refuse(fault)
        return fields, version

    def _ledger(self, tokens: int) -> array[int]:
        """Section 6: the ledger, after a look at everything beside it."""
        identity = memoryview(self._read_head(identity_bytes(tokens)))
        offset = 0

        def vector(name: str, width: int) -> memoryview:
            nonlocal offset
            (count,) = COUNT.unpack_from(identity, offset)
            if count != tokens:
                raise _refuse(f"{name} have length {count}, not that of {tokens} tokens")
            begin = offset + COUNT.size
            offset = begin + width * tokens
            return identity[begin:offset]

        ledger = decode_ids(vector("ledger ids", 4))
        low, high = min(ledger), max(ledger)
        if low < 0 or high >= self._limits.vocabulary:
            worst = low if low < 0 else high
            raise _refuse(f"ledger id {worst} is outside the vocabulary of {self._limits.vocabulary}")
        if any(vector("token types", 1)):
            raise _refuse("token types are not those of a session of text")
        positions = id_bytes(range(tokens))
        for axis in range(POSITION_AXES):
            if vector(f"positions of axis {axis}", 4) != positions:
                raise _refuse(f"positions of axis {axis} are not those of a session of text")
        (media,) = WORD.unpack_from(identity, offset)
        if media:
            raise _refuse(f"media count {media} is not that of a session of text")
        return ledger

    def _layout(self, fields: dict[str, int], version: int) -> tuple[Layout, int]:
        """Where the other sections stand and the number of ring entries, with the size of the file checked."""

        def layout(ring_entries: int | None) -> Layout:
            return layout_of(
                self._expected,
                fields["tokens"],
                checkpoint=bool(fields["checkpoint_valid"]),
                pages=fields["text_pages"],
                ring_entries=ring_entries,
            )

        entries = None
        if version == WITH_RING:
            raw = os.pread(self._file, WORD.size, layout(None).ring)
            if len(raw) < WORD.size:
                raise _refuse("is truncated in front of its ring")
            (entries,) = WORD.unpack(raw)
            if entries > MAX_RING_ENTRIES:
                raise _refuse(f"ring of {entries} entries is longer than {MAX_RING_ENTRIES}")
        wanted = layout(entries)
        size = os.fstat(self._file).st_size
        if size != wanted.file_bytes:
            raise _refuse(f"length is {size} bytes instead of the {wanted.file_bytes} of its header")
        return wanted, entries or 0

    def _fill(self, data: memoryview, layout: Layout) -> None:
        """Read all bytes in front of the checksums into `data`, and check that they match."""
        tail = os.pread(self._file, layout.file_bytes - layout.checksums, layout.checksums)
        if not tail.endswith(END):
            raise _refuse("end marker is missing")
        sums = [value for (value,) in WORD.iter_unpack(tail[: -len(END)])]
        count = sums.pop()
        if count != len(sums):
            raise _refuse(f"checksum count {count} is not the {len(sums)} of its length")

        def read_piece(begin: int, end: int) -> int:
            piece = data[begin:end]
            self._read_into(piece, begin)
            if zlib.crc32(piece) != sums[begin // PIECE_BYTES]:
                raise _refuse(f"checksum of bytes [{begin}, {end}) is wrong: the file is damaged")
            return end - begin

        for_each_piece(read_piece, layout.checksums)
        if data[: len(self._head)] != self._head:
            raise _refuse("header has changed while it was read")

    def _read_head(self, size: int) -> bytes:
        """The next bytes of the header."""
        begin = len(self._head)
        raw = os.pread(self._file, size, begin)
        if len(raw) < size:
            raise _refuse("is truncated in its header")
        self._head += raw
        return raw

    def _read_into(self, piece: memoryview, offset: int) -> None:
        while piece:
            count = os.preadv(self._file, [piece], offset)
            if count == 0:
                raise _refuse("has been truncated while it was read")
            piece, offset = piece[count:], offset + count


def _aligned_memory(layout: Layout) -> tuple[mmap.mmap, memoryview]:
    """A mapping, and its last [layout.checksums] bytes, in which the state begins aligned.

    A mapping of its own rather than one of the file: the bytes that were checked are the bytes that are used, whatever
    happens to the file.
    """
    shift = -layout.state % ALIGNMENT
    memory = mmap.mmap(-1, shift + layout.checksums, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Huge pages make the first touch some three times cheaper; a kernel that has none may say so.
    with suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory, memoryview(memory)[shift:]


def _forget(memory: mmap.mmap, begin: int, size: int) -> None:
    """Give the memory of checked bytes back that nothing refers to: ring entries that this server does not keep."""
    first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
    whole = (begin + size - first) // mmap.PAGESIZE * mmap.PAGESIZE
    if whole > 0:
        memory.madvise(mmap.MADV_DONTNEED, first, whole)
