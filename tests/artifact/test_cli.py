from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ninfer.artifact import published, upgrade, verify
from ninfer.artifact.cli import main
from ninfer.artifact.container import Artifact
from ninfer.artifact.directory import WholeObject
from ninfer.artifact.inspection import Share, component_shares, inspect, labels
from ninfer.artifact.inventories import legacy_tensors
from ninfer.artifact.legacy import legacy_metadata, place_legacy
from ninfer.artifact.profiles import PROFILES
from ninfer.artifact.published import FRONTEND_BYTES, PublishedFile
from ninfer.artifact.tiny import build_tiny
from ninfer.artifact.upgrade import upgraded_directory
from ninfer.errors import ArtifactError
from tests.artifact.samples import PAYLOAD, V2_JSON, V3_JSON, V3_SPLIT_JSON, legacy_file, part_file, v3_file
from tests.artifact.test_synth import synthesised
from tests.artifact.test_upgrade import LENGTHS, known_file, small_profile, write_old

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("tiny") / "tiny.ninfer"
    build_tiny(path)
    return path.read_bytes()


@pytest.fixture
def tiny_path(tmp_path: Path, tiny: bytes) -> Path:
    path = tmp_path / "tiny.ninfer"
    path.write_bytes(tiny)
    return path


def run(capsys: Output, *arguments: str | Path) -> tuple[int, str, str]:
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_inspect_lists_version_3(tiny_path: Path, capsys: Output) -> None:
    status, out, err = run(capsys, "inspect", tiny_path, "--json")
    assert (status, err) == (0, "")
    listing: dict[str, Any] = json.loads(out)
    with Artifact.open(tiny_path) as artifact:
        assert listing["artifact_id"] == artifact.artifact_id
        assert listing["objects"] == len(artifact.directory.objects)
        assert (listing["target"], listing["weights_id"]) == labels(artifact.directory)
    assert listing["version"] == 3
    assert set(listing["components"]) == {"text", "mtp"}
    by_format, by_component = (
        sum(share["bytes"] for share in listing[key].values()) for key in ("formats", "components")
    )
    assert by_format == by_component
    assert listing["files"][0]["name"] == "tiny.ninfer"
    assert listing["payload_offset"] + listing["files"][0]["payload_bytes"] == tiny_path.stat().st_size
    status, out, err = run(capsys, "inspect", tiny_path)
    assert (status, err) == (0, "")
    assert listing["artifact_id"] in out


def test_inspect_lists_version_2_and_an_unknown_format(tmp_path: Path, capsys: Output) -> None:
    old = tmp_path / "old.ninfer"
    old.write_bytes(legacy_file(2, V2_JSON))
    status, out, _ = run(capsys, "inspect", old, "--json")
    listing = json.loads(out)
    assert (status, listing["version"], listing["name"], listing["weights_id"]) == (0, 2, "demo", "w")
    assert listing["artifact_id"] is None
    assert listing["components"] == {"text": {"tensors": 1, "bytes": 4}}
    new = tmp_path / "new.ninfer"
    new.write_bytes(v3_file(V3_JSON.replace(b'"bf16"', b'"ggml_q2_0"')))
    status, out, _ = run(capsys, "inspect", new)
    assert status == 0
    assert "ggml_q2_0" in out


@pytest.mark.parametrize("index", range(len(PROFILES) - 1))
def test_labels_and_component_sizes_of_registered_models(index: int) -> None:
    profile = PROFILES[index]
    lengths = FRONTEND_BYTES[profile.target]
    old = place_legacy(2, profile.model_id, profile.weights_id, legacy_tensors(profile), lengths)
    directory = upgraded_directory(old, profile)
    assert labels(directory) == (profile.target, profile.weights_id)
    # Section 9.4.
    text = {
        "qwen3_6_27b": Share(771, 16_378_322_944),
        "qwen3_8_27b": Share(771, 17_093_484_544),
        "qwen3_6_27b_nvfp4": Share(954, 17_206_863_800),
        "qwen3_8_27b_nvfp4": Share(771, 20_375_587_712),
    }
    drafts = {"dflash2": Share(66, 2_226_792_960)} if profile.components.drafts else {}
    assert component_shares(directory) == {
        "text": text[profile.recipe],
        "draft_head": Share(2, 357_040_128),
        "mtp": Share(12, 451_267_584),
        "vision": Share(333, 295_711_648),
        **drafts,
    }


