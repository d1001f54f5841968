"""What an artifact says about itself, without reading its payload (artifact spec, sections 9.1, 9.4 and 12.4).

Works for every container version and for files with formats that cannot be run. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ninfer.artifact.container import Artifact, read_header
from ninfer.artifact.directory import Binding, Directory, ResourceObject, StoredObject, TensorObject, WholeObject
from ninfer.artifact.legacy import LegacyArtifact, LegacyDirectory

# The first format that a bound text parameter has names the representation (9.1).
_REPRESENTATIONS = (
    ("nvfp4", ("nvfp4",)),
    ("fp8", ("fp8_e4m3fn_row_bf16",)),
    ("ternary", ("t2_g128_fp16",)),
    ("groupwise-int", ("q4_g64_fp16", "q5_g64_fp16", "q6_g64_fp16", "q8_g32_fp16")),
)


@dataclass(frozen=True, slots=True)
class Share:
    """How many tensors, and how many encoded bytes they have."""

    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """The listing of one artifact.

    artifact_id   32 hex digits, or None before version 3
    name          public model name, or None
    target, weights_id    labels of 9.1; they select nothing
    components    encoded tensor bytes by component; `draft_head` is the proposal's
    files         name and payload bytes of every file of the set
    """

    path: str
    version: int
    artifact_id: str | None
    json_bytes: int
    payload_offset: int
    name: str | None
    target: str
    weights_id: str
    objects: int
    resources: Mapping[str, int]
    formats: Mapping[str, Share]
    components: Mapping[str, Share]
    files: tuple[tuple[str, int], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"files": [{"name": name, "payload_bytes": size} for name, size in self.files]}


def inspect(path: str) -> Inspection:
    """List the artifact at `path`; raises ArtifactError as for opening it, OSError where it cannot be read."""
    with Path(path).open("rb") as file:
        header = read_header(file, file.seek(0, 2), path)
    if header.version == 3:
        with Artifact.open(path) as artifact:
            directory = artifact.directory
            identity = artifact.artifact_id
        name = directory.metadata.get("name") if directory.metadata is not None else None
        target, weights_id = labels(directory)
        objects, components = directory.objects, component_shares(directory)
        files = tuple((record.path or Path(path).name, record.payload_bytes) for record in directory.files)
    else:
        with LegacyArtifact.open(path) as old:
            listed = old.directory
            files = ((Path(path).name, old.file_bytes - header.payload_offset),)
        identity, name, objects = None, listed.model_id, listed.objects
        target, weights_id = _slug(listed.model_id), listed.weights_id or "groupwise-int"
        components = _shares_by(objects, _legacy_owners(listed))
    tensors = [stored for stored in objects if isinstance(stored, TensorObject)]
    return Inspection(
        path=path,
        version=header.version,
        artifact_id=identity,
        json_bytes=header.json_bytes,
        payload_offset=header.payload_offset,
        name=name,
        target=target,
        weights_id=weights_id,
        objects=len(objects),
        resources={stored.id: stored.bytes for stored in objects if isinstance(stored, ResourceObject)},
        formats=_shares((stored.format, stored.bytes) for stored in tensors),
        components=components,
        files=files,
    )


def component_shares(directory: Directory) -> dict[str, Share]:
    """Tensors and encoded bytes by component (9.4); `draft_head` is the proposal's, `unbound` is nobody's."""
    return _shares_by(directory.objects, _owners(directory))


def labels(directory: Directory) -> tuple[str, str]:
    """(target, weights_id) of a version 3 artifact, for logs and file names (9.1)."""
    name = (directory.metadata or {}).get("name", directory.components["text"].config.get("model_type"))
    stored = {item.id: item for item in directory.objects}
    formats = set()
    for parameter, binding in directory.bindings.items():
        if parameter.startswith("text/"):
            formats |= {item.format for id in objects_of(binding) if isinstance(item := stored[id], TensorObject)}
    weights_id = next((label for label, members in _REPRESENTATIONS if formats & {*members}), "bf16")
    return _slug(name) if isinstance(name, str) else "unknown", weights_id


def objects_of(binding: Binding) -> list[str]:
    """Ids of the tensor objects that a binding refers to."""
    return [binding.object] if isinstance(binding, WholeObject) else [part.object for part in binding.parts]


def _slug(name: str) -> str:
    return re.sub("[^a-z0-9]+", "_", name)


def _owners(directory: Directory) -> dict[str, str]:
    """Object id -> component of the first parameter that is bound to it, or whose use it helps."""
    owners: dict[str, str] = {}
    for parameter, binding in directory.bindings.items():
        for id in objects_of(binding):
            owners.setdefault(id, _component(parameter))
    for use in directory.uses:
        for binding in use.auxiliaries.values():
            for id in objects_of(binding):
                owners.setdefault(id, _component(use.parameter))
    return owners


def _legacy_owners(directory: LegacyDirectory) -> dict[str, str]:
    def component(stored: StoredObject) -> str:
        return "draft_head" if stored.id.startswith("text/draft_head") else _component(stored.id)

    return {stored.id: component(stored) for stored in directory.objects}


def _component(parameter: str) -> str:
    component = parameter.partition("/")[0]
    return "draft_head" if component == "proposal" else component


def _shares_by(objects: tuple[StoredObject, ...], owners: Mapping[str, str]) -> dict[str, Share]:
    tensors = (stored for stored in objects if isinstance(stored, TensorObject))
    return _shares((owners.get(stored.id, "unbound"), stored.bytes) for stored in tensors)


def _shares(items: Iterable[tuple[str, int]]) -> dict[str, Share]:
    shares: dict[str, Share] = {}
    for key, size in items:
        share = shares.get(key, Share(0, 0))
        shares[key] = Share(share.tensors + 1, share.bytes + size)
    return shares


def report(listing: Inspection) -> str:
    """The listing for a terminal."""
    lines = [
        f"{listing.path}: container version {listing.version}",
        f"  name        {listing.name if listing.name is not None else '(none)'}",
        f"  labels      {listing.target}, {listing.weights_id}",
        f"  artifact    {listing.artifact_id or '(no id before version 3)'}",
        f"  directory   {listing.json_bytes:,} bytes of JSON, payload from {listing.payload_offset:,}",
        f"  objects     {listing.objects:,}",
    ]
    for title, shares in (("formats", listing.formats), ("components", listing.components)):
        lines.append(f"  {title}")
        lines += [
            f"    {name:<22} {share.tensors:>6,} tensors {share.bytes:>18,} bytes" for name, share in shares.items()
        ]
    lines.append("  resources")
    lines += [f"    {id:<44} {size:>12,} bytes" for id, size in listing.resources.items()]
    lines.append("  files")
    lines += [f"    {name:<44} {size:>18,} payload bytes" for name, size in listing.files]
    return "\n".join(lines)
