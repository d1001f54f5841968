"""The inline assembly of the Triton route, written from the tables of :mod:`packing`.

Everything here is in PTX since 8.0 of the hardware: ``sub.bf16x2`` would need 9.0, so offsets are taken by ``fma``.
"""

from __future__ import annotations

from ninfer.kernels.low_bit_linear.packing import PACKINGS, Piece

_BF16_ONE = 0x3F80
_BF16_128 = 0x4300
_BF16_MINUS = 0xC300  # -128.0; bit 7 set: -256.0
_OR_AND = "0xEA"  # lop3 table of (a & b) | c

SCALES = "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }"
SCALES_CONSTRAINTS = "=f,=f,r"

# An fp16 scale as the sum of two bfloat16, each twice in a word: row g's and what is left of it, then row g + 8's. Of
# eleven bits eight are taken, rounded: what is left is at most four units of the eleventh.
SPLIT_SCALES = """{ .reg .b16 l, h; .reg .f32 a, b, c, d;
mov.b32 {l, h}, $4; cvt.f32.f16 a, l; cvt.f32.f16 b, h;
cvt.rn.bf16x2.f32 $0, a, a; and.b32 c, $0, 0xffff0000; sub.rn.f32 c, a, c; cvt.rn.bf16x2.f32 $1, c, c;
cvt.rn.bf16x2.f32 $2, b, b; and.b32 d, $2, 0xffff0000; sub.rn.f32 d, b, d; cvt.rn.bf16x2.f32 $3, d, d; }"""
SPLIT_SCALES_CONSTRAINTS = "=r,=r,=r,=r,r"

# Keeps the loads above it above it: without this, ptxas sinks a prefetch to just before its use in the next iteration.
ORDER_POINT = "bar.warp.sync 0xffffffff; mov.b32 $0, $1;"
OPAQUE = "mov.b32 $0, $1;"
# $1, but not known to be the same in all lanes: of a loop whose numbers are, ptxas 12.8 lets the prefetched words and
# the columns of 16 tokens share counters, so that the first product waits for both.
VARYING = "{ .reg .b32 l; mov.b32 l, %laneid; shr.b32 l, l, 5; add.u32 $0, $1, l; }"
ORDER_POINT_CONSTRAINTS = "=r,r"


def _both(half: int) -> str:
    return f"0x{half:04x}{half:04x}"


def input_registers(bits: int) -> int:
    """Words that a lane passes to :func:`unpack`: its words of a group, and a neighbour where five must be pairs."""
    words = PACKINGS[bits].lane_words
    return words + words % 2


def unpack(bits: int, first: int) -> str:
    """One group of a lane: words in, a register of two bfloat16 per pair out, each the exact value of a code.

    Outputs are $0 to $(pairs - 1); word k of the group is input `first` + k (0 or 1) behind them.
    """
    packing = PACKINGS[bits]
    words = [f"${packing.pairs + first + k}" for k in range(packing.lane_words)]
    lines = [f"{{ .reg .b32 a<{packing.pairs}>; .reg .b32 s; .reg .b32 c; .reg .b32 o;"]
    lines += [f"mov.b32 o, {_both(_BF16_ONE)};", f"mov.b32 c, {_both(_BF16_MINUS | packing.offset)};"]
    for pair in range(packing.pairs):
        pieces = [piece for piece in packing.pieces if piece.pair == pair]
        lines += _signed_byte(pair, pieces, words) if bits == 8 else _offset_code(pair, pieces, words)
        lines.append(f"fma.rn.bf16x2 ${pair}, a{pair}, o, c;")
    return "\n".join([*lines, "}"])


def unpack_constraints(bits: int) -> str:
    return ",".join(["=r"] * PACKINGS[bits].pairs + ["r"] * input_registers(bits))


def widen(bits: int) -> str:
    """One group of a lane: words and scales in, a word of two bfloat16 weights per pair out, code times scale rounded
    once.

    Outputs are $0 to $(pairs - 1). Behind them the words of the group; then the outputs of `SPLIT_SCALES` for 4 to 6
    bits, of `SCALES` for 8. Up to six bits a code times the rest of its scale is exact in bfloat16 (31 times 4, or a
    power of two), so two multiplications round like one; eight bits go through fp32.
    """
    packing = PACKINGS[bits]
    words = [f"${packing.pairs + k}" for k in range(packing.lane_words)]
    scales = [f"${packing.pairs + packing.lane_words + k}" for k in range(2 if bits == 8 else 4)]
    lines = [f"{{ .reg .b32 a<{packing.pairs}>; .reg .b32 s; .reg .b32 c; .reg .b32 o; .reg .b32 z;"]
    lines += [".reg .f32 e; .reg .f32 f;", "mov.b32 z, 0;"]
    lines += [f"mov.b32 o, {_both(_BF16_ONE)};", f"mov.b32 c, {_both(_BF16_MINUS | packing.offset)};"]
    for pair in range(packing.pairs):
        a, row = f"a{pair}", pair % 2
        pieces = [piece for piece in packing.pieces if piece.pair == pair]
        lines += _signed_byte(pair, pieces, words) if bits == 8 else _offset_code(pair, pieces, words)
        lines.append(f"fma.rn.bf16x2 {a}, {a}, o, c;")
        if bits == 8:
            lines += [f"shl.b32 e, {a}, 16;", f"and.b32 f, {a}, 0xffff0000;"]
            lines += [f"mul.rn.f32 e, e, {scales[row]};", f"mul.rn.f32 f, f, {scales[row]};"]
            lines.append(f"cvt.rn.bf16x2.f32 ${pair}, f, e;")
        else:
            lines.append(f"fma.rn.bf16x2 s, {a}, {scales[2 * row + 1]}, z;")
            lines.append(f"fma.rn.bf16x2 ${pair}, {a}, {scales[2 * row]}, s;")
    return "\n".join([*lines, "}"])


def widen_constraints(bits: int) -> str:
    packing = PACKINGS[bits]
    scales = ["f"] * 2 if bits == 8 else ["r"] * 4
    return ",".join(["=r"] * packing.pairs + ["r"] * packing.lane_words + scales)


def _offset_code(pair: int, pieces: list[Piece], words: list[str]) -> list[str]:
    """a = 128 + stored code. The mantissa's last bit of 128.0 is worth 1, so fields are simply or-ed in."""
    lines, below = [], _both(_BF16_128)
    for piece in pieces:
        source, down = words[piece.word], piece.shift - piece.low
        assert down >= 0
        if down:
            lines.append(f"shr.b32 s, {source}, {down};")
            source = "s"
        mask = _both(((1 << piece.width) - 1) << piece.low)
        lines.append(f"lop3.b32 a{pair}, {source}, {mask}, {below}, {_OR_AND};")
        below = f"a{pair}"
    return lines


def _signed_byte(pair: int, pieces: list[Piece], words: list[str]) -> list[str]:
    """a = 128 + low seven bits; c = -128, or -256 where the sign bit is set."""
    (piece,) = pieces
    lines, source = [], words[piece.word]
    if piece.shift:
        lines.append(f"shr.b32 s, {source}, {piece.shift};")
        source = "s"
    lines.append(f"lop3.b32 a{pair}, {source}, {_both(0x7F)}, {_both(_BF16_128)}, {_OR_AND};")
    lines.append(f"lop3.b32 c, {source}, {_both(0x80)}, {_both(_BF16_MINUS)}, {_OR_AND};")
    return lines
