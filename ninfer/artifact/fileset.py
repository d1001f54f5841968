"""Writing the files of a set beside their targets and publishing them at once (artifact spec, section 4.10).

Standard library only. A set that is not published leaves nothing behind.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from ninfer.artifact.container import ENTRY_MAGIC, PART_HEADER_BYTES, PART_MAGIC
from ninfer.artifact.placement import Layout
from ninfer.errors import ArtifactError


class FileSetWriter:
    """Temporary files of a placed set, written by logical payload offset.

    path         entry file; neither it nor its continuations may exist (OUTPUT_EXISTS)
    layout       from :func:`ninfer.artifact.placement.lay_out`
    artifact_id  16 bytes
    """

    def __init__(self, path: str, layout: Layout, artifact_id: bytes) -> None:
        self.path = path
        self.layout = layout
        self._folder = Path(path).parent
        self._targets = [
            Path(path) if record.path is None else self._folder / record.path for record in layout.directory.files
        ]
        self._extra: list[tuple[Path, Path]] = []
        self._published: list[Path] = []
        refuse_existing(self._targets)
        token = uuid.uuid4().hex
        self._temporary = [target.with_name(f".{target.name}.{token}.tmp") for target in self._targets]
        self._token = token
        self._files: list[BinaryIO] = []
        try:
            for index, temporary in enumerate(self._temporary):
                file = temporary.open("xb")
                self._files.append(file)
                file.truncate(layout.file_bytes(index))
                if index == 0:
                    file.write(ENTRY_MAGIC + len(layout.text).to_bytes(8, "little") + artifact_id + layout.text)
                else:
                    file.write(PART_MAGIC + index.to_bytes(8, "little") + artifact_id)
        except BaseException:
            self.discard()
            raise

    def __enter__(self) -> FileSetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def write(self, offset: int, data: memoryview) -> None:
        """Put bytes at a logical payload offset; the range must lie inside the payload."""
        first = 0
        for index, record in enumerate(self.layout.directory.files):
            begin, end = max(offset, first), min(offset + len(data), first + record.payload_bytes)
            if begin < end:
                start = PART_HEADER_BYTES if index else self.layout.payload_offset
                self._files[index].seek(start + begin - first)
                self._files[index].write(data[begin - offset : end - offset])
            first += record.payload_bytes

    def publish(self, extra: dict[str, bytes] | None = None) -> None:
        """Flush to disk, then give the files their names: continuations first, the entry last.

        extra    further files (name beside the entry -> content), published before the continuations
        """
        for name, content in (extra or {}).items():
            target = self._folder / name
            temporary = target.with_name(f".{name}.{self._token}.tmp")
            self._extra.append((temporary, target))
            with temporary.open("xb") as sibling:
                sibling.write(content)
                _flush(sibling)
        for file in self._files:
            _flush(file)
            file.close()
        pairs = [*self._extra, *zip(self._temporary[1:], self._targets[1:], strict=True)]
        pairs.append((self._temporary[0], self._targets[0]))
        refuse_existing([target for _, target in pairs])
        for temporary, target in pairs:
            temporary.rename(target)
            self._published.append(target)
        _flush_folder(self._folder)
        self._published.clear()

    def discard(self) -> None:
        """Remove whatever an unpublished set has left; nothing after :meth:`publish` returned."""
        for file in self._files:
            file.close()
        for leftover in [*self._temporary, *(temporary for temporary, _ in self._extra), *self._published]:
            leftover.unlink(missing_ok=True)


def refuse_existing(targets: list[Path]) -> None:
    """Raise ArtifactError OUTPUT_EXISTS for the first target that is there, be it a broken link."""
    for target in targets:
        if os.path.lexists(target):
            raise ArtifactError("OUTPUT_EXISTS", str(target), "the output must not exist yet")


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    # Windows cannot open a folder; its renames are journalled.
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
