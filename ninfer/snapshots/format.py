"""Layout of a slot file, versions 1 and 2 (serving spec, 15.4). Pure: bytes in, values out.

    magic, version | binding | configuration | session | identity | state | KV pages | ring (version 2) | checksums

Everything is little-endian and packed. What stands before the state follows from the number of tokens, and the rest
from the configuration, the number of pages and the number of ring entries; so a header tells how long its file must be.

This server keeps sessions of text, without hidden rows, and writes what that leaves of each section: token types 0,
three equal position axes, no media, hidden rows of no bytes. What a drafter has of a token lies in the same page as
what the model has, so there are no backend pages; a file fits every window of guesses.
"""

from __future__ import annotations

import struct
import sys
from array import array
from dataclasses import dataclass, field

from ninfer.snapshots.digest import id_bytes
from ninfer.step import PAGE_TOKENS

MAGIC = b"NINFSES1"
END = b"NINFSEND"
PLAIN, WITH_RING = 1, 2
MAX_BINDING_BYTES = 4096
MAX_RING_ENTRIES = 64
PIECE_BYTES = 16 << 20

PREFIX = struct.Struct("<8sII")  # magic, version, length of the binding
CONFIG = struct.Struct("<IiIIIIIQQQQIQIQ")
CONFIG_FIELDS = (
    "kv_dtype", "quant_group", "kv_flags", "spec_backend", "draft_window", "page_size", "gdn_layers", "conv_slot_bytes",
    "recurrent_slot_bytes", "tail_hidden_bytes", "draft_slot_bytes", "text_planes", "text_page_bytes", "backend_planes",
    "backend_page_bytes",
)  # fmt: skip
SESSION = struct.Struct("<IIIIIIiBBIII")
SESSION_FIELDS = (
    "tokens", "execution_frontier", "state_frontier", "ledger_frontier", "text_kv_valid", "backend_kv_valid",
    "rope_delta", "tail_hidden_valid", "checkpoint_valid", "checkpoint_frontier", "text_pages", "backend_pages",
)  # fmt: skip
COUNT = struct.Struct("<Q")
WORD = struct.Struct("<I")
POSITION_AXES = 3

# (kv_dtype, quant_group, kv_flags) of a `--kv-dtype`. The numbers and the bits are those of 15.4, the key groups,
# rotations and packings those of the kv-and-state spec, section 2. `fp32` is not in the contract and serves reference
# runs only.
KV_FORMATS = {
    "bf16": (0, 0, 0b000000),
    "int8": (1, 64, 0b000010),
    "fp8": (2, 256, 0b000010),
    "rk8v4": (3, 64, 0b000011),
    "rk4v4": (4, 64, 0b001011),
    "nvfp4": (5, 16, 0b001111),
    "k8v4": (6, 256, 0b000111),
    "rk4v4-e8": (7, 64, 0b011111),
    "rk2v4-e8": (8, 64, 0b101111),
    "fp32": (255, 0, 0b000000),
}

# `spec_backend` of a drafter (15.4).
DRAFTERS = {None: 0, "mtp": 1}

# An image or its place in a file, with the number of tokens that it is the state behind.
StoredImage = tuple[int, memoryview]


@dataclass(frozen=True, slots=True)
class SnapshotConfig:
    """What a server must have in common with a slot file: the model, the cache format, the sizes.

    target, model_id, weights_id   derived labels (artifact spec, 9.1)
    artifact_id                    32 hexadecimal digits
    kv_dtype, quant_group, kv_flags   of :data:`KV_FORMATS`
    gdn_layers                     gated DeltaNet layers
    conv_slot_bytes                convolution columns of one sequence, all layers
    recurrent_slot_bytes           recurrent states of one sequence, all layers
    text_planes                    planes of the page pool, all attention layers
    text_page_bytes                one page group: 64 tokens of all planes
    spec_backend                   of :data:`DRAFTERS`; the planes of a drafter are among the others
    """

    target: str
    model_id: str
    weights_id: str
    artifact_id: str
    kv_dtype: int
    quant_group: int
    kv_flags: int
    gdn_layers: int
    conv_slot_bytes: int
    recurrent_slot_bytes: int
    text_planes: int
    text_page_bytes: int
    spec_backend: int = 0

    @property
    def image_bytes(self) -> int:
        """One state image: convolution of all layers, then recurrent states of all layers."""
        return self.conv_slot_bytes + self.recurrent_slot_bytes

    def binding(self) -> bytes:
        """Section 3 without its length. The artifact's id alone tells two servers apart; the labels are for people."""
        return "\n".join((self.target, self.model_id, self.weights_id, self.artifact_id)).encode()

    def fields(self) -> dict[str, int]:
        """Section 4 by name, in the order of the file."""
        return {
            "kv_dtype": self.kv_dtype,
            "quant_group": self.quant_group,
            "kv_flags": self.kv_flags,
            "spec_backend": self.spec_backend,
            "draft_window": 0,
            "page_size": PAGE_TOKENS,
            "gdn_layers": self.gdn_layers,
            "conv_slot_bytes": self.conv_slot_bytes,
            "recurrent_slot_bytes": self.recurrent_slot_bytes,
            "tail_hidden_bytes": 0,
            "draft_slot_bytes": 0,
            "text_planes": self.text_planes,
            "text_page_bytes": self.text_page_bytes,
            "backend_planes": 0,
            "backend_page_bytes": 0,
        }


