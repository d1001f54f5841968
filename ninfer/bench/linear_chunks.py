"""Products of short chunks, both ways: ``python -m ninfer.bench.linear_chunks [--model NAME] [--tokens LIST]``.

*library* widens matrices to bf16 scratch and multiplies them, *in registers* widens weights on their way into the
matrix unit, as a prefill chunk does either (`ninfer.model.chunk_products`). For every kind of product and every length:
microseconds of both, the share of the floor (the slower one of reading the packed weights at the measured read ceiling
and of multiplying at the measured product ceiling), and whether the bits are the same. Checks a few rows against
float64 and that the bits of a token do not depend on the length, and says what entry of the tuned table follows.
Weights change from call to call, so that no cache serves them. Without a GPU it runs the plain route on the `tiny`
shapes, to try the command.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ninfer.bench.linear import Check, read_ceiling, timed_s
from ninfer.bench.linear_stack import MODELS, PAIRED, Shapes, random_weight
from ninfer.bench.report import Json, columns, device_object
from ninfer.kernels.low_bit_linear import ref
from ninfer.kernels.low_bit_linear.chunk_route import Tuned, file_name, to_json
from ninfer.kernels.low_bit_linear.pack import LowBitWeight, unpack
from ninfer.kernels.low_bit_linear.variants import ChunkTile
from ninfer.model.chunk_products import by_library, in_registers

KINDS = ("gdn", "attention", "output", "gate_up", "down")
COPIES = 4
LENGTHS = {"cuda": "16,64,128,256,512,1024", "cpu": "1,16,64"}
CHECKED_TILES = 4
GATE_ROWS = 96  # of the 27B's gates, unpacked, behind the matrices of a GDN layer
# One rounding to bf16 of each result, whose errors are spread evenly: 2**-9 / sqrt(3), and room.
ERROR = 2e-3


@dataclass(frozen=True, slots=True, eq=False)
class Operands:
    """Several products of one kind, each [tokens, K] x [K, N]; `extra` [N, K] bf16 stands behind the matrices."""

    kind: str
    matrices: list[list[LowBitWeight]]
    extra: Tensor | None
    x: Tensor
    scratch: Tensor

    @property
    def rows(self) -> int:
        return sum(weight.rows for weight in self.matrices[0]) + (0 if self.extra is None else self.extra.shape[0])

    @property
    def nbytes(self) -> int:
        """What one product has to read of its weights."""
        extra = 0 if self.extra is None else self.extra.nbytes
        return sum(weight.nbytes for weight in self.matrices[0]) + extra

    def out(self, tokens: int) -> Tensor:
        return torch.full((tokens, self.rows), float("nan"), dtype=torch.bfloat16, device=self.x.device)

    def library(self, tokens: int, out: Tensor, copy: int = 0) -> None:
        by_library(self.x[:tokens], self.matrices[copy], self.extra, self.scratch, out)

    def registers(self, tokens: int, out: Tensor, copy: int = 0) -> None:
        in_registers(self.x[:tokens], self.matrices[copy], self.extra, out)

    def tiled(self, tile: ChunkTile, tokens: int, out: Tensor, copy: int = 0) -> None:
        """In registers with a tile of one's own."""
        from ninfer.kernels.low_bit_linear.triton_chunk_launch import product_chunk

        first = 0
        for weight in self.matrices[copy]:
            product_chunk(self.x[:tokens], weight, out[:, first : first + weight.rows], tile)
            first += weight.rows
        if self.extra is not None:
            torch.mm(self.x[:tokens], self.extra.t(), out=out[:, first:])


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes and FLOP per second."""

    read: float
    flop: float

    def floor_s(self, operands: Operands, tokens: int) -> float:
        flop = 2.0 * tokens * operands.rows * operands.x.shape[1]
        return max(operands.nbytes / self.read, flop / self.flop)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement. us: of one product; share: of the floor; tile: of the kernel, where it is not the default."""

    what: str
    way: str
    tokens: int
    rows: int
    us: float
    share: float
    nbytes: int
    tile: str = ""


@dataclass(frozen=True, slots=True)
class Bits:
    """Whether both ways give the same bits; largest difference, and the largest result."""

    what: str
    tokens: int
    same: bool
    different: int
    largest_difference: float
    largest_result: float


@dataclass(slots=True)
class Findings:
    rows: list[Row] = field(default_factory=list)
    bits: list[Bits] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)


def operands(shapes: Shapes, kind: str, tokens: int, device: torch.device, source: torch.Generator) -> Operands:
    matrices = [
        [random_weight(shape, device, source, paired=kind in PAIRED) for shape in shapes.kinds[kind]]
        for _ in range(COPIES)
    ]
    inner = matrices[0][0].columns
    extra = None
    if kind == "gdn":
        extra = torch.randn(GATE_ROWS, inner, device=device, generator=source).to(torch.bfloat16) / inner**0.5
    x = torch.randn(tokens, inner, device=device, generator=source).to(torch.bfloat16)
    rows = sum(weight.rows for weight in matrices[0]) + GATE_ROWS
    return Operands(kind, matrices, extra, x, torch.empty(rows * inner, dtype=torch.bfloat16, device=device))


