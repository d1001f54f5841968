from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ninfer.artifact import upgrade as up
from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION, MoeConfig
from ninfer.artifact.container import Artifact
from ninfer.artifact.directory import Directory, Parts, TensorObject, WholeObject, check_object
from ninfer.artifact.inventories import FRONTEND, LegacyTensor, legacy_tensors
from ninfer.artifact.legacy import LegacyArtifact, LegacyDirectory, legacy_metadata, place_legacy
from ninfer.artifact.parameters import Components
from ninfer.artifact.placement import lay_out
from ninfer.artifact.profiles import PROFILES, Profile
from ninfer.artifact.published import FRONTEND_BYTES
from ninfer.artifact.registered import REGISTERED
from ninfer.errors import ArtifactError

LENGTHS = (11, 12, 13, 14, 15, 16)
TEMPLATE_BYTES = {"qwen3.6-27b": 8539, "qwen3.8-27b": 9712, "qwen3.6-35b-a3b": 8539}
# Section 9.3, files of the upgrade with replaced templates: JSON bytes, entry start, span, file bytes.
UPGRADED = [
    (384_437, 385_024, 17_495_198_299, 17_495_583_323),
    (474_092, 475_136, 18_323_863_643, 18_324_338_779),
    (384_449, 385_024, 18_210_364_912, 18_210_749_936),
    (412_349, 413_696, 20_437_157_872, 20_437_571_568),
    (411_915, 413_696, 21_492_524_528, 21_492_938_224),
    (439_815, 442_368, 23_719_317_488, 23_719_759_856),
    (8_010_410, 8_011_776, 22_783_103_067, 22_791_114_843),
]


@pytest.mark.parametrize(
    "index", range(len(PROFILES)), ids=[f"{p.recipe}-{len(p.components.drafts)}" for p in PROFILES]
)
def test_published_upgrades(index: int) -> None:
    profile = PROFILES[index]
    lengths = FRONTEND_BYTES[profile.target]
    old = place_legacy(2, profile.model_id, profile.weights_id, legacy_tensors(profile), lengths)
    directory = up.upgraded_directory(old, profile, TEMPLATE_BYTES[profile.model_id])
    layout = lay_out(directory, "m.ninfer", reserve=up.FIRST_JSON_RESERVE)
    start = layout.payload_offset
    found = (len(layout.text.rstrip()), start, layout.directory.payload_bytes, layout.file_bytes(0))
    assert found == UPGRADED[index]
    drafts = tuple(profile.components.drafts)
    assert (len(directory.bindings), len(directory.uses)) == {
        (): (1422, 785),
        ("dflash2",): (1513, 844),
        ("dflash",): (32713, 32184),
    }[drafts]


def small(components: Components, layers: int) -> Components:
    """The same kind of model with dimensions that make a file of well under a megabyte."""
    text = dataclasses.replace(
        components.text,
        hidden_size=64,
        vocab_size=40,
        layer_types=tuple(FULL_ATTENTION if i % 4 == 3 else LINEAR_ATTENTION for i in range(layers)),
        heads=2,
        kv_heads=1,
        head_dim=16,
        gdn_key_heads=1,
        gdn_value_heads=2,
        gdn_key_dim=16,
        gdn_value_dim=16,
        intermediate_size=None if components.text.moe else 96,
        moe=MoeConfig(4, 2, 32, 32) if components.text.moe else None,
    )
    assert components.vision is not None
    vision = dataclasses.replace(
        components.vision, depth=1, hidden_size=16, intermediate_size=24, num_heads=2, patch_size=2
    )
    drafts = {
        name: dataclasses.replace(
            draft, intermediate_size=48, heads=2, kv_heads=1, head_dim=16, layer_types=draft.layer_types[-1:]
        )
        for name, draft in components.drafts.items()
    }
    return Components(text, components.mtp, vision, drafts, proposal_rows=8)


def small_profile(recipe: str) -> Profile:
    model = REGISTERED[recipe]
    return Profile(recipe, model.name, "groupwise-int", recipe, small(model.components, 4))


RECIPES = ("qwen3_6_27b", "qwen3_8_27b", "qwen3_6_35b_a3b")


