"""Container versions 1 and 2: directory, checks of opening, writing (artifact spec, section 3).

Formats, layouts and encodings are held under their version 3 names. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ninfer.artifact.container import MAGIC, Header, read_header
from ninfer.artifact.directory import ResourceObject, StoredObject, TensorObject, check_object
from ninfer.artifact.formats import (
    FORMATS,
    LEGACY_LAYOUTS,
    LEGACY_RAW_BYTES,
    PAYLOAD_ALIGNMENT,
    RAW_BYTES,
    up,
)
from ninfer.artifact.inventories import FRONTEND, LegacyTensor
from ninfer.artifact.jsontext import JsonReader, dump
from ninfer.artifact.placement import PlannedObject, PlannedResource, PlannedTensor, place
from ninfer.errors import ArtifactError

_LAYOUT_NAMES = {old: new for new, old in LEGACY_LAYOUTS.items()}
COPY_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class LegacyDirectory:
    """A checked version 1 or 2 directory; `weights_id` is None in version 1."""

    version: int
    model_id: str
    weights_id: str | None
    objects: tuple[StoredObject, ...]

    @property
    def span(self) -> int:
        """Payload bytes up to the end of the last object."""
        last = self.objects[-1]
        return last.offset + last.bytes


def format_names(version: int) -> dict[str, str]:
    """Old format name -> version 3 name, for the formats that `version` knows."""
    return {
        entry.legacy_name: entry.name
        for entry in FORMATS.values()
        if entry.legacy_name is not None and (version == 2 or entry.version_1)
    }


def parse_legacy_directory(text: bytes, version: int, path: str, payload_bytes: int) -> LegacyDirectory:
    """The directory of a version 1 or 2 file.

    Raises ArtifactError with the codes of section 15 that belong to opening.
    """
    reader = _LegacyReader(path)
    if version == 1:
        root = reader.members(reader.parse(text), "root", ("model_id", "objects"))
        model_id, weights_id = reader.identifier(root["model_id"], "model_id"), None
    else:
        root = reader.members(reader.parse(text), "root", ("identity", "objects"))
        identity = reader.members(root["identity"], "identity", ("model_id", "weights_id"))
        model_id = reader.identifier(identity["model_id"], "identity.model_id")
        weights_id = reader.identifier(identity["weights_id"], "identity.weights_id")
    objects = reader.objects(root["objects"], format_names(version), payload_bytes)
    return LegacyDirectory(version, model_id, weights_id, objects)


class _LegacyReader(JsonReader):
    def objects(self, value: Any, formats: dict[str, str], payload_bytes: int) -> tuple[StoredObject, ...]:
        if not isinstance(value, list) or not value:
            self.fail("EMPTY_OBJECTS", "objects must be a nonempty array")
        cursor = 0
        seen: set[str] = set()
        objects = []
        for index, item in enumerate(value):
            stored = self.stored_object(item, f"objects[{index}]", formats)
            if stored.offset < cursor:
                self.fail("OVERLAP", f"object {stored.id!r}: offset {stored.offset} is before {cursor}")
            check_object(stored, self.path)
            cursor = stored.offset + stored.bytes
            if cursor > payload_bytes:
                self.fail(
                    "OUT_OF_RANGE", f"object {stored.id!r}: ends at {cursor}, the payload has {payload_bytes} bytes"
                )
            if stored.id in seen:
                self.fail("DUPLICATE_ID", f"object {stored.id!r} is listed twice")
            seen.add(stored.id)
            objects.append(stored)
        return tuple(objects)

    def stored_object(self, item: Any, where: str, formats: dict[str, str]) -> StoredObject:
        record = self.object(item, where)
        kind = record.get("kind")
        if "kind" in record and kind not in ("tensor", "resource"):
            self.fail("BAD_KIND", f"{where}.kind must be tensor or resource, found {kind!r}")
        if kind == "resource":
            self.members(record, where, ("name", "kind", "encoding", "offset", "bytes"))
        else:
            self.members(record, where, ("name", "kind", "shape", "format", "layout", "offset", "bytes"))
        name = self.identifier(record["name"], f"{where}.name")
        where = f"object {name!r}"
        offset = self.integer(record["offset"], f"{where}: offset")
        size = self.integer(record["bytes"], f"{where}: bytes", 1)
        if kind == "resource":
            encoding = self.string(record["encoding"], f"{where}: encoding")
            if encoding != LEGACY_RAW_BYTES:
                self.fail("BAD_RESOURCE_ENCODING", f"{where}: encoding {encoding!r}, expected {LEGACY_RAW_BYTES!r}")
            return ResourceObject(name, RAW_BYTES, offset, size)
        shape = self.shape(record["shape"], f"{where}: shape")
        format = self.string(record["format"], f"{where}: format")
        layout = self.string(record["layout"], f"{where}: layout")
        if format not in formats:
            self.fail("BAD_ENCODING", f"{where}: unknown format {format!r}, known: {', '.join(formats)}")
        if layout not in _LAYOUT_NAMES:
            self.fail("BAD_ENCODING", f"{where}: unknown layout {layout!r}, known: {', '.join(_LAYOUT_NAMES)}")
        return TensorObject(name, shape, formats[format], _LAYOUT_NAMES[layout], offset, size)


def legacy_json(directory: LegacyDirectory) -> bytes:
    """The directory text in the writer's spelling (3.4)."""
    root: dict[str, Any] = (
        {"model_id": directory.model_id}
        if directory.version == 1
        else {"identity": {"model_id": directory.model_id, "weights_id": directory.weights_id}}
    )
    root["objects"] = [_record(stored) for stored in directory.objects]
    return dump(root, "")