def product_ceiling(shapes: Shapes, tokens: int, device: torch.device, repeats: int) -> float:
    """FLOP per second of the library's largest product, without widening."""
    # Zeros would be multiplied with less power, and faster.
    x = torch.randn(tokens, shapes.hidden, device=device).to(torch.bfloat16)
    weight = torch.randn(2 * shapes.inner, shapes.hidden, device=device).to(torch.bfloat16)
    out = torch.empty(tokens, 2 * shapes.inner, dtype=torch.bfloat16, device=device)
    return 2.0 * tokens * weight.numel() / timed_s(lambda: torch.mm(x, weight.t(), out=out), device, repeats)


def look_at(
    given: Operands, lengths: Sequence[int], ceilings: Ceilings, tiles: Sequence[ChunkTile], repeats: int
) -> Findings:
    """Everything about one kind."""
    found = Findings()
    longest = max(lengths)
    ways: dict[str, Callable[..., None]] = {"library": given.library, "in registers": given.registers}
    ways |= {",".join(str(value) for value in _values(tile)): partial(given.tiled, tile) for tile in tiles}
    whole = {way: given.out(longest) for way in ways}
    for way, work in ways.items():
        work(longest, whole[way])
        error = _error(given, whole[way])
        found.checks.append(
            Check(f"{given.kind}, {way}, float64", longest, error < ERROR, f"relative error {error:.1e}")
        )
    for tokens in lengths:
        out = {way: given.out(tokens) for way in ways}
        for way, work in ways.items():
            work(tokens, out[way])
            # What a processor's library does to bits is nobody's promise.
            if way != "library" or given.x.is_cuda:
                same = torch.equal(out[way], whole[way][:tokens])
                inside = f"bits inside {longest} tokens"
                found.checks.append(Check(f"{given.kind}, {way}, length", tokens, same, inside))
            own = way not in ("library", "in registers")
            if own:
                same = torch.equal(out[way], out["in registers"])
                found.checks.append(Check(f"{given.kind}, {way}, tile", tokens, same, "bits of the default tile"))
            seconds = timed_s(partial(_all, work, tokens, out[way]), given.x.device, repeats) / COPIES
            found.rows.append(
                Row(given.kind, "in registers" if own else way, tokens, given.rows, 1e6 * seconds,
                    ceilings.floor_s(given, tokens) / seconds, given.nbytes, way if own else "")
            )  # fmt: skip
        for way, work in ways.items():
            work(tokens, out[way])  # of the first copy again
        found.bits.append(_compared(given.kind, tokens, out["library"], out["in registers"]))
    return found


def _all(work: Callable[..., None], tokens: int, out: Tensor) -> None:
    for copy in range(COPIES):
        work(tokens, out, copy)


def _compared(kind: str, tokens: int, library: Tensor, registers: Tensor) -> Bits:
    different = library.view(torch.int16) != registers.view(torch.int16)
    difference = (library.float() - registers.float()).abs().max()
    return Bits(kind, tokens, not bool(different.any()), int(different.sum()), float(difference),
                float(library.abs().max()))  # fmt: skip


def _error(given: Operands, out: Tensor) -> float:
    """Largest error of some rows of the matrices, relative to their size. Zeros give NaN, which passes no check."""
    errors, begin = [], 0
    for weight in given.matrices[0]:
        tiles = weight.words.shape[0]
        for first in {0, max(0, tiles - CHECKED_TILES)}:
            codes, scales = unpack(weight, first, min(first + CHECKED_TILES, tiles))
            rounded = ref.weight_ref(codes, scales, weight.packing.group).float().bfloat16()
            expected = ref.product_ref(given.x, rounded)
            got = out[:, begin + _places(weight, first, expected.shape[1])].double()
            errors.append(float((got - expected).norm() / expected.norm()))
        begin += weight.rows
    return max(errors, key=lambda error: (error != error, error))


def _places(weight: LowBitWeight, first_tile: int, count: int) -> Tensor:
    """Where rows in the order of the tiles stand in a result."""
    n = first_tile * 16 + torch.arange(count, device=weight.words.device)
    return n // 8 % 2 * (weight.rows // 2) + n // 16 * 8 + n % 8 if weight.paired else n


def entry_of(found: Findings, lengths: Sequence[int]) -> Tuned:
    """The entry of the tuned table that the measurements ask for."""
    times = {(row.what, row.way, row.tokens): row.us for row in found.rows if not row.tile}
    longest: dict[int, int] = {}
    for kind, rows in {row.what: row.rows for row in found.rows}.items():
        faster = 0
        for tokens in sorted(lengths):
            if times[kind, "in registers", tokens] >= times[kind, "library", tokens]:
                break
            faster = tokens
        longest[rows] = min(longest.get(rows, faster), faster)
    pairs = [(rows if at else 0, longest[rows]) for at, rows in enumerate(sorted(longest))]
    return Tuned(all(item.same for item in found.bits), tuple(pairs))