@cache
def old_directory(recipe: str, version: int) -> tuple[Profile, LegacyDirectory, bytes]:
    profile = small_profile(recipe)
    weights_id = None if version == 1 else profile.weights_id
    directory = place_legacy(version, profile.model_id, weights_id, legacy_tensors(profile), LENGTHS)
    payload = np.random.default_rng(7).integers(0, 256, directory.span, np.uint8).tobytes()
    return profile, directory, payload


def write_old(folder: Path, recipe: str, version: int) -> tuple[Profile, Path, bytes]:
    profile, directory, payload = old_directory(recipe, version)
    path = folder / "old.ninfer"
    path.write_bytes(legacy_metadata(directory) + payload)
    return profile, path, payload


def elements(directory: Directory, name: str) -> int:
    binding = directory.bindings[name]
    if isinstance(binding, Parts):
        return sum(part.end - part.begin for part in binding.parts)
    return next(
        int(np.prod(o.shape)) for o in directory.objects if isinstance(o, TensorObject) and o.id == binding.object
    )


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("version", "template", "limit"), [(1, None, 10**9), (2, b"{{ new }}", 10**9), (2, None, 1 << 17)]
)
def test_a_file_is_upgraded_with_its_payload_unchanged(
    tmp_path: Path, recipe: str, version: int, template: bytes | None, limit: int
) -> None:
    profile, path, payload = write_old(tmp_path, recipe, version)
    new = tmp_path / "new.ninfer"
    steps: list[tuple[int, int]] = []
    up.upgrade(
        str(path),
        str(new),
        chat_template=template,
        max_file_bytes=limit,
        profiles=[profile],
        progress=lambda done, total: steps.append((done, total)),
    )
    assert steps[-1] == (len(payload), len(payload))
    with Artifact.open(new) as artifact:
        directory = artifact.directory
        assert artifact.read(0, len(payload)) == payload
        for stored in directory.objects:
            check_object(stored, "new")
        assert artifact.resource("text", "chat_template.jinja") == (template or payload[23:36])
        assert artifact.resource("vision", "video_preprocessor_config.json") == payload[65:81]
        assert directory.metadata == {"name": profile.model_id}
        assert directory.provenance == {
            "upgraded_from": {"version": version, "model_id": profile.model_id, "weights_id": "groupwise-int"}
        }
        assert (len(directory.files) > 1) == (limit < 10**9)
        assert directory.components["text"].config == profile.components.text.to_json()
    parents: dict[str, list[tuple[int, int]]] = {}
    for name, binding in directory.bindings.items():
        for part in binding.parts if isinstance(binding, Parts) else ():
            if "context_" not in name:
                parents.setdefault(part.object, []).append((part.begin, part.end))
    shapes = {stored.id: int(np.prod(stored.shape)) for stored in directory.objects if isinstance(stored, TensorObject)}
    for id, ranges in parents.items():
        edges = [0, *itertools.chain.from_iterable(sorted(ranges)), shapes[id]]
        assert edges[0::2] == edges[1::2], f"{id} is not tiled by its parameters"
    hidden = profile.components.text.hidden_size
    assert elements(directory, "text/layers/3/attention/query") == profile.components.text.query_width * hidden
    assert elements(directory, "proposal/head") == 8 * hidden
    for draft in profile.components.drafts:
        path_of = f"{draft}/layers/0/attention/"
        assert directory.bindings[f"{path_of}context_value"] == directory.bindings[f"{path_of}value"]


def nvfp4_profile() -> Profile:
    """Layers up to 24 keep attention in bf16; shapes fit the NVFP4 tiles."""
    model = REGISTERED["qwen3_6_27b_nvfp4"]
    parts = small(model.components, 4)
    text = dataclasses.replace(
        parts.text,
        hidden_size=128,
        heads=4,
        kv_heads=2,
        head_dim=64,
        gdn_key_heads=2,
        gdn_value_heads=2,
        gdn_key_dim=64,
        gdn_value_dim=64,
        intermediate_size=128,
    )
    return Profile("t", model.name, "nvfp4", "qwen3_6_27b_nvfp4", dataclasses.replace(parts, text=text))


