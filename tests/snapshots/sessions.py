"""Small sessions to save, and the bytes of their files put together by hand."""

from __future__ import annotations

import random
import struct
import zlib
from array import array
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ninfer.snapshots.format import KV_FORMATS, Session, Snapshot, SnapshotConfig, StoredImage
from ninfer.snapshots.reader import Limits, read_snapshot

VOCABULARY = 4096
PIECE = 16 * 1024 * 1024
CONFIG = SnapshotConfig(
    "tiny", "tiny-1", "bf16", "0123456789abcdef" * 2, *KV_FORMATS["bf16"], 3, 24, 40, 4, 128
)  # fmt: skip
LIMITS = Limits(max_context_tokens=1024, vocabulary=VOCABULARY, turn_checkpoints=64)


def view(seed: int, size: int) -> memoryview:
    return memoryview(random.Random(seed).randbytes(size))


def snapshot(
    tokens: int = 130,
    *,
    behind: int = 1,
    checkpoint: int | None = 64,
    ring: tuple[int, ...] = (),
    seed: int = 0,
    config: SnapshotConfig = CONFIG,
) -> Snapshot:
    """A session of `tokens` tokens of which the last `behind` have not been run."""
    execution = tokens - behind
    draw = random.Random(seed)

    def image(frontier: int) -> StoredImage:
        return frontier, view(seed * 1000 + frontier, config.image_bytes)

    return Snapshot(
        config=config,
        session=Session(tokens, execution, execution // 64 * 64, execution),
        ledger=array("i", [draw.randrange(VOCABULARY) for _ in range(tokens)]),
        state=view(seed + 1, config.image_bytes),
        checkpoint=None if checkpoint is None else image(checkpoint),
        pages=view(seed + 2, -(-execution // 64) * config.text_page_bytes),
        ring=tuple(image(frontier) for frontier in ring),
    )


# What a file says where the session does not: names as in the contract, section 15.4.
DEFAULTS: dict[str, Any] = {
    "magic": b"NINFSES1",
    "binding": b"tiny\ntiny-1\nbf16\n0123456789abcdef0123456789abcdef",
    "kv_dtype": 0,
    "quant_group": 0,
    "kv_flags": 0,
    "spec_backend": 0,
    "draft_window": 0,
    "page_size": 64,
    "gdn_layers": 3,
    "conv_slot_bytes": 24,
    "recurrent_slot_bytes": 40,
    "tail_hidden_bytes": 0,
    "draft_slot_bytes": 0,
    "text_planes": 4,
    "text_page_bytes": 128,
    "backend_planes": 0,
    "backend_page_bytes": 0,
    "backend_kv_valid": 0,
    "rope_delta": 0,
    "tail_hidden_valid": 0,
    "backend_pages": 0,
    "media_count": 0,
    "end": b"NINFSEND",
}


def file_bytes(session: Snapshot, changes: Mapping[str, Any] | None = None) -> bytes:
    """The file of a session, written out section by section, independently of the package; checksums fit what is in it.

    changes  fields that are to say something else
    """
    count, ring = len(session.ledger), session.ring
    said: dict[str, Any] = {
        **DEFAULTS,
        "version": 2 if ring else 1,
        "tokens": session.session.tokens,
        "execution_frontier": session.session.execution_frontier,
        "state_frontier": session.session.state_frontier,
        "ledger_frontier": count,
        "text_kv_valid": session.session.text_kv_valid,
        "checkpoint_valid": 0 if session.checkpoint is None else 1,
        "checkpoint_frontier": 0 if session.checkpoint is None else session.checkpoint[0],
        "text_pages": len(session.pages) // 128,
        "ledger_count": count,
        "ledger": list(session.ledger),
        "types_count": count,
        "types": [0] * count,
        "axis0_count": count,
        "axis0": list(range(count)),
        "axis1_count": count,
        "axis1": list(range(count)),
        "axis2_count": count,
        "axis2": list(range(count)),
        "ring_count": len(ring),
        "ring_frontiers": [frontier for frontier, _ in ring],
    }
    wrong = set(changes or {}) - set(said) - {"binding_length", "checksum_count", "checksums"}
    assert not wrong, wrong
    said.update(changes or {})
    raw: bytes = said["magic"] + struct.pack("<I", said["version"])
    raw += struct.pack("<I", said.get("binding_length", len(said["binding"]))) + said["binding"]
    for kind, names in (
        ("I", ("kv_dtype",)), ("i", ("quant_group",)),
        ("I", ("kv_flags", "spec_backend", "draft_window", "page_size", "gdn_layers")),
        ("Q", ("conv_slot_bytes", "recurrent_slot_bytes", "tail_hidden_bytes", "draft_slot_bytes")),
        ("I", ("text_planes",)), ("Q", ("text_page_bytes",)),
        ("I", ("backend_planes",)), ("Q", ("backend_page_bytes",)),
        ("I", ("tokens", "execution_frontier", "state_frontier")),
        ("I", ("ledger_frontier", "text_kv_valid", "backend_kv_valid")),
        ("i", ("rope_delta",)), ("B", ("tail_hidden_valid", "checkpoint_valid")),
        ("I", ("checkpoint_frontier", "text_pages", "backend_pages")),
    ):  # fmt: skip
        for name in names:
            raw += struct.pack("<" + kind, said[name])
    for name, kind in (("ledger", "i"), ("types", "B"), ("axis0", "i"), ("axis1", "i"), ("axis2", "i")):
        raw += struct.pack("<Q", said[f"{name}_count"]) + struct.pack(f"<{count}{kind}", *said[name])
    raw += struct.pack("<I", said["media_count"])
    raw += bytes(session.state) + (bytes(session.checkpoint[1]) if session.checkpoint else b"") + bytes(session.pages)
    if said["version"] == 2:
        raw += struct.pack("<I", said["ring_count"])
        for frontier, (_, image) in zip(said["ring_frontiers"], ring, strict=True):
            raw += struct.pack("<I", frontier) + bytes(image)
    sums = [zlib.crc32(raw[begin : begin + PIECE]) for begin in range(0, len(raw), PIECE)]
    raw += struct.pack(f"<{len(sums)}I", *said.get("checksums", sums))
    raw += struct.pack("<I", said.get("checksum_count", len(sums))) + said["end"]
    return raw


def read(folder: Path, **limits: int) -> Snapshot:
    return read_snapshot(folder, "a.bin", CONFIG, replace(LIMITS, **limits))
