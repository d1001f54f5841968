"""Our side of ``ninfer-bench compare``, in seconds: through the kernels' own measurements and an engine's report."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ninfer.bench import kernels_attention, kernels_gdn
from ninfer.bench.compare_others import ATTENTION_TOKENS, CHUNK_TOKENS, PROMPT_TOKENS
from ninfer.kernels.gdn.slots import GdnShape
from ninfer.kernels.kv_codec.pool import Codec

CHUNK = 8192
REPEATS = 11
LAYERS = 48


def attention_s(codec: Codec) -> float:
    """All chunks of the prompt that SDPA reads at once."""
    rows = [kernels_attention.chunk_row(begin, CHUNK, codec, REPEATS) for begin in range(0, ATTENTION_TOKENS, CHUNK)]
    return sum(row.us for row in rows) / 1e6


def _gdn() -> kernels_gdn.Model:
    return kernels_gdn.Model(GdnShape(16, 48, 128, 128), 5120, LAYERS, torch.device("cuda"))


def gdn_chunk_s() -> float:
    """A chunk of one layer."""
    return kernels_gdn.chunk_rows(_gdn(), CHUNK_TOKENS, 1.0, REPEATS)[0].us / 1e6


def gdn_round_s(lanes: int) -> float:
    """A token of each lane in one layer."""
    return kernels_gdn.round_row(_gdn(), lanes, 1, 1.0, REPEATS).us / 1e6


def engine_s(report: Path | None, kind: str) -> float | None:
    """Seconds of a decoded token, or of a prompt of PROMPT_TOKENS, in a report of ``ninfer-bench engine``; None without
    one. LookupError if it has no such test of one lane."""
    if report is None:
        return None
    for test in json.loads(report.read_text())["tests"]:
        if test["lanes"] != 1 or test["assumed_depth"]:
            continue
        if kind == "decode" and test["round_ms"] is not None:
            return float(test["round_ms"]) / 1e3
        if kind == "prefill" and test["prompt_tokens"] == PROMPT_TOKENS and test["prefill_tok_s"] is not None:
            return PROMPT_TOKENS / float(test["prefill_tok_s"]["mean"])
    raise LookupError(f"{report} has no {kind} test of one lane that fits")
