"""Rewriting old artifacts: version 1 to 2 in place, versions 1 and 2 to a new version 3 set.

Artifact spec, section 14. Runs on the Python standard library alone. Payloads are copied, never decoded.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ninfer.artifact.directory import (
    Binding,
    Component,
    Directory,
    Part,
    Parts,
    Proposal,
    ResourceObject,
    StoredObject,
    TensorObject,
    Use,
    WholeObject,
)
from ninfer.artifact.fileset import FileSetWriter, refuse_existing
from ninfer.artifact.formats import RAW_BYTES, TENSOR_ALIGNMENT, up
from ninfer.artifact.inventories import FRONTEND, LegacyTensor, legacy_tensors
from ninfer.artifact.legacy import LegacyArtifact, LegacyDirectory, legacy_metadata, place_legacy
from ninfer.artifact.native import DIVISOR_ROLE, TEXT_ROLES, VISION_ROLES
from ninfer.artifact.parameters import LogicalParameter, logical_parameters
from ninfer.artifact.placement import DEFAULT_MAX_FILE_BYTES, lay_out
from ninfer.artifact.profiles import PROFILES, Profile
from ninfer.artifact.published import FRONTEND_BYTES, PUBLISHED
from ninfer.artifact.recipes import DEFAULT_POLICY, POLICIES
from ninfer.errors import ArtifactError

V1_WEIGHTS_ID = "groupwise-int"
BACKUP_SUFFIX = ".v1-metadata-backup"
FIRST_JSON_RESERVE = 4064
TEMPLATE = "frontend/chat_template.jinja"

# Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


def find_profile(directory: LegacyDirectory, path: str, profiles: Sequence[Profile] = PROFILES) -> Profile:
    """The registered profile an old directory claims to be, by identity and object count.

    Raises ArtifactError BAD_IDENTITY.
    """
    weights_id = V1_WEIGHTS_ID if directory.weights_id is None else directory.weights_id
    named = [
        profile for profile in profiles if (profile.model_id, profile.weights_id) == (directory.model_id, weights_id)
    ]
    if not named:
        raise ArtifactError("BAD_IDENTITY", path, f"({directory.model_id!r}, {weights_id!r}) is not registered")
    counts = {len(legacy_tensors(profile)) + len(FRONTEND): profile for profile in named}
    if len(directory.objects) not in counts:
        raise ArtifactError(
            "BAD_IDENTITY",
            path,
            f"({directory.model_id!r}, {weights_id!r}) has {len(directory.objects)} objects, expected {sorted(counts)}",
        )
    return counts[len(directory.objects)]


def check_inventory(directory: LegacyDirectory, tensors: Sequence[LegacyTensor], path: str) -> None:
    """Raise ArtifactError BAD_INVENTORY unless the file holds exactly the planned objects, in any order."""
    expected = {tensor.name: tensor for tensor in tensors}
    found = {stored.id: stored for stored in directory.objects}
    missing = [name for name in (*FRONTEND, *expected) if name not in found]
    extra = [name for name in found if name not in expected and name not in FRONTEND]
    if missing or extra:
        raise ArtifactError("BAD_INVENTORY", path, f"missing objects {missing[:5]}, unexpected objects {extra[:5]}")
    for name, stored in found.items():
        if isinstance(stored, ResourceObject) != (name in FRONTEND):
            raise ArtifactError("BAD_INVENTORY", path, f"object {name!r} is of the wrong kind")
        if isinstance(stored, TensorObject):
            tensor = expected[name]
            if (stored.shape, stored.format) != (tensor.shape, tensor.format):
                raise ArtifactError(
                    "BAD_INVENTORY",
                    path,
                    f"object {name!r} is {list(stored.shape)} {stored.format}, "
                    f"expected {list(tensor.shape)} {tensor.format}",
                )


def upgraded_directory(old: LegacyDirectory, profile: Profile, template_bytes: int | None = None) -> Directory:
    """The version 3 directory of a checked old one, without files; offsets and lengths are those of the old payload.

    template_bytes   length of a chat template that is appended to the payload, or None to keep the stored one
    """
    tensors = {tensor.name: tensor for tensor in legacy_tensors(profile)}
    objects: list[StoredObject] = list(old.objects)
    if template_bytes is not None:
        objects = [stored for stored in objects if stored.id != TEMPLATE]
        objects.append(ResourceObject(TEMPLATE, RAW_BYTES, up(old.span, TENSOR_ALIGNMENT), template_bytes))
    parameters = {item.name: item for item in logical_parameters(profile.components)}
    aliases: dict[str, list[str]] = {}
    for item in parameters.values():
        if item.alias_of is not None:
            aliases.setdefault(item.alias_of, []).append(item.name)
    stored_tensors = [stored for stored in old.objects if isinstance(stored, TensorObject)]
    bindings: dict[str, Binding] = {}
    formats: dict[str, str] = {}
    for stored in stored_tensors:
        tensor = tensors[stored.id]
        if not tensor.divisor:
            for name, binding in _bindings(tensor, parameters):
                for shared in (name, *aliases.get(name, ())):
                    bindings[shared] = binding
                    formats[shared] = stored.format
    divisors = {
        member: WholeObject(tensor.name) for tensor in tensors.values() if tensor.divisor for member in tensor.members
    }
    assert len(bindings) == len(parameters), "every parameter is in one object, or an alias of one that is"
    return Directory(
        components=_components(profile),
        objects=tuple(objects),
        bindings=bindings,
        uses=tuple(_uses(bindings, formats, parameters, divisors)),
        files=(),
        metadata={"name": old.model_id},
        provenance={
            "upgraded_from": {
                "version": old.version,
                "model_id": old.model_id,
                "weights_id": V1_WEIGHTS_ID if old.weights_id is None else old.weights_id,
            }
        },
    )


def _bindings(tensor: LegacyTensor, parameters: Mapping[str, LogicalParameter]) -> Iterator[tuple[str, Binding]]:
    whole = len(tensor.members) == 1
    begin = 0
    for member in tensor.members:
        end = begin + parameters[member].elements
        yield member, WholeObject(tensor.name) if whole else Parts((Part(tensor.name, begin, end),))
        begin = end
    assert begin == math.prod(tensor.shape)


def _uses(
    bindings: Mapping[str, Binding],
    formats: Mapping[str, str],
    parameters: Mapping[str, LogicalParameter],
    divisors: Mapping[str, Binding],
) -> Iterator[Use]:
    for name in bindings:
        policy = POLICIES.get(formats[name], DEFAULT_POLICY)
        auxiliaries = {DIVISOR_ROLE: divisors[name]} if name in divisors else {}
        for input in parameters[name].inputs:
            yield Use(name, input, policy, auxiliaries)


def _components(profile: Profile) -> dict[str, Component]:
    parts = profile.components
    rows = parts.proposal_rows
    assert parts.vision is not None
    assert parts.mtp is not None
    components = {
        "text": Component(
            parts.text.to_json(),
            resources={role: f"frontend/{role}" for role in TEXT_ROLES},
            proposal=None if rows is None else Proposal("indexed", rows),
        ),
        "vision": Component(parts.vision.to_json(), "text", {role: f"frontend/{role}" for role in VISION_ROLES}),
        "mtp": Component(parts.mtp.to_json(), "text"),
    }
    return components | {name: Component(draft.to_json(), "text") for name, draft in parts.drafts.items()}


def _check_divisors(artifact: LegacyArtifact, tensors: Sequence[LegacyTensor]) -> None:
    divisors = {tensor.name for tensor in tensors if tensor.divisor}
    for stored in artifact.directory.objects:
        if stored.id in divisors:
            (value,) = struct.unpack("<f", artifact.read(stored.offset, 4))
            if not (math.isfinite(value) and value > 0):
                raise ArtifactError("BAD_AUXILIARY", artifact.path, f"object {stored.id!r}: divisor {value}")


def upgrade(
    old_path: str,
    new_path: str,
    *,
    chat_template: bytes | None = None,
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
    profiles: Sequence[Profile] = PROFILES,
    progress: Progress = no_progress,
) -> None:
    """Write a new version 3 set with the payload of a registered version 1 or 2 file.

    chat_template   replaces the stored template; it is appended and the old bytes stay unreferenced
    Raises ArtifactError SAME_PATH, OUTPUT_EXISTS, BAD_IDENTITY, BAD_INVENTORY, BAD_AUXILIARY, and those of opening.
    """
    if os.path.realpath(old_path) == os.path.realpath(new_path):
        raise ArtifactError("SAME_PATH", new_path, "input and output are the same file")
    with LegacyArtifact.open(old_path) as artifact:
        old = artifact.directory
        profile = find_profile(old, old_path, profiles)
        tensors = legacy_tensors(profile)
        check_inventory(old, tensors, old_path)
        _check_divisors(artifact, tensors)
        directory = upgraded_directory(old, profile, None if chat_template is None else len(chat_template))
        layout = lay_out(directory, Path(new_path).name, max_file_bytes, reserve=FIRST_JSON_RESERVE)
        with FileSetWriter(new_path, layout, uuid.uuid4().bytes) as files:
            for offset, data in artifact.chunks(0, old.span):
                files.write(offset, memoryview(data))
                progress(offset + len(data), old.span)
            if chat_template is not None:
                files.write(layout.directory.objects[-1].offset, memoryview(chat_template))
            files.publish()


@dataclass(frozen=True, slots=True)
class KnownFile:
    """A version 1 file that may be changed in place: its planned directory and its digests."""

    directory: LegacyDirectory
    directory_sha256: str
    file_sha256: str

    def as_version_2(self) -> LegacyDirectory:
        return replace(self.directory, version=2, weights_id=V1_WEIGHTS_ID)


@cache
def known_version_1_files() -> tuple[KnownFile, ...]:
    """The two published version 1 files."""
    files = []
    for published in PUBLISHED:
        if published.version == 1:
            key = (published.model_id, published.weights_id)
            profile = next(item for item in PROFILES if (item.model_id, item.weights_id) == key)
            lengths = FRONTEND_BYTES[profile.target]
            directory = place_legacy(1, profile.model_id, None, legacy_tensors(profile), lengths)
            files.append(KnownFile(directory, published.directory_sha256, published.sha256))
    return tuple(files)


def upgrade_in_place(path: str, known: Sequence[KnownFile], *, progress: Progress = no_progress) -> bool:
    """Turn a known version 1 file into version 2 by rewriting what is in front of its payload.

    An interrupted run is taken back from its backup first.
    returns   whether the file was changed; a known version 2 file is left as it is
    Raises ArtifactError BAD_IDENTITY, BAD_INVENTORY, and those of opening.
    """
    backup = Path(path + BACKUP_SUFFIX)
    if backup.exists():
        if _is_version_2(path, known):
            backup.unlink()
            return False
        _overwrite(path, 0, _checked_backup(backup, known))
        backup.unlink()
    if _is_version_2(path, known):
        return False
    with LegacyArtifact.open(path) as artifact:
        found = _known_file(artifact, known, progress)
        old_metadata = artifact.metadata()
    metadata = legacy_metadata(found.as_version_2())
    if len(metadata) != len(old_metadata):
        raise ArtifactError("BAD_INVENTORY", path, f"payload would move from {len(old_metadata)} to {len(metadata)}")
    _save(backup, old_metadata)
    # The header goes last: until then the file still says version 1 and the backup restores it.
    _overwrite(path, 16, metadata[16:])
    _overwrite(path, 0, metadata[:16])
    if not _is_version_2(path, known):
        raise ArtifactError("BAD_INVENTORY", path, f"the rewritten file does not read back; {backup} restores it")
    backup.unlink()
    return True


def _checked_backup(backup: Path, known: Sequence[KnownFile]) -> bytes:
    """The saved metadata region; raises ArtifactError BAD_INVENTORY if it is not that of a known file."""
    content = backup.read_bytes()
    for file in known:
        expected = legacy_metadata(file.directory)
        if len(content) == len(expected) and content.startswith(expected.rstrip(b"\0")):
            return content
    raise ArtifactError("BAD_INVENTORY", str(backup), "this is no backup of a known file; move it away to go on")


def _is_version_2(path: str, known: Sequence[KnownFile]) -> bool:
    try:
        with LegacyArtifact.open(path) as artifact:
            return artifact.directory in [file.as_version_2() for file in known]
    except ArtifactError:
        # Whatever else it is, the caller goes on to say so.
        return False


def _known_file(artifact: LegacyArtifact, known: Sequence[KnownFile], progress: Progress) -> KnownFile:
    directory, path = artifact.directory, artifact.path
    if directory.version != 1:
        raise ArtifactError("BAD_IDENTITY", path, f"version {directory.version} is not a known file")
    named = [file for file in known if file.directory.model_id == directory.model_id]
    if not named or len(named[0].directory.objects) != len(directory.objects):
        raise ArtifactError(
            "BAD_IDENTITY", path, f"{directory.model_id!r} with {len(directory.objects)} objects is no published file"
        )
    file = named[0]
    for expected, found in zip(file.directory.objects, directory.objects, strict=True):
        if expected != found:
            raise ArtifactError("BAD_INVENTORY", path, f"object is {found}, expected {expected}")
    metadata, start = artifact.metadata(), artifact.header.payload_offset
    json_offset = artifact.header.json_offset
    digest = hashlib.sha256(metadata[json_offset : json_offset + artifact.header.json_bytes]).hexdigest()
    if digest != file.directory_sha256:
        raise ArtifactError("BAD_INVENTORY", path, f"directory digest {digest}, expected {file.directory_sha256}")
    if artifact.file_bytes != start + directory.span:
        raise ArtifactError(
            "BAD_INVENTORY", path, f"file has {artifact.file_bytes} bytes, expected {start + directory.span}"
        )
    whole = hashlib.sha256(metadata)
    for offset, data in artifact.chunks(0, directory.span):
        whole.update(data)
        progress(start + offset + len(data), artifact.file_bytes)
    if whole.hexdigest() != file.file_sha256:
        raise ArtifactError("BAD_INVENTORY", path, f"file digest {whole.hexdigest()}, expected {file.file_sha256}")
    return file


def _save(target: Path, content: bytes) -> None:
    """Write a file so that it is either whole or absent."""
    temporary = target.with_name(target.name + ".tmp")
    refuse_existing([target])
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(target)


def _overwrite(path: str, offset: int, content: bytes) -> None:
    with Path(path).open("r+b") as file:
        file.seek(offset)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
