from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer.artifact import layouts, quantise
from ninfer.artifact.formats import FORMATS, default_layout, encoded_size, row_split
from ninfer.errors import ArtifactError
from tests.artifact.vectors import GROUPED, Vector

GROUPED_FORMATS = [name for name, entry in FORMATS.items() if entry.is_grouped]
QUANTISED = [vector for vector in GROUPED if vector.name != "f"]


def bf16(words: str) -> np.ndarray:
    return np.array([int(word, 16) for word in words.split()], np.uint16)


def source(vector: Vector) -> np.ndarray:
    if vector.name == "e":
        n, k = np.meshgrid(np.arange(2), np.arange(130), indexing="ij")
        return ((((131 * n + 7 * k) % 33) - 16) / 16).astype(np.float32)
    words = [int(word, 16) for word in vector.words.split()]
    if len(vector.words.split()[0]) == 8:
        return np.array([words], np.uint32).view(np.float32)
    return np.array([words], np.uint16)


def sha256(data: np.ndarray) -> str:
    return hashlib.sha256(data.tobytes()).hexdigest()


def check_planes(data: np.ndarray, vector: Vector, shape: tuple[int, int]) -> None:
    planes = row_split(FORMATS[vector.format], shape)
    assert data.size == vector.size == encoded_size(vector.format, default_layout(vector.format), shape)
    assert data.tobytes().hex().startswith(vector.base)
    if vector.high:
        assert data[planes.high_offset :].tobytes().hex().startswith(vector.high)
    assert data[planes.scale_offset :].tobytes().hex() == vector.scales
    assert sha256(data) == vector.sha256


@pytest.mark.parametrize("vector", QUANTISED, ids=lambda v: f"{v.format}-{v.name}")
def test_published_vectors_of_the_grouped_quantiser(vector: Vector) -> None:
    values = source(vector)
    data = quantise.encode(values, vector.format)
    check_planes(data, vector, values.shape)
    entry = FORMATS[vector.format]
    codes, scales = layouts.unpack_grouped(data, entry, values.shape, (0, values.shape[0]))
    assert tuple(codes[0].reshape(-1)[: len(vector.codes)]) == vector.codes
    assert f"{scales[0, 0].view(np.uint16):04x}" == vector.scale


