"""Inline assembly that turns stored values of two keys into operands of the matrix unit.

A register of an operand holds two neighbours along the keys; memory holds neighbours along the head. All of it is in
PTX since 8.0 of the hardware.
"""

from __future__ import annotations

# Four columns of two keys, a byte each, as four registers of two fp16: byte ^ 0x80 in the mantissa of 1024.0 is
# exactly 1152 + code.
INT8_PAIRS = """{ .reg .b32 u, v, s, c;
prmt.b32 u, $4, $5, 0x5410;
prmt.b32 v, $4, $5, 0x7632;
mov.b32 c, 0xe480e480;
lop3.b32 $0, u, 0x00ff00ff, 0x64806480, 0x6a;
shr.b32 s, u, 8;
lop3.b32 $1, s, 0x00ff00ff, 0x64806480, 0x6a;
lop3.b32 $2, v, 0x00ff00ff, 0x64806480, 0x6a;
shr.b32 s, v, 8;
lop3.b32 $3, s, 0x00ff00ff, 0x64806480, 0x6a;
add.rn.f16x2 $0, $0, c;
add.rn.f16x2 $1, $1, c;
add.rn.f16x2 $2, $2, c;
add.rn.f16x2 $3, $3, c;
}"""
INT8_PAIRS_CONSTRAINTS = "=&r,=&r,=&r,=&r,r,r"

# Two columns of two keys, bf16.
BF16_PAIRS = "{ prmt.b32 $0, $2, $3, 0x5410; prmt.b32 $1, $2, $3, 0x7632; }"
BF16_PAIRS_CONSTRAINTS = "=&r,=&r,r,r"

# Bring a line of 128 bytes into the second cache.
FETCH = "prefetch.global.L2 [$1]; mov.b32 $0, 0;"

# Without the cases of a divisor beyond 2**126, which gives 0.
DIVIDE = "div.approx.f32 $0, $1, $2;"

# Two fp32 to the nearest bf16 each, as fp32.
ROUND_BF16 = """{ .reg .b32 t;
cvt.rn.bf16x2.f32 t, $3, $2;
shl.b32 $0, t, 16;
and.b32 $1, t, 0xffff0000;
}"""