def _record(stored: StoredObject) -> dict[str, Any]:
    place = {"offset": stored.offset, "bytes": stored.bytes}
    if isinstance(stored, ResourceObject):
        return {"name": stored.id, "kind": "resource", "encoding": LEGACY_RAW_BYTES, **place}
    return {
        "name": stored.id,
        "kind": "tensor",
        "shape": list(stored.shape),
        "format": FORMATS[stored.format].legacy_name,
        "layout": LEGACY_LAYOUTS[stored.layout],
        **place,
    }


def legacy_metadata(directory: LegacyDirectory) -> bytes:
    """Everything in front of the payload: header, directory, zero padding."""
    text = legacy_json(directory)
    head = MAGIC + bytes([directory.version]) + len(text).to_bytes(8, "little") + text
    return head.ljust(up(len(head), PAYLOAD_ALIGNMENT), b"\0")


def place_legacy(
    version: int, model_id: str, weights_id: str | None, tensors: Sequence[LegacyTensor], resources: Sequence[int]
) -> LegacyDirectory:
    """The planned directory of an inventory; `resources` are the lengths of the six frontend files."""
    planned: list[PlannedObject] = [
        *(PlannedResource(name, size) for name, size in zip(FRONTEND, resources, strict=True)),
        *(PlannedTensor(tensor.name, tensor.shape, tensor.format) for tensor in tensors),
    ]
    return LegacyDirectory(version, model_id, weights_id, place(planned))


class LegacyArtifact:
    """An open version 1 or 2 file; a context manager."""

    def __init__(self, path: str, header: Header, directory: LegacyDirectory, file: BinaryIO, size: int) -> None:
        self.path = path
        self.header = header
        self.directory = directory
        self.file_bytes = size
        self._file = file

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LegacyArtifact:
        """Open a version 1 or 2 file; raises ArtifactError as for opening, UNKNOWN_VERSION for version 3."""
        name = os.fspath(path)
        with ExitStack() as undo:
            file = undo.enter_context(Path(name).open("rb"))
            size = os.fstat(file.fileno()).st_size
            header = read_header(file, size, name)
            if header.version == 3:
                raise ArtifactError("UNKNOWN_VERSION", name, "container version 3, expected 1 or 2")
            if header.payload_offset > size:
                raise ArtifactError(
                    "TRUNCATED_FILE", name, f"payload starts at {header.payload_offset}, file has {size} bytes"
                )
            file.seek(header.json_offset)
            directory = parse_legacy_directory(
                file.read(header.json_bytes), header.version, name, size - header.payload_offset
            )
            undo.pop_all()
        return cls(name, header, directory, file, size)

    def __enter__(self) -> LegacyArtifact:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, offset: int, n: int) -> bytes:
        """Payload bytes [offset, offset + n); raises ArtifactError SHORT_READ if the file ends before."""
        self._file.seek(self.header.payload_offset + offset)
        data = self._file.read(n)
        if len(data) != n:
            raise ArtifactError("SHORT_READ", self.path, f"{len(data)} of {n} payload bytes at {offset}")
        return data

    def metadata(self) -> bytes:
        """Everything in front of the payload."""
        self._file.seek(0)
        return self._file.read(self.header.payload_offset)

    def chunks(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) pieces of payload bytes [begin, end)."""
        for offset in range(begin, end, COPY_BYTES):
            yield offset, self.read(offset, min(COPY_BYTES, end - offset))
