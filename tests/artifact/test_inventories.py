from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache

import pytest

from ninfer.artifact.directory import TensorObject
from ninfer.artifact.formats import encoded_size, up
from ninfer.artifact.inventories import LegacyTensor, legacy_tensors
from ninfer.artifact.legacy import LegacyDirectory, legacy_json, legacy_metadata, place_legacy
from ninfer.artifact.parameters import logical_parameters
from ninfer.artifact.profiles import PROFILES, Profile
from ninfer.artifact.published import FRONTEND_BYTES, PUBLISHED

BY_KEY = {(profile.model_id, profile.weights_id, len(profile.components.drafts)): profile for profile in PROFILES}
INT_36 = BY_KEY["qwen3.6-27b", "groupwise-int", 0]
NVFP4_36 = BY_KEY["qwen3.6-27b", "nvfp4", 0]
INT_38, INT_38_DRAFT = (BY_KEY["qwen3.8-27b", "groupwise-int", drafts] for drafts in (0, 1))
NVFP4_38, NVFP4_38_DRAFT = (BY_KEY["qwen3.8-27b", "nvfp4", drafts] for drafts in (0, 1))
MOE = BY_KEY["qwen3.6-35b-a3b", "groupwise-int", 1]


@cache
def inventory(index: int) -> tuple[LegacyTensor, ...]:
    return legacy_tensors(PROFILES[index])


def tensors_of(profile: Profile) -> tuple[LegacyTensor, ...]:
    return inventory(PROFILES.index(profile))


def planned(profile: Profile, version: int) -> LegacyDirectory:
    weights_id = None if version == 1 else profile.weights_id
    lengths = FRONTEND_BYTES[profile.target]
    return place_legacy(version, profile.model_id, weights_id, tensors_of(profile), lengths)


# Section 9.3: profile, version, objects, JSON bytes, payload start, tensor bytes, span, file bytes, directory digest.
FILES = [
    (
        INT_36,
        1,
        1124,
        174_176,
        176_128,
        17_482_342_304,
        17_495_189_760,
        17_495_365_888,
        "df352a3e3b8555f15fd00d143be213b9e5ff6fb910a1c2390f0785f9a1e2d386",
    ),
    (
        INT_36,
        2,
        1124,
        174_218,
        176_128,
        17_482_342_304,
        17_495_189_760,
        17_495_365_888,
        "0abb85fde318b5980c126f9c44a5bae09e852034de79ea269bd09693aa34e7f7",
    ),
    (
        NVFP4_36,
        2,
        1307,
        206_636,
        208_896,
        18_310_883_160,
        18_323_855_104,
        18_324_064_000,
        "50677ebddbeb17566a1c7837a122872fada8244f54d4d7b78ee95d7b567033ff",
    ),
    (
        INT_38,
        2,
        1124,
        174_230,
        176_128,
        18_197_503_904,
        18_210_355_200,
        18_210_531_328,
        "45912dd83c71a1b3b3b644c15ce3ef83b0b60d77cd7c82a39b21d9ba6267d742",
    ),
    (
        INT_38_DRAFT,
        2,
        1190,
        185_105,
        188_416,
        20_424_296_864,
        20_437_148_160,
        20_437_336_576,
        "8ac58027b96f58595730e86e0f1ddfa3f3d7cf726b43f91435b466b8032f8a60",
    ),
    (
        NVFP4_38,
        2,
        1124,
        176_842,
        180_224,
        21_479_607_072,
        21_492_514_816,
        21_492_695_040,
        "dfb9a418f4a474c0b3709f48e1d4d1f878d54cdae726c042981b16f577875899",
    ),
    (
        NVFP4_38_DRAFT,
        2,
        1190,
        187_717,
        188_416,
        23_706_400_032,
        23_719_307_776,
        23_719_496_192,
        "6b87d89f28937115d90542635126e72461750dcc9c1056620071014b35733d6e",
    ),
    (
        MOE,
        1,
        940,
        147_634,
        151_552,
        22_770_245_536,
        22_783_094_528,
        22_783_246_080,
        "0155278f7e050a4a5c39a697557ea9e2532d44dfc054fd41b496f8b37966732e",
    ),
    (
        MOE,
        2,
        940,
        147_676,
        151_552,
        22_770_245_536,
        22_783_094_528,
        22_783_246_080,
        "4c65958b2a56b372481be2f333fa3837ac996ed4f067430de499657da0a083be",
    ),
]


@pytest.mark.parametrize("row", FILES, ids=lambda row: f"{row[0].model_id}-{row[0].weights_id}-v{row[1]}-{row[2]}")
def test_published_files(row: tuple[Profile, int, int, int, int, int, int, int, str]) -> None:
    profile, version, objects, json_bytes, start, tensor_bytes, span, file_bytes, digest = row
    directory = planned(profile, version)
    text = legacy_json(directory)
    assert len(directory.objects) == objects
    assert sum(stored.bytes for stored in directory.objects if isinstance(stored, TensorObject)) == tensor_bytes
    assert len(text) == json_bytes
    assert len(legacy_metadata(directory)) == start == up(16 + json_bytes, 4096)
    assert directory.span == span
    assert start + span == file_bytes
    assert hashlib.sha256(text).hexdigest() == digest
    known = [entry for entry in PUBLISHED if (entry.version, entry.directory_sha256) == (version, digest)]
    assert [entry.file_bytes for entry in known] == [file_bytes]
    assert known[0].model_id == profile.model_id


