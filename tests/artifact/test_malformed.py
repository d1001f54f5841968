"""No file, however damaged, gives anything but ArtifactError."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact import upgrade as up
from ninfer.artifact.cli import main
from ninfer.artifact.container import Artifact
from ninfer.artifact.directory import TensorObject
from ninfer.artifact.inspection import inspect, report
from ninfer.artifact.legacy import LegacyArtifact, legacy_metadata
from ninfer.artifact.tiny import build_tiny
from ninfer.artifact.verify import verify
from ninfer.errors import ArtifactError
from tests.artifact.samples import (
    PAYLOAD,
    V1_JSON,
    V2_JSON,
    V3_JSON,
    V3_SPLIT_JSON,
    legacy_file,
    part_file,
    v3_file,
)
from tests.artifact.test_upgrade import old_directory

RICH_JSON = (
    V3_JSON.replace(b'"uses":[]', b'"uses":[{"parameter":"p","input":"x","activation_policy":"A16Only","auxiliaries":'
    b'{"activation_input_divisor":{"object":"w0"}}}]')
    .replace(b'"bindings":{', b'"bindings":{"p":{"parts":[{"object":"w0","range":[0,1]}]},')
    .replace(b'"resources":', b'"proposal":{"domain":"indexed","rows":3},"resources":')
    .replace(b'},"objects"', b',"mtp":{"config":{},"target":"text"}},"objects"', 1)[:-1]
    + b',"metadata":{"name":"n"},"provenance":{}}'
)  # fmt: skip


def exercise(path: Path) -> str:
    """Everything a reader does with a file; returns the code of the fault, or "ok"."""
    try:
        report(inspect(str(path)))
        with path.open("rb") as file:
            version = file.read(8)[7]
        if version == 3:
            with Artifact.open(path) as artifact:
                for stored in artifact.directory.objects:
                    artifact.object_bytes(stored.id)
                    if isinstance(stored, TensorObject):
                        artifact.tensor(stored.id)
                for name, component in artifact.directory.components.items():
                    for role in component.resources:
                        artifact.resource(name, role)
        else:
            with LegacyArtifact.open(path) as old:
                for stored in old.directory.objects:
                    old.read(stored.offset, stored.bytes)
        verify(str(path), values=True)
    except ArtifactError as error:
        fault = error
    else:
        return "ok"
    assert fault.path
    assert fault.detail
    return fault.code


def truncated(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def flipped(content: bytes, rng: random.Random) -> bytes:
    """A few bits of the header and the directory."""
    damaged = bytearray(content)
    end = min(len(content), 40 + int.from_bytes(content[8:16], "little"))
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        damaged[rng.randrange(end)] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def cut_or_grown(content: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(content))
    middle = bytes(rng.randrange(256) for _ in range(rng.randrange(4)))
    return content[:begin] + middle + content[begin + rng.randrange(9) :]


VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 255, 256, 2**32 - 1, 2**63, 2**64 - 1, 2**64, 10**400, 0.5, 1e300, "", "x", "w0",
    "frontend/r", "text", "\0", "\ud800", "..", "a/b", "full_attention", "nvfp4", "q5_g64_fp16", "t2_g128_fp16",
    "row_split_k128_v1", "resource", "tensor", [], {}, [0], [[]], [1, 2, 3, 4], {"object": "w0"},
]  # fmt: skip


def nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value inside."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from nodes(inner)


def edited(text: bytes, rng: random.Random) -> bytes:
    """The JSON text with one or two values replaced, removed, renamed, repeated or exchanged."""
    root = json.loads(text)
    for _ in range(rng.choice([1, 1, 2])):
        places = list(nodes(root))
        container, key = rng.choice(places)
        action = rng.randrange(5)
        if action == 0:
            del container[key]
        elif action == 1 and isinstance(container, dict):
            container[rng.choice(["", "extra", "object", "parts", "x\0", "kind"])] = container.pop(key)
        elif action == 2 and isinstance(container, list):
            container.append(container[key])
        elif action == 3:
            other, place = rng.choice(places)
            container[key] = json.loads(json.dumps(other.get(place) if isinstance(other, dict) else None))
        else:
            container[key] = rng.choice(VALUES)
        if not isinstance(root, dict) or not root:
            break
    return json.dumps(root, separators=(",", ":")).encode()


SAMPLES = {
    "v1": legacy_file(1, V1_JSON),
    "v2": legacy_file(2, V2_JSON),
    "v3": v3_file(V3_JSON),
    "v3 rich": v3_file(RICH_JSON),
    "v3 split": v3_file(V3_SPLIT_JSON, PAYLOAD[:256]),
}


def test_the_samples_are_sound_before_they_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "demo.ninfer"
    (tmp_path / "demo.ninfer.part-0001").write_bytes(part_file(PAYLOAD[256:]))
    codes = {}
    for name, content in SAMPLES.items():
        path.write_bytes(content)
        codes[name] = exercise(path)
    # They open and decode; only binding tells that they are no models.
    assert codes == {name: "BAD_IDENTITY" if name in ("v1", "v2") else "BAD_CONFIG" for name in SAMPLES}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("damage", [truncated, flipped, cut_or_grown], ids=lambda f: f.__name__)
def test_damaged_bytes(tmp_path: Path, name: str, damage: Any) -> None:
    rng = random.Random(f"{name} {damage.__name__}")
    path = tmp_path / "demo.ninfer"
    (tmp_path / "demo.ninfer.part-0001").write_bytes(part_file(PAYLOAD[256:]))
    codes = set()
    for _ in range(150):
        path.write_bytes(damage(SAMPLES[name], rng))
        codes.add(exercise(path))
    assert len(codes) >= 2, f"the damage was too tame: {codes}"


@pytest.mark.parametrize("name", ["v1", "v2", "v3", "v3 rich"])
def test_edited_directories(tmp_path: Path, name: str) -> None:
    text = {"v1": V1_JSON, "v2": V2_JSON, "v3": V3_JSON, "v3 rich": RICH_JSON}[name]
    rng = random.Random(name)
    path = tmp_path / "demo.ninfer"
    codes = set()
    for _ in range(400):
        json_text = edited(text, rng)
        path.write_bytes(v3_file(json_text) if name.startswith("v3") else legacy_file(int(name[1]), json_text))
        codes.add(exercise(path))
    assert len(codes) >= 8, f"the edits were too tame: {codes}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "tiny.ninfer"
    build_tiny(path)
    return path.read_bytes()


def test_a_real_artifact_with_an_edited_directory(tmp_path: Path, tiny: bytes) -> None:
    rng = random.Random(5)
    text = tiny[32 : 32 + int.from_bytes(tiny[8:16], "little")]
    payload = tiny[32 + len(text) :]
    path = tmp_path / "demo.ninfer"
    codes = set()
    for _ in range(150):
        path.write_bytes(v3_file(edited(text, rng), payload, reserve=0))
        codes.add(exercise(path))
    assert len(codes) >= 6, f"the edits were too tame: {codes}"


def test_a_real_artifact_with_damaged_payload(tmp_path: Path, tiny: bytes) -> None:
    rng = random.Random(6)
    path = tmp_path / "demo.ninfer"
    for _ in range(20):
        damaged = bytearray(tiny)
        for _ in range(50):
            damaged[rng.randrange(20480, len(tiny))] = rng.randrange(256)
        path.write_bytes(damaged)
        assert exercise(path) in ("ok", "BAD_AUXILIARY")


@pytest.mark.parametrize("name", SAMPLES)
def test_the_command_line_never_shows_a_traceback(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(name)
    path = tmp_path / "demo.ninfer"
    for round in range(20):
        path.write_bytes(rng.choice([truncated, flipped, cut_or_grown])(SAMPLES[name], rng))
        for command in (["inspect", "--json"], ["inspect"], ["verify", "--values", "--sha256"]):
            assert main([*command, str(path)]) in (0, 1)
        assert main(["upgrade", str(path), str(tmp_path / "new.ninfer")]) == 1
        if round == 0:
            assert main(["upgrade", "--in-place", str(path)]) == 1
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        assert all(line.startswith("ninfer-artifact: ") for line in captured.err.splitlines())


def test_an_edited_old_directory_is_upgraded_or_refused(tmp_path: Path) -> None:
    profile, directory, payload = old_directory("qwen3_6_27b", 2)
    metadata = legacy_metadata(directory)
    text = metadata[16 : 16 + int.from_bytes(metadata[8:16], "little")]
    rng = random.Random(9)
    old, new = tmp_path / "old.ninfer", tmp_path / "new.ninfer"
    codes = set()
    for _ in range(100):
        old.write_bytes(legacy_file(2, edited(text, rng), payload))
        try:
            up.upgrade(str(old), str(new), profiles=[profile])
        except ArtifactError as error:
            codes.add(error.code)
            assert not new.exists()
        else:
            new.unlink()
    assert len(codes) >= 5, codes
