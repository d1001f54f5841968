"""What is read is what was saved, and anything else is refused with its own words."""

from __future__ import annotations

import os
import struct
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer.errors import InvalidFilename, SlotRestoreFailed
from ninfer.snapshots.format import PIECE_BYTES, Snapshot, SnapshotConfig
from ninfer.snapshots.reader import peek_snapshot, read_snapshot
from ninfer.snapshots.writer import write_snapshot
from tests.snapshots.sessions import CONFIG, LIMITS, file_bytes, read, snapshot, view

RINGED = snapshot(400, checkpoint=320, ring=(64, 192, 384))


def refused(folder: Path, raw: bytes, **limits: int) -> str:
    (folder / "a.bin").write_bytes(raw)
    with pytest.raises(SlotRestoreFailed) as caught:
        read(folder, **limits)
    assert (caught.value.code, caught.value.http_status) == ("slot_restore_failed", 400)
    return caught.value.message


@pytest.mark.parametrize(
    "session",
    [snapshot(2, checkpoint=None), snapshot(64, behind=0), snapshot(65, checkpoint=0), snapshot(130), RINGED],
    ids=["tiny", "whole", "empty state", "checkpoint", "ring"],
)
def test_a_session_comes_back(tmp_path: Path, session: Snapshot) -> None:
    size = write_snapshot(tmp_path, "a.bin", session)
    assert read(tmp_path) == session
    assert read(tmp_path).file_bytes == size == (tmp_path / "a.bin").stat().st_size


def test_a_look_at_the_header_tells_the_tokens_and_the_states(tmp_path: Path) -> None:
    size = write_snapshot(tmp_path, "a.bin", RINGED)
    seen = peek_snapshot(tmp_path, "a.bin", CONFIG, LIMITS)
    assert (seen.ledger, seen.frontiers, seen.file_bytes) == (RINGED.ledger, (64, 192, 320, 384), size)
    write_snapshot(tmp_path, "a.bin", snapshot(65, checkpoint=0))
    assert peek_snapshot(tmp_path, "a.bin", CONFIG, LIMITS).frontiers == (64,)
    with pytest.raises(SlotRestoreFailed, match="binding"):
        peek_snapshot(tmp_path, "a.bin", replace(CONFIG, artifact_id="f" * 32), LIMITS)
    raw = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "a.bin").write_bytes(raw[:-1])
    with pytest.raises(SlotRestoreFailed, match="length"):
        peek_snapshot(tmp_path, "a.bin", CONFIG, LIMITS)


def test_a_look_at_a_ring_that_does_not_ascend(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "a.bin", RINGED)
    raw = (tmp_path / "a.bin").read_bytes()
    begin = raw.rindex(struct.pack("<I", 192) + bytes(RINGED.ring[1][1]))
    (tmp_path / "a.bin").write_bytes(raw[:begin] + struct.pack("<I", 64) + raw[begin + 4 :])
    with pytest.raises(SlotRestoreFailed, match="does not ascend"):
        peek_snapshot(tmp_path, "a.bin", CONFIG, LIMITS)


def test_a_file_of_several_pieces_comes_back(tmp_path: Path) -> None:
    config = replace(CONFIG, conv_slot_bytes=123, recurrent_slot_bytes=PIECE_BYTES)
    session = snapshot(130, config=config, ring=(64,))
    write_snapshot(tmp_path, "a.bin", session)
    assert read_snapshot(tmp_path, "a.bin", config, LIMITS) == session
    # The ring that this server does not keep is checked all the same.
    assert read_snapshot(tmp_path, "a.bin", config, replace(LIMITS, turn_checkpoints=0)) == replace(session, ring=())
    raw = bytearray((tmp_path / "a.bin").read_bytes())
    raw[-60] ^= 1
    (tmp_path / "a.bin").write_bytes(raw)
    begin = 3 * PIECE_BYTES
    with pytest.raises(SlotRestoreFailed, match=rf"^session snapshot checksum of bytes \[{begin}, \d+\) is wrong"):
        read_snapshot(tmp_path, "a.bin", config, replace(LIMITS, turn_checkpoints=0))


