"""The warm-up stays within the context, however short that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ninfer.actors.warmup import warm_up
from ninfer.artifact.container import Artifact
from ninfer.artifact.tiny import build_tiny
from ninfer.config import EngineSettings
from ninfer.engine.engine import Engine
from ninfer.engine.loading import bind_for
from tests.support.system import TOKENIZER


@pytest.mark.parametrize("guesses", [0, 5])
@pytest.mark.parametrize("context", [1, 2, 4, 5, 6, 64])
def test_a_context_of_any_length_is_warmed_up(tmp_path: Path, context: int, guesses: int) -> None:
    build_tiny(tmp_path / "tiny.ninfer")
    settings = EngineSettings(
        max_context_tokens=context,
        kv_capacity_tokens=64,
        prefill_chunk_tokens=64,
        drafter="mtp" if guesses else None,
        draft_tokens=guesses,
    )
    with Artifact.open(tmp_path / "tiny.ninfer") as artifact:
        engine = Engine.load(bind_for(artifact, settings), settings, TOKENIZER.id_count)
        warm_up(engine, context, guesses)
        warm_up(engine, context, guesses)