def write_nvfp4(folder: Path, divisor: float) -> tuple[Profile, Path]:
    profile = nvfp4_profile()
    tensors = legacy_tensors(profile)
    directory = place_legacy(2, profile.model_id, "nvfp4", tensors, LENGTHS)
    payload = bytearray(directory.span)
    divisors = {tensor.name for tensor in tensors if tensor.divisor}
    for stored in directory.objects:
        if stored.id in divisors:
            payload[stored.offset : stored.offset + 4] = struct.pack("<f", 2.0)
    first = stored_offset(directory, sorted(divisors)[0])
    payload[first : first + 4] = struct.pack("<f", divisor)
    path = folder / "old.ninfer"
    path.write_bytes(legacy_metadata(directory) + payload)
    return profile, path


def stored_offset(directory: LegacyDirectory, name: str) -> int:
    return next(stored.offset for stored in directory.objects if stored.id == name)


def test_divisors_become_auxiliaries_of_every_use_of_their_site(tmp_path: Path) -> None:
    profile, path = write_nvfp4(tmp_path, 2.0)
    up.upgrade(str(path), str(tmp_path / "new.ninfer"), profiles=[profile])
    with Artifact.open(tmp_path / "new.ninfer") as artifact:
        uses = {use.parameter: use for use in artifact.directory.uses}
    site = WholeObject("text/layers/0/mlp/gate_up_projection/input_scale_divisor")
    for parameter in ("gate", "up"):
        use = uses[f"text/layers/0/mlp/{parameter}"]
        assert (use.activation_policy, use.auxiliaries) == ("AllowA4", {"activation_input_divisor": site})
    mixer = WholeObject("text/layers/1/gdn/input_projection/input_scale_divisor")
    for parameter in ("query", "key", "value", "z"):
        assert uses[f"text/layers/1/gdn/{parameter}"].auxiliaries == {"activation_input_divisor": mixer}
    assert uses["text/layers/3/attention/query"].auxiliaries == {}
    assert uses["text/layers/3/attention/query"].activation_policy == "A16Only"


@pytest.mark.parametrize("divisor", [0.0, -1.0, float("nan"), float("inf")])
def test_a_divisor_that_divides_nothing_is_refused(tmp_path: Path, divisor: float) -> None:
    profile, path = write_nvfp4(tmp_path, divisor)
    with pytest.raises(ArtifactError, match="input_scale_divisor") as error:
        up.upgrade(str(path), str(tmp_path / "new.ninfer"), profiles=[profile])
    assert error.value.code == "BAD_AUXILIARY"
    assert os.listdir(tmp_path) == ["old.ninfer"]


def refused(folder: Path, tensors: list[LegacyTensor], *, model_id: str = "qwen3.6-27b", version: int = 2) -> str:
    weights_id = None if version == 1 else "groupwise-int"
    directory = place_legacy(version, model_id, weights_id, tensors, LENGTHS)
    path = folder / "old.ninfer"
    path.write_bytes(legacy_metadata(directory) + bytes(directory.span))
    with pytest.raises(ArtifactError, match=r"old\.ninfer") as error:
        up.upgrade(str(path), str(folder / "new.ninfer"), profiles=[small_profile("qwen3_6_27b")])
    assert os.listdir(folder) == ["old.ninfer"]
    return error.value.code


def test_another_inventory_is_refused(tmp_path: Path) -> None:
    tensors = list(legacy_tensors(small_profile("qwen3_6_27b")))
    assert refused(tmp_path, tensors, model_id="other") == "BAD_IDENTITY"
    assert refused(tmp_path, tensors[:-1]) == "BAD_IDENTITY"
    assert refused(tmp_path, tensors[:-1], version=1) == "BAD_IDENTITY"
    renamed = [*tensors[:-1], dataclasses.replace(tensors[-1], name="text/unknown")]
    assert refused(tmp_path, renamed) == "BAD_INVENTORY"
    reshaped = [dataclasses.replace(tensors[0], shape=(41, 64)), *tensors[1:]]
    assert refused(tmp_path, reshaped) == "BAD_INVENTORY"
    encoded = [dataclasses.replace(tensors[0], format="q8_g32_fp16"), *tensors[1:]]
    assert refused(tmp_path, encoded) == "BAD_INVENTORY"


