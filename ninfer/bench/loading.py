"""A model as a measurement needs it: an open artifact with its tokenizer, and an engine without a server around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer.artifact.binder import BoundArtifact
from ninfer.artifact.container import Artifact
from ninfer.bench.report import Json
from ninfer.config import EngineSettings
from ninfer.embedded import ARTIFACT
from ninfer.engine.engine import Engine
from ninfer.engine.loading import bind_for
from ninfer.errors import StartupError
from ninfer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from ninfer.engine.device_engine import DeviceEngine


@dataclass(frozen=True, slots=True)
class Model:
    """An open artifact and its tokenizer."""

    path: Path
    bound: BoundArtifact
    tokenizer: Tokenizer

    def to_json(self) -> Json:
        return {
            "path": str(self.path),
            "size_bytes": self.path.stat().st_size,
            "artifact_id": self.bound.artifact.artifact_id,
            "model_id": self.bound.name,
            "target": self.bound.target,
            "weights_id": self.bound.weights_id,
        }


@contextmanager
def open_model(path: Path | None, settings: EngineSettings | None = None) -> Iterator[Model]:
    """The artifact at a path, or the embedded one, with what an engine of these settings reads of it.

    Raises StartupError or ArtifactError.
    """
    where = ARTIFACT if path is None else path
    if not where.is_file():
        raise StartupError(f"the model {where} is not a file")
    with Artifact.open(where) as artifact:
        bound = bind_for(artifact, settings if settings is not None else EngineSettings())
        tokenizer = Tokenizer.from_resources(
            bound.resource("text", "tokenizer.json"),
            bound.optional_resource("text", "tokenizer_config.json"),
            bound.optional_resource("text", "generation_config.json"),
        )
        yield Model(where, bound, tokenizer)


def token_weight_bytes(engine: Engine | DeviceEngine, model: Model) -> int:
    """Bytes of the weights that one decoded token reads: all but the embedding, of which it reads a row."""
    if isinstance(engine, Engine):
        # A tied head is the embedding, read as a whole.
        left_out = () if model.bound.text.tie_word_embeddings else ("text/token_embedding",)
        return sum(spec.region_bytes for spec in engine.memory.weights if spec.name not in left_out)
    return engine.weights.round_bytes
