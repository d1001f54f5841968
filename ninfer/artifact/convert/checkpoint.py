"""Safetensors checkpoints, memory-mapped: one file or many shards (artifact spec, section 12.1).

The format is read directly, because BF16 words have to pass through unchanged and numpy knows no BF16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ninfer.artifact.parameters import LogicalParameter, Source
from ninfer.errors import ArtifactError

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

# BF16 travels as its uint16 words (`ninfer.artifact.quantise`).
DTYPES: dict[str, np.dtype[Any]] = {"BF16": np.dtype("<u2"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4")}

# Rows are handed on in pieces of about this many bytes, so that a tensor is never copied whole.
BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor's place: file, dtype name as safetensors spells it, shape, and [begin, end) in the file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Checkpoint:
    """The tensors of one checkpoint directory (or of one ``.safetensors`` file) by name."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._maps: dict[Path, NDArray[np.uint8]] = {}
        self._tensors: dict[str, StoredTensor] = {}
        for file, names in _files(path).items():
            found = _read_header(file)
            for name in found if names is None else names:
                if name not in found:
                    raise bad_source(file, f"tensor {name} is named in {INDEX} but not in this file")
                self._tensors[name] = found[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def stored(self, name: str) -> StoredTensor:
        """Where tensor `name` is; BAD_SOURCE if the checkpoint lacks it or its dtype is not BF16, F16 or F32."""
        if name not in self._tensors:
            raise bad_source(self.path, f"tensor {name} is missing")
        entry = self._tensors[name]
        if entry.dtype not in DTYPES:
            raise bad_source(entry.file, f"tensor {name} has dtype {entry.dtype}, expected {', '.join(DTYPES)}")
        return entry

    def tensor(self, name: str) -> NDArray[Any]:
        """Tensor `name` as a read-only view of the mapped file; BF16 as uint16 words."""
        entry = self.stored(name)
        if entry.file not in self._maps:
            self._maps[entry.file] = np.memmap(entry.file, np.uint8, mode="r")
        raw = self._maps[entry.file][entry.begin : entry.end]
        if raw.ctypes.data % DTYPES[entry.dtype].itemsize:
            raw = raw.copy()
        return raw.view(DTYPES[entry.dtype]).reshape(entry.shape)

    def check(self, parameter: LogicalParameter) -> None:
        """Raise BAD_SOURCE unless the tensor of `parameter` exists with the expected shape and a known dtype."""
        source = _source(parameter)
        entry = self.stored(source.tensor)
        if entry.shape != source.shape:
            detail = f"tensor {source.tensor} has shape {list(entry.shape)}, expected {list(source.shape)}"
            raise bad_source(entry.file, f"{detail} for {parameter.name}")

    def blocks(self, parameter: LogicalParameter) -> Iterator[NDArray[Any]]:
        """The values of `parameter` as consecutive blocks of rows [n, columns] (or [n] for a vector)."""
        source = _source(parameter)
        values = self.tensor(source.tensor)
        if source.taps_first:
            yield np.ascontiguousarray(values[:, 0, :].T)
            return
        if source.rows is None:
            # A parameter may see the tensor under another shape of as many elements (the patch embedding).
            yield from _pieces(values.reshape(parameter.shape))
            return
        matrix = values if values.ndim == 1 else values.reshape(-1, values.shape[-1])
        for run in range(source.rows.count):
            begin = source.rows.begin + run * source.rows.stride
            yield from _pieces(matrix[begin : begin + source.rows.length])

    def rows(self, name: str, ids: NDArray[np.int32]) -> Iterator[NDArray[Any]]:
        """Rows `ids` of matrix `name`, in that order, as blocks."""
        matrix = self.tensor(name)
        step = max(1, BLOCK_BYTES // matrix[0].nbytes)
        for begin in range(0, len(ids), step):
            yield matrix[ids[begin : begin + step]]


def bad_source(path: Path, detail: str) -> ArtifactError:
    """The converter's error about its input."""
    return ArtifactError("BAD_SOURCE", str(path), detail)


def load_json(path: Path) -> dict[str, Any]:
    """The JSON object in file `path`; BAD_SOURCE if it is missing or holds anything else."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise bad_source(path, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise bad_source(path, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise bad_source(path, f"must hold a JSON object, found {type(value).__name__}")
    return value


def _source(parameter: LogicalParameter) -> Source:
    if parameter.source is None:
        raise ValueError(f"{parameter.name} has no checkpoint tensor")
    return parameter.source


def _pieces(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    if rows.ndim < 2:
        yield rows
        return
    step = max(1, BLOCK_BYTES // max(1, rows[0].nbytes))
    for begin in range(0, rows.shape[0], step):
        yield rows[begin : begin + step]


def _files(path: Path) -> dict[Path, list[str] | None]:
    """Files to open, each with the tensor names it must hold (None: whatever it holds)."""
    if path.is_file():
        return {path: None}
    index = path / INDEX
    if not index.exists():
        if not (path / SINGLE).exists():
            raise bad_source(path, f"holds neither {INDEX} nor {SINGLE}")
        return {path / SINGLE: None}
    weight_map = load_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise bad_source(index, "has no weight_map")
    files: dict[Path, list[str] | None] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise bad_source(index, f"weight_map of {name} is not a plain file name: {file!r}")
        names = files.setdefault(path / file, [])
        assert names is not None
        names.append(name)
    return files


def _read_header(file: Path) -> dict[str, StoredTensor]:
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            prefix = stream.read(8)
            length = int.from_bytes(prefix, "little")
            if len(prefix) < 8 or not 2 <= length <= size - 8:
                raise bad_source(file, "is not a safetensors file: its header does not fit")
            text = stream.read(length)
    except OSError as error:
        raise bad_source(file, f"cannot be read: {error.strerror}") from None
    try:
        header = json.loads(text)
        entries = {name: value for name, value in header.items() if name != "__metadata__"}
        return {name: _stored(file, name, value, 8 + length, size) for name, value in entries.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise bad_source(file, f"has a malformed safetensors header: {error}") from None


def _stored(file: Path, name: str, value: dict[str, Any], data: int, size: int) -> StoredTensor:
    begin, end = value["data_offsets"]
    shape = tuple(int(n) for n in value["shape"])
    dtype = str(value["dtype"])
    if not 0 <= begin <= end <= size - data:
        raise bad_source(file, f"tensor {name} reaches past the end of the file (truncated download?)")
    if dtype in DTYPES and end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise bad_source(file, f"tensor {name} of shape {list(shape)} and dtype {dtype} has {end - begin} bytes")
    return StoredTensor(file, dtype, shape, data + begin, data + end)