def test_inspect_reads_no_payload(tmp_path: Path) -> None:
    path = tmp_path / "demo.ninfer"
    path.write_bytes(v3_file(V3_SPLIT_JSON, PAYLOAD[:256]))
    listing = inspect(str(path))
    assert listing.files == (("demo.ninfer", 256), ("demo.ninfer.part-0001", 4))
    assert (listing.target, listing.weights_id) == ("unknown", "bf16")


def test_verify_accepts_a_good_file(tiny_path: Path, capsys: Output) -> None:
    status, out, err = run(capsys, "verify", tiny_path, "--values", "--sha256")
    assert (status, err) == (0, "")
    assert hashlib.sha256(tiny_path.read_bytes()).hexdigest() in out
    assert out.endswith("tiny.ninfer: ok\n")


def test_verify_finds_an_illegal_value(tiny_path: Path, capsys: Output) -> None:
    with Artifact.open(tiny_path) as artifact:
        stored = next(o for o in artifact.directory.objects if getattr(o, "format", "") == "q8_g32_fp16")
        start = tiny_path.stat().st_size - artifact.directory.payload_bytes
    content = bytearray(tiny_path.read_bytes())
    content[start + stored.offset + 3] = 0x80
    tiny_path.write_bytes(content)
    assert run(capsys, "verify", tiny_path)[0] == 0
    status, _, err = run(capsys, "verify", tiny_path, "--values")
    assert status == 1
    assert f"object '{stored.id}': illegal code at [0, 0, 3]" in err


