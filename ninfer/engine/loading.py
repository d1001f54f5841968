"""The engine that a device needs, from a bound artifact."""

from __future__ import annotations

from ninfer.artifact.binder import BoundArtifact, bind
from ninfer.artifact.container import Artifact
from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine, device_layout
from ninfer.engine.engine import Engine
from ninfer.engine.layouts import Layout, PlainLayout, drafter_shape
from ninfer.errors import ArtifactError, StartupError


def bind_for(artifact: Artifact, settings: EngineSettings) -> BoundArtifact:
    """The components that the settings' engine reads; what it wishes for and the artifact lacks, loading refuses."""
    components = artifact.directory.components
    wanted = ["text"]
    if settings.drafter == "mtp" and "mtp" in components:
        wanted.append("mtp")
    if settings.draft_head and components["text"].proposal is not None:
        wanted.append("proposal")
    return bind(artifact, wanted)


def layout_of(bound: BoundArtifact, settings: EngineSettings) -> Layout:
    """What the engine of the settings' device would allocate; raises StartupError if that cannot run the model."""
    if settings.device == "cpu":
        return PlainLayout(bound.text, drafter_shape(bound, settings))
    return device_layout(bound, settings)


def load_engine(bound: BoundArtifact, settings: EngineSettings, public_ids: int) -> Engine | DeviceEngine:
    """Weights and pools onto the settings' device; raises StartupError or ArtifactError."""
    kind = Engine if settings.device == "cpu" else DeviceEngine
    try:
        return kind.load(bound, settings, public_ids)
    except (ArtifactError, StartupError):
        raise
    except (OSError, MemoryError, RuntimeError) as error:
        raise StartupError(f"the model cannot be loaded: {type(error).__name__}: {error}") from error
