"""Reads from machine code how much of a loop runs before it waits for the data it loaded for its next turn.

A load names one of six counters; an instruction may wait for counters. Both are in the upper word of the instruction
(compute capability 7.0 to 12.0): bits [46, 49) name the counter, bits [52, 58) the counters waited for. Bit numbers are
those of the second 64-bit word.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton

_DISASSEMBLER = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
_INSTRUCTION = re.compile(r"\s+/\*([0-9a-f]{4,5})\*/\s+(.*?);\s+/\* 0x[0-9a-f]{16} \*/\n\s+/\* 0x([0-9a-f]{16}) \*/")
_MOVE = re.compile(r"\b(?:SHFL|REDUX|LDS|STS|LDSM|STSM)\b|\bLDG\.(?!\S*\.128)")
_STREAMED = "LDG.E.EF"  # a load marked to be evicted first


@dataclass(frozen=True, slots=True)
class StreamLoop:
    """instructions: of the loop; covered: share of them that run after the last streamed load and before the first
    wait for one; local_accesses: of spilled values; moves: shuffles, accesses of shared memory, and loads of less than
    16 bytes."""

    instructions: int
    covered: float
    local_accesses: int
    moves: int


def stream_loops(cubin: bytes) -> list[StreamLoop]:
    """All loops of a kernel that contain loads marked evict-first."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(_DISASSEMBLER), "-sass", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    code = [(int(at, 16), body, int(control, 16)) for at, body, control in _INSTRUCTION.findall(text)]
    place = {at: i for i, (at, _, _) in enumerate(code)}
    loops = []
    for end, (at, body, _) in enumerate(code):
        branch = re.search(r"\bBRA\b.*0x([0-9a-f]+)", body)
        if branch and int(branch[1], 16) < at:
            turn = code[place[int(branch[1], 16)] : end + 1]
            if any(_STREAMED in instruction for _, instruction, _ in turn):
                loops.append(_loop(turn))
    return loops


def _loop(turn: list[tuple[int, str, int]]) -> StreamLoop:
    loads = [i for i, (_, body, _) in enumerate(turn) if _STREAMED in body]
    counters = {turn[i][2] >> 46 & 7 for i in loads}
    after = turn[loads[-1] + 1 :] + turn[: loads[0]]
    waits = (i for i, (_, _, control) in enumerate(after) if any(control >> 52 >> counter & 1 for counter in counters))
    covered = next(waits, len(after)) / len(turn)
    local = sum("LDL" in body or "STL" in body for _, body, _ in turn)
    moves = sum(_MOVE.search(body) is not None for _, body, _ in turn)
    return StreamLoop(len(turn), covered, local, moves)
