"""Checking a whole artifact: structure, bindings, values, digest (artifact spec, sections 5.5, 9.3, 12.4 and 15)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ninfer.artifact.binder import SELECTABLE, bind
from ninfer.artifact.container import Artifact, read_header
from ninfer.artifact.directory import StoredObject, TensorObject, WholeObject
from ninfer.artifact.draft_head import public_tokens
from ninfer.artifact.inspection import inspect
from ninfer.artifact.inventories import legacy_tensors
from ninfer.artifact.legacy import COPY_BYTES, LegacyArtifact
from ninfer.artifact.published import PUBLISHED
from ninfer.artifact.upgrade import check_inventory, find_profile
from ninfer.artifact.values import token_id_faults, value_faults
from ninfer.errors import ArtifactError

# Called with (bytes done, bytes in all).
Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Report nothing."""


def verify(path: str, *, values: bool = False, progress: Progress = no_progress) -> list[str]:
    """Open and bind everything in the artifact.

    values    also look at every stored value
    returns   faults of values, empty if there are none or `values` is off
    Raises ArtifactError for faults of structure, with the codes of section 15.
    """
    with Path(path).open("rb") as file:
        version = read_header(file, file.seek(0, 2), path).version
    if version == 3:
        with Artifact.open(path) as artifact:
            _bind_all(artifact)
            return list(_artifact_faults(artifact, progress)) if values else []
    with LegacyArtifact.open(path) as old:
        tensors = legacy_tensors(find_profile(old.directory, path))
        check_inventory(old.directory, tensors, path)
        if not values:
            return []
        return list(_faults(old.directory.objects, lambda stored: old.read(stored.offset, stored.bytes), progress))


def _bind_all(artifact: Artifact) -> None:
    directory = artifact.directory
    for stored in directory.objects:
        artifact.find(stored.id)
    offset = 0
    for record in directory.files:
        # One byte of every continuation, so that its header and length are checked.
        artifact.read(offset, min(1, record.payload_bytes))
        offset += record.payload_bytes
    present = [name for name in SELECTABLE if name in directory.components]
    if directory.components["text"].proposal is not None:
        present.append("proposal")
    bind(artifact, present)


def _artifact_faults(artifact: Artifact, progress: Progress) -> Iterator[str]:
    objects = artifact.directory.objects
    yield from _faults(objects, lambda stored: artifact.object_bytes(stored.id), progress)
    binding = artifact.directory.bindings.get("proposal/token_ids")
    if isinstance(binding, WholeObject):
        tokenizer, config = (artifact.resource("text", role) for role in ("tokenizer.json", "tokenizer_config.json"))
        count = public_tokens(tokenizer, config, artifact.path).count
        yield from (
            f"{artifact.path}: parameter 'proposal/token_ids': {fault}"
            for fault in token_id_faults(artifact.tensor(binding.object), count)
        )


def _faults(
    objects: tuple[StoredObject, ...], read: Callable[[StoredObject], bytes | memoryview], progress: Progress
) -> Iterator[str]:
    total = sum(stored.bytes for stored in objects)
    done = 0
    for stored in objects:
        if isinstance(stored, TensorObject):
            for fault in value_faults(read(stored), stored.format, stored.shape):
                yield f"object {stored.id!r}: {fault}"
        done += stored.bytes
        progress(done, total)


def check_digest(path: str, *, progress: Progress = no_progress) -> tuple[str, bool]:
    """The SHA-256 of the entry file, and whether a published file was there to compare with (9.3).

    Raises ArtifactError WRONG_DIGEST when the identity is published with other bytes.
    """
    listing = inspect(path)
    digest = _digest(path, progress)
    key = (listing.name, listing.weights_id, listing.version, listing.objects)
    for known in PUBLISHED:
        if (known.model_id, known.weights_id, known.version, known.objects) == key:
            if digest != known.sha256:
                raise ArtifactError(
                    "WRONG_DIGEST",
                    path,
                    f"SHA-256 is {digest}, the published {known.model_id} {known.weights_id} has {known.sha256}",
                )
            return digest, True
    return digest, False


def _digest(path: str, progress: Progress) -> str:
    digest = hashlib.sha256()
    file_path = Path(path)
    total = file_path.stat().st_size
    done = 0
    with file_path.open("rb") as file:
        while block := file.read(COPY_BYTES):
            digest.update(block)
            done += len(block)
            progress(done, total)
    return digest.hexdigest()
