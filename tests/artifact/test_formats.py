from __future__ import annotations

import pytest

from ninfer.artifact.formats import FORMATS, default_layout, encoded_size, row_split
from ninfer.errors import ArtifactError

LONG_NAMES = {
    "BF16": "bf16",
    "FP32": "fp32",
    "I32": "int32",
    "Q4": "q4_g64_fp16",
    "Q5": "q5_g64_fp16",
    "Q6": "q6_g64_fp16",
    "Q8": "q8_g32_fp16",
    "FP8": "fp8_e4m3fn_row_bf16",
    "NVFP4": "nvfp4",
}
# Section 6.5, sizes of all shapes in use.
SIZES = """
BF16 [128] 256; [256] 512; [1152] 2,304; [2048] 4,096; [3456] 6,912; [4304] 8,608; [4608] 9,216; [5120] 10,240;
BF16 [4,8192] 65,536; [4,10240] 81,920; [2,2,5120] 40,960; [48,5120] 491,520; [64,2048] 262,144; [96,5120] 983,040;
BF16 [257,2048] 1,052,672; [256,5120] 2,621,440; [2304,1152] 5,308,416; [1280,5120] 13,107,200;
BF16 [5120,6144] 62,914,560; [14336,5120] 146,800,640; [248320,256] 127,139,840
FP32 [] 4; [32] 128; [48] 192
I32 [131072] 524,288
Q4 [3456,1152] 2,115,072; [4304,1152] 2,634,048; [4096,5120] 11,141,120; [7168,5120] 19,496,960
Q4 [34816,5120] 94,699,520; [131072,2048] 142,606,336; [131072,5120] 356,515,840; [262144,2048] 285,212,672
Q5 [1152,1152] 870,912; [1152,4304] 3,290,112; [5120,6144] 20,643,840; [7168,5120] 24,084,480
Q5 [12288,5120] 41,287,680; [5120,17408] 58,490,880; [524288,512] 176,160,768
Q6 [1152,1536] 1,382,400; [248320,2048] 397,312,000; [248320,5120] 993,280,000; [524288,512] 209,715,200
Q8 [2048,512] 1,114,112; [1024,2048] 2,228,224; [2048,4096] 8,912,896; [2048,4608] 10,027,008
Q8 [2048,6144] 13,369,344; [6144,2048] 13,369,344; [9216,2048] 20,054,016; [5120,4096] 22,282,240
Q8 [4608,4608] 22,560,768; [5120,4608] 25,067,520; [12288,2048] 26,738,688; [5120,6144] 33,423,360
Q8 [6144,5120] 33,423,360; [2048,16384] 35,651,584; [5120,10240] 55,705,600; [14336,5120] 77,987,840
Q8 [5120,17408] 94,699,520; [5120,25600] 139,264,000; [34816,5120] 189,399,040; [524288,512] 285,212,672
Q8 [248320,2048] 540,344,320; [262144,2048] 570,425,344; [248320,5120] 1,350,860,800
FP8 [5120,6144] 31,467,520; [14336,5120] 73,428,992; [16384,5120] 83,918,848; [5120,17408] 89,139,200
FP8 [34816,5120] 178,327,552; [248320,5120] 1,271,895,040
NVFP4 [5120,6144] 17,694,724; [14336,5120] 41,287,684; [16384,5120] 47,185,924; [5120,17408] 50,135,044
NVFP4 [34816,5120] 100,270,084
"""


def published_sizes() -> list[tuple[str, tuple[int, ...], int]]:
    rows = []
    for line in SIZES.strip().splitlines():
        name, _, rest = line.partition(" ")
        for entry in rest.strip("; ").split("; "):
            shape, _, size = entry.partition(" ")
            dimensions = tuple(int(part) for part in shape.strip("[]").split(",") if part)
            rows.append((LONG_NAMES[name], dimensions, int(size.replace(",", ""))))
    return rows


@pytest.mark.parametrize(("format", "shape", "size"), published_sizes(), ids=str)
def test_published_sizes(format: str, shape: tuple[int, ...], size: int) -> None:
    assert encoded_size(format, default_layout(format), shape) == size


def test_planes_of_the_checked_example() -> None:
    planes = row_split(FORMATS["q5_g64_fp16"], (2, 130))
    assert (planes.groups, planes.real_groups, planes.rows * planes.base_row) == (4, 3, 256)
    assert (planes.high_offset, planes.rows * planes.high_row) == (256, 64)
    assert (planes.scale_offset, planes.rows * planes.scale_row, planes.size) == (512, 16, 528)


@pytest.mark.parametrize(
    ("format", "layout", "shape", "code"),
    [
        ("q4_g32_fp16", "row_split_k128_v1", (1, 1), "BAD_ENCODING"),
        ("Q4G64_F16S", "row_split_k128_v1", (1, 1), "BAD_ENCODING"),
        ("bf16", "row_split_k128_v1", (1, 1), "BAD_ENCODING"),
        ("bf16", "raw_bytes_v1", (1, 1), "BAD_ENCODING"),
        ("q4_g64_fp16", "row_split_k128_v1", (1,), "BAD_ENCODING"),
        ("q4_g64_fp16", "row_split_k128_v1", (1, 2, 3), "BAD_ENCODING"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (64, 64), "BAD_ENCODING"),
        ("nvfp4", "block_scale_k16_m128x4_v1", (128, 32), "BAD_ENCODING"),
        ("bf16", "contiguous_le_v1", (1,) * 17, "BAD_SHAPE"),
        ("bf16", "contiguous_le_v1", (3, 0), "BAD_SHAPE"),
        ("bf16", "contiguous_le_v1", (2**32, 2**32), "BAD_SHAPE"),
        ("fp32", "contiguous_le_v1", (2**62,), "BAD_SHAPE"),
    ],
)
def test_what_no_layout_can_hold_is_refused(format: str, layout: str, shape: tuple[int, ...], code: str) -> None:
    with pytest.raises(ArtifactError) as error:
        encoded_size(format, layout, shape)
    assert error.value.code == code
