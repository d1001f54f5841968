"""Writing a new version 3 artifact object by object (artifact spec, section 4.10)."""

from __future__ import annotations

import json
import os
import uuid
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ninfer.artifact.directory import Directory, TensorObject
from ninfer.artifact.fileset import FileSetWriter, refuse_existing
from ninfer.artifact.parsing import parse_directory
from ninfer.artifact.placement import DEFAULT_MAX_FILE_BYTES, DirectoryPlan, lay_out, place
from ninfer.errors import ArtifactError

REPORT_SUFFIX = ".conversion.json"


class Coverage:
    """Which bytes [0, size) have been written; every byte exactly once."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._edges: list[int] = []  # begin, end, begin, end, … ascending, neighbours merged

    @property
    def complete(self) -> bool:
        return self._edges == [0, self.size]

    def add(self, begin: int, end: int) -> str | None:
        """Record [begin, end); returns what is wrong with it, or None."""
        if not 0 <= begin <= end <= self.size:
            return f"bytes [{begin}, {end}) are beyond its {self.size} bytes"
        if begin == end:
            return None
        # An odd place is inside a written range; an edge between this range's ends means overlap.
        place = bisect_left(self._edges, begin + 1)
        if place % 2 or bisect_left(self._edges, end) != place:
            return f"bytes [{begin}, {end}) are written twice"
        joins_left = place > 0 and self._edges[place - 1] == begin
        joins_right = place < len(self._edges) and self._edges[place] == end
        self._edges[place - joins_left : place + joins_right] = [
            *([] if joins_left else [begin]),
            *([] if joins_right else [end]),
        ]
        return None

    def first_gap(self) -> tuple[int, int]:
        """The first range that is still unwritten."""
        edges = [*self._edges, self.size]
        if edges[0] > 0:
            return 0, edges[0]
        return edges[1], edges[2] if len(edges) > 2 else self.size


class ArtifactWriter:
    """Writes one artifact; leaving the context without :meth:`publish` removes everything it created.
    One thread at a time may use it.

    path            entry file, which must not exist, nor its continuations, nor `<path>.conversion.json`
    plan            directory without offsets; objects in physical order
    artifact_id     16 bytes, or None for a fresh random one
    max_file_bytes  largest size of one file of the set
    Raises ArtifactError OUTPUT_EXISTS, LIMIT_TOO_SMALL, and those of :func:`ninfer.artifact.parsing.parse_directory`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        plan: DirectoryPlan,
        *,
        artifact_id: bytes | None = None,
        max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    ) -> None:
        self.path = os.fspath(path)
        self.artifact_id = uuid.uuid4().bytes if artifact_id is None else artifact_id
        name = Path(self.path).name
        placed = Directory(
            plan.components, place(plan.objects), plan.bindings, plan.uses, (), plan.metadata, plan.provenance
        )
        layout = lay_out(placed, name, max_file_bytes)
        # What a reader would refuse is refused before the work of filling it.
        parse_directory(layout.text, self.path)
        self.directory = layout.directory
        self._report_name = name + REPORT_SUFFIX
        refuse_existing([Path(self.path + REPORT_SUFFIX)])
        self._objects = {stored.id: stored for stored in self.directory.objects}
        self._coverage = {stored.id: Coverage(stored.bytes) for stored in self.directory.objects}
        self._files = FileSetWriter(self.path, layout, self.artifact_id)

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._files.discard()

    def write(self, id: str, offset: int, data: Any) -> None:
        """Put `data` (any contiguous buffer) at byte `offset` of object `id`; raises ArtifactError COVERAGE."""
        view = memoryview(data).cast("B")
        fault = self._coverage[id].add(offset, offset + len(view))
        if fault is not None:
            raise ArtifactError("COVERAGE", self.path, f"object {id!r}: {fault}")
        self._files.write(self._objects[id].offset + offset, view)

    def publish(self, report: Mapping[str, Any] | None = None) -> None:
        """Check that every byte is written, then publish the set and its report.

        report   what the caller adds to the conversion report
        """
        for id, coverage in self._coverage.items():
            if not coverage.complete:
                begin, end = coverage.first_gap()
                raise ArtifactError("COVERAGE", self.path, f"object {id!r}: bytes [{begin}, {end}) are unwritten")
        text = json.dumps({**self.summary(), **(report or {})}, indent=2, ensure_ascii=False) + "\n"
        self._files.publish({self._report_name: text.encode()})

    def summary(self) -> dict[str, Any]:
        """What every conversion report says: identity, files, counts and bytes by format."""
        tensors = [stored for stored in self.directory.objects if isinstance(stored, TensorObject)]
        counts = Counter(tensor.format for tensor in tensors)
        return {
            "artifact_id": self.artifact_id.hex(),
            "files": [
                {"name": record.path or Path(self.path).name, "bytes": self._files.layout.file_bytes(index)}
                for index, record in enumerate(self.directory.files)
            ],
            "objects": len(self.directory.objects),
            "tensor_bytes": sum(tensor.bytes for tensor in tensors),
            "formats": {
                format: {
                    "tensors": count,
                    "bytes": sum(tensor.bytes for tensor in tensors if tensor.format == format),
                }
                for format, count in sorted(counts.items())
            },
            "provenance": self.directory.provenance,
        }
