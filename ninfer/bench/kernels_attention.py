"""Attention of a round and of a chunk at the 27B's shape: ``python -m ninfer.bench.kernels_attention [--json FILE]``.

Every launch has a layer of its own, as in a model, so that no cache of the device holds what it reads. One line per
shape: microseconds of a layer, bytes of keys and values it must read, and their share of a read ceiling.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ninfer.bench.linear import timed_s
from ninfer.kernels.kv_codec.pool import PAGE, Codec, Pool, empty_pool
from ninfer.kernels.low_bit_linear.buffers import columns_buffer
from ninfer.kernels.paged_attention import op, triton_launch
from ninfer.kernels.paged_attention.scratch import round_scratch

HEADS, KV_HEADS, WIDTH, HALF, EPS = 24, 4, 256, 32, 1e-6
LAYERS = 16
ROUNDS = (
    (1, 1, 512), (1, 1, 1024), (1, 4, 1024), (8, 1, 1024), (1, 1, 8192), (1, 1, 32768), (8, 1, 16384), (4, 4, 16384),
    (1, 1, 131072), (1, 4, 131072), (1, 16, 131072),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """us: median of one layer; nbytes: of keys and values with their scales; share: of the ceiling."""

    what: str
    us: float
    nbytes: int
    share: float


def _pool(pages: int, codec: Codec, device: torch.device) -> Pool:
    pool = empty_pool(pages, KV_HEADS, WIDTH, codec, device)
    for plane in (pool.keys, pool.values):
        if codec == "int8":
            plane.random_(-127, 128)
        else:
            plane.normal_()
    for scales in (pool.key_scales, pool.value_scales):
        if scales is not None:
            scales.fill_(0.01)
    return pool


def round_row(lanes: int, columns: int, context: int, codec: Codec, ceiling: float, repeats: int) -> Row:
    device = torch.device("cuda")
    tokens, blocks = lanes * columns, -(-(context + columns) // PAGE)
    row_bytes = 2 * (WIDTH + 8) if codec == "int8" else 4 * WIDTH
    nbytes = lanes * context * KV_HEADS * row_bytes
    layers = max(1, min(LAYERS, int(48e9 // nbytes)))
    pools = [_pool(lanes * blocks, codec, device) for _ in range(layers)]
    tables = torch.randperm(lanes * blocks, device=device).reshape(lanes, blocks).int()
    inner = (HEADS + KV_HEADS) * WIDTH
    first, second = (torch.randn(tokens, inner, device=device).bfloat16() for _ in range(2))
    norm = torch.zeros(WIDTH, device=device)
    angles = torch.randn(tokens, HALF, device=device)
    cos, sin = torch.cos(angles), torch.sin(angles)
    slots = torch.arange(lanes, dtype=torch.int32, device=device)
    positions = torch.full((lanes,), context, dtype=torch.int32, device=device)
    programs = triton_launch.default_programs(device)
    scratch = round_scratch(
        lanes, columns, HEADS, KV_HEADS, WIDTH, context + columns, codec, programs, device
    )  # fmt: skip
    out = columns_buffer(HEADS * WIDTH, tokens, device)

    def work() -> None:
        for pool in pools:
            op.attention_round(
                first, second, norm, norm, EPS, cos, sin, pool, tables, slots, positions, columns, scratch, out
            )

    seconds = timed_s(work, device, repeats) / layers
    what = f"round {codec} {lanes} lanes {columns} columns {context} tokens"
    return Row(what, 1e6 * seconds, nbytes, nbytes / seconds / ceiling)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--ceiling-tbs", type=float, default=4.56, help="read ceiling of the device")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default="", help="measure only what contains this text")
    options = parser.parse_args()
    rows = []
    for codec in ("int8", "bf16"):
        for lanes, columns, context in ROUNDS:
            if options.only not in f"round {codec}":
                continue
            rows.append(round_row(lanes, columns, context, codec, options.ceiling_tbs * 1e12, options.repeats))
            row = rows[-1]
            print(f"{row.what:48}{row.us:10.2f} us{row.nbytes / 1e6:10.1f} MB{row.share:8.1%}", flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
