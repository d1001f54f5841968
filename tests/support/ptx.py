"""Inline PTX and bfloat16 products for Triton's interpreter, which has neither.

A small evaluator of the few instructions that our kernels use, over all lanes at once. Anything else is an error, so an
instruction added to a kernel must be given its meaning here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Word = NDArray[np.uint32]


def widened(halves: NDArray[Any]) -> NDArray[np.float32]:
    """float32 values of bfloat16 words in the low half of each element."""
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


def rounded(values: NDArray[Any]) -> NDArray[np.uint32]:
    """bfloat16 words of finite values, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


def evaluate(asm: str, registers: dict[str, Word], outputs: int) -> list[Word]:
    """Run straight-line PTX.

    registers  operands by name ("$16"), uint32 of any one shape
    returns    $0 .. $(outputs - 1); scalars where nothing depends on an operand
    """
    values = {"%laneid": np.zeros((), np.uint32)} | registers  # any lane will do for what must not depend on it
    for statement in re.sub(r"\s+", " ", asm.strip().strip("{}")).split(";"):
        if text := statement.strip():
            _step(text, values)
    return [values[f"${i}"] for i in range(outputs)]


def _step(statement: str, values: dict[str, Word]) -> None:
    operation, _, rest = statement.partition(" ")
    if operation == ".reg" or operation.startswith("bar."):
        return
    operands = re.findall(r"\{[^}]*\}|[^,\s]+", rest)

    def value(name: str) -> Word:
        if name in values:
            return values[name]
        return np.asarray(int(name, 0), np.uint32)

    target, sources = operands[0], operands[1:]
    if operation == "mov.b32" and target.startswith("{"):
        low, high = (name.strip() for name in target.strip("{}").split(","))
        values[low], values[high] = value(sources[0]) & np.uint32(0xFFFF), value(sources[0]) >> np.uint32(16)
    elif operation == "mov.b32":
        values[target] = value(sources[0])
    elif operation == "add.u32":
        values[target] = value(sources[0]) + value(sources[1])
    elif operation == "shr.b32":
        values[target] = value(sources[0]) >> value(sources[1])
    elif operation == "lop3.b32":
        values[target] = _lop3(*(value(name) for name in sources[:3]), table=int(sources[3], 0))
    elif operation == "prmt.b32":
        values[target] = _prmt(*(value(name) for name in sources[:2]), selector=int(sources[2], 0))
    elif operation == "add.rn.f16x2":
        values[target] = _add_f16x2(*(value(name) for name in sources))
    elif operation == "fma.rn.bf16x2":
        values[target] = _fma_bf16x2(*(value(name) for name in sources))
    elif operation == "cvt.f32.f16":
        values[target] = value(sources[0]).astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)
    elif operation == "shl.b32":
        values[target] = value(sources[0]) << value(sources[1])
    elif operation == "and.b32":
        values[target] = value(sources[0]) & value(sources[1])
    elif operation == "cvt.rn.bf16x2.f32":
        high, low = (rounded(value(name).view(np.float32)) for name in sources)
        values[target] = high << np.uint32(16) | low
    elif operation in ("sub.rn.f32", "mul.rn.f32"):
        left, right = (value(name).view(np.float32) for name in sources)
        values[target] = (left - right if operation == "sub.rn.f32" else left * right).view(np.uint32)
    elif operation == "div.approx.f32":
        dividend, divisor = (value(name).view(np.float32) for name in sources)
        values[target] = (dividend / divisor).view(np.uint32)
    else:
        raise ValueError(f"no meaning given to: {statement}")


def _lop3(a: Word, b: Word, c: Word, table: int) -> Word:
    """Bit 4a + 2b + c of the table, for every bit."""
    result = np.zeros((), np.uint32)
    for index in range(8):
        if table >> index & 1:
            result = result | ((a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c))
    return result


def _prmt(a: Word, b: Word, selector: int) -> Word:
    """Byte i is the byte of a (0 to 3) or b (4 to 7) that nibble i names."""
    result = np.zeros((), np.uint32)
    for i in range(4):
        source = selector >> (4 * i) & 7
        byte = ((b if source > 3 else a) >> np.uint32(8 * (source % 4))) & np.uint32(0xFF)
        result = result | (byte << np.uint32(8 * i))
    return result


