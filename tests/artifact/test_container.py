from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ninfer.artifact.container import Artifact
from ninfer.artifact.directory import (
    Component,
    FileRecord,
    ResourceObject,
    TensorObject,
    WholeObject,
    to_json,
)
from ninfer.artifact.parsing import parse_directory
from ninfer.errors import ArtifactError
from tests.artifact.samples import (
    ARTIFACT_ID,
    PAYLOAD,
    V1_JSON,
    V2_JSON,
    V3_JSON,
    V3_SPLIT_JSON,
    legacy_file,
    part_file,
    v3_file,
)


def write(folder: Path, content: bytes, name: str = "demo.ninfer") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def code_of(action: Callable[[], object], *words: str) -> str:
    with pytest.raises(ArtifactError) as error:
        action()
    for word in words:
        assert word in str(error.value)
    return error.value.code


def open_and_use(path: Path) -> None:
    with Artifact.open(path) as artifact:
        for stored in artifact.directory.objects:
            artifact.object_bytes(stored.id)


def test_samples_are_those_of_the_spec() -> None:
    assert len(V3_JSON) == 373
    whole = v3_file(V3_JSON)
    assert whole[:32].hex() == "4e494e4645520003e00f000000000000000102030405060708090a0b0c0d0e0f"
    assert sha256(whole) == "b69949a6fdbc94d2cf9cc3e45ecfa5874f78111e1cf490e67472d3fc253b2b89"
    gap = v3_file(V3_JSON, reserve=0)
    assert sha256(gap) == "cdfb7ee449da45c0664978388d452f7985d6fff7320aba9b3b57b92378ad1030"
    entry, part = v3_file(V3_SPLIT_JSON, PAYLOAD[:256]), part_file(PAYLOAD[256:])
    assert sha256(entry) == "d7fa1049d1ac3e6ff9af9fac68b05c88b20dc7b875ac3e8f05dab7b3f5ab9ad6"
    assert sha256(part) == "c4ddd7eab0834c13c28ffcae2e7d4ac70972a2078d7d1fcf3d0706a7318d2a01"


@pytest.mark.parametrize("reserve", [0, 4064])
def test_one_file_is_read(tmp_path: Path, reserve: int) -> None:
    with Artifact.open(write(tmp_path, v3_file(V3_JSON, reserve=reserve))) as artifact:
        assert artifact.artifact_id == ARTIFACT_ID.hex()
        assert artifact.directory.components == {"text": Component({}, None, {"r": "frontend/r"}, None)}
        assert artifact.directory.objects == (
            ResourceObject("frontend/r", "raw_bytes_v1", 0, 3),
            TensorObject("w0", (2,), "bf16", "contiguous_le_v1", 256, 4),
        )
        assert artifact.directory.bindings == {"text/final_norm": WholeObject("w0")}
        assert artifact.directory.files == (FileRecord(None, 260),)
        assert artifact.read(0, 260) == PAYLOAD
        assert artifact.read(260, 0) == b""
        assert artifact.resource("text", "r") == b"abc"
        assert bytes(artifact.object_bytes("w0")).hex() == "803f20c0"
        assert np.array_equal(artifact.tensor("w0"), np.float32([1.0, -2.5]))
        assert np.array_equal(artifact.tensor("w0", (1, 2)), np.float32([-2.5]))


def test_two_files_are_read_and_the_second_only_when_touched(tmp_path: Path) -> None:
    path = write(tmp_path, v3_file(V3_SPLIT_JSON, PAYLOAD[:256]))
    with Artifact.open(path) as artifact:
        assert artifact.read(0, 256) == PAYLOAD[:256]
        assert code_of(lambda: artifact.read(255, 2), "demo.ninfer.part-0001") == "MISSING_PART"
        write(tmp_path, part_file(PAYLOAD[256:]), "demo.ninfer.part-0001")
        assert artifact.read(0, 260) == PAYLOAD
        assert artifact.read(250, 8) == PAYLOAD[250:258]
        assert artifact.read(260, 0) == b""
        assert artifact.tensor("w0").tolist() == [1.0, -2.5]


