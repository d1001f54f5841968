"""What a process says of the machine that it runs on, and what it asks of it."""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest
import torch

from ninfer.artifact.container import Artifact
from ninfer.config import MIB, EngineSettings, Settings
from ninfer.embedded import ARTIFACT
from ninfer.errors import StartupError
from ninfer.served import environment_of, open_served, with_host_pages


def test_the_environment_of_a_process_on_the_processor() -> None:
    assert environment_of("cpu") == {
        "device": "cpu",
        "gpu_name": None,
        "gpu_uuid": None,
        "total_device_memory_bytes": None,
        "compute_capability_major": None,
        "compute_capability_minor": None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_runtime": torch.version.cuda,
    }


def test_more_host_memory_than_there_is_free_is_refused() -> None:
    settings = Settings(ARTIFACT, engine=EngineSettings(device="cpu", host_kv_cache_bytes=64 * MIB))
    with Artifact.open(ARTIFACT) as artifact:
        served = open_served(artifact, settings)
        assert with_host_pages(settings, served).scheduler.host_pages > 0
        greedy = replace(settings, engine=replace(settings.engine, host_kv_cache_bytes=1 << 50))
        with pytest.raises(StartupError, match=r"^--host-kv-cache-mib 1073741824: \d+ MiB of host memory are free$"):
            with_host_pages(greedy, served)