def test_the_early_35b_file_without_drafter() -> None:
    tensors = [tensor for tensor in tensors_of(MOE) if not tensor.name.startswith("dflash/")]
    directory = place_legacy(1, MOE.model_id, None, tensors, FRONTEND_BYTES[MOE.target])
    start = len(legacy_metadata(directory))
    assert (len(directory.objects), len(legacy_json(directory)), start) == (889, 139_495, 143_360)
    assert (directory.span, start + directory.span) == (22_373_040_896, 22_373_184_256)


def component(tensor: LegacyTensor) -> str:
    if tensor.name.startswith("text/draft_head"):
        return "draft head"
    return tensor.name.partition("/")[0]


DENSE_PARTS = {"draft head": (357_040_128, 2), "mtp": (451_267_584, 12), "vision": (295_711_648, 333)}
DFLASH2 = {"dflash2": (2_226_792_960, 66)}
# Section 9.4: bytes and objects per component.
COMPONENTS = [
    (INT_36, {"text": (16_378_322_944, 771), **DENSE_PARTS}),
    (INT_38_DRAFT, {"text": (17_093_484_544, 771), **DENSE_PARTS, **DFLASH2}),
    (NVFP4_36, {"text": (17_206_863_800, 954), **DENSE_PARTS}),
    (NVFP4_38_DRAFT, {"text": (20_375_587_712, 771), **DENSE_PARTS, **DFLASH2}),
    (
        MOE,
        {
            "text": (21_038_461_952, 533),
            "draft head": (143_130_624, 2),
            "mtp": (897_934_336, 15),
            "vision": (280_664_992, 333),
            "dflash": (410_053_632, 51),
        },
    ),
]


@pytest.mark.parametrize(("profile", "expected"), COMPONENTS, ids=[profile.recipe for profile, _ in COMPONENTS])
def test_bytes_per_component(profile: Profile, expected: dict[str, tuple[int, int]]) -> None:
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for stored, tensor in zip(planned(profile, 2).objects[6:], tensors_of(profile), strict=True):
        sizes[component(tensor)] += stored.bytes
        counts[component(tensor)] += 1
    assert {name: (sizes[name], counts[name]) for name in sizes} == expected


# Section 9.5: payload-relative offsets, in the order of the profiles below.
ANCHOR_PROFILES = [INT_36, NVFP4_36, INT_38_DRAFT, NVFP4_38_DRAFT, MOE]
ANCHORS = {
    "text/token_embedding": [12_833_536, 12_833_536, 12_837_376, 12_837_376, 12_833_536],
    "text/layers/0/gdn/a_log": [1_006_123_776, 1_363_704_576, 1_363_708_416, 1_284_742_656, 553_181_952],
    "text/layers/3/attention/query_norm": [1_731_752_960, 2_159_627_264, 2_089_337_600, 2_158_807_808, 2_078_505_984],
    "text/output_head": [15_397_882_624, 15_868_967_168, 15_755_467_264, 19_116_592_640, 20_653_991_168],
    "text/draft_head_token_ids": [16_747_678_464, 17_576_343_808, 17_462_843_904, 20_745_003_520, 21_193_909_504],
    "mtp/final_norm": [17_199_460_096, 18_028_125_440, 17_914_625_536, 21_196_785_152, 22_092_364_032],
    "vision/merger/norm/bias": [17_495_187_456, 18_323_852_800, 18_210_352_896, 21_492_512_512, 22_373_038_592],
}


@pytest.mark.parametrize("index", range(5), ids=[profile.recipe for profile in ANCHOR_PROFILES])
def test_anchor_offsets(index: int) -> None:
    offsets = {stored.id: stored.offset for stored in planned(ANCHOR_PROFILES[index], 2).objects}
    assert {name: offsets[name] for name in ANCHORS} == {name: row[index] for name, row in ANCHORS.items()}
    last = {2: 20_310_008_320, 3: 23_592_167_936, 4: 22_783_090_432}
    if index in last:
        assert list(offsets.values())[-1] == last[index]


@pytest.mark.parametrize("profile", PROFILES, ids=lambda p: f"{p.recipe}-{len(p.components.drafts)}")
def test_every_parameter_is_in_one_object_of_the_right_size(profile: Profile) -> None:
    parameters = {item.name: item for item in logical_parameters(profile.components)}
    held: Counter[str] = Counter()
    for tensor in tensors_of(profile):
        if tensor.divisor:
            assert all(parameters[member].inputs for member in tensor.members)
            continue
        held.update(tensor.members)
        elements = sum(parameters[member].elements for member in tensor.members)
        assert encoded_size("fp32", "contiguous_le_v1", tensor.shape) == 4 * elements
    assert held == Counter(name for name, item in parameters.items() if item.alias_of is None)