def test_an_object_of_the_wrong_kind_is_refused() -> None:
    profile, old, _ = old_directory("qwen3_6_27b", 2)
    first = TensorObject(old.objects[0].id, (1,), "bf16", "contiguous_le_v1", 0, 2)
    swapped = dataclasses.replace(old, objects=(first, *old.objects[1:]))
    with pytest.raises(ArtifactError, match="wrong kind") as error:
        up.check_inventory(swapped, legacy_tensors(profile), "old.ninfer")
    assert error.value.code == "BAD_INVENTORY"


def test_output_that_exists_and_output_that_is_the_input_are_refused(tmp_path: Path) -> None:
    profile, path, _ = write_old(tmp_path, "qwen3_6_27b", 2)
    (tmp_path / "link.ninfer").symlink_to(path)
    for output in (path, tmp_path / "link.ninfer", tmp_path / "x" / ".." / "old.ninfer"):
        with pytest.raises(ArtifactError) as error:
            up.upgrade(str(path), str(output), profiles=[profile])
        assert error.value.code == "SAME_PATH"
    (tmp_path / "new.ninfer").touch()
    with pytest.raises(ArtifactError) as error:
        up.upgrade(str(path), str(tmp_path / "new.ninfer"), profiles=[profile])
    assert error.value.code == "OUTPUT_EXISTS"


def known_with(directory: LegacyDirectory, payload: bytes) -> up.KnownFile:
    metadata = legacy_metadata(directory)
    text = metadata[16 : 16 + int.from_bytes(metadata[8:16], "little")]
    return up.KnownFile(directory, hashlib.sha256(text).hexdigest(), hashlib.sha256(metadata + payload).hexdigest())


def known_file(recipe: str = "qwen3_6_27b") -> up.KnownFile:
    _, directory, payload = old_directory(recipe, 1)
    return known_with(directory, payload)


def test_a_known_file_becomes_version_2_in_place(tmp_path: Path) -> None:
    _, path, payload = write_old(tmp_path, "qwen3_6_27b", 1)
    known = [known_file("qwen3_6_35b_a3b"), known_file()]
    assert up.upgrade_in_place(str(path), known)
    assert path.read_bytes() == legacy_metadata(known[1].as_version_2()) + payload
    assert os.listdir(tmp_path) == ["old.ninfer"]
    assert not up.upgrade_in_place(str(path), known)
    with LegacyArtifact.open(path) as artifact:
        assert (artifact.directory.version, artifact.directory.weights_id) == (2, "groupwise-int")


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_an_interrupted_upgrade_is_taken_back_and_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    _, path, payload = write_old(tmp_path, "qwen3_6_27b", 1)
    known = [known_file()]
    overwrite, left = up._overwrite, writes

    def failing(path: str, offset: int, content: bytes) -> None:
        nonlocal left
        if left == 0:
            overwrite(path, offset, content[: len(content) // 2])
            raise OSError("power cut")
        left -= 1
        overwrite(path, offset, content)

    monkeypatch.setattr(up, "_overwrite", failing)
    if writes < 2:
        with pytest.raises(OSError, match="power cut"):
            up.upgrade_in_place(str(path), known)
        assert Path(f"{path}{up.BACKUP_SUFFIX}").exists()
    else:
        # The machine died between the last write and the removal of the backup.
        backup = legacy_metadata(known[0].directory)
        assert up.upgrade_in_place(str(path), known)
        Path(f"{path}{up.BACKUP_SUFFIX}").write_bytes(backup)
    monkeypatch.undo()
    assert up.upgrade_in_place(str(path), known) == (writes < 2)
    assert path.read_bytes() == legacy_metadata(known[0].as_version_2()) + payload
    assert os.listdir(tmp_path) == ["old.ninfer"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda content: content + b"x", "BAD_INVENTORY"),
        (lambda content: content[:-1] + bytes([content[-1] ^ 1]), "BAD_INVENTORY"),
        (lambda content: content.replace(b'"model_id":"qwen3.6-27b"', b'"model_id": "qwen36-27b"'), "BAD_IDENTITY"),
        (lambda content: content.replace(b'"shape":[40,64]', b'"shape":[64,40]', 1), "SIZE_MISMATCH"),
        (lambda content: content.replace(b'"offset":0,"bytes":11', b'"bytes":11,"offset":0', 1), "BAD_INVENTORY"),
        (lambda content: content.replace(b'"offset":0,"bytes":11', b'"offset":1,"bytes":10', 1), "BAD_INVENTORY"),
    ],
)
def test_a_file_that_is_not_the_published_one_stays_as_it_is(tmp_path: Path, change: object, code: str) -> None:
    _, path, _ = write_old(tmp_path, "qwen3_6_27b", 1)
    content = change(path.read_bytes())  # type: ignore[operator]
    path.write_bytes(content)
    with pytest.raises(ArtifactError) as error:
        up.upgrade_in_place(str(path), [known_file()])
    assert error.value.code == code
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["old.ninfer"]


