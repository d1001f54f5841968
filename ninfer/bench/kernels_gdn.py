"""Gated DeltaNet against the speed of memory: ``python -m ninfer.bench.kernels_gdn [--json FILE]``.

Rounds run over the layers of the 27B one after the other in a CUDA graph, each with a state of its own, so that no
cache serves two. Chunks run alone. Without a GPU both run on a tiny shape, to try the command.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ninfer.bench.linear import timed_s
from ninfer.kernels.gdn import variants
from ninfer.kernels.gdn.chunk_scratch import chunk_scratch, chunk_scratch_bytes
from ninfer.kernels.gdn.rounds import gdn_chunk, gdn_round
from ninfer.kernels.gdn.slots import GdnConstants, GdnShape, GdnSlots, slots_buffer
from ninfer.kernels.low_bit_linear.buffers import columns_buffer

ROWS_OPEN = 32  # rows of the open block before a round: the average
ROUNDS = ((1, 1), (1, 2), (1, 4), (1, 8), (1, 16), (2, 1), (4, 1), (8, 1), (8, 2))  # lanes, columns of each
CHUNKS = (64, 256, 1024, 2048, 8192)


@dataclass(frozen=True, slots=True)
class Row:
    """us: of one layer; nbytes: least that must be read and written; share: of the ceiling."""

    what: str
    us: float
    nbytes: int
    share: float


@dataclass(frozen=True, slots=True)
class Model:
    shape: GdnShape
    hidden: int
    layers: int
    device: torch.device

    def normal(self, *size: int) -> torch.Tensor:
        return torch.randn(*size, generator=torch.Generator(self.device).manual_seed(1), device=self.device)

    def constants(self) -> GdnConstants:
        heads = self.shape.value_heads
        return GdnConstants(
            taps=0.5 * self.normal(4, self.shape.channels),
            decay_rate=-torch.exp(self.normal(heads) - 2),
            dt_bias=self.normal(heads),
            norm=1 + 0.1 * self.normal(self.shape.value_width),
            eps=1e-6,
        )

    def rows(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        key, value = self.shape.key_heads * self.shape.key_width, self.shape.value_heads * self.shape.value_width
        return self.normal(tokens, 2 * key).bfloat16(), self.normal(tokens, 2 * value).bfloat16()


def _filled(slots: GdnSlots) -> GdnSlots:
    for part in (slots.s, slots.open_k, slots.open_u, slots.open_g, slots.ring):
        part.fill_(0.01)
    return slots


def round_row(model: Model, lanes: int, columns: int, ceiling: float, repeats: int) -> Row:
    shape, device, tokens = model.shape, model.device, lanes * columns
    value = shape.value_heads * shape.value_width
    slots = [_filled(slots_buffer(shape, lanes, device)) for _ in range(model.layers)]
    projections = [model.normal(2 * shape.value_heads, model.hidden).bfloat16() for _ in range(model.layers)]
    first, second = model.rows(tokens)
    x, out = columns_buffer(model.hidden, tokens, device, 1e-6), columns_buffer(value, tokens, device)
    x.storage.normal_()
    assert x.norm is not None
    x.norm.squares[0] = model.hidden
    constants = model.constants()
    numbers = [torch.arange(lanes), torch.full((lanes,), 64 + ROWS_OPEN), torch.full((lanes,), 1)]
    at, positions, blocks = (part.to(torch.int32).to(device) for part in numbers)

    def work() -> None:
        for layer in range(model.layers):
            gdn_round(
                first, second, x, projections[layer], constants, slots[layer], at, positions, blocks, columns, out,
            )  # fmt: skip

    seconds = timed_s(work, device, repeats) / model.layers
    rows = ROWS_OPEN + columns
    state = 4 * value * shape.key_width + rows * (2 * shape.key_heads * shape.key_width + 4 * value)
    moved = lanes * state + projections[0].nbytes + constants.taps.nbytes
    moved += tokens * (2 * model.hidden + 2 * value) + first.nbytes + second.nbytes
    what = f"round, {lanes} lanes of {columns}"
    return Row(what, 1e6 * seconds, moved, moved / seconds / ceiling)


def chunk_rows(model: Model, tokens: int, ceiling: float, repeats: int) -> list[Row]:
    shape, device = model.shape, model.device
    value = shape.value_heads * shape.value_width
    slots, constants = _filled(slots_buffer(shape, 1, device)), model.constants()
    first, second = model.rows(tokens)
    ab = model.normal(tokens, 2 * shape.value_heads).bfloat16()
    scratch = torch.empty(chunk_scratch_bytes(tokens, shape), dtype=torch.uint8, device=device)
    out = torch.empty(tokens, value, dtype=torch.bfloat16, device=device)
    moved = first.nbytes + second.nbytes + ab.nbytes + out.nbytes
    rows = []

    def timed(what: str, work: object) -> None:
        seconds = timed_s(work, device, repeats)  # type: ignore[arg-type]
        rows.append(Row(f"chunk of {tokens}{what}", 1e6 * seconds, moved, moved / seconds / ceiling))

    timed("", lambda: gdn_chunk(first, second, ab, constants, slots, 0, 64, scratch, out))
    if device.type == "cuda" and tokens == max(CHUNKS):
        from ninfer.kernels.gdn.triton_launch import Chunk

        parts = chunk_scratch(scratch, tokens, shape)
        chunk = Chunk(first, second, ab, constants, slots, 0, 64, parts, out)
        for step in (chunk.convolve, chunk.prepare, chunk.scan, chunk.finish):
            timed(f", {step.__name__}", lambda: [step(*part) for part in chunk.parts()])  # noqa: B023
    return rows


def main(argv: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m ninfer.bench.kernels_gdn", description=__doc__)
    parser.add_argument("--ceiling-tbs", type=float, default=4.56, help="read ceiling of the device, TB/s (4.56)")
    parser.add_argument("--repeats", type=int, default=21, help="replays per measurement (21)")
    parser.add_argument("--only", choices=("rounds", "chunks"), help="measure these alone")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=NUMBER", help="try another value of variants"
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args(argv)
    for setting in options.set:
        name, _, number = setting.partition("=")
        assert hasattr(variants, name), name
        setattr(variants, name, int(number))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    ceiling = options.ceiling_tbs * 1e12
    if on_gpu:
        model = Model(GdnShape(16, 48, 128, 128), 5120, 48, device)
    else:
        model = Model(GdnShape(1, 2, 16, 16), 64, 2, device)
    rows = []
    if options.only != "chunks":
        for lanes, columns in ROUNDS if on_gpu else ROUNDS[:2]:
            rows.append(round_row(model, lanes, columns, ceiling, options.repeats))
    if options.only != "rounds":
        for tokens in CHUNKS if on_gpu else CHUNKS[:2]:
            rows += chunk_rows(model, tokens, ceiling, options.repeats)
    for row in rows:
        sys.stdout.write(f"{row.what:28}{row.us:10.2f} us{row.nbytes / 1e6:10.2f} MB{row.share:8.1%}\n")
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