def test_an_object_across_files_is_joined(tmp_path: Path) -> None:
    text = V3_SPLIT_JSON.replace(b'"payload_bytes":256', b'"payload_bytes":258').replace(b":4}]}", b":2}]}")
    path = write(tmp_path, v3_file(text, PAYLOAD[:258]))
    write(tmp_path, part_file(PAYLOAD[258:]), "demo.ninfer.part-0001")
    with Artifact.open(path) as artifact:
        assert bytes(artifact.object_bytes("w0")).hex() == "803f20c0"


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (part_file(PAYLOAD[256:], index=2), "FOREIGN_PART"),
        (part_file(PAYLOAD[256:], artifact_id=bytes(16)), "FOREIGN_PART"),
        (b"NINPRT\0\x02" + part_file(PAYLOAD[256:])[8:], "FOREIGN_PART"),
        (v3_file(V3_JSON), "FOREIGN_PART"),
        (b"", "FOREIGN_PART"),
        (part_file(PAYLOAD[256:])[:20], "PART_LENGTH"),
        (part_file(PAYLOAD[256:])[:-1], "PART_LENGTH"),
        (part_file(PAYLOAD[256:] + b"x"), "PART_LENGTH"),
    ],
)
def test_a_wrong_continuation_is_refused(tmp_path: Path, part: bytes, code: str) -> None:
    path = write(tmp_path, v3_file(V3_SPLIT_JSON, PAYLOAD[:256]))
    write(tmp_path, part, "demo.ninfer.part-0001")
    with Artifact.open(path) as artifact:
        assert code_of(lambda: artifact.read(256, 1), "part-0001") == code


