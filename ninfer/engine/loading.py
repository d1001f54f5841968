"""The engine that a device needs, from a bound artifact."""

from __future__ import annotations

from ninfer.artifact.binder import BoundArtifact
from ninfer.config import EngineSettings
from ninfer.engine.device_engine import DeviceEngine, device_layout
from ninfer.engine.engine import Engine
from ninfer.engine.layouts import Layout, PlainLayout
from ninfer.errors import ArtifactError, StartupError


def layout_of(bound: BoundArtifact, settings: EngineSettings) -> Layout:
    """What the engine of the settings' device would allocate; raises StartupError if that cannot run the model."""
    return PlainLayout(bound.text) if settings.device == "cpu" else device_layout(bound, settings)


def load_engine(bound: BoundArtifact, settings: EngineSettings, public_ids: int) -> Engine | DeviceEngine:
    """Weights and pools onto the settings' device; raises StartupError or ArtifactError."""
    kind = Engine if settings.device == "cpu" else DeviceEngine
    try:
        return kind.load(bound, settings, public_ids)
    except (ArtifactError, StartupError):
        raise
    except (OSError, MemoryError, RuntimeError) as error:
        raise StartupError(f"the model cannot be loaded: {type(error).__name__}: {error}") from error
