"""Prints the measured parts of the embedded model's pages from the records in docs/performance.

    python -m ninfer.embedded.report

`embedded-training.jsonl` and `embedded-training-evaluation.json` are what the training run wrote (`log.jsonl` and
`evaluation.json` of its output); `embedded-evaluation.json` is the output of `ninfer.embedded.evaluate --json`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "docs" / "performance"
TRAINING, TRAINED = RECORDS / "embedded-training.jsonl", RECORDS / "embedded-training-evaluation.json"
ENGINE = RECORDS / "embedded-evaluation.json"
PICTURE = RECORDS / "embedded-loss.svg"
PAGES = (ROOT / "docs" / "embedded-model.md", Path(__file__).with_name("MODEL_CARD.md"))

WIDTH, HEIGHT, MARGIN = 720, 320, 48
LOSS_MAX = 6.0
CURVES = (("text", "#1b7f5c", "real text"), ("draft", "#8a5fbf", "first draft"), ("answer", "#c2541b", "answers"))

Record = Mapping[str, Any]


def read_training() -> list[Record]:
    """The records of the training run, one for every fifty steps."""
    return [json.loads(line) for line in TRAINING.read_text().splitlines()]


def loss_picture(records: Sequence[Record]) -> str:
    """The losses over the training time as an SVG picture."""
    across, up = (WIDTH - 2 * MARGIN), (HEIGHT - 2 * MARGIN)

    def spot(done: float, loss: float) -> str:
        return f"{MARGIN + done * across:.1f},{HEIGHT - MARGIN - min(loss, LOSS_MAX) / LOSS_MAX * up:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    for level in range(int(LOSS_MAX) + 1):
        left, right = spot(0, level).split(","), spot(1, level).split(",")
        parts.append(f'<line x1="{left[0]}" y1="{left[1]}" x2="{right[0]}" y2="{right[1]}" stroke="#ddd"/>')
        parts.append(f'<text x="{MARGIN - 8}" y="{left[1]}" dy="4" text-anchor="end">{level}</text>')
    for tenth in range(0, 11, 2):
        x, y = spot(tenth / 10, 0).split(",")
        parts.append(f'<text x="{x}" y="{y}" dy="18" text-anchor="middle">{tenth * 10} %</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">share of the training time</text>')
    parts.append(f'<text x="{MARGIN}" y="{MARGIN - 16}">loss in nats per token</text>')
    for n, (key, colour, label) in enumerate(CURVES):
        points = " ".join(spot(record["done"], record[key]) for record in records)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - 90 * (3 - n)}" y="{MARGIN - 16}" fill="{colour}">{label}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def loss_table(records: Sequence[Record]) -> str:
    """Every fifth record, and the last."""
    lines = [
        "| step | tokens of a row | loss of answers | of real text | of first drafts | tokens per second |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for n, record in enumerate(records):
        if n % 5 == 0 or n + 1 == len(records):
            cells = (
                f"{record['step']:,}",
                f"{record['length']:,}",
                *(f"{record[key]:.3f}" for key in ("answer", "text", "draft")),
                f"{record['tokens_per_s']:,}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def trained_table(evaluation: Mapping[str, Mapping[str, float]]) -> str:
    """Weights as trained beside weights as stored, both in the training network."""
    lines = ["| | trained weights | stored weights |", "|---|---:|---:|"]
    for name, value in evaluation["trained"].items():
        stored = evaluation["stored"][name]
        lines.append(f"| {name} | {value:.3f} | {stored:.3f} |")
    return "\n".join(lines)


def engine_table(report: Mapping[str, Any]) -> str:
    """What the engine has shown, as `evaluate --json` has printed it."""
    lines = [
        f"Seed {report['seed']}, {report['cases']} cases of each task.",
        "",
        "| | measured | demanded | |",
        "|---|---:|---:|---|",
    ]
    for name, row in report["rows"].items():
        sign = "at most" if name.startswith("rise") else "at least"
        verdict = "passed" if row["passed"] else "**failed**"
        lines.append(f"| {name} | {row['value']:.3f} | {sign} {row['bound']:.2f} | {verdict} |")
    return "\n".join(lines)


def sections() -> dict[str, str]:
    """The text of each marked part of the pages."""
    engine = engine_table(json.loads(ENGINE.read_text())) if ENGINE.exists() else "Not recorded yet."
    return {
        "loss": loss_table(read_training()),
        "trained": trained_table(json.loads(TRAINED.read_text())),
        "engine": engine,
    }


def filled(page: str, texts: Mapping[str, str]) -> str:
    """`page` with the text between `<!-- NAME -->` and `<!-- end -->` replaced."""

    def replaced(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{texts[found[1]]}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n.*?<!-- end -->", replaced, page, flags=re.DOTALL)


def main() -> int:
    PICTURE.write_text(loss_picture(read_training()))
    texts = sections()
    for page in PAGES:
        page.write_text(filled(page.read_text(), texts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