def test_verify_binds_and_touches_every_file(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "demo.ninfer"
    path.write_bytes(v3_file(V3_SPLIT_JSON, PAYLOAD[:256]))
    status, _, err = run(capsys, "verify", path)
    assert (status, "MISSING_PART" in err) == (1, True)
    (tmp_path / "demo.ninfer.part-0001").write_bytes(part_file(PAYLOAD[256:]))
    status, _, err = run(capsys, "verify", path)
    assert (status, "BAD_CONFIG" in err) == (1, True)


def test_verify_knows_the_registered_old_inventories(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "demo.ninfer"
    path.write_bytes(legacy_file(2, V2_JSON))
    status, _, err = run(capsys, "verify", path)
    assert (status, "BAD_IDENTITY" in err) == (1, True)
    profile = small_profile("qwen3_6_27b")
    monkeypatch.setattr(verify, "find_profile", lambda directory, path: profile)
    directory = place_legacy(2, profile.model_id, "groupwise-int", legacy_tensors(profile), LENGTHS)
    path.write_bytes(legacy_metadata(directory) + bytes(directory.span))
    assert run(capsys, "verify", path, "--values")[0] == 0


def test_verify_compares_with_a_published_digest(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = inspect(str(tiny_path))
    digest = hashlib.sha256(tiny_path.read_bytes()).hexdigest()
    assert listing.name is not None
    entry = PublishedFile(listing.name, listing.weights_id, 3, listing.objects, 0, digest, "")
    monkeypatch.setattr(verify, "PUBLISHED", (*published.PUBLISHED, entry))
    assert verify.check_digest(str(tiny_path)) == (digest, True)
    with tiny_path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    with pytest.raises(ArtifactError) as error:
        verify.check_digest(str(tiny_path))
    assert error.value.code == "WRONG_DIGEST"


def test_upgrade_from_the_command_line(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    profile, path, payload = write_old(tmp_path, "qwen3_8_27b", 2)
    find = upgrade.find_profile
    monkeypatch.setattr(upgrade, "find_profile", lambda directory, path, profiles: find(directory, path, [profile]))
    template = tmp_path / "template"
    template.write_text("{{ x }}")
    new = tmp_path / "new.ninfer"
    status, out, err = run(capsys, "upgrade", path, new, "--chat-template", template)
    assert (status, err) == (0, "")
    assert "version 3 written" in out
    with Artifact.open(new) as artifact:
        assert artifact.read(0, len(payload)) == payload
        assert artifact.resource("text", "chat_template.jinja") == b"{{ x }}"
    status, _, err = run(capsys, "upgrade", path, new)
    assert (status, "OUTPUT_EXISTS" in err) == (1, True)
    status, _, err = run(capsys, "upgrade", "--in-place", path)
    assert (status, "BAD_IDENTITY" in err) == (1, True)


def test_upgrade_in_place_from_the_command_line(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, path, _ = write_old(tmp_path, "qwen3_6_27b", 1)
    known = (known_file(),)
    monkeypatch.setattr(upgrade, "known_version_1_files", lambda: known)
    assert run(capsys, "upgrade", "--in-place", path) == (0, f"{path}: is version 2 now\n", "")
    assert run(capsys, "upgrade", path, "--in-place") == (0, f"{path}: was version 2 already\n", "")


def test_an_empty_template_is_a_usage_fault(tmp_path: Path, capsys: Output) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    status, _, err = run(capsys, "upgrade", "a", "b", "--chat-template", empty)
    assert (status, "empty" in err) == (2, True)


def test_verify_looks_at_the_ids_of_the_draft_head(tmp_path: Path, capsys: Output) -> None:
    path = synthesised(tmp_path / "draft.ninfer", "qwen3_6_27b")
    with Artifact.open(path) as artifact:
        binding = artifact.directory.bindings["proposal/token_ids"]
        assert isinstance(binding, WholeObject)
        place = path.stat().st_size - artifact.directory.payload_bytes + artifact.find(binding.object).offset
    assert run(capsys, "verify", path, "--values")[0] == 0
    content = bytearray(path.read_bytes())
    content[place : place + 8] = content[place + 8 : place + 12] * 2
    path.write_bytes(content)
    status, _, err = run(capsys, "verify", path, "--values")
    assert (status, "draft-head ids are not unique" in err) == (1, True)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["inspect"],
        ["inspect", "a", "b"],
        ["inspect", "a", "--bad"],
        ["upgrade", "a"],
        ["upgrade", "a", "b", "--in-place"],
        ["upgrade", "a", "--in-place", "--chat-template", "t"],
        ["convert"],
        ["synth", "--model", "unknown", "--out", "x"],
    ],
    ids=" ".join,
)
def test_a_wrong_command_line_is_status_2(arguments: list[str], capsys: Output) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert "usage: ninfer-artifact" in err


@pytest.mark.parametrize("command", ["inspect", "verify", "upgrade", "convert", "synth"])
def test_every_command_has_help(command: str, capsys: Output) -> None:
    status, out, err = run(capsys, command, "--help")
    assert (status, err) == (0, "")
    assert f"usage: ninfer-artifact {command}" in out
    assert command in run(capsys, "--help")[1]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_cannot_be_read_is_status_1(command: str, tmp_path: Path, capsys: Output) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        status, out, err = run(capsys, command, path)
        assert (status, out) == (1, "")
        assert str(path) in err
    status, _, err = run(capsys, "upgrade", tmp_path / "absent", tmp_path / "new", "--chat-template", tmp_path / "gone")
    assert (status, "gone" in err) == (1, True)


def test_names_from_a_file_cannot_steer_the_terminal(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "demo.ninfer"
    text = V3_JSON[:-1] + b',"metadata":{"name":"\\u001b[2J\\ud800"}}'
    path.write_bytes(v3_file(text))
    status, out, err = run(capsys, "inspect", path)
    assert (status, err) == (0, "")
    assert "\x1b" not in out
    assert "\\x1b[2J\\ud800" in out
