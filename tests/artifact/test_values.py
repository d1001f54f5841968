from __future__ import annotations

import numpy as np
import pytest

from ninfer.artifact import layouts, quantise, values
from ninfer.artifact.formats import FORMATS, block_scale, row_scale, row_split

GROUPED = [name for name, entry in FORMATS.items() if entry.is_grouped]


def faults(data: np.ndarray, format: str, shape: tuple[int, ...]) -> list[str]:
    return list(values.value_faults(data, format, shape))


@pytest.mark.parametrize("format", [*GROUPED, "fp8_e4m3fn_row_bf16"])
@pytest.mark.parametrize("shape", [(3, 130), (2, 128), (5, 1)])
def test_what_the_encoders_write_is_legal(format: str, shape: tuple[int, int]) -> None:
    source = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    source[1] = 0
    assert faults(quantise.encode(source, format), format, shape) == []


@pytest.mark.parametrize("format", ["bf16", "fp32", "int32"])
def test_direct_formats_allow_every_bit_pattern(format: str) -> None:
    size = FORMATS[format].word_bytes * 6
    assert faults(np.full(size, 255, np.uint8), format, (2, 3)) == []


def encoded(format: str) -> np.ndarray:
    return quantise.encode(np.ones((300, 130), np.float32), format)


@pytest.mark.parametrize("format", GROUPED)
@pytest.mark.parametrize(("word", "what"), [(0x8000, "negative zero"), (0x7C00, "not finite"), (0xFE00, "not finite")])
def test_illegal_scales_are_named_with_their_place(
    format: str, word: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "BLOCK_ELEMENTS", 7 * 130)
    data = encoded(format)
    planes = row_split(FORMATS[format], (300, 130))
    data[planes.scale_offset :].view("<u2")[250 * planes.groups] = word
    assert [fault for fault in faults(data, format, (300, 130)) if what in fault and "[250, 0]" in fault]


@pytest.mark.parametrize("format", GROUPED)
def test_a_nonzero_code_needs_a_nonzero_scale(format: str) -> None:
    data = encoded(format)
    planes = row_split(FORMATS[format], (300, 130))
    data[planes.scale_offset :].view("<u2")[planes.groups] = 0
    assert any("scale 0 at [1, 0]" in fault for fault in faults(data, format, (300, 130)))


@pytest.mark.parametrize("format", GROUPED)
def test_padding_must_be_zero(format: str) -> None:
    entry = FORMATS[format]
    planes = row_split(entry, (300, 130))
    lane = encoded(format)
    last_base_byte = 2 * planes.base_row - 1
    lane[last_base_byte] = 0x01
    assert any("code in padding" in fault for fault in faults(lane, format, (300, 130)))
    if planes.real_groups < planes.groups:
        group = encoded(format)
        group[planes.scale_offset :].view("<u2")[planes.groups - 1] = 0x3C00
        assert any("scale of a padding group" in fault for fault in faults(group, format, (300, 130)))


@pytest.mark.parametrize("format", [*GROUPED, "fp8_e4m3fn_row_bf16"])
def test_gaps_between_planes_must_be_zero(format: str) -> None:
    data = quantise.encode(np.ones((1, 100), np.float32), format)
    data[255] = 1
    assert any(", 256) between planes" in fault for fault in faults(data, format, (1, 100)))


def test_the_gap_behind_the_high_plane_must_be_zero() -> None:
    data = quantise.encode(np.ones((1, 100), np.float32), "q5_g64_fp16")
    data[511] = 1
    assert any("[272, 512) between planes" in fault for fault in faults(data, "q5_g64_fp16", (1, 100)))


@pytest.mark.parametrize(("format", "code"), [("q8_g32_fp16", -128), ("t2_g128_fp16", -2)])
def test_the_codes_without_a_meaning_are_illegal(format: str, code: int) -> None:
    codes = np.array([[1, code]], np.int8)
    data = layouts.pack_grouped(codes, np.float16([[1.0]]), FORMATS[format])
    assert any("illegal code at [0, 0, 1]" in fault for fault in faults(data, format, (1, 2)))


def test_row_fp8() -> None:
    shape = (4, 300)
    start = row_scale(shape).scale_offset
    for index, byte, what in [
        (301, 0x7F, "NaN code at [1, 1]"),
        (301, 0xFF, "NaN code at [1, 1]"),
        (start + 5, 0x80, "negative or not finite at [2]"),
        (start + 5, 0x7F, "negative or not finite at [2]"),
    ]:
        data = quantise.encode(np.ones(shape, np.float32), "fp8_e4m3fn_row_bf16")
        data[index] = byte
        data[start + 4] = 0x80 if byte == 0x7F else data[start + 4]
        assert any(what in fault for fault in faults(data, "fp8_e4m3fn_row_bf16", shape)), what
    data = quantise.encode(np.zeros(shape, np.float32), "fp8_e4m3fn_row_bf16")
    data[0] = 0x80
    assert faults(data, "fp8_e4m3fn_row_bf16", shape) == []
    data[0] = 0x01
    assert any("scale 0 at [0]" in fault for fault in faults(data, "fp8_e4m3fn_row_bf16", shape))


def test_nvfp4() -> None:
    shape = (128, 64)
    parts = block_scale(shape)
    codes, scales = np.full(shape, 15, np.uint8), np.full((128, 4), 0x7E, np.uint8)
    assert faults(layouts.pack_nvfp4(codes, scales, 1.0), "nvfp4", shape) == []
    for word in (0x7F, 0x80, 0xFF):
        scales[70, 2] = word
        assert faults(layouts.pack_nvfp4(codes, scales, 1.0), "nvfp4", shape) == [
            "scale word outside 0x00…0x7e at [70, 2] (row first)"
        ]
    scales[70, 2] = 0
    for divisor in (0.0, -1.0, np.inf, np.nan):
        found = faults(layouts.pack_nvfp4(codes, scales, divisor), "nvfp4", shape)
        assert found == [f"divisor {np.float32(divisor)} is not finite and positive"]
    assert parts.divisor_offset == 4608


def test_draft_head_ids() -> None:
    def found(*ids: int) -> list[str]:
        return list(values.token_id_faults(np.array(ids, np.int32), 10))

    assert found(0, 9, 3) == []
    assert found(0, 10) == ["draft-head id outside [0, 10) at [1] (row first)"]
    assert found(-1) == ["draft-head id outside [0, 10) at [0] (row first)"]
    assert found(3, 4, 3) == ["draft-head ids are not unique"]