def with_byte(content: bytes, index: int, value: int) -> bytes:
    return content[:index] + bytes([value]) + content[index + 1 :]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "TRUNCATED_HEADER"),
        (v3_file(V3_JSON)[:7], "TRUNCATED_HEADER"),
        (v3_file(V3_JSON)[:31], "TRUNCATED_HEADER"),
        (legacy_file(2, V2_JSON)[:15], "TRUNCATED_HEADER"),
        (legacy_file(1, V1_JSON), "OLD_VERSION"),
        (legacy_file(2, V2_JSON), "OLD_VERSION"),
        (with_byte(v3_file(V3_JSON), 7, 2), "OLD_VERSION"),
        (with_byte(v3_file(V3_JSON), 7, 9), "UNKNOWN_VERSION"),
        (part_file(b"abcd"), "PART_OPENED"),
        (b"GGUF" + bytes(5000), "NOT_NINFER"),
        (with_byte(v3_file(V3_JSON), 6, 1), "NOT_NINFER"),
        (v3_file(V3_JSON)[:8] + bytes(8) + v3_file(V3_JSON)[16:], "BAD_JSON_LENGTH"),
        (v3_file(V3_JSON)[:8] + (4064 + 10**6).to_bytes(8, "little") + v3_file(V3_JSON)[16:], "BAD_JSON_LENGTH"),
        (v3_file(V3_JSON)[:8] + b"\xff" * 8 + v3_file(V3_JSON)[16:], "BAD_JSON_LENGTH"),
        (v3_file(V3_JSON)[:-1], "ENTRY_LENGTH"),
        (v3_file(V3_JSON) + b"\0", "ENTRY_LENGTH"),
        (v3_file(V3_JSON)[:3000], "BAD_JSON_LENGTH"),
        (v3_file(b"\xff" + V3_JSON), "BAD_JSON"),
        (v3_file(V3_JSON + b"\0"), "BAD_JSON"),
        (v3_file(V3_JSON[:-1]), "BAD_JSON"),
        (v3_file(b"\xef\xbb\xbf" + V3_JSON), "BAD_JSON"),
        (v3_file(V3_JSON[:-1] + b',"uses":[]}'), "BAD_JSON"),
        (v3_file(V3_JSON.replace(b'"config":{}', b'"config":{"a":NaN}')), "BAD_JSON"),
        (v3_file(V3_JSON.replace(b'"config":{}', b'"config":{"a":-Infinity}')), "BAD_JSON"),
        (v3_file(V3_JSON.replace(b'"config":{}', b'"config":{"a":1e999}')), "BAD_JSON"),
        (v3_file(V3_JSON.replace(b'"config":{}', b'"config":{"a":1,"a":1}')), "BAD_JSON"),
        (v3_file(V3_JSON.replace(b'"config":{}', b'"config":' + b"[" * 100_000), reserve=0), "BAD_JSON"),
        (v3_file(V3_JSON.replace(b"256", b"9" * 5000), reserve=0), "BAD_JSON"),
        (v3_file(V3_JSON.replace(b"[2]", b"[true]")), "BAD_TYPE"),
        (v3_file(V3_JSON.replace(b"256", b"256.0")), "BAD_TYPE"),
        (v3_file(V3_JSON.replace(b"256", b"25e1")), "BAD_TYPE"),
        (v3_file(V3_JSON.replace(b'"offset":256', b'"offset":-256')), "BAD_TYPE"),
        (v3_file(V3_JSON.replace(b'"offset":256', b'"offset":18446744073709551616')), "BAD_TYPE"),
        (v3_file(V3_JSON.replace(b'"offset":256', b'"offset":18446744073709551615')), "OUT_OF_RANGE"),
        (v3_file(V3_JSON.replace(b'"bytes":4', b'"bytes":6')), "OUT_OF_RANGE"),
        (v3_file(V3_JSON.replace(b'"offset":256', b'"offset":0')), "OVERLAP"),
        (v3_file(b"[" + V3_JSON + b"]"), "BAD_TYPE"),
    ],
)
def test_what_is_wrong_on_opening_has_its_code(tmp_path: Path, content: bytes, code: str) -> None:
    path = write(tmp_path, content)
    assert code_of(lambda: Artifact.open(path), str(path)) == code


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (b'"offset":256', b'"offset":255', "MISALIGNED"),
        (b"[2]", b"[3]", "SIZE_MISMATCH"),
        (b'"bf16"', b'"q4_g32_fp16"', "BAD_ENCODING"),
        (b'"bf16"', b'"BF16"', "BAD_ENCODING"),
        (b'"contiguous_le_v1"', b'"row_split_k128_v1"', "BAD_ENCODING"),
        (b'"bf16","layout":"contiguous_le_v1"', b'"q4_g64_fp16","layout":"row_split_k128_v1"', "BAD_ENCODING"),
        (b'"raw_bytes_v1"', b'"raw-bytes-v1"', "BAD_RESOURCE_ENCODING"),
    ],
)
def test_what_is_wrong_with_an_object_shows_on_first_use(tmp_path: Path, old: bytes, new: bytes, code: str) -> None:
    path = write(tmp_path, v3_file(V3_JSON.replace(old, new)))
    Artifact.open(path).close()
    assert code_of(lambda: open_and_use(path), str(path), "object '") == code


ROOT: dict[str, Any] = json.loads(V3_JSON)
TENSOR = ROOT["objects"][1]


def edited(edit: Callable[[dict[str, Any]], object]) -> bytes:
    root = json.loads(V3_JSON)
    edit(root)
    return json.dumps(root).encode()


def put(*steps: str | int) -> Callable[[Any], Callable[[dict[str, Any]], object]]:
    def with_value(value: Any) -> Callable[[dict[str, Any]], object]:
        def edit(root: Any) -> None:
            for step in steps[:-1]:
                root = root[step]
            root[steps[-1]] = value

        return edit

    return with_value


