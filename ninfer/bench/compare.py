"""``ninfer-bench compare``: other people's implementations at the 27B's shapes, on the same GPU in the same run.

Each part is guarded: what is not installed or fails is reported with its reason, and the rest goes on. What is compared
is not always the same work; a row's note says what each side does.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ninfer.bench import compare_others, compare_ours
from ninfer.bench.report import Json, Output, Parser, add_output, columns, device_object, head
from ninfer.errors import StartupError


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds of one operation; None for what could not be measured, and then `note` ends with the reason."""

    what: str
    ours_us: float | None
    other_us: float | None
    other: str
    note: str


@dataclass(frozen=True, slots=True)
class Pair:
    """An operation and how to time it on both sides, in seconds."""

    part: str
    what: str
    ours: Callable[[], float | None]
    other: Callable[[], float]
    name: str
    note: str


def pairs(engine_report: Path | None) -> Iterator[Pair]:
    """Everything that is compared."""
    tokens = compare_others.ATTENTION_TOKENS
    for backend in ("flash", "cudnn"):
        yield Pair(
            "sdpa",
            f"attention of a prompt of {tokens} tokens, 24 heads on 4, width 256, causal",
            lambda: compare_ours.attention_s("bf16"),
            lambda backend=backend: compare_others.sdpa_s(backend),  # type: ignore[misc]
            f"torch SDPA, {backend}",
            "ours: bf16 cache, with norms, rotary positions, appending to the cache and the output gate",
        )
    yield Pair(
        "fla",
        f"gated delta rule of {compare_others.CHUNK_TOKENS} prompt tokens, 16 key and 48 value heads of 128",
        compare_ours.gdn_chunk_s,
        compare_others.fla_chunk_s,
        "fla-core chunk_gated_delta_rule",
        "ours: with convolution, gates, norms and output gate",
    )
    for lanes in (1, 8):
        yield Pair(
            "fla",
            f"gated delta rule of one token in {lanes} lanes, a layer of 48",
            lambda lanes=lanes: compare_ours.gdn_round_s(lanes),  # type: ignore[misc]
            lambda lanes=lanes: compare_others.fla_recurrent_s(lanes),  # type: ignore[misc]
            "fla-core fused_recurrent_gated_delta_rule",
            "ours: with projections a and b, convolution, gates, norms and output gate",
        )
    note = "other: bf16 weights, eager, four layers times 16 and the head; ours: 4 to 8 bit weights, whole model"
    yield Pair(
        "transformers",
        "one decoded token of the 27B",
        lambda: compare_ours.engine_s(engine_report, "decode"),
        compare_others.transformers_decode_s,
        "transformers",
        note,
    )
    yield Pair(
        "transformers",
        f"{compare_others.PROMPT_TOKENS} prompt tokens of the 27B",
        lambda: compare_ours.engine_s(engine_report, "prefill"),
        compare_others.transformers_prefill_s,
        "transformers",
        note,
    )


def measured(pair: Pair) -> Row:
    """Both sides of a pair; a side that fails is None."""
    sides: list[float | None] = []
    reasons = []
    for name, side in (("ours", pair.ours), ("other", pair.other)):
        try:
            seconds = side()
        except Exception as error:  # a guard around code of others: nothing of it may end the run
            seconds = None
            where = traceback.extract_tb(error.__traceback__)[-1]
            words = str(error).strip().splitlines()
            said = words[0][:200] if words else ""
            reasons.append(
                f"{name} failed: {type(error).__name__}: {said} ({Path(where.filename).name}:{where.lineno})"
            )
        sides.append(None if seconds is None else 1e6 * seconds)
        torch.cuda.empty_cache()
    return Row(pair.what, sides[0], sides[1], pair.name, "; ".join([pair.note, *reasons]))


def main(argv: Sequence[str]) -> int:
    """The subcommand; raises StartupError without a GPU."""
    parser = Parser("ninfer-bench compare", __doc__)
    parts = ("sdpa", "fla", "transformers")
    parser.add_argument("--part", action="append", choices=parts, help="only this one; repeatable (all)")
    parser.add_argument("--engine-report", type=Path, metavar="FILE", help="our figures of the whole model")
    add_output(parser)
    options = parser.parse_args(argv)
    output = Output.of(options)
    if options.engine_report is not None:
        json.loads(options.engine_report.read_text())
    if not torch.cuda.is_available():
        raise StartupError("there is no GPU to compare on")
    rows = []
    for pair in pairs(options.engine_report):
        if options.part is None or pair.part in options.part:
            rows.append(measured(pair))
    report: Json = {
        **head("ninfer_compare_report", argv),
        "device": device_object(torch.device("cuda")),
        "versions": compare_others.versions(),
        "rows": [asdict(row) for row in rows],
    }
    output.deliver(report, lambda: table(rows))
    return 0


def table(rows: Sequence[Row]) -> str:
    """One line per pair, and its note below."""
    cells = [["what", "ours us", "other us", "times ours", "other"]]
    for row in rows:
        numbers = ["" if value is None else f"{value:.1f}" for value in (row.ours_us, row.other_us)]
        times = f"{row.other_us / row.ours_us:.2f}" if row.ours_us and row.other_us else ""
        cells.append([row.what, *numbers, times, row.other])
    notes = "".join(f"  {row.what}, {row.other}: {row.note}\n" for row in rows)
    return columns(cells) + notes
