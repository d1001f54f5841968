"""The tables of ``ninfer-bench engine``."""

from __future__ import annotations

from typing import Any

from ninfer.bench.report import Json, columns


def table(report: Json) -> str:
    """Everything of a report that a person wants to see first."""
    return "\n".join(part for part in (_head(report), _tests(report), _columns(report), _rounds(report)) if part)


def _head(report: Json) -> str:
    device: Any = report["device"]
    model: Any = report["model"]
    ceilings: Any = report["ceilings"]
    name = model["model_id"] or model["target"]
    weights: Any = report["token_weight_bytes"]
    return (
        f"{device['name']}, torch {device['torch']}, triton {device['triton']}\n"
        f"{name} ({model['weights_id']}), {weights / 1e9:.2f} GB of weights per token\n"
        f"read ceiling {ceilings['read_tb_per_s']:.3f} TB/s, product ceiling {ceilings['product_tflop_per_s']:.1f} "
        f"TFLOP/s, loaded in {report['load_seconds']:.1f} s\n"
    )


def _number(value: Any, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _share(value: Any) -> str:
    return "" if value is None else f"{value:.1%}"


def _rate(value: Any) -> str:
    if value is None:
        return ""
    deviation = "" if value["stdev"] is None else f" ±{value['stdev']:.1f}"
    return f"{value['mean']:.1f}{deviation}"


def _tests(report: Json) -> str:
    tests: Any = report["tests"]
    if not tests:
        return ""
    rows = [["test", "prefill tok/s", "of floor", "decode tok/s", "round ms", "floor ms", "of floor"]]
    for test in tests:
        floor = test["decode_floor"] or {"round_ms": None}
        rows.append(
            [
                test["name"],
                _rate(test["prefill_tok_s"]),
                _share(test["prefill_share_of_floor"]),
                _rate(test["decode_output_tok_s"]),
                _number(test["round_ms"], 3),
                _number(floor["round_ms"], 3),
                _share(test["decode_share_of_floor"]),
            ]
        )
    return columns(rows)


def _columns(report: Json) -> str:
    measured: Any = report.get("columns")
    if not measured:
        return ""
    rows = [["round", "position", "us", "of floor", "of one column"]]
    rows += [
        [
            f"{row['lanes']} lanes, {row['columns']} columns each",
            str(row["position"]),
            _number(row["us"]),
            _share(row["share_of_floor"]),
            _number(row["of_one_column"], 3),
        ]
        for row in measured
    ]
    return columns(rows)


def _rounds(report: Json) -> str:
    measured: Any = report.get("rounds")
    if not measured:
        return ""
    rows = [["rounds one ahead", "rounds", "round us", "replay us", "gap p50 us", "gap p99 us", "idle"]]
    rows += [
        [
            f"{row['lanes']} lanes",
            str(row["rounds"]),
            _number(row["round_us"]["mean"]),
            _number(row["replay_us"]),
            _number(row["gap_us"]["p50"]),
            _number(row["gap_us"]["p99"]),
            _share(row["idle_share"]),
        ]
        for row in measured
    ]
    return columns(rows)
