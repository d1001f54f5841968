"""Digests and lengths of the published files (artifact spec, sections 9.2 and 9.3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedFile:
    """One published file.

    directory_sha256   of its directory text, or "" where it is not known
    """

    model_id: str
    weights_id: str
    version: int
    objects: int
    file_bytes: int
    sha256: str
    directory_sha256: str


# Lengths of the six frontend resources, in their order.
_FRONTEND_36 = (12_807_982, 16_718, 7_764, 202, 390, 385)
FRONTEND_BYTES = {
    "qwen3_6_27b": _FRONTEND_36,
    "qwen3_6_35b_a3b": _FRONTEND_36,
    "qwen3_8_27b": (12_809_320, 17_928, 8_952, 202, 390, 385),
}

PUBLISHED = (
    PublishedFile(
        "qwen3.6-27b",
        "groupwise-int",
        1,
        1124,
        17_495_365_888,
        "74fac75f3a6b7ab7b52e08c36969c7a33a8ba23465910eccd72d195adb497127",
        "df352a3e3b8555f15fd00d143be213b9e5ff6fb910a1c2390f0785f9a1e2d386",
    ),
    PublishedFile(
        "qwen3.6-27b",
        "groupwise-int",
        2,
        1124,
        17_495_365_888,
        "7b51600ffd10632b9660f56085efdd9b751d79733ad32036a652234b64bebe7b",
        "0abb85fde318b5980c126f9c44a5bae09e852034de79ea269bd09693aa34e7f7",
    ),
    PublishedFile(
        "qwen3.6-27b",
        "nvfp4",
        2,
        1307,
        18_324_064_000,
        "bce5f00d066c0f20f1317bf1fdcb458264cf95837c3b1f3fbec163694627893a",
        "50677ebddbeb17566a1c7837a122872fada8244f54d4d7b78ee95d7b567033ff",
    ),
    PublishedFile(
        "qwen3.8-27b",
        "groupwise-int",
        2,
        1124,
        18_210_531_328,
        "eec39564993d6e9c7d5e383382a760f093465c9d163ec9a1bd6b80199514bf3e",
        "45912dd83c71a1b3b3b644c15ce3ef83b0b60d77cd7c82a39b21d9ba6267d742",
    ),
    PublishedFile(
        "qwen3.8-27b",
        "groupwise-int",
        2,
        1190,
        20_437_336_576,
        "0634abb07024221de141456cf04a42ab74b18bc38e1b781c6eb2e062a467eec3",
        "8ac58027b96f58595730e86e0f1ddfa3f3d7cf726b43f91435b466b8032f8a60",
    ),
    PublishedFile(
        "qwen3.8-27b",
        "nvfp4",
        2,
        1124,
        21_492_695_040,
        "bb3360522a06e136e0367f5703414d26272b7285c8a6ab6194135c17dbd81b32",
        "dfb9a418f4a474c0b3709f48e1d4d1f878d54cdae726c042981b16f577875899",
    ),
    PublishedFile(
        "qwen3.8-27b",
        "nvfp4",
        2,
        1190,
        23_719_496_192,
        "552c374c685dce302603b95fbe940fb04243c0cd44c083efc644ad3d980d462c",
        "6b87d89f28937115d90542635126e72461750dcc9c1056620071014b35733d6e",
    ),
    PublishedFile(
        "qwen3.6-35b-a3b",
        "groupwise-int",
        1,
        940,
        22_783_246_080,
        "5194407dd6d3092b8c2f81ce41e014b50ca0d6f1ba4e5d8c1492b8652bfa267f",
        "0155278f7e050a4a5c39a697557ea9e2532d44dfc054fd41b496f8b37966732e",
    ),
    PublishedFile(
        "qwen3.6-35b-a3b",
        "groupwise-int",
        2,
        940,
        22_783_246_080,
        "1fb9ea0b5b8561e49d9604115ec89e5d9f2b6f6434e32c37c57fffd480a325d2",
        "4c65958b2a56b372481be2f333fa3837ac996ed4f067430de499657da0a083be",
    ),
    PublishedFile(
        "qwen3.6-27b",
        "groupwise-int",
        3,
        1124,
        17_495_538_688,
        "9b610a7d051e7c4dbf89adb604bd269d248b643c8f6c7ef75bdb871af92c6f6b",
        "",
    ),
    PublishedFile(
        "qwen3.6-27b",
        "nvfp4",
        3,
        1545,
        18_324_354_820,
        "0448262d15df2ae4fda761540c110bc19e7c3b4f43c0938e4d50474429cda083",
        "",
    ),
    PublishedFile(
        "qwen3.8-27b",
        "groupwise-int",
        3,
        1190,
        20_437_521_664,
        "81f924d440c27261d820c19a9f8d45794c5aee410f8a68bd358133fa8c0375da",
        "",
    ),
    PublishedFile(
        "qwen3.8-27b",
        "nvfp4",
        3,
        1246,
        23_719_715_844,
        "74d2c57145e6ff11d1d2faa79594477f9bc903a611af1fb20218189fbbb77d82",
        "",
    ),
    PublishedFile(
        "qwen3.6-35b-a3b",
        "groupwise-int",
        3,
        940,
        22_790_484_480,
        "3e33297645dc33557751be1a3c407a74ed7c00f34909b5d4e8cfdce91b3dbe84",
        "",
    ),
)
