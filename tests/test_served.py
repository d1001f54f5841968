"""What a process says of the machine that it runs on."""

from __future__ import annotations

import platform

import torch

from ninfer.served import environment_of


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
