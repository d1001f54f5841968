"""Whole matrices to bfloat16 against the speed of memory: ``python -m ninfer.bench.linear_dequantise [--json FILE]``.

Bytes are those read and written. Weights change from call to call, so that no cache serves them.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from ninfer.bench.linear import timed_s
from ninfer.bench.linear_stack import random_weight
from ninfer.kernels.low_bit_linear import variants
from ninfer.kernels.low_bit_linear.op import dequantise
from ninfer.kernels.low_bit_linear.pack import LowBitWeight

SHAPES = (
    ("gate_up", 34816, 5120, 4, True),
    ("down", 5120, 17408, 5, False),
    ("value_z", 12288, 5120, 5, False),
    ("query_key", 4096, 5120, 4, False),
    ("output", 5120, 6144, 5, False),
    ("8 bits", 14336, 5120, 8, False),
)
COPIES = 4


def _all(weights: list[LowBitWeight], out: torch.Tensor) -> None:
    for weight in weights:
        dequantise(weight, out)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ninfer.bench.linear_dequantise", description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--ceiling-tbs", type=float, default=4.56, help="bytes per second of the memory, TB/s (4.56)")
    parser.add_argument("--repeats", type=int, default=11, help="replays per measurement (11)")
    parser.add_argument("--steps", default=str(variants.DEQUANTISE_STEPS), help="quanta of a program, comma-separated")
    options = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    source = torch.Generator(device).manual_seed(0)
    rows = []
    for name, n, k, bits, paired in SHAPES if device.type == "cuda" else (("tiny", 64, 256, 4, True),):
        weights = [random_weight((n, k, bits), device, source, paired=paired) for _ in range(COPIES)]
        out = torch.empty(n, k, dtype=torch.bfloat16, device=device)
        nbytes = weights[0].nbytes + out.nbytes
        for steps in (int(text) for text in options.steps.split(",")):
            variants.DEQUANTISE_STEPS = steps
            seconds = timed_s(lambda: _all(weights, out), device, options.repeats) / COPIES  # noqa: B023
            share = nbytes / seconds / 1e12 / options.ceiling_tbs
            rows.append({"what": name, "rows": n, "columns": k, "bits": bits, "steps": steps, "us": 1e6 * seconds,
                         "nbytes": nbytes, "share": share})  # fmt: skip
            print(f"{name:10}[{n}, {k}] {bits} bits, {steps} steps: {1e6 * seconds:8.1f} us, "
                  f"{out.nbytes / seconds / 1e12:.2f} TB/s written, {share:.1%} of the ceiling")  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