NORM = put("bindings", "text/final_norm")
USE = {"parameter": "text/final_norm", "input": "x"}
FILES = [{"path": None, "payload_bytes": 256}, {"path": "b", "payload_bytes": 4}]


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (put("extra")(1), "BAD_MEMBERS"),
        (lambda root: root.pop("uses"), "BAD_MEMBERS"),
        (put("objects", 1, "extra")(1), "BAD_MEMBERS"),
        (lambda root: root["objects"][1].pop("shape"), "BAD_MEMBERS"),
        (lambda root: root["objects"][1].pop("kind"), "BAD_MEMBERS"),
        (put("objects", 0, "shape")([1]), "BAD_MEMBERS"),
        (put("components", "text", "extra")(1), "BAD_MEMBERS"),
        (lambda root: root["components"]["text"].pop("config"), "BAD_MEMBERS"),
        (put("components", "text", "proposal")({"domain": "full", "rows": 3}), "BAD_MEMBERS"),
        (put("components", "text", "proposal")({"domain": "indexed"}), "BAD_MEMBERS"),
        (put("components", "text", "proposal")({}), "BAD_MEMBERS"),
        (put("files", 0, "extra")(1), "BAD_MEMBERS"),
        (NORM({"object": "w0", "parts": []}), "BAD_MEMBERS"),
        (NORM({}), "BAD_MEMBERS"),
        (NORM({"parts": [{"object": "w0"}]}), "BAD_MEMBERS"),
        (put("uses")([{"parameter": "text/final_norm"}]), "BAD_MEMBERS"),
        (put("components")([]), "BAD_TYPE"),
        (put("objects", 1, "bytes")(0), "BAD_TYPE"),
        (put("objects", 1, "offset")(None), "BAD_TYPE"),
        (put("objects", 1, "id")(7), "BAD_TYPE"),
        (put("components", "text", "config")(None), "BAD_TYPE"),
        (put("components", "text", "proposal")({"domain": "indexed", "rows": 0}), "BAD_TYPE"),
        (NORM({"parts": [{"object": "w0", "range": [0, True]}]}), "BAD_TYPE"),
        (put("uses")({}), "BAD_TYPE"),
        (put("objects", 1, "id")(""), "BAD_ID"),
        (put("objects", 1, "id")("a\0b"), "BAD_ID"),
        (put("objects", 1, "id")("\ud800"), "BAD_ID"),
        (put("bindings", "")({"object": "w0"}), "BAD_ID"),
        (put("objects", 1, "kind")("Tensor"), "BAD_KIND"),
        (put("objects", 1, "kind")([]), "BAD_KIND"),
        (put("objects", 1, "shape")([1] * 17), "BAD_SHAPE"),
        (put("objects", 1, "shape")([0]), "BAD_SHAPE"),
        (put("objects", 1, "shape")([-1]), "BAD_SHAPE"),
        (put("objects", 1, "shape")([2**32, 2**32]), "BAD_SHAPE"),
        (put("objects")([]), "EMPTY_OBJECTS"),
        (put("objects")({}), "EMPTY_OBJECTS"),
        (put("objects", 1, "id")("frontend/r"), "DUPLICATE_ID"),
        (put("files")([]), "BAD_FILES"),
        (put("files", 0, "path")("a"), "BAD_FILES"),
        *(
            (put("files")([FILES[0], {"path": name, "payload_bytes": 4}]), "BAD_FILES")
            for name in ("", ".", "..", "a/b", "a\\b", "a\0", "demo.ninfer", None, 3)
        ),
        (put("files")([*FILES, {"path": "b", "payload_bytes": 0}]), "BAD_FILES"),
        (put("files")([FILES[0], {"path": "b", "payload_bytes": 2**64 - 1}]), "BAD_TYPE"),
        (put("components")({"vision": {"config": {}}}), "BAD_COMPONENT"),
        (put("components", "text", "target")("mtp"), "BAD_COMPONENT"),
        (put("components", "text", "resources")({"r": "w0"}), "BAD_COMPONENT"),
        (put("components", "text", "resources")({"r": "absent"}), "BAD_COMPONENT"),
        (put("components", "mtp")({"config": {}, "proposal": {"domain": "full"}}), "BAD_COMPONENT"),
        (put("components", "text", "proposal")({"domain": "half"}), "BAD_COMPONENT"),
        (NORM({"object": "absent"}), "BAD_BINDING"),
        (NORM({"object": "frontend/r"}), "BAD_BINDING"),
        (NORM({"parts": []}), "BAD_BINDING"),
        *(
            (NORM({"parts": [{"object": "w0", "range": bounds}]}), "BAD_BINDING")
            for bounds in ([0, 3], [1, 1], [2, 1], [0], [0, 1, 2])
        ),
        (put("uses")([{**USE, "parameter": "absent"}]), "BAD_USE"),
        (put("uses")([USE, USE]), "BAD_USE"),
        (put("uses")([{**USE, "activation_policy": "AllowA2"}]), "BAD_USE"),
        (put("uses")([{**USE, "auxiliaries": {"hadamard_signs": {"object": "absent"}}}]), "BAD_BINDING"),
        (put("metadata")([]), "BAD_METADATA"),
        (put("provenance")("x"), "BAD_METADATA"),
        (put("metadata")({"name": ""}), "BAD_METADATA"),
        (put("metadata")({"name": 3}), "BAD_METADATA"),
    ],
)
def test_each_rule_of_the_directory_has_its_code(edit: Callable[[dict[str, Any]], object], code: str) -> None:
    assert code_of(lambda: parse_directory(edited(edit), "folder/demo.ninfer"), "folder/demo.ninfer") == code


