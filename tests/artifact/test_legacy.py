from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ninfer.artifact.directory import ResourceObject, TensorObject
from ninfer.artifact.legacy import LegacyArtifact, legacy_json, legacy_metadata, parse_legacy_directory
from ninfer.errors import ArtifactError
from tests.artifact.samples import PAYLOAD, V1_JSON, V2_JSON, V3_JSON, legacy_file, v3_file

DIGESTS = {
    1: "f80d651487ea7dd0b3453730277e322aca430a279ea62cf278c65b4f862ede4b",
    2: "07d52b0206e0042ae60bf25e14629f1f8d6763b0a4ef40138d7035c640c5b814",
}
TEXTS = {1: V1_JSON, 2: V2_JSON}


@pytest.mark.parametrize("version", [1, 2])
def test_tiny_files_are_read_and_written_byte_for_byte(tmp_path: Path, version: int) -> None:
    content = legacy_file(version, TEXTS[version])
    assert (len(V1_JSON), len(V2_JSON), len(content)) == (240, 270, 4356)
    assert hashlib.sha256(content).hexdigest() == DIGESTS[version]
    path = tmp_path / "old.ninfer"
    path.write_bytes(content)
    with LegacyArtifact.open(path) as artifact:
        directory = artifact.directory
        assert (directory.model_id, directory.weights_id) == ("demo", "w" if version == 2 else None)
        assert directory.objects == (
            ResourceObject("frontend/r", "raw_bytes_v1", 0, 3),
            TensorObject("text/final_norm", (2,), "bf16", "contiguous_le_v1", 256, 4),
        )
        assert artifact.read(0, 260) == PAYLOAD
        assert b"".join(data for _, data in artifact.chunks(0, 260)) == PAYLOAD
    assert legacy_json(directory) == TEXTS[version]
    assert legacy_metadata(directory) + PAYLOAD == content


def test_bytes_behind_the_last_object_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(legacy_file(2, V2_JSON) + b"tail")
    with LegacyArtifact.open(path) as artifact:
        assert artifact.directory.span == 260
        with pytest.raises(ArtifactError) as error:
            artifact.read(260, 5)
    assert error.value.code == "SHORT_READ"


WHOLE = legacy_file(2, V2_JSON)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (WHOLE[:-1], "OUT_OF_RANGE"),
        (WHOLE[:4095], "TRUNCATED_FILE"),
        (WHOLE[:200], "BAD_JSON_LENGTH"),
        (WHOLE[:12], "TRUNCATED_HEADER"),
        (WHOLE[:8] + bytes(8) + WHOLE[16:], "BAD_JSON_LENGTH"),
        (WHOLE[:7] + b"\x01" + WHOLE[8:], "BAD_MEMBERS"),
        (v3_file(V3_JSON), "UNKNOWN_VERSION"),
        (b"NINFER\0\x09" + WHOLE[8:], "UNKNOWN_VERSION"),
        *(
            (legacy_file(2, V2_JSON.replace(old, new)), code)
            for old, new, code in [
                (b'"offset":256', b'"offset":255', "MISALIGNED"),
                (b'"offset":256', b'"offset":0', "OVERLAP"),
                (b'"offset":256', b'"offset":256.0', "BAD_TYPE"),
                (b'"offset":256', b'"offset":512', "OUT_OF_RANGE"),
                (b'"bytes":4', b'"bytes":6', "SIZE_MISMATCH"),
                (b'"bytes":3', b'"bytes":0', "BAD_TYPE"),
                (b"[2]", b"[3]", "SIZE_MISMATCH"),
                (b"[2]", b"[true]", "BAD_TYPE"),
                (b"[2]", b"[0]", "BAD_SHAPE"),
                (b'"BF16"', b'"bf16"', "BAD_ENCODING"),
                (b'"BF16"', b'"Q4G32_F16S"', "BAD_ENCODING"),
                (b'"contiguous-le-v1"', b'"row-split-k128-v1"', "BAD_ENCODING"),
                (b'"contiguous-le-v1"', b'"contiguous_le_v1"', "BAD_ENCODING"),
                (b'"raw-bytes-v1"', b'"gzip"', "BAD_RESOURCE_ENCODING"),
                (b'"kind":"tensor"', b'"kind":"blob"', "BAD_KIND"),
                (b'"text/final_norm"', b'"frontend/r"', "DUPLICATE_ID"),
                (b'"text/final_norm"', b'""', "BAD_ID"),
                (b'"weights_id":"w"', b'"weights_id":""', "BAD_ID"),
                (b'"weights_id":"w"', b'"weights":"w"', "BAD_MEMBERS"),
                (b'"shape":[2],', b"", "BAD_MEMBERS"),
                (b'{"identity"', b'{"extra":1,"identity"', "BAD_MEMBERS"),
                (b'{"identity"', b'{"objects":[],"identity"', "BAD_JSON"),
                (b'"offset":0', b'"offset":null', "BAD_TYPE"),
            ]
        ),
        (legacy_file(2, b'{"identity":{"model_id":"a","weights_id":"b"},"objects":[]}'), "EMPTY_OBJECTS"),
        (legacy_file(2, b'{"identity":{"model_id":"a","weights_id":"b"},"objects":3}'), "EMPTY_OBJECTS"),
    ],
)
def test_each_rule_of_opening_has_its_code(tmp_path: Path, content: bytes, code: str) -> None:
    path = tmp_path / "old.ninfer"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"old\.ninfer") as error:
        LegacyArtifact.open(path)
    assert error.value.code == code


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("format", "layout"), [("NVFP4", "blockscale-k16-m128x4-v1"), ("FP8_E4M3FN_ROW_BF16S", "row-scale-v1")]
)
def test_version_1_does_not_know_the_later_formats(version: int, format: str, layout: str) -> None:
    shape, size = [128, 64], {"NVFP4": 4612, "FP8_E4M3FN_ROW_BF16S": 8448}[format]
    root = json.loads(TEXTS[version])
    root["objects"][1] |= {"shape": shape, "format": format, "layout": layout, "bytes": size}
    text = json.dumps(root).encode()
    if version == 2:
        assert parse_legacy_directory(text, 2, "m", 10_000).objects[1].bytes == size
    else:
        with pytest.raises(ArtifactError) as error:
            parse_legacy_directory(text, 1, "m", 10_000)
        assert error.value.code == "BAD_ENCODING"
