"""Where a new version 3 file set puts its bytes (artifact spec, sections 4.3 and 4.10). Pure; standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ninfer.artifact.container import ENTRY_HEADER_BYTES, PART_HEADER_BYTES
from ninfer.artifact.directory import (
    Binding,
    Component,
    Directory,
    FileRecord,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
    to_json,
)
from ninfer.artifact.formats import (
    PAYLOAD_ALIGNMENT,
    RAW_BYTES,
    TENSOR_ALIGNMENT,
    default_layout,
    encoded_size,
    up,
)
from ninfer.errors import ArtifactError

DEFAULT_MAX_FILE_BYTES = 32_000_000_000


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor to be written; its layout and size follow from format and shape."""

    id: str
    shape: tuple[int, ...]
    format: str


@dataclass(frozen=True, slots=True)
class PlannedResource:
    """A byte string of `bytes` > 0 bytes to be written."""

    id: str
    bytes: int


PlannedObject = PlannedTensor | PlannedResource


@dataclass(frozen=True, slots=True)
class DirectoryPlan:
    """A directory without offsets and files; objects in their physical order."""

    components: Mapping[str, Component]
    objects: tuple[PlannedObject, ...]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...] = ()
    metadata: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Layout:
    """A placed file set: the directory, its JSON text padded with spaces, and the start of the entry's payload."""

    directory: Directory
    text: bytes
    payload_offset: int

    def file_bytes(self, index: int) -> int:
        start = PART_HEADER_BYTES if index else self.payload_offset
        return start + self.directory.files[index].payload_bytes


def place(objects: Iterable[PlannedObject]) -> tuple[StoredObject, ...]:
    """Objects back to back, tensors on multiples of 256."""
    cursor = 0
    placed: list[StoredObject] = []
    for planned in objects:
        if isinstance(planned, PlannedResource):
            placed.append(ResourceObject(planned.id, RAW_BYTES, cursor, planned.bytes))
            cursor += planned.bytes
        else:
            layout = default_layout(planned.format)
            size = encoded_size(planned.format, layout, planned.shape)
            offset = up(cursor, TENSOR_ALIGNMENT)
            placed.append(TensorObject(planned.id, planned.shape, planned.format, layout, offset, size))
            cursor = offset + size
    return tuple(placed)


def split(total: int, payload_offset: int, max_file_bytes: int) -> tuple[int, ...]:
    """Payload bytes of each file of a set with `total` payload bytes; raises ArtifactError LIMIT_TOO_SMALL."""
    if payload_offset + total <= max_file_bytes:
        return (total,)
    entry = (max_file_bytes - payload_offset) // PAYLOAD_ALIGNMENT * PAYLOAD_ALIGNMENT
    part = (max_file_bytes - PART_HEADER_BYTES) // PAYLOAD_ALIGNMENT * PAYLOAD_ALIGNMENT
    if entry <= 0 or part <= 0:
        raise ArtifactError(
            "LIMIT_TOO_SMALL", "", f"{max_file_bytes} bytes per file leave no room behind {payload_offset} header bytes"
        )
    rest = total - entry
    return (entry, *[part] * (rest // part), *([rest % part] if rest % part else []))


def lay_out(
    directory: Directory, entry_name: str, max_file_bytes: int = DEFAULT_MAX_FILE_BYTES, reserve: int | None = None
) -> Layout:
    """Choose files and JSON reserve for placed objects; `directory.files` is replaced.

    reserve  first guess of the JSON region's bytes; None takes what the text without files needs
    The payload ends with the last object. Raises ArtifactError LIMIT_TOO_SMALL.
    """
    last = directory.objects[-1]
    total = last.offset + last.bytes

    def attempt(reserve: int) -> tuple[Directory, bytes]:
        sizes = split(total, ENTRY_HEADER_BYTES + reserve, max_file_bytes)
        files = tuple(
            FileRecord(part_name(entry_name, index) if index else None, size) for index, size in enumerate(sizes)
        )
        placed = dataclasses.replace(directory, files=files)
        return placed, to_json(placed)

    return _solve(attempt, _reserve(to_json(directory)) if reserve is None else reserve)


def _solve(attempt: Callable[[int], tuple[Directory, bytes]], reserve: int) -> Layout:
    while True:
        directory, text = attempt(reserve)
        if len(text) <= reserve:
            return Layout(directory, text.ljust(reserve), ENTRY_HEADER_BYTES + reserve)
        reserve = _reserve(text)


def _reserve(text: bytes) -> int:
    return up(ENTRY_HEADER_BYTES + len(text), PAYLOAD_ALIGNMENT) - ENTRY_HEADER_BYTES


def part_name(entry_name: str, index: int) -> str:
    """Name of continuation `index` beside the entry."""
    return f"{entry_name}.part-{index:04d}"