def test_a_directory_is_written_as_it_was_read() -> None:
    assert to_json(parse_directory(V3_JSON + b" \n", "demo.ninfer")) == V3_JSON
    rich = {
        "components": {
            "text": {
                "config": {"eps": 1e-06, "größe": [1, None, True]},
                "resources": {"r": "frontend/r"},
                "proposal": {"domain": "indexed", "rows": 2},
            },
            "mtp": {"config": {}, "target": "text"},
        },
        "objects": ROOT["objects"],
        "bindings": {"a": {"object": "w0"}, "b": {"parts": [{"object": "w0", "range": [0, 1]}]}},
        "uses": [
            {"parameter": "a", "input": "x", "activation_policy": "AllowA4", "auxiliaries": {"r": {"object": "w0"}}},
            {"parameter": "a", "input": "y"},
        ],
        "metadata": {"name": "demo"},
        "provenance": {},
        "files": ROOT["files"],
    }
    text = json.dumps(rich, ensure_ascii=False, separators=(",", ":")).encode()
    assert to_json(parse_directory(text, "demo.ninfer")) == text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", b"bytes", {1, 2}])
def test_what_json_cannot_hold_is_not_written(value: object) -> None:
    directory = dataclasses.replace(parse_directory(V3_JSON, "demo.ninfer"), provenance={"x": value})
    assert code_of(lambda: to_json(directory)) == "BAD_JSON"


def test_ranges_outside_the_payload_are_refused(tmp_path: Path) -> None:
    with Artifact.open(write(tmp_path, v3_file(V3_JSON))) as artifact:
        for offset, n in [(0, 261), (261, 0), (-1, 1), (5, -1), (2**64, 1)]:
            assert code_of(lambda o=offset, n=n: artifact.read(o, n)) == "BAD_RANGE"
        assert code_of(lambda: artifact.object_bytes("absent")) == "BAD_BINDING"
        assert code_of(lambda: artifact.tensor("frontend/r")) == "BAD_BINDING"
        assert code_of(lambda: artifact.resource("vision", "r")) == "COMPONENT_ABSENT"
        assert code_of(lambda: artifact.resource("text", "absent")) == "BAD_COMPONENT"


def test_a_view_outlives_the_artifact(tmp_path: Path) -> None:
    with Artifact.open(write(tmp_path, v3_file(V3_JSON))) as artifact:
        view = artifact.object_bytes("w0")
    assert bytes(view).hex() == "803f20c0"
    with pytest.raises(ValueError, match="closed"):
        artifact.read(0, 1)


def test_an_old_file_is_refused_with_the_command_that_rewrites_it(tmp_path: Path) -> None:
    folder = tmp_path / "my models"
    folder.mkdir()
    path = write(folder, legacy_file(2, V2_JSON))
    command = f'ninfer-artifact upgrade "{path}" "{folder}/demo.v3.ninfer"'
    assert code_of(lambda: Artifact.open(path), "version 2", command) == "OLD_VERSION"


def test_a_file_that_was_cut_meanwhile_is_a_short_read(tmp_path: Path) -> None:
    path = write(tmp_path, v3_file(V3_JSON))
    with Artifact.open(path) as artifact:
        assert artifact.read(0, 3) == b"abc"
        os.truncate(path, 4096 + 258)
        assert artifact.read(0, 258) == PAYLOAD[:258]
        assert code_of(lambda: artifact.read(257, 2), "entry") == "SHORT_READ"
