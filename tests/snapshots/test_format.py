"""The bytes of a file are those of the contract."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from ninfer.errors import SlotSaveFailed
from ninfer.snapshots.format import KV_FORMATS, Snapshot
from ninfer.snapshots.writer import write_snapshot
from tests.snapshots.sessions import CONFIG, file_bytes, snapshot, view

TINY = snapshot(2, checkpoint=None)
# By hand from 15.4: two tokens, one executed, no checkpoint, one page.
TINY_HEAD = (
    "4e494e4653455331" "01000000" "31000000"
    "74696e790a74696e792d310a626631360a"
    "3031323334353637383961626364656630313233343536373839616263646566"
    "00000000" "00000000" "00000000" "00000000" "00000000" "40000000" "03000000"
    "1800000000000000" "2800000000000000" "0000000000000000" "0000000000000000"
    "04000000" "8000000000000000" "00000000" "0000000000000000"
    "02000000" "01000000" "00000000" "02000000" "01000000" "00000000" "00000000" "00" "00"
    "00000000" "01000000" "00000000"
    "0200000000000000" "07000000" "ff0f0000"
    "0200000000000000" "0000"
    "0200000000000000" "00000000" "01000000"
    "0200000000000000" "00000000" "01000000"
    "0200000000000000" "00000000" "01000000"
    "00000000"
)  # fmt: skip


def test_a_tiny_file_byte_by_byte(tmp_path: Path) -> None:
    session = replace(TINY, ledger=array("i", [7, 4095]))
    size = write_snapshot(tmp_path, "a.bin", session)
    raw = (tmp_path / "a.bin").read_bytes()
    head = bytes.fromhex(TINY_HEAD)
    assert raw[: len(head)] == head
    body = raw[len(head) : -16]
    assert body == bytes(session.state) + bytes(session.pages)
    assert raw[-12:] == bytes.fromhex("01000000") + b"NINFSEND"
    assert len(raw) == size


@pytest.mark.parametrize(
    "session",
    [
        TINY,
        snapshot(64, behind=0),
        snapshot(65, checkpoint=0),
        snapshot(130, checkpoint=None),
        snapshot(130, checkpoint=None, ring=(64,)),
        snapshot(400, ring=(64, 192, 384)),
        snapshot(400, checkpoint=320, ring=tuple(range(0, 384, 64))),
    ],
    ids=["tiny", "whole", "empty state", "version 1", "version 2", "ring", "all"],
)
def test_the_writer_writes_what_the_contract_says(tmp_path: Path, session: Snapshot) -> None:
    write_snapshot(tmp_path, "a.bin", session)
    assert (tmp_path / "a.bin").read_bytes() == file_bytes(session)


@pytest.mark.parametrize(
    ("session", "size", "digest"),
    [
        (snapshot(130), 2973, "3d41811d15ae3a7f"),
        (snapshot(400, ring=(64, 192, 384)), 8283, "d9a7dd901d80ab81"),
    ],
    ids=["version 1", "version 2"],
)
def test_files_of_both_versions_stay_as_they_are(tmp_path: Path, session: Snapshot, size: int, digest: str) -> None:
    assert write_snapshot(tmp_path, "a.bin", session) == size
    assert hashlib.sha256((tmp_path / "a.bin").read_bytes()).hexdigest()[:16] == digest


def test_numbers_of_the_cache_formats_are_distinct_and_known() -> None:
    names = ("bf16", "int8", "fp8", "rk8v4", "rk4v4", "nvfp4", "k8v4", "rk4v4-e8", "rk2v4-e8")
    assert [KV_FORMATS[name][0] for name in names] == list(range(9))
    assert len(set(KV_FORMATS.values())) == len(KV_FORMATS)


def test_an_image_is_the_convolution_and_the_states_behind_each_other() -> None:
    assert CONFIG.image_bytes == 64


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        (snapshot(1, checkpoint=None), "it has 1 tokens, and a slot file holds at least 2"),
        (replace(TINY, ledger=snapshot(3).ledger), "ledger frontier 3 is not 2 tokens"),
        (replace(TINY, state=view(0, 63)), "a state image is not of 64 bytes"),
        (replace(TINY, checkpoint=(0, view(0, 63))), "a state image is not of 64 bytes"),
        (replace(TINY, ring=((0, view(0, 65)),)), "a state image is not of 64 bytes"),
        (replace(TINY, pages=view(0, 127)), "page count 0 does not fit 1 tokens of KV"),
        (replace(TINY, pages=view(0, 129)), "its pages are not whole pages of 128 bytes"),
        (replace(TINY, config=replace(CONFIG, model_id="m" * 4096)),
         "the names of its model are longer than 4096 bytes"),
        (replace(TINY, checkpoint=(-64, view(0, 64))),
         "checkpoint frontier -64 is not a block start within 1 tokens of KV"),
        (snapshot(400, ring=(64, 64)), "ring frontier 64 does not ascend from 64"),
        (snapshot(400, ring=(448,)), "ring frontier 448 is not a block start within 399 tokens of KV"),
        (snapshot(4300, ring=tuple(range(0, 65 * 64, 64))),
         "its ring has 65 entries, and a slot file holds at most 64"),
        (replace(snapshot(81), session=replace(snapshot(81).session, state_frontier=0)),
         "state frontier 0 is not in the 79 tokens up to the execution frontier 80"),
    ],
)  # fmt: skip
def test_a_session_that_no_file_can_hold_is_refused(tmp_path: Path, session: Snapshot, reason: str) -> None:
    with pytest.raises(SlotSaveFailed) as caught:
        write_snapshot(tmp_path, "a.bin", session)
    assert caught.value.message == f"This session cannot be saved: {reason}."
    assert (caught.value.code, caught.value.http_status) == ("slot_save_failed", 400)
    assert not list(tmp_path.iterdir())
