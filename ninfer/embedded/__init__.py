"""The small trained model of the package: its data, its training, its evaluation (issue 3, docs/embedded-model.md)."""

from __future__ import annotations

from pathlib import Path

# Served when no model is named. A path rather than a resource, because artifacts are mapped into memory.
ARTIFACT = Path(__file__).with_name("embedded.ninfer")