@dataclass(frozen=True, slots=True)
class Session:
    """How far a session has come, in tokens.

    tokens              length of the ledger
    execution_frontier  tokens that the attention cache and the state have taken in: `tokens` or one less
    state_frontier      block start that the state image is the state of, less than a block below; a restore runs the
                        tokens between again (kv-and-state spec, 9.4)
    text_kv_valid       tokens that the pages cover: at least `state_frontier`, at most `execution_frontier`
    """

    tokens: int
    execution_frontier: int
    state_frontier: int
    text_kv_valid: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session outside a lane. All views are of bytes (`B`, contiguous); those of a file that was read are
    writable and belong to whoever asked for it.

    ledger      [tokens] token ids, typecode `i`
    state       [image_bytes] of the state frontier
    checkpoint  the turn checkpoint, if one is held
    pages       [n text_page_bytes] page groups in logical order
    ring        turn checkpoints, frontiers ascending, at most 64
    file_bytes  size of the file this was read from; 0 if it was not read from one
    """

    config: SnapshotConfig
    session: Session
    ledger: array[int]
    state: memoryview
    checkpoint: StoredImage | None
    pages: memoryview
    ring: tuple[StoredImage, ...] = ()
    file_bytes: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets of the sections in a file. `ring` is where a ring stands or would stand."""

    state: int
    checkpoint: int
    pages: int
    ring: int
    checksums: int
    file_bytes: int


def layout_of(config: SnapshotConfig, tokens: int, *, checkpoint: bool, pages: int, ring_entries: int | None) -> Layout:
    """Where everything stands. `ring_entries` is None for a file of version 1, which has no ring section."""
    state = session_offset(config) + SESSION.size + identity_bytes(tokens)
    held = state + config.image_bytes
    kv = held + (config.image_bytes if checkpoint else 0)
    ring = kv + pages * config.text_page_bytes
    ring_bytes = 0 if ring_entries is None else WORD.size + ring_entries * (WORD.size + config.image_bytes)
    checksums = ring + ring_bytes
    end = checksums + piece_count(checksums) * WORD.size + WORD.size + len(END)
    return Layout(state, held, kv, ring, checksums, end)


def session_offset(config: SnapshotConfig) -> int:
    """Where section 5 begins in a file with this binding."""
    return PREFIX.size + len(config.binding()) + CONFIG.size


def identity_bytes(tokens: int) -> int:
    """Size of section 6 of a session of text."""
    ledger_and_axes = (1 + POSITION_AXES) * (COUNT.size + 4 * tokens)
    return ledger_and_axes + COUNT.size + tokens + WORD.size


def piece_count(size: int) -> int:
    """Number of pieces that carry a checksum each; the last may be short."""
    return -(-size // PIECE_BYTES)


def encode_header(config: SnapshotConfig, version: int, session: dict[str, int], ledger: array[int]) -> bytes:
    """Sections 1 to 6. `session` holds :data:`SESSION_FIELDS` in the order of the file."""
    binding = config.binding()
    tokens = len(ledger)
    count = COUNT.pack(tokens)
    axis = count + id_bytes(range(tokens))
    return b"".join(
        (
            PREFIX.pack(MAGIC, version, len(binding)),
            binding,
            CONFIG.pack(*config.fields().values()),
            SESSION.pack(*session.values()),
            count,
            id_bytes(ledger),
            count,
            bytes(tokens),
            *(axis,) * POSITION_AXES,
            WORD.pack(0),
        )
    )


def decode_ids(raw: bytes | memoryview) -> array[int]:
    """The ids of :func:`ninfer.snapshots.digest.id_bytes`."""
    ids = array("i")
    ids.frombytes(raw)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