def chunk_ms(shapes: Shapes, found: Findings) -> list[Json]:
    """Milliseconds of all products of a chunk, without the head: by the library, and in registers."""
    counts = {kind: list(shapes.order()).count(kind) for kind in KINDS}
    totals: dict[tuple[int, str], float] = {}
    for row in found.rows:
        if not row.tile:
            totals[row.tokens, row.way] = totals.get((row.tokens, row.way), 0.0) + counts[row.what] * row.us / 1e3
    lengths = sorted({tokens for tokens, _ in totals})
    return [
        {"tokens": tokens, "library_ms": totals[tokens, "library"], "in_registers_ms": totals[tokens, "in registers"]}
        for tokens in lengths
    ]


def _values(tile: ChunkTile) -> tuple[int, ...]:
    return tile.tiles, tile.tokens, tile.step, tile.stages, tile.warps


def _tile(text: str) -> ChunkTile:
    return ChunkTile(*(int(part) for part in text.split(",")))


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exit code 1 if a check fails. Different bits of the two ways are a finding, not a failure."""
    parser = argparse.ArgumentParser(prog="python -m ninfer.bench.linear_chunks", description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), help="shapes (qwen3_8_27b; tiny without a GPU)")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"kinds of products ({','.join(KINDS)})")
    parser.add_argument("--tokens", help=f"lengths ({LENGTHS['cuda']}; {LENGTHS['cpu']} without a GPU)")
    parser.add_argument(
        "--tile", type=_tile, action="append", default=[], metavar="TILES,TOKENS,STEP,STAGES,WARPS",
        help="also measure the kernel with this tile; repeatable, needs a GPU",
    )  # fmt: skip
    parser.add_argument("--repeats", type=int, default=11, help="replays per measurement (11)")
    parser.add_argument("--sweep-mib", type=int, help="memory of the read sweep, MiB (8192; 16 without a GPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    if options.tile and not on_gpu:
        parser.error("--tile needs a GPU")
    lengths = sorted({int(text) for text in (options.tokens or LENGTHS[device.type]).split(",")})
    model = options.model or ("qwen3_8_27b" if on_gpu else "tiny")
    shapes, kinds = MODELS[model], options.kinds.split(",")
    if on_gpu:
        from ninfer.engine.devices import settle_device

        settle_device(device)  # the library's own choices are those of a server
    with torch.inference_mode():
        sweep = (options.sweep_mib or (8192 if on_gpu else 16)) << 20
        ceilings = Ceilings(
            read_ceiling(device, sweep, options.repeats),
            product_ceiling(shapes, 4096 if on_gpu else 64, device, options.repeats),
        )
        source = torch.Generator(device).manual_seed(0)
        found = Findings()
        for kind in kinds:
            given = operands(shapes, kind, max(lengths), device, source)
            part = look_at(given, lengths, ceilings, options.tile, options.repeats)
            found.rows += part.rows
            found.bits += part.bits
            found.checks += part.checks
            del given
    entry = entry_of(found, lengths)
    report = {
        "device": device_object(device),
        "model": model,
        "read_ceiling_tb_s": ceilings.read / 1e12,
        "product_ceiling_tflop_s": ceilings.flop / 1e12,
        "rows": [asdict(row) for row in found.rows],
        "bits": [asdict(item) for item in found.bits],
        "checks": [asdict(item) for item in found.checks],
        "chunk": chunk_ms(shapes, found) if set(kinds) == set(KINDS) else None,
        "entry": {"file": file_name(str(device_object(device)["name"])), "chunk_products": to_json(entry)},
    }
    sys.stdout.write(json.dumps(report) + "\n" if options.json else table(report, found))
    return 0 if all(item.passed for item in found.checks) else 1


def table(report: dict[str, Any], found: Findings) -> str:
    bits = {(item.what, item.tokens): item for item in found.bits}
    cells = [["product", "tokens", "way", "us", "of floor", "bits"]]
    for row in found.rows:
        item = bits[row.what, row.tokens]
        said = "same" if item.same else f"{item.different} differ, by {item.largest_difference:.2g} at most"
        cells.append([
            row.what, str(row.tokens), row.tile or row.way, f"{row.us:.1f}", f"{row.share:.1%}",
            said if row.way == "in registers" and not row.tile else "",
        ])  # fmt: skip
    read, flop = report["read_ceiling_tb_s"], report["product_ceiling_tflop_s"]
    lines = [
        f"{report['device']['name']}, {report['model']}",
        f"ceilings: read {read:.3f} TB/s, product {flop:.1f} TFLOP/s",
        columns(cells).rstrip("\n"),
    ]
    lines += [
        f"a chunk of {chunk['tokens']}: {chunk['library_ms']:.2f} ms by the library, "
        f"{chunk['in_registers_ms']:.2f} ms in registers"
        for chunk in report["chunk"] or ()
    ]
    lines += [
        f"{'pass' if item.passed else 'FAIL'}  {item.what}, {item.columns} tokens: {item.detail}"
        for item in found.checks
        if not item.passed
    ]
    passed = sum(item.passed for item in found.checks)
    lines += [f"{passed} of {len(found.checks)} checks passed", f"entry {json.dumps(report['entry'])}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
