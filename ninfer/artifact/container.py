"""Reading a version 3 file set through memory maps (artifact spec, sections 4.1 to 4.3 and 15).

Opening reads the header and the directory of the entry file. Continuation files are opened when a range touches
them, and an object's encoding, size and alignment are checked the first time it is used. Numeric packages are
imported only by :meth:`Artifact.tensor`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

from ninfer.artifact.directory import (
    Directory,
    ResourceObject,
    StoredObject,
    TensorObject,
    check_object,
)
from ninfer.artifact.formats import PAYLOAD_ALIGNMENT, up
from ninfer.artifact.jsontext import MAX_JSON_BYTES
from ninfer.artifact.parsing import parse_directory
from ninfer.errors import ArtifactError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAGIC = b"NINFER\0"
ENTRY_MAGIC = b"NINFER\0\x03"
PART_MAGIC = b"NINPRT\0\x03"
ENTRY_HEADER_BYTES = 32
LEGACY_HEADER_BYTES = 16
PART_HEADER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Header:
    """Start of an entry file of any version; `artifact_id` is empty before version 3."""

    version: int
    json_bytes: int
    artifact_id: bytes

    @property
    def json_offset(self) -> int:
        return ENTRY_HEADER_BYTES if self.version == 3 else LEGACY_HEADER_BYTES

    @property
    def payload_offset(self) -> int:
        return up(self.json_offset + self.json_bytes, PAYLOAD_ALIGNMENT)


def read_header(file: BinaryIO, size: int, path: str) -> Header:
    """The header of an entry file of `size` bytes.

    Raises ArtifactError TRUNCATED_HEADER, PART_OPENED, NOT_NINFER, UNKNOWN_VERSION or BAD_JSON_LENGTH.
    """
    file.seek(0)
    head = file.read(ENTRY_HEADER_BYTES)
    magic = head[:8]
    if len(magic) < 8:
        raise ArtifactError("TRUNCATED_HEADER", path, f"file has {size} bytes, a header needs at least 16")
    if magic == PART_MAGIC:
        raise ArtifactError("PART_OPENED", path, "this is a continuation file; open the entry file of the set")
    if magic[:7] != MAGIC:
        raise ArtifactError("NOT_NINFER", path, f"first bytes {magic.hex()} are not those of an artifact")
    version = magic[7]
    if version not in (1, 2, 3):
        raise ArtifactError("UNKNOWN_VERSION", path, f"container version {version}, known: 1, 2, 3")
    needed = ENTRY_HEADER_BYTES if version == 3 else LEGACY_HEADER_BYTES
    if len(head) < needed:
        raise ArtifactError("TRUNCATED_HEADER", path, f"file has {size} bytes, its header needs {needed}")
    header = Header(version, int.from_bytes(head[8:16], "little"), head[16:32] if version == 3 else b"")
    if not 0 < header.json_bytes <= min(size - needed, MAX_JSON_BYTES):
        raise ArtifactError(
            "BAD_JSON_LENGTH",
            path,
            f"directory of {header.json_bytes} bytes in a file of {size} (at most {MAX_JSON_BYTES} are read)",
        )
    return header


def upgrade_command(path: str) -> str:
    """The command that turns an old file into one that loads."""
    stem, dot, suffix = path.rpartition(".")
    output = f"{stem}.v3.{suffix}" if dot else f"{path}.v3.ninfer"
    return f"ninfer-artifact upgrade {_quoted(path)} {_quoted(output)}"


def _quoted(path: str) -> str:
    return f'"{path}"' if any(sign.isspace() for sign in path) else path


@dataclass(slots=True)
class _OpenFile:
    """One mapped file of the set; payload bytes [first, first + payload_bytes) start at `start` in it."""

    file: BinaryIO
    map: mmap.mmap

    def close(self) -> None:
        # A map with views still in use goes away with the last of them.
        with suppress(BufferError):
            self.map.close()
        self.file.close()


class Artifact:
    """An open version 3 artifact; use as a context manager or call :meth:`close`."""

    def __init__(self, path: str, artifact_id: str, directory: Directory, entry: _OpenFile, start: int) -> None:
        self.path = path
        self.artifact_id = artifact_id
        self.directory = directory
        self._objects = {stored.id: stored for stored in directory.objects}
        self._checked: set[str] = set()
        self._open: dict[int, _OpenFile] = {0: entry}
        self._entry_start = start

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Artifact:
        """Open the entry file `path`.

        Raises ArtifactError with the codes of section 15 that belong to opening, OSError where the file system
        refuses the entry file.
        """
        name = os.fspath(path)
        with ExitStack() as undo:
            file = undo.enter_context(Path(name).open("rb"))
            size = os.fstat(file.fileno()).st_size
            header = read_header(file, size, name)
            if header.version != 3:
                raise ArtifactError(
                    "OLD_VERSION",
                    name,
                    f"container version {header.version} is not loaded; rewrite it once with: {upgrade_command(name)}",
                )
            file.seek(header.json_offset)
            directory = parse_directory(file.read(header.json_bytes), name)
            expected = header.payload_offset + directory.files[0].payload_bytes
            if size != expected:
                raise ArtifactError("ENTRY_LENGTH", name, f"entry file has {size} bytes, expected {expected}")
            entry = _OpenFile(file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            undo.pop_all()
        return cls(name, header.artifact_id.hex(), directory, entry, header.payload_offset)

    def __enter__(self) -> Artifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all files; views that are still in use stay valid."""
        while self._open:
            self._open.popitem()[1].close()

    def find(self, id: str) -> StoredObject:
        """The record of object `id`, checked for use; raises ArtifactError BAD_BINDING if there is none."""
        stored = self._objects.get(id)
        if stored is None:
            raise ArtifactError("BAD_BINDING", self.path, f"object {id!r} does not exist")
        if id not in self._checked:
            check_object(stored, self.path)
            self._checked.add(id)
        return stored

    def read(self, offset: int, n: int) -> bytes:
        """Logical payload bytes [offset, offset + n); raises ArtifactError BAD_RANGE and those of a continuation."""
        return b"".join(self.slices(offset, n))

    def slices(self, offset: int, n: int) -> Iterator[memoryview]:
        """The range as views of the mapped files, one for each file it touches."""
        if offset < 0 or n < 0 or offset + n > self.directory.payload_bytes:
            raise ArtifactError(
                "BAD_RANGE",
                self.path,
                f"range [{offset}, {offset + n}) of a payload of {self.directory.payload_bytes} bytes",
            )
        first = 0
        for index, record in enumerate(self.directory.files):
            begin, end = max(offset, first), min(offset + n, first + record.payload_bytes)
            if begin < end:
                start = (PART_HEADER_BYTES if index else self._entry_start) - first
                opened = self._file(index)
                # Touching a mapped page that was cut off since would kill the process.
                size = os.fstat(opened.file.fileno()).st_size
                if size < start + end:
                    raise ArtifactError(
                        "SHORT_READ", self.path, f"{record.path or 'entry'} was cut to {size} bytes, need {start + end}"
                    )
                yield memoryview(opened.map)[start + begin : start + end]
            first += record.payload_bytes

    def object_bytes(self, id: str) -> memoryview:
        """The encoded object; a view of the file, or a copy where the object spans files.

        The first use checks encoding, size and alignment (section 15).
        """
        stored = self.find(id)
        views = list(self.slices(stored.offset, stored.bytes))
        return views[0] if len(views) == 1 else memoryview(b"".join(views))

    def tensor_object(self, id: str) -> TensorObject:
        """The checked record of tensor `id`; raises ArtifactError BAD_BINDING if it is a resource or missing."""
        stored = self.find(id)
        if not isinstance(stored, TensorObject):
            raise ArtifactError("BAD_BINDING", self.path, f"object {id!r} is a resource")
        return stored

    def tensor(self, id: str, rows: tuple[int, int] | None = None) -> NDArray[Any]:
        """Decoded values, float32 (int32 for format int32); `rows` cuts the first axis to [begin, end)."""
        from ninfer.artifact.quantise import decode

        stored = self.tensor_object(id)
        return decode(self.object_bytes(id), stored.format, stored.layout, stored.shape, rows)

    def resource(self, component: str, role: str) -> bytes:
        """The bytes of a component's resource; raises ArtifactError COMPONENT_ABSENT or BAD_COMPONENT."""
        owner = self.directory.components.get(component)
        if owner is None:
            raise ArtifactError("COMPONENT_ABSENT", self.path, f"component {component!r}")
        if role not in owner.resources:
            raise ArtifactError(
                "BAD_COMPONENT",
                self.path,
                f"component {component!r} has no resource {role!r}, found {sorted(owner.resources)}",
            )
        stored = self.find(owner.resources[role])
        assert isinstance(stored, ResourceObject), "parse_directory checks that roles point at resources"
        return bytes(self.object_bytes(stored.id))

    def _file(self, index: int) -> _OpenFile:
        if not self._open:
            raise ValueError("artifact is closed")
        if index not in self._open:
            self._open[index] = self._open_part(index)
        return self._open[index]

    def _open_part(self, index: int) -> _OpenFile:
        record = self.directory.files[index]
        assert record.path is not None, "parse_directory checks that continuations are named"
        path = os.path.join(os.path.dirname(self.path), record.path)
        with ExitStack() as undo:
            try:
                file = undo.enter_context(Path(path).open("rb"))
            except OSError as error:
                raise ArtifactError("MISSING_PART", path, f"continuation {index}: {error.strerror}") from None
            self._check_part(file, index, path, PART_HEADER_BYTES + record.payload_bytes)
            part = _OpenFile(file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            undo.pop_all()
        return part

    def _check_part(self, file: BinaryIO, index: int, path: str, expected: int) -> None:
        head = file.read(32)
        size = os.fstat(file.fileno()).st_size
        if head[:8] != PART_MAGIC:
            raise ArtifactError("FOREIGN_PART", path, f"first bytes {head[:8].hex()} are not those of a continuation")
        if len(head) == 32:
            found = int.from_bytes(head[8:16], "little")
            if found != index:
                raise ArtifactError("FOREIGN_PART", path, f"continuation {found}, expected {index}")
            if head[16:].hex() != self.artifact_id:
                raise ArtifactError("FOREIGN_PART", path, f"artifact {head[16:].hex()}, expected {self.artifact_id}")
        if size != expected:
            raise ArtifactError("PART_LENGTH", path, f"continuation has {size} bytes, expected {expected}")