def test_the_state_is_aligned_and_may_be_written(tmp_path: Path) -> None:
    config = replace(CONFIG, text_page_bytes=4096)
    write_snapshot(tmp_path, "a.bin", snapshot(130, config=config))
    state = read_snapshot(tmp_path, "a.bin", config, LIMITS).state
    mapping = memoryview(state.obj)
    whole = mapping.tobytes()
    assert whole.index(state.tobytes()) % 4096 == 0
    assert not state.readonly


@pytest.mark.parametrize(("kept", "frontiers"), [(64, [64, 192, 384]), (3, [64, 192, 384]), (2, [192, 384]), (0, [])])
def test_a_smaller_ring_keeps_the_newest(tmp_path: Path, kept: int, frontiers: list[int]) -> None:
    write_snapshot(tmp_path, "a.bin", RINGED)
    found = read(tmp_path, turn_checkpoints=kept)
    assert [frontier for frontier, _ in found.ring] == frontiers
    assert found == replace(RINGED, ring=RINGED.ring[3 - len(frontiers) :])


def test_an_empty_ring_section_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(file_bytes(snapshot(130), {"version": 2}))
    assert read(tmp_path) == snapshot(130)


LEDGER, POSITIONS = list(RINGED.ledger), list(range(400))
SPECULATIVE = "speculative configuration does not match the server"
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"magic": b"NINFSES2"}, "magic is not that of a slot file"),
    ({"version": 0}, "version 0 is not one that this server reads"),
    ({"version": 3}, "version 3 is not one that this server reads"),
    ({"binding_length": 4097}, "binding of 4097 bytes is too long"),
    ({"binding_length": 48}, "binding does not match the server: it was saved with another model"),
    ({"binding": b"tiny\ntiny-2\nbf16\n0123456789abcdef0123456789abcdef"},
     "binding does not match the server: it was saved with another model"),
    ({"kv_dtype": 1}, "KV configuration does not match the server: kv_dtype is 1 in the file and 0 here"),
    ({"quant_group": -1}, "KV configuration does not match the server: quant_group is -1 in the file and 0 here"),
    ({"kv_flags": 2}, "KV configuration does not match the server: kv_flags is 2 in the file and 0 here"),
    ({"page_size": 32}, "KV configuration does not match the server: page_size is 32 in the file and 64 here"),
    ({"text_planes": 8}, "KV configuration does not match the server: text_planes is 8 in the file and 4 here"),
    ({"text_page_bytes": 256},
     "KV configuration does not match the server: text_page_bytes is 256 in the file and 128 here"),
    ({"spec_backend": 1, "text_planes": 6}, f"{SPECULATIVE}: spec_backend is 1 in the file and 0 here"),
    ({"spec_backend": 1}, f"{SPECULATIVE}: spec_backend is 1 in the file and 0 here"),
    ({"draft_window": 3}, f"{SPECULATIVE}: draft_window is 3 in the file and 0 here"),
    ({"draft_slot_bytes": 9}, f"{SPECULATIVE}: draft_slot_bytes is 9 in the file and 0 here"),
    ({"backend_planes": 2}, f"{SPECULATIVE}: backend_planes is 2 in the file and 0 here"),
    ({"backend_page_bytes": 7}, f"{SPECULATIVE}: backend_page_bytes is 7 in the file and 0 here"),
    ({"gdn_layers": 4}, "state geometry does not match the server: gdn_layers is 4 in the file and 3 here"),
    ({"conv_slot_bytes": 25},
     "state geometry does not match the server: conv_slot_bytes is 25 in the file and 24 here"),
    ({"recurrent_slot_bytes": 41},
     "state geometry does not match the server: recurrent_slot_bytes is 41 in the file and 40 here"),
    ({"tail_hidden_bytes": 10240},
     "state geometry does not match the server: tail_hidden_bytes is 10240 in the file and 0 here"),
    ({"tokens": 0}, "token count 0 is outside [1, 1024]"),
    ({"tokens": 1025}, "token count 1025 is outside [1, 1024]"),
    ({"ledger_frontier": 399}, "ledger frontier 399 is not 400 tokens"),
    ({"execution_frontier": 398}, "execution frontier 398 is neither 399 nor 400"),
    ({"execution_frontier": 401}, "execution frontier 401 is neither 399 nor 400"),
    ({"state_frontier": 256}, "state frontier 256 is not in the 79 tokens up to the execution frontier 399"),
    ({"state_frontier": 448}, "state frontier 448 is not in the 79 tokens up to the execution frontier 399"),
    ({"state_frontier": 399}, "state frontier 399 is not at a block start"),
    ({"text_kv_valid": 400}, "KV of 400 tokens is not between the state frontier 384 and the execution frontier 399"),
    ({"text_kv_valid": 383}, "KV of 383 tokens is not between the state frontier 384 and the execution frontier 399"),
    ({"text_pages": 6}, "page count 6 does not fit 399 tokens of KV"),
    ({"text_pages": 17}, "page count 17 does not fit 399 tokens of KV"),
    ({"backend_kv_valid": 1}, "backend KV of 1 tokens, 0 pages has no backend here"),
    ({"backend_pages": 1}, "backend KV of 0 tokens, 1 pages has no backend here"),
    ({"rope_delta": -5}, "position shift -5 is not that of a session of text"),
    ({"tail_hidden_valid": 1}, "hidden row is not one that this server keeps"),
    ({"checkpoint_valid": 2}, "checkpoint flag 2 is neither 0 nor 1"),
    ({"checkpoint_valid": 0}, "checkpoint frontier 320 is given without a checkpoint"),
    ({"checkpoint_valid": 0, "checkpoint_frontier": 0}, "ring of"),  # the ring is looked for one image too early
    ({"checkpoint_frontier": 65}, "checkpoint frontier 65 is not a block start within 399 tokens of KV"),
    ({"checkpoint_frontier": 448}, "checkpoint frontier 448 is not a block start within 399 tokens of KV"),
    ({"ledger_count": 399}, "ledger ids have length 399, not that of 400 tokens"),
    ({"ledger": [*LEDGER[:-1], 4096]}, "ledger id 4096 is outside the vocabulary of 4096"),
    ({"ledger": [-1, *LEDGER[1:]]}, "ledger id -1 is outside the vocabulary of 4096"),
    ({"types_count": 2**40}, "token types have length 1099511627776, not that of 400 tokens"),
    ({"types": [0] * 399 + [1]}, "token types are not those of a session of text"),
    *(({f"axis{axis}_count": 0}, f"positions of axis {axis} have length 0, not that of 400 tokens")
      for axis in range(3)),
    *(({f"axis{axis}": [*POSITIONS[:-1], 7]}, f"positions of axis {axis} are not those of a session of text")
      for axis in range(3)),
    ({"media_count": 1}, "media count 1 is not that of a session of text"),
    ({"version": 1}, "length is"),  # a ring where none is announced; the same length again if it were none
    ({"ring_count": 65}, "ring of 65 entries is longer than 64"),
    ({"ring_count": 2}, "length is"),
    ({"ring_frontiers": [192, 64, 384]}, "ring frontier 64 does not ascend from 192"),
    ({"ring_frontiers": [64, 64, 384]}, "ring frontier 64 does not ascend from 64"),
    ({"ring_frontiers": [64, 193, 384]}, "ring frontier 193 is not a block start within 399 tokens of KV"),
    ({"ring_frontiers": [64, 192, 448]}, "ring frontier 448 is not a block start within 399 tokens of KV"),
    ({"checksums": [1]}, "checksum of bytes [0, "),
    ({"checksum_count": 2}, "checksum count 2 is not the 1 of its length"),
    ({"end": b"NINFSENE"}, "end marker is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "reason"), WRONG, ids=[",".join(f"{k}" for k in c) for c, _ in WRONG])
def test_every_field_is_checked_and_named(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    # The checksums fit the changed bytes, so that only the check of the field itself can notice.
    if changes == {"version": 1}:
        raw = file_bytes(RINGED)
        raw = raw[:8] + struct.pack("<I", 1) + raw[12:]
    else:
        raw = file_bytes(RINGED, changes)
    assert refused(tmp_path, raw).startswith(f"session snapshot {reason}")


@pytest.mark.parametrize("name", [field.name for field in fields(SnapshotConfig)])
def test_a_server_that_differs_in_anything_refuses(tmp_path: Path, name: str) -> None:
    write_snapshot(tmp_path, "a.bin", RINGED)
    value = getattr(CONFIG, name)
    changed: dict[str, Any] = {name: value + 1 if isinstance(value, int) else value[:-1] + "x"}
    other = replace(CONFIG, **changed)
    with pytest.raises(SlotRestoreFailed, match=r"^session snapshot .* does not match the server"):
        read_snapshot(tmp_path, "a.bin", other, LIMITS)


def test_the_limits_of_the_server_hold(tmp_path: Path) -> None:
    raw = file_bytes(RINGED)
    assert refused(tmp_path, raw, max_context_tokens=399) == "session snapshot token count 400 is outside [1, 399]"
    highest = max(RINGED.ledger)
    message = refused(tmp_path, raw, vocabulary=highest)
    assert message == f"session snapshot ledger id {highest} is outside the vocabulary of {highest}"
    assert read(tmp_path, max_context_tokens=400, vocabulary=highest + 1) == RINGED


@pytest.mark.parametrize("session", [snapshot(2, checkpoint=None), snapshot(66, ring=(0,))], ids=["plain", "ringed"])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, session: Snapshot) -> None:
    raw = file_bytes(session)
    for length in range(len(raw)):
        refused(tmp_path, raw[:length])
    assert refused(tmp_path, raw + b"\0").startswith("session snapshot length is")
    (tmp_path / "a.bin").write_bytes(raw)
    assert read(tmp_path) == session


@cache
def whole_file() -> bytes:
    return file_bytes(RINGED)


@given(st.sets(st.integers(0, len(whole_file()) * 8 - 1), min_size=1, max_size=3))
def test_flipped_bits_never_give_a_session(tmp_path_factory: pytest.TempPathFactory, bits: set[int]) -> None:
    folder = tmp_path_factory.getbasetemp() / "flipped"
    folder.mkdir(exist_ok=True)
    raw = bytearray(whole_file())
    for bit in bits:
        raw[bit // 8] ^= 1 << bit % 8
    refused(folder, bytes(raw))


def test_every_byte_of_a_small_file_counts(tmp_path: Path) -> None:
    raw = file_bytes(snapshot(2, checkpoint=None))
    for index in range(len(raw)):
        refused(tmp_path, raw[:index] + bytes([raw[index] ^ 0xFF]) + raw[index + 1 :])


def not_a_file(folder: Path, kind: str) -> None:
    place = folder / "a.bin"
    if kind == "folder":
        place.mkdir()
    elif kind == "fifo":
        os.mkfifo(place)
    elif kind == "link":
        write_snapshot(folder, "b.bin", RINGED)
        place.symlink_to("b.bin")
    elif kind == "dangling link":
        place.symlink_to("nowhere")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nothing", "cannot be opened: No such file or directory."),
        ("folder", "cannot be read: it is not a regular file."),
        ("fifo", "cannot be read: it is not a regular file."),
        ("link", "cannot be read: it is a link, and links are not followed."),
        ("dangling link", "cannot be read: it is a link, and links are not followed."),
    ],
)
def test_only_a_regular_file_of_the_folder_is_read(tmp_path: Path, kind: str, reason: str) -> None:
    not_a_file(tmp_path, kind)
    with pytest.raises(SlotRestoreFailed) as caught:
        read(tmp_path)
    assert caught.value.message == f"The slot file 'a.bin' {reason}"


def test_a_name_that_is_none_opens_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidFilename):
        read_snapshot(tmp_path, "../a.bin", CONFIG, LIMITS)


def test_a_session_outlives_its_file(tmp_path: Path) -> None:
    write_snapshot(tmp_path, "a.bin", RINGED)
    found = read(tmp_path)
    os.truncate(tmp_path / "a.bin", 0)
    (tmp_path / "a.bin").unlink()
    assert found == RINGED
    assert found.state == view(1, CONFIG.image_bytes)
