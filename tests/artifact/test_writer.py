from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.artifact import quantise
from ninfer.artifact.container import Artifact
from ninfer.artifact.directory import Component, Directory, Part, Parts, TensorObject, Use, WholeObject
from ninfer.artifact.fileset import FileSetWriter
from ninfer.artifact.placement import DirectoryPlan, PlannedResource, PlannedTensor, lay_out, place, split
from ninfer.artifact.writer import ArtifactWriter, Coverage
from ninfer.errors import ArtifactError
from tests.artifact.samples import ARTIFACT_ID, V3_JSON, v3_file

PLAN = DirectoryPlan(
    components={"text": Component({}, None, {"r": "frontend/r"})},
    objects=(PlannedResource("frontend/r", 3), PlannedTensor("w0", (2,), "bf16")),
    bindings={"text/final_norm": WholeObject("w0")},
)


def fill(writer: ArtifactWriter) -> None:
    writer.write("frontend/r", 0, b"abc")
    writer.write("w0", 0, np.array([0x3F80, 0xC020], np.uint16))


def test_the_tiny_file_is_written_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "demo.ninfer"
    with ArtifactWriter(path, PLAN, artifact_id=ARTIFACT_ID) as writer:
        fill(writer)
        assert not path.exists()
        writer.publish({"converter": "test"})
    assert path.read_bytes() == v3_file(V3_JSON)
    assert sorted(os.listdir(tmp_path)) == ["demo.ninfer", "demo.ninfer.conversion.json"]
    report = json.loads((tmp_path / "demo.ninfer.conversion.json").read_text())
    assert report["files"] == [{"name": "demo.ninfer", "bytes": 4356}]
    assert report["formats"] == {"bf16": {"tensors": 1, "bytes": 4}}
    assert (report["artifact_id"], report["converter"]) == (ARTIFACT_ID.hex(), "test")


def test_every_file_set_has_its_own_id(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        with ArtifactWriter(tmp_path / name, PLAN) as writer:
            fill(writer)
            writer.publish()
        with Artifact.open(tmp_path / name) as artifact:
            ids.add(artifact.artifact_id)
    assert len(ids) == 2


@pytest.mark.parametrize("max_file_bytes", [8192, 12288, 10**9])
def test_tensors_of_many_formats_come_back_from_one_or_many_files(tmp_path: Path, max_file_bytes: int) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "a": (rng.standard_normal((33, 130)).astype(np.float32), "q5_g64_fp16"),
        "b": (rng.standard_normal((5, 70)).astype(np.float32), "q8_g32_fp16"),
        "c": (rng.standard_normal((4, 3, 2)).astype(np.float32), "fp32"),
        "d": (rng.integers(-9, 9, 1000), "int32"),
    }
    plan = DirectoryPlan(
        components={"text": Component({"größe": 1})},
        objects=tuple(PlannedTensor(id, values.shape, format) for id, (values, format) in tensors.items()),
        bindings={
            "whole": WholeObject("a"),
            "rows": Parts((Part("a", 0, 130), Part("b", 70, 140))),
        },
        uses=(Use("whole", "x", "A16Only"),),
        metadata={"name": "demo"},
        provenance={"converter": "test"},
    )
    path = tmp_path / "many.ninfer"
    with ArtifactWriter(path, plan, max_file_bytes=max_file_bytes) as writer:
        for id, (values, format) in tensors.items():
            pieces = list(quantise.encode_stream([values], format, values.shape))
            random.Random(1).shuffle(pieces)
            for offset, data in pieces:
                writer.write(id, offset, data)
        writer.publish()
    with Artifact.open(path) as artifact:
        assert artifact.directory == writer.directory
        for id, (values, format) in tensors.items():
            assert bytes(artifact.object_bytes(id)) == quantise.encode(values, format).tobytes()
        assert np.array_equal(artifact.tensor("d"), tensors["d"][0])
        assert (len(artifact.directory.files) > 1) == (max_file_bytes < 10**9)
    for name in os.listdir(tmp_path):
        assert (tmp_path / name).stat().st_size <= max_file_bytes


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [(0, bytes(5), "beyond"), (4, b"x", "beyond"), (2, bytes(2), "twice"), (1, bytes(2), "twice")],
)
def test_a_byte_outside_or_twice_is_refused(tmp_path: Path, offset: int, data: bytes, words: str) -> None:
    with ArtifactWriter(tmp_path / "a", PLAN) as writer:
        writer.write("w0", 2, bytes(2))
        with pytest.raises(ArtifactError, match=words) as error:
            writer.write("w0", offset, data)
    assert error.value.code == "COVERAGE"
    assert os.listdir(tmp_path) == []


