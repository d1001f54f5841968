"""The sensors of the GPU that is there."""

from __future__ import annotations

import pytest
import torch

from ninfer.engine.devices import gpu_identity
from ninfer.sensors import sensors_of

pytestmark = pytest.mark.gpu


def test_the_sensors_are_those_of_the_device() -> None:
    identity = gpu_identity(torch.device("cuda:0"))
    assert identity is not None
    found = sensors_of(identity.uuid)()
    assert found["available"], found
    assert str(found["uuid"]).endswith(identity.uuid)
    assert isinstance(found["memory_total_bytes"], int)
    assert found["memory_total_bytes"] >= identity.memory_bytes