def _add_f16x2(x: Word, y: Word) -> Word:
    result = np.zeros((), np.uint32)
    for shift in (np.uint32(0), np.uint32(16)):
        a, b = (((word >> shift) & np.uint32(0xFFFF)).astype(np.uint16).view(np.float16) for word in (x, y))
        result = result | ((a + b).view(np.uint16).astype(np.uint32) << shift)
    return result


def _fma_bf16x2(x: Word, y: Word, z: Word) -> Word:
    result = np.zeros((), np.uint32)
    for shift in (np.uint32(0), np.uint32(16)):
        a, b, c = (widened((word >> shift) & np.uint32(0xFFFF)).astype(np.float64) for word in (x, y, z))
        result = result | (rounded(a * b + c) << shift)
    return result


@dataclass(frozen=True, slots=True)
class _Results:
    """What the interpreter expects of a call with several outputs."""

    handles: Sequence[Any]

    def get_result(self, index: int) -> Any:
        return self.handles[index]


def _create_inline_asm(
    self: Any, asm: str, constraints: str, values: Sequence[Any], types: Sequence[Any], pure: bool, pack: int
) -> _Results:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    outputs = sum(part.startswith("=") for part in constraints.split(","))
    shape = values[0].data.shape
    registers: dict[str, Word] = {}
    for handle in values:
        # Elements of 32 bits take a register each, `pack` of them per call.
        packed = np.ascontiguousarray(handle.data).reshape(-1, pack)
        for column in range(pack):
            registers[f"${outputs + len(registers)}"] = packed[:, column].view(np.uint32)
    handles = []
    results = iter(evaluate(asm, registers, outputs))
    for kind in types:
        element = kind.scalar
        count = pack if element.primitive_bitwidth == 32 else 1
        words = np.stack(
            [np.broadcast_to(next(results), (max(1, int(np.prod(shape)) // pack),)) for _ in range(count)], -1
        )
        if element == tl.bfloat16:
            data = np.concatenate([words & np.uint32(0xFFFF), words >> np.uint32(16)], -1).astype(np.uint16)
        elif element == tl.float16:
            halves = np.concatenate([words & np.uint32(0xFFFF), words >> np.uint32(16)], -1)
            data = halves.astype(np.uint16).view(np.float16)
        elif element == tl.float32:
            data = words.view(np.float32)
        else:
            data = words.view(np.int32)
        handles.append(TensorHandle(np.ascontiguousarray(data.reshape(shape)), element))
    return _Results(handles)


def _create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    # The interpreter keeps bfloat16 as its bits and would multiply those.
    from triton.runtime.interpreter import TensorHandle

    left, right = (widened(handle.data) if handle.data.dtype == np.uint16 else handle.data for handle in (a, b))
    product = np.matmul(left.astype(np.float64), right.astype(np.float64)) + d.data
    return TensorHandle(product.astype(d.data.dtype), d.dtype.scalar)


def install() -> None:
    """Teach the interpreter of this process inline assembly, bfloat16 products and rounding to bfloat16."""
    import triton.language as tl
    from triton.runtime import interpreter

    interpreter.InterpreterBuilder.create_inline_asm = _create_inline_asm
    interpreter.InterpreterBuilder.create_dot = _create_dot
    cast = interpreter.InterpreterBuilder.cast_impl

    def cast_rounded(self: Any, value: Any, kind: Any) -> Any:
        # Triton 3.6 cuts float32 to bfloat16 instead of rounding.
        if value.dtype.scalar == tl.float32 and kind.scalar == tl.bfloat16:
            return interpreter.TensorHandle(rounded(value.data).astype(np.uint16), kind.scalar)
        return cast(self, value, kind)

    interpreter.InterpreterBuilder.cast_impl = cast_rounded
    patch_tensor = interpreter._patch_lang_tensor

    def with_index(tensor: Any, scope: Any) -> None:
        # Triton 3.6 calls int() on arrays of one element, which numpy 2.4 refuses.
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = with_index