def test_an_unwritten_byte_stops_publishing_and_leaves_nothing(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a", PLAN) as writer:
        writer.write("frontend/r", 0, b"abc")
        writer.write("w0", 0, b"x")
        writer.write("w0", 3, b"x")
        with pytest.raises(ArtifactError, match=r"\[1, 3\) are unwritten") as error:
            writer.publish()
    assert error.value.code == "COVERAGE"
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a", "a.part-0001", "a.conversion.json"])
def test_existing_targets_are_refused_before_anything_is_created(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    big = DirectoryPlan({"text": Component({})}, (PlannedTensor("w", (5000,), "fp32"),), {})
    with pytest.raises(ArtifactError, match="a") as error:
        ArtifactWriter(tmp_path / "a", big, max_file_bytes=12288)
    assert error.value.code == "OUTPUT_EXISTS"
    assert os.listdir(tmp_path) == [name]


def test_a_target_that_appears_meanwhile_is_kept_and_nothing_else_stays(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a", PLAN) as writer:
        fill(writer)
        (tmp_path / "a").write_text("mine")
        with pytest.raises(ArtifactError) as error:
            writer.publish()
    assert error.value.code == "OUTPUT_EXISTS"
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "mine"


def test_a_failure_while_publishing_removes_what_was_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if target.name == "a":
            raise OSError("disk gone")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with ArtifactWriter(tmp_path / "a", PLAN) as writer:
        fill(writer)
        with pytest.raises(OSError, match="disk gone"):
            writer.publish()
    assert os.listdir(tmp_path) == []


def test_a_plan_no_reader_would_accept_is_refused(tmp_path: Path) -> None:
    twice = DirectoryPlan({"text": Component({})}, (PlannedTensor("w", (2,), "bf16"),) * 2, {})
    with pytest.raises(ArtifactError) as error:
        ArtifactWriter(tmp_path / "a", twice)
    assert error.value.code == "DUPLICATE_ID"
    assert os.listdir(tmp_path) == []


def test_split_of_the_spec() -> None:
    assert split(10000, 4096, 12288) == (8192, 1808)
    assert split(8192, 4096, 12288) == (8192,)
    assert split(8192 + 16384, 4096, 12288) == (8192, 8192, 8192)
    for limit in (4096, 8191):
        with pytest.raises(ArtifactError) as error:
            split(10000, 4096, limit)
        assert error.value.code == "LIMIT_TOO_SMALL"


@given(st.integers(1, 10**6), st.integers(1, 8), st.integers(2, 64))
@settings(max_examples=200, deadline=None)
def test_slices_add_up_and_respect_the_limit(total: int, head: int, limit: int) -> None:
    if limit <= head:
        return
    slices = split(total, head * 4096, limit * 4096 + 77)
    assert sum(slices) == total
    assert all(size > 0 for size in slices)
    assert head * 4096 + slices[0] <= limit * 4096 + 77
    assert all(4096 + size <= limit * 4096 + 77 for size in slices[1:])


def test_the_json_reserve_grows_until_the_files_fit_in_it() -> None:
    objects = place(PlannedTensor(f"w{i}", (4096,), "bf16") for i in range(1000))
    layout = lay_out(Directory({"text": Component({})}, objects, {}, (), ()), "a.ninfer", 1 << 18, reserve=4064)
    assert layout.payload_offset % 4096 == 0
    assert layout.payload_offset == 32 + len(layout.text)
    assert len(layout.text.rstrip()) > layout.payload_offset - 32 - 4096
    assert layout.directory.payload_bytes == objects[-1].offset + objects[-1].bytes
    assert all(layout.file_bytes(i) <= 1 << 18 for i in range(len(layout.directory.files)))


def test_placement_aligns_tensors_and_packs_resources() -> None:
    placed = place([PlannedResource("r", 3), PlannedResource("s", 4), PlannedTensor("w", (3, 5), "q8_g32_fp16")])
    assert [(stored.offset, stored.bytes) for stored in placed] == [(0, 3), (3, 4), (256, 536)]
    assert isinstance(placed[2], TensorObject)
    assert placed[2].layout == "row_split_k128_v1"


@given(st.integers(1, 40), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_coverage_agrees_with_a_map_of_bytes(size: int, rng: random.Random) -> None:
    coverage, written = Coverage(size), set[int]()
    for _ in range(60):
        begin = rng.randrange(size)
        end = rng.randint(begin, min(size, begin + 6))
        fault = coverage.add(begin, end)
        piece = set(range(begin, end))
        assert (fault is not None) == bool(piece & written)
        if fault is None:
            written |= piece
        assert coverage.complete == (len(written) == size)
        if not coverage.complete:
            gap_begin, gap_end = coverage.first_gap()
            assert gap_begin == min(set(range(size)) - written)
            assert not set(range(gap_begin, gap_end)) & written
            assert gap_end == size or gap_end in written


def test_the_file_writer_leaves_nothing_when_it_is_not_published(tmp_path: Path) -> None:
    objects = place([PlannedTensor("w", (4,), "fp32")])
    layout = lay_out(Directory({"text": Component({})}, objects, {}, (), ()), "a")
    with FileSetWriter(str(tmp_path / "a"), layout, ARTIFACT_ID) as files:
        files.write(0, memoryview(bytes(16)))
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ArtifactWriter(tmp_path / "absent" / "a", PLAN)
    assert os.listdir(tmp_path) == []
