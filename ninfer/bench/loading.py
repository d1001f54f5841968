"""A model as a measurement needs it: an open artifact with its tokenizer, and an engine without a server around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.container import Artifact
from ninfer.bench.report import Json
from ninfer.config import EngineSettings
from ninfer.embedded import ARTIFACT
from ninfer.engine.engine import Engine
from ninfer.errors import ArtifactError, StartupError
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
def open_model(path: Path | None) -> Iterator[Model]:
    """The artifact at a path, or the embedded one. Raises StartupError or ArtifactError."""
    where = ARTIFACT if path is None else path
    if not where.is_file():
        raise StartupError(f"the model {where} is not a file")
    with Artifact.open(where) as artifact:
        bound = bind(artifact)
        roles = artifact.directory.components["text"].resources
        optional = [
            bound.resource("text", role) if role in roles else None
            for role in ("tokenizer_config.json", "generation_config.json")
        ]
        tokenizer = Tokenizer.from_resources(bound.resource("text", "tokenizer.json"), *optional)
        yield Model(where, bound, tokenizer)


def load_engine(model: Model, settings: EngineSettings) -> Engine | DeviceEngine:
    """The engine that a server would load on that device. Raises StartupError or ArtifactError."""
    try:
        if settings.device == "cpu":
            return Engine.load(model.bound, settings, model.tokenizer.id_count)
        from ninfer.engine.device_engine import DeviceEngine

        return DeviceEngine.load(model.bound, settings, model.tokenizer.id_count)
    except (ArtifactError, StartupError):
        raise
    except (OSError, MemoryError, RuntimeError) as error:
        raise StartupError(f"the model cannot be loaded: {type(error).__name__}: {error}") from error


def token_weight_bytes(engine: Engine | DeviceEngine, model: Model) -> int:
    """Bytes of the weights that one decoded token reads: all but the embedding, of which it reads a row."""
    if isinstance(engine, Engine):
        # A tied head is the embedding, read as a whole.
        left_out = () if model.bound.text.tie_word_embeddings else ("text/token_embedding",)
        return sum(spec.region_bytes for spec in engine.memory.weights if spec.name not in left_out)
    return engine.weights.round_bytes