@pytest.mark.parametrize("vector", [v for v in GROUPED if v.name == "f"], ids=lambda v: v.format)
def test_published_vectors_of_the_lane_order(vector: Vector) -> None:
    entry = FORMATS[vector.format]
    lanes = np.arange(128)
    codes = (entry.qmin + 5 * lanes % (entry.qmax - entry.qmin + 1)).astype(np.int8)[None]
    scales = (0.0078125 * (np.arange(128 // entry.group) + 1)).astype(np.float16)[None]
    assert tuple(codes[0, : len(vector.codes)]) == vector.codes
    check_planes(layouts.pack_grouped(codes, scales, entry), vector, (1, 128))


def test_cross_check_row_decodes_to_the_published_values() -> None:
    data = quantise.encode(bf16("3f80 bf00 3e80 c000 0000 3fc0 bfa0 3f40")[None], "q4_g64_fp16")
    values = quantise.decode(data, "q4_g64_fp16", "row_split_k128_v1", (1, 8))
    assert values.dtype == np.float32
    assert values[0].tolist() == [
        1.142578125,
        -0.5712890625,
        0.28564453125,
        -1.99951171875,
        0.0,
        1.42822265625,
        -1.142578125,
        0.85693359375,
    ]


@pytest.mark.parametrize("format", GROUPED_FORMATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_refused(format: str, bad: float) -> None:
    values = np.ones((3, 130), np.float32)
    values[2, 129] = bad
    with pytest.raises(ArtifactError) as error:
        quantise.encode(values, format)
    assert error.value.code == "BAD_SOURCE_VALUE"


@pytest.mark.parametrize(
    ("format", "largest"),
    [("q4_g64_fp16", 0x48DF), ("q5_g64_fp16", 0x496F), ("q6_g64_fp16", 0x49F7), ("q8_g32_fp16", 0x4AFD)],
)
def test_the_largest_accepted_value_and_the_first_refused(format: str, largest: int) -> None:
    for sign in (0, 0x8000):
        quantise.encode(np.array([[largest | sign]], np.uint16), format)
        with pytest.raises(ArtifactError) as error:
            quantise.encode(np.array([[(largest + 1) | sign]], np.uint16), format)
        assert error.value.code == "BAD_SOURCE_VALUE"


def test_negative_zeros_give_a_positive_zero_scale() -> None:
    data = quantise.encode(np.full((1, 64), -0.0, np.float32), "q4_g64_fp16")
    assert not data.any()


def reference_codes(values: np.ndarray, format: str) -> tuple[list[list[int]], list[list[float]]]:
    """Section 7.1 one lane at a time, in scalar float32 arithmetic."""
    entry = FORMATS[format]
    all_codes, all_scales = [], []
    for row in values:
        codes, scales = [], []
        for begin in range(0, len(row), entry.group):
            group = row[begin : begin + entry.group]
            amax = max(abs(x) for x in group)
            if amax == 0:
                scales.append(0.0)
                codes += [0] * len(group)
                continue
            scale = np.float16(np.float32(np.float64(amax) / entry.qmax)) or np.float16(2.0**-24)
            inverse = np.float32(1.0 / np.float64(scale))
            scales.append(float(scale))
            codes += [int(max(entry.qmin, min(entry.qmax, np.rint(np.float32(x * inverse))))) for x in group]
        all_codes.append(codes)
        all_scales.append(scales)
    return all_codes, all_scales


@pytest.mark.parametrize("format", GROUPED_FORMATS)
@pytest.mark.parametrize("columns", [1, 31, 64, 127, 128, 129, 200])
def test_quantiser_equals_the_scalar_rule_on_awkward_widths(format: str, columns: int) -> None:
    random = np.random.default_rng(columns)
    values = (random.standard_normal((3, columns)) * 10.0 ** random.integers(-9, 4, (3, 1))).astype(np.float32)
    values[1, : columns // 2] = 0
    codes, scales = reference_codes(values, format)
    packed = layouts.pack_grouped(np.array(codes, np.int8), np.array(scales, np.float16), FORMATS[format])
    data = quantise.encode(values, format)
    assert data.tobytes() == packed.tobytes()
    group = FORMATS[format].group
    expected = np.float32(np.repeat(np.float32(scales), group, axis=1)[:, :columns]) * np.float32(codes)
    assert np.array_equal(quantise.decode(data, format, "row_split_k128_v1", values.shape), expected)


@pytest.mark.parametrize("format", ["q5_g64_fp16", "q8_g32_fp16", "fp8_e4m3fn_row_bf16", "bf16", "fp32"])
def test_a_stream_of_blocks_covers_every_byte_once_and_equals_the_whole(format: str) -> None:
    values = np.random.default_rng(1).standard_normal((37, 70)).astype(np.float32)
    whole = quantise.encode(values, format)
    data, written = np.zeros(whole.size, np.uint8), np.zeros(whole.size, np.uint8)
    for offset, piece in quantise.encode_stream([values[:5], values[5:6], values[6:]], format, values.shape):
        data[offset : offset + piece.size] = piece
        written[offset : offset + piece.size] += 1
    assert (written == 1).all()
    assert data.tobytes() == whole.tobytes()


@pytest.mark.parametrize("format", ["q5_g64_fp16", "bf16", "fp8_e4m3fn_row_bf16"])
@pytest.mark.parametrize("rows", [3, 5])
def test_a_stream_with_another_number_of_rows_is_refused(format: str, rows: int) -> None:
    with pytest.raises(ArtifactError) as error:
        list(quantise.encode_stream([np.ones((rows, 8), np.float32)], format, (4, 8)))
    assert error.value.code == "BAD_SOURCE"


@pytest.mark.parametrize("format", [*GROUPED_FORMATS, "fp8_e4m3fn_row_bf16", "bf16", "fp32"])
def test_a_range_of_rows_decodes_as_in_the_whole(format: str) -> None:
    values = np.random.default_rng(2).standard_normal((9, 130)).astype(np.float32)
    data, layout = quantise.encode(values, format), default_layout(format)
    whole = quantise.decode(data, format, layout, (9, 130))
    for begin, end in [(0, 1), (3, 7), (8, 9), (0, 9)]:
        assert np.array_equal(quantise.decode(data, format, layout, (9, 130), (begin, end)), whole[begin:end])
    for begin, end in [(-1, 2), (3, 3), (4, 3), (0, 10)]:
        with pytest.raises(ArtifactError) as error:
            quantise.decode(data, format, layout, (9, 130), (begin, end))
        assert error.value.code == "BAD_RANGE"


def test_work_is_the_same_whatever_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(3).standard_normal((50, 96)).astype(np.float32)
    whole = quantise.encode(values, "q6_g64_fp16")
    monkeypatch.setattr(quantise, "BLOCK_ELEMENTS", 200)
    assert quantise.encode(values, "q6_g64_fp16").tobytes() == whole.tobytes()
    small = quantise.decode(whole, "q6_g64_fp16", "row_split_k128_v1", (50, 96))
    monkeypatch.undo()
    assert np.array_equal(small, quantise.decode(whole, "q6_g64_fp16", "row_split_k128_v1", (50, 96)))


def test_a_scale_is_a_signed_multiplier() -> None:
    entry = FORMATS["q4_g64_fp16"]
    scales = np.array([0xB000], np.uint16).view(np.float16)[None]
    data = layouts.pack_grouped(np.array([[-8]], np.int8), scales, entry)
    assert quantise.decode(data, entry.name, entry.layout, (1, 1)).tolist() == [[1.0]]


@pytest.mark.parametrize("format", GROUPED_FORMATS)
def test_gathered_rows_decode_as_the_rows_they_came_from(format: str) -> None:
    values = np.random.default_rng(4).standard_normal((11, 130)).astype(np.float32)
    data = quantise.encode(values, format)
    rows = np.array([10, 0, 3, 3, 7])
    gathered = layouts.gather_rows(data, FORMATS[format], (11, 130), rows)
    assert gathered.tobytes() == quantise.encode(values[rows], format).tobytes()


def test_ternary_vectors() -> None:
    entry = FORMATS["t2_g128_fp16"]
    data = layouts.pack_grouped(np.array([[1, -1, 0, 1, 0, 0, -1, 1]], np.int8), np.float16([[0.5]]), entry)
    assert data.tobytes().hex().startswith("4d70" + 30 * "00")
    assert data[256:].tobytes().hex() == "0038"
    assert sha256(data) == "9f9d76259604eecc910ea109ed6c68f9d7c0af4a8ab2dacc834d7f802ce04217"

    n, g, i = np.meshgrid(np.arange(3), np.arange(2), np.arange(128), indexing="ij")
    codes = ((n + g + i) % 3 - 1).astype(np.int8).reshape(3, 256)
    scales = np.float16(0.25 * (np.arange(3)[:, None] + 1) + 0.125 * np.arange(2)[None])
    data = layouts.pack_grouped(codes, scales, entry)
    assert data.tobytes().hex().startswith("d3344dd3344dd334")
    assert data[256:].tobytes().hex() == "0034003600380039003a003b"
    assert sha256(data) == "d679160d64fafb24a8bdc05e11801a23037b1e7e8d0073d43a00818a06b8b4d8"
    values = quantise.decode(data, entry.name, entry.layout, (3, 256))
    assert np.array_equal(values, np.repeat(np.float32(scales), 128, axis=1) * np.float32(codes))


def test_nvfp4_vectors() -> None:
    n, k, g = np.arange(128)[:, None], np.arange(64)[None], np.arange(4)[None]
    data = layouts.pack_nvfp4(((7 * n + 3 * k) % 16).astype(np.uint8), (0x30 + (n + 5 * g) % 16).astype(np.uint8), 2.0)
    assert data.size == 4612
    assert data.tobytes().hex().startswith("3096fc52b81e74da")
    assert data[4096:].tobytes().hex().startswith("30353a3f30353a3f30353a3f30353a3f31363b30")
    assert data[-4:].tobytes().hex() == "00000040"
    assert sha256(data) == "62a750c205726c151ea31450c20e9b83a3706810a5d5afcfb01543b1777ebb79"
    values = quantise.decode(data, "nvfp4", "block_scale_k16_m128x4_v1", (128, 64))
    assert [values[0, 1], values[33, 17], values[127, 63]] == [0.375, -0.4375, 3.5]

    n, k, g = np.arange(256)[:, None], np.arange(128)[None], np.arange(8)[None]
    codes, scales = ((5 * n + 11 * k) % 16).astype(np.uint8), ((13 * n + 29 * g) % 127).astype(np.uint8)
    data = layouts.pack_nvfp4(codes, scales, 1000.0)
    assert data.size == 18436
    assert data.tobytes().hex().startswith("b0167cd2389ef45a")
    assert data[16384:].tobytes().hex().startswith("001d3a5723405d7a")
    assert data[16384 + 1674] == 0x6B == scales[200, 6]
    assert data[-4:].tobytes().hex() == "00007a44"
    assert sha256(data) == "f358544c35a3b86b3cae0871d073f6034516df889718ebc616480fe779a15704"
    for rows in [(0, 256), (5, 9), (100, 200), (255, 256)]:
        part = layouts.unpack_nvfp4(data, (256, 128), rows)
        assert np.array_equal(part[0], codes[slice(*rows)])
        assert np.array_equal(part[1], scales[slice(*rows)])
        assert part[2] == 1000.0


ROW_FP8 = {
    "a": ("3f80 bf00 3e80 c000 0000 3fc0 bfa0 3f40", 0x3B92, "76ee66fe007bf973"),
    "b": ("43e0 4188 c188 4198 3b40 3a80 8000 c3e0", 0x3F80, "7e58d85a020080fe"),
    "c": ("0000 0000 0000 0000 0000 0000 0000 8000", 0x0000, "0000000000000000"),
}
ROW_FP8_VALUES = {
    "a": [0.998046875, -0.4990234375, 0.24951171875, -1.99609375, 0, 1.568359375, -1.283203125, 0.7841796875],
    "b": [448, 16, -16, 20, 0.00390625, 0, -0.0, -448],
    "c": [0] * 8,
}


@pytest.mark.parametrize("name", ROW_FP8)
def test_row_fp8_vectors(name: str) -> None:
    words, scale, codes = ROW_FP8[name]
    data = quantise.encode(bf16(words)[None], "fp8_e4m3fn_row_bf16")
    assert data[:8].tobytes().hex() == codes
    assert data[256:].view("<u2").tolist() == [scale]
    values = quantise.decode(data, "fp8_e4m3fn_row_bf16", "row_scale_v1", (1, 8))
    assert values.tobytes() == np.float32([ROW_FP8_VALUES[name]]).tobytes()


def test_row_fp8_object_and_refusals() -> None:
    data = quantise.encode(np.stack([bf16(ROW_FP8["a"][0]), bf16(ROW_FP8["b"][0])]), "fp8_e4m3fn_row_bf16")
    assert data.size == 260
    assert data[256:].tobytes().hex() == "923b803f"
    assert sha256(data) == "aad038e613531330882d1e76e9a28f02b568faa92a1550431ccd17630444c90f"
    for bad in ["0001 8001 0000 0000", "7f80 0000", "7fc0 0000"]:
        with pytest.raises(ArtifactError) as error:
            quantise.encode(bf16(bad)[None], "fp8_e4m3fn_row_bf16")
        assert error.value.code == "BAD_SOURCE_VALUE"


def test_direct_vectors() -> None:
    assert quantise.encode(np.float32([1.0, -2.5]), "bf16").tobytes().hex() == "803f20c0"
    assert quantise.encode(np.array(1.0, np.float32), "fp32").tobytes().hex() == "0000803f"
    assert quantise.encode(bf16("bf00"), "fp32").tobytes().hex() == "000000bf"
    assert quantise.encode(np.array([-1, 131071]), "int32").tobytes().hex() == "ffffffffffff0100"
    assert quantise.encode(bf16("7fa1"), "bf16").tobytes().hex() == "a17f"
    assert quantise.encode(quantise.widen_bf16(bf16("7fa1")), "bf16").tobytes().hex() == "a17f"
    assert quantise.decode(bytes.fromhex("ffffffffffff0100"), "int32", "contiguous_le_v1", (2,)).tolist() == [
        -1,
        131071,
    ]
    assert quantise.decode(bytes.fromhex("0000803f"), "fp32", "contiguous_le_v1", ()).shape == ()
    assert quantise.decode_bf16_words(bytes.fromhex("a17f"), (1,)).tolist() == [0x7FA1]


def test_every_bf16_word_survives_a_round_trip() -> None:
    words = np.arange(65536, dtype=np.uint16)
    assert np.array_equal(quantise.round_bf16(quantise.widen_bf16(words)), words)
    low_payload = np.array([0x7F800001, 0xFF800001], np.uint32).view(np.float32)
    assert quantise.round_bf16(low_payload).tolist() == [0x7FC0, 0xFFC0]


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=300, deadline=None)
def test_rounding_to_bf16_picks_the_nearest_word(bits: int) -> None:
    value = np.array([bits], np.uint32).view(np.float32)
    if not np.isfinite(value[0]):
        return
    word = int(quantise.round_bf16(value)[0])
    candidates = [(bits >> 16), (bits >> 16) + 1]
    distance = [abs((candidate << 16) - bits) for candidate in candidates]
    best = min(zip(distance, [c & 1 for c in candidates], candidates, strict=True))
    assert word == best[2]


@pytest.mark.parametrize(
    ("values", "format"),
    [
        (np.ones(8, np.float32), "q4_g64_fp16"),
        (np.ones((2, 2, 2), np.float32), "fp8_e4m3fn_row_bf16"),
        (np.ones((2, 8), np.int32), "q4_g64_fp16"),
        (np.ones((2, 8), np.float32), "int32"),
        (np.ones((128, 64), np.float32), "nvfp4"),
        (np.ones((0, 64), np.float32), "bf16"),
    ],
)
def test_a_source_of_the_wrong_rank_or_dtype_is_refused(values: np.ndarray, format: str) -> None:
    with pytest.raises(ArtifactError) as error:
        quantise.encode(values, format)
    assert error.value.code == "BAD_SOURCE"


def test_integers_beyond_int32_are_refused() -> None:
    with pytest.raises(ArtifactError) as error:
        quantise.encode(np.array([2**31]), "int32")
    assert error.value.code == "BAD_SOURCE_VALUE"


@pytest.mark.parametrize("size", [259, 261])
def test_decoding_another_number_of_bytes_is_refused(size: int) -> None:
    with pytest.raises(ArtifactError) as error:
        quantise.decode(bytes(size), "q4_g64_fp16", "row_split_k128_v1", (1, 8))
    assert error.value.code == "SIZE_MISMATCH"


@pytest.mark.parametrize("format", [*GROUPED_FORMATS, "fp8_e4m3fn_row_bf16", "nvfp4"])
def test_illegal_bytes_decode_without_a_warning(format: str) -> None:
    layout, shape = default_layout(format), (128, 64)
    size = encoded_size(format, layout, shape)
    for byte in (0xFF, 0x7F, 0x80, 0x00):
        assert quantise.decode(np.full(size, byte, np.uint8), format, layout, shape).shape == shape


def test_rounding_to_e4m3_agrees_with_the_table_of_values() -> None:
    table = quantise.E4M3_VALUES[:127]
    midpoints = (table[:-1] + table[1:]) / 2
    edges = np.concatenate([table, midpoints]).astype(np.float32)
    random = np.exp(np.random.default_rng(0).uniform(-12, 6.1, 20_000)).astype(np.float32)
    magnitudes = np.concatenate(
        [edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(448)), random]
    )
    values = np.minimum(np.concatenate([magnitudes, -magnitudes]), np.float32(448))
    values = np.maximum(values, np.float32(-448))
    below = np.searchsorted(midpoints, np.abs(values), side="left")
    above = np.searchsorted(midpoints, np.abs(values), side="right")
    expected = np.where(below & 1, above, below) | np.where(np.signbit(values), 128, 0)
    assert np.array_equal(quantise.round_e4m3(values), expected)
