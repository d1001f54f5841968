"""The root object of a version 3 file: its values, the checks of first use, and how it is written.

Artifact spec, sections 4.2, 4.4 to 4.8 and 15; :mod:`ninfer.artifact.parsing` reads it. What only matters when an
object is used (format, layout, encoding, size, alignment) is checked by :func:`check_object`, so that a listing can
show a file it could not run. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ninfer.artifact.formats import RAW_BYTES, TENSOR_ALIGNMENT, encoded_size
from ninfer.artifact.jsontext import dump
from ninfer.errors import ArtifactError


@dataclass(frozen=True, slots=True)
class TensorObject:
    """A stored tensor; `offset` and `bytes` are in the logical payload, names are those of version 3."""

    id: str
    shape: tuple[int, ...]
    format: str
    layout: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ResourceObject:
    """A stored byte string."""

    id: str
    encoding: str
    offset: int
    bytes: int


StoredObject = TensorObject | ResourceObject


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draft head of `text`: domain `indexed` with `rows`, or `full` with rows None."""

    domain: str
    rows: int | None


@dataclass(frozen=True, slots=True)
class Component:
    """config as parsed JSON; resources maps a role to the id of a resource object."""

    config: Mapping[str, Any]
    target: str | None = None
    resources: Mapping[str, str] = field(default_factory=dict)
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True)
class WholeObject:
    """A parameter that is a whole tensor object."""

    object: str


@dataclass(frozen=True, slots=True)
class Part:
    """Flat C-order elements [begin, end) of a tensor object."""

    object: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Parts:
    """A parameter that is the concatenation of `parts`."""

    parts: tuple[Part, ...]


Binding = WholeObject | Parts


@dataclass(frozen=True, slots=True)
class Use:
    """How `parameter` meets the input `input`; auxiliaries maps a role to a binding."""

    parameter: str
    input: str
    activation_policy: str | None = None
    auxiliaries: Mapping[str, Binding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of the set; path is None for the entry and a sibling's name for a continuation."""

    path: str | None
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Directory:
    """A checked version 3 root object; `objects` are ordered by offset and do not overlap."""

    components: Mapping[str, Component]
    objects: tuple[StoredObject, ...]
    bindings: Mapping[str, Binding]
    uses: tuple[Use, ...]
    files: tuple[FileRecord, ...]
    metadata: Mapping[str, Any] | None = None
    provenance: Mapping[str, Any] | None = None

    @property
    def payload_bytes(self) -> int:
        return sum(record.payload_bytes for record in self.files)


def check_object(stored: StoredObject, path: str) -> None:
    """The checks of first use: BAD_ENCODING, SIZE_MISMATCH, MISALIGNED, BAD_RESOURCE_ENCODING."""
    if isinstance(stored, ResourceObject):
        if stored.encoding != RAW_BYTES:
            raise ArtifactError("BAD_RESOURCE_ENCODING", path, f"object {stored.id!r}: encoding {stored.encoding!r}")
        return
    try:
        size = encoded_size(stored.format, stored.layout, stored.shape)
    except ArtifactError as error:
        raise ArtifactError(error.code, path, f"object {stored.id!r}: {error.detail}") from None
    if stored.bytes != size:
        raise ArtifactError("SIZE_MISMATCH", path, f"object {stored.id!r}: {stored.bytes} bytes, expected {size}")
    if stored.offset % TENSOR_ALIGNMENT:
        raise ArtifactError(
            "MISALIGNED", path, f"object {stored.id!r}: offset {stored.offset} is no multiple of {TENSOR_ALIGNMENT}"
        )


def _object_json(stored: StoredObject) -> dict[str, Any]:
    place = {"offset": stored.offset, "bytes": stored.bytes}
    if isinstance(stored, ResourceObject):
        return {"id": stored.id, "kind": "resource", "encoding": stored.encoding, **place}
    return {
        "id": stored.id,
        "kind": "tensor",
        "shape": list(stored.shape),
        "format": stored.format,
        "layout": stored.layout,
        **place,
    }


def _binding_json(binding: Binding) -> dict[str, Any]:
    if isinstance(binding, WholeObject):
        return {"object": binding.object}
    return {"parts": [{"object": part.object, "range": [part.begin, part.end]} for part in binding.parts]}


def _component_json(component: Component) -> dict[str, Any]:
    members: dict[str, Any] = {"config": component.config}
    if component.target is not None:
        members["target"] = component.target
    if component.resources:
        members["resources"] = dict(component.resources)
    if component.proposal is not None:
        proposal = component.proposal
        members["proposal"] = {"domain": proposal.domain}
        if proposal.rows is not None:
            members["proposal"]["rows"] = proposal.rows
    return members


def _use_json(use: Use) -> dict[str, Any]:
    members: dict[str, Any] = {"parameter": use.parameter, "input": use.input}
    if use.activation_policy is not None:
        members["activation_policy"] = use.activation_policy
    if use.auxiliaries:
        members["auxiliaries"] = {role: _binding_json(binding) for role, binding in use.auxiliaries.items()}
    return members


def to_json(directory: Directory) -> bytes:
    """Compact JSON text of a directory, members in the order of section 11.4."""
    root: dict[str, Any] = {
        "components": {name: _component_json(component) for name, component in directory.components.items()},
        "objects": [_object_json(stored) for stored in directory.objects],
        "bindings": {name: _binding_json(binding) for name, binding in directory.bindings.items()},
        "uses": [_use_json(use) for use in directory.uses],
    }
    if directory.metadata is not None:
        root["metadata"] = directory.metadata
    if directory.provenance is not None:
        root["provenance"] = directory.provenance
    root["files"] = [{"path": record.path, "payload_bytes": record.payload_bytes} for record in directory.files]
    return dump(root, "")
