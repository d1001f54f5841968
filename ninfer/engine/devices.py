"""Which device an engine runs on, and what is set up on it once per process."""

from __future__ import annotations

from dataclasses import replace

import torch

from ninfer.config import EngineSettings
from ninfer.errors import StartupError


def with_device(settings: EngineSettings) -> EngineSettings:
    """The settings with a real device in place of `auto`, and the dtype of activations that it has."""
    device = settings.device
    if device == "auto":
        device = "cuda:0" if torch.cuda.is_available() else "cpu"
    dtype = settings.compute_dtype if device == "cpu" else "bf16"
    return replace(settings, device=device, compute_dtype=dtype)


def settle_device(device: torch.device) -> int:
    """Set up a GPU for exact results and quick starts; returns the number of its multiprocessors.

    Raises StartupError where torch sees no such device.
    """
    from ninfer.kernels.served.kernels import settle_cache_keys

    if not torch.cuda.is_available():
        raise StartupError(f"--device {device}: torch finds no GPU; use --device cpu, or install a CUDA build of torch")
    if (device.index or 0) >= torch.cuda.device_count():
        raise StartupError(f"--device {device}: there are {torch.cuda.device_count()} GPUs, counted from 0")
    torch.cuda.set_device(device)
    # A sum that is split over programs depends on how many tokens share the product (design.md section 3).
    torch.backends.cuda.preferred_blas_library("cublaslt")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)
    settle_cache_keys()
    return int(torch.cuda.get_device_properties(device).multi_processor_count)
