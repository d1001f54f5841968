"""A model as small as the GPU engine takes, with random weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION
from ninfer.artifact.container import Artifact
from ninfer.artifact.frontend import small_frontend
from ninfer.artifact.synth import registered_components, synthesise

LAYERS = (LINEAR_ATTENTION, FULL_ATTENTION, LINEAR_ATTENTION)


def tiny_model(out: Path, *, drafter: bool = False) -> Artifact:
    """Three layers of the 27B's kinds with 512 ids; with the drafter's layer and a short head of 192 rows if wished."""
    names = ("mtp", "proposal") if drafter else ()
    components = registered_components("qwen3_8_27b", names, len(LAYERS))
    text = dataclasses.replace(
        components.text, vocab_size=512, hidden_size=128, intermediate_size=192, heads=2, kv_heads=1, gdn_key_heads=1,
        gdn_value_heads=2, gdn_key_dim=32, gdn_value_dim=32, layer_types=LAYERS,
    )  # fmt: skip
    rows = 192 if drafter else None
    components = dataclasses.replace(components, text=text, proposal_rows=rows)
    synthesise(out, components, "qwen3_8_27b", small_frontend(), seed=1, name="tiny")
    return Artifact.open(out)