@pytest.mark.parametrize("backup", [b"", b"NINFER", bytes(176_128)])
def test_a_backup_of_something_else_is_not_written_into_the_file(tmp_path: Path, backup: bytes) -> None:
    _, path, _ = write_old(tmp_path, "qwen3_6_27b", 1)
    content = path.read_bytes()
    saved = Path(f"{path}{up.BACKUP_SUFFIX}")
    saved.write_bytes(backup)
    with pytest.raises(ArtifactError) as error:
        up.upgrade_in_place(str(path), [known_file()])
    assert (error.value.code, error.value.path) == ("BAD_INVENTORY", str(saved))
    assert path.read_bytes() == content
    assert saved.read_bytes() == backup


def test_a_longer_directory_that_would_move_the_payload_is_refused(tmp_path: Path) -> None:
    _, directory, payload = old_directory("qwen3_6_27b", 1)
    spare = -len(legacy_metadata(directory).rstrip(b"\0")) % 4096
    directory = dataclasses.replace(directory, model_id=directory.model_id + "x" * spare)
    path = tmp_path / "old.ninfer"
    content = legacy_metadata(directory) + payload
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="would move") as error:
        up.upgrade_in_place(str(path), [known_with(directory, payload)])
    assert error.value.code == "BAD_INVENTORY"
    assert path.read_bytes() == content
    assert os.listdir(tmp_path) == ["old.ninfer"]


def test_a_rewrite_that_does_not_read_back_keeps_the_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, path, _ = write_old(tmp_path, "qwen3_6_27b", 1)
    content = path.read_bytes()
    monkeypatch.setattr(up, "_overwrite", lambda path, offset, content: None)
    with pytest.raises(ArtifactError, match="does not read back") as error:
        up.upgrade_in_place(str(path), [known_file()])
    assert error.value.code == "BAD_INVENTORY"
    assert content.startswith(Path(f"{path}{up.BACKUP_SUFFIX}").read_bytes())


def test_an_unknown_version_2_file_is_refused_in_place(tmp_path: Path) -> None:
    _, path, _ = write_old(tmp_path, "qwen3_6_35b_a3b", 2)
    with pytest.raises(ArtifactError) as error:
        up.upgrade_in_place(str(path), [known_file()])
    assert error.value.code == "BAD_IDENTITY"


def test_the_two_published_version_1_files_are_known() -> None:
    known = up.known_version_1_files()
    assert [(file.directory.model_id, len(file.directory.objects)) for file in known] == [
        ("qwen3.6-27b", 1124),
        ("qwen3.6-35b-a3b", 940),
    ]
    for file in known:
        assert len(legacy_metadata(file.directory)) == len(legacy_metadata(file.as_version_2()))


def test_the_upgrade_runs_on_the_standard_library_alone(tmp_path: Path) -> None:
    """In a process that can import nothing else, -S -I keeps installed packages off the path."""
    root = Path(__file__).parents[2]
    program = (
        "import sys\n"
        f"sys.path.insert(0, {str(root)!r})\n"
        "import ninfer.artifact.upgrade, ninfer.artifact.inspection\n"
        "from ninfer.artifact.cli import main\n"
        "outside = sorted(name for name in sys.modules\n"
        "    if name.partition('.')[0] not in sys.stdlib_module_names | {'ninfer', '__main__'})\n"
        "assert not outside, outside\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    missing = tmp_path / "absent.ninfer"
    arguments = [sys.executable, "-S", "-I", "-c", program, "upgrade", str(missing), str(tmp_path / "new.ninfer")]
    result = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert "absent.ninfer" in result.stderr
    assert "Traceback" not in result.stderr


def test_frontend_names() -> None:
    assert FRONTEND[0] == "frontend/tokenizer.json"
    assert len(FRONTEND) == 6
