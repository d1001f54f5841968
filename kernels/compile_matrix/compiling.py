"""Compiles a variant for a chip and reports what the binary needs."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource

from ninfer.kernels.compile_matrix.chips import Chip
from ninfer.kernels.compile_matrix.variant import Variant

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Binary:
    """registers, stack_bytes (spilled values), local_bytes: per thread; shared_bytes: per program, without what the
    hardware reserves; shuffles, shared_accesses, narrow_loads (below 16 bytes), products: instructions in PTX."""

    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    shuffles: int
    shared_accesses: int
    narrow_loads: int
    products: int


def compile_variant(variant: Variant, chip: Chip) -> Any:
    """Triton's compiled kernel of a variant for a chip, under the cache key that a launch looks up.

    Raises Triton's errors if any stage fails.
    """
    arguments = variant.kernel.arg_names
    form = GluonASTSource if variant.kernel.is_gluon() else ASTSource
    source = form(
        fn=variant.kernel,
        signature=variant.signature(),
        constexprs=dict(variant.constants),
        # Tensors start at multiples of 16 bytes, as a launch finds out by looking.
        attrs={(i,): [["tt.divisibility", 16]] for i, name in enumerate(arguments) if name in variant.pointers},
    )
    options = {"num_warps": variant.warps, "launch_pdl": variant.dependent}
    if variant.registers is not None:
        options["maxnreg"] = variant.registers
    return triton.compile(source, target=GPUTarget("cuda", chip.capability, 32), options=options)


def compiled(variant: Variant, chip: Chip) -> tuple[Binary, str]:
    """Compile a variant for a chip; returns what the binary needs, and its PTX."""
    kernel = compile_variant(variant, chip)
    return _binary(kernel.asm["cubin"], kernel.asm["ptx"], kernel.metadata.shared), kernel.asm["ptx"]


def assembled(ptx: str, shared_bytes: int, chip: Chip) -> Binary:
    """The binary of a chip from the PTX of an older one of the same family: PTX runs on all later chips.

    Raises CalledProcessError if the assembler refuses it.
    """
    with tempfile.TemporaryDirectory() as folder:
        text, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        text.write_text(ptx)
        command = [str(_TOOLS / "ptxas"), f"--gpu-name=sm_{chip.capability}", str(text), "-o", str(cubin)]
        subprocess.run(command, check=True, capture_output=True)
        return _binary(cubin.read_bytes(), ptx, shared_bytes)


def complaints(variant: Variant, chip: Chip, binary: Binary) -> list[str]:
    """What is wrong with the binary of a variant on a chip; empty if nothing is."""
    found = []
    if binary.shared_bytes > chip.shared_bytes:
        found.append(f"{binary.shared_bytes} bytes of shared memory, the chip has {chip.shared_bytes}")
    if binary.stack_bytes > variant.stack_bytes or binary.local_bytes:
        found.append(f"spills: {binary.stack_bytes} bytes of stack, {binary.local_bytes} of local memory")
    if variant.registers is not None and binary.registers > variant.registers:
        found.append(f"{binary.registers} registers, allowed {variant.registers}")
    if variant.streams:
        shuffles, narrow_loads = variant.after_stream
        if binary.shuffles > shuffles or binary.shared_accesses or binary.shared_bytes:
            found.append(f"moves data: {binary.shuffles} shuffles, {binary.shared_accesses} shared accesses")
        if binary.narrow_loads > narrow_loads:
            found.append(f"{binary.narrow_loads} loads of less than 16 bytes")
        if not binary.products:
            found.append("the matrix unit is not used")
    return found


def _binary(cubin: bytes, ptx: str, shared_bytes: int) -> Binary:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_TOOLS / "cuobjdump"), "-res-usage", file.name]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    usage = _USAGE.search(report)
    assert usage is not None, f"no resource usage in {report!r}"
    registers, stack, local = (int(value) for value in usage.groups())
    loads = re.findall(r"ld\.global\S*", ptx)
    return Binary(
        registers=registers,
        stack_bytes=stack,
        local_bytes=local,
        shared_bytes=shared_bytes,
        shuffles=ptx.count("shfl."),
        shared_accesses=len(re.findall(r"(?:ld|st)\.shared|stmatrix|ldmatrix", ptx)),
        narrow_loads=sum(".v4.b32" not in load for load in loads),
        products=ptx.count("mma.sync"),
    )
