"""Random artifacts with the 27B's widths and few layers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.config import FULL_ATTENTION, LINEAR_ATTENTION
from ninfer.artifact.container import Artifact
from ninfer.artifact.frontend import small_frontend
from ninfer.artifact.synth import registered_components, synthesise

VOCABULARY = 4096
KINDS = {"g": LINEAR_ATTENTION, "a": FULL_ATTENTION}


def cut(folder: Path, layers: str, recipe: str = "qwen3_8_27b", *, drafter: bool = False) -> BoundArtifact:
    """A model of the layers in `layers`: g for gated DeltaNet, a for attention; with a drafter and its short head."""
    extra = ("mtp", "proposal") if drafter else ()
    components = registered_components(recipe, extra, len(layers))
    if drafter:
        components = dataclasses.replace(components, proposal_rows=256)
    text = dataclasses.replace(
        components.text, vocab_size=VOCABULARY, layer_types=tuple(KINDS[letter] for letter in layers)
    )
    out = folder / f"{recipe}-{layers}{'-mtp' if drafter else ''}.ninfer"
    if not out.exists():
        synthesise(out, dataclasses.replace(components, text=text), recipe, small_frontend(), seed=1, name=out.stem)
    return bind(Artifact.open(out), ("text", *extra))
