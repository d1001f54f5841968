"""Which device an engine runs on, and what is set up on it once per process."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

import torch

from ninfer.config import EngineSettings
from ninfer.errors import StartupError
from ninfer.kernels.low_bit_linear.chunk_route import DEFAULT, Choice, Policy, tuned_for

_LOG = logging.getLogger(__name__)


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


def gpu_name(device: torch.device) -> str | None:
    """What a GPU's driver calls it; None for the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


@dataclass(frozen=True, slots=True)
class GpuIdentity:
    """A GPU as CUDA knows it; `uuid` is without a prefix."""

    name: str
    uuid: str
    memory_bytes: int
    capability: tuple[int, int]


def gpu_identity(device: torch.device) -> GpuIdentity | None:
    """Which GPU it is; None for the processor."""
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_properties(device)
    return GpuIdentity(found.name, str(found.uuid), found.total_memory, (found.major, found.minor))


def chunk_policy(short_chunk_products: str, gpu: str | None) -> Policy:
    """How chunks are multiplied on a GPU; says so once if nothing was measured on it.

    short_chunk_products  of the settings
    gpu                   as `gpu_name` says
    """
    choice = Choice(short_chunk_products)
    tuned = tuned_for(gpu) if gpu is not None else None
    if tuned is not None:
        return Policy(choice, tuned)
    policy = Policy(choice, DEFAULT)
    if gpu is not None and choice is not Choice.LIBRARY:
        longest = DEFAULT.longest_tokens[0][1]
        made = f"in registers up to {longest} tokens" if policy.in_registers else "by the library"
        _LOG.warning("Products of short chunks were not measured on %s: they are made %s", gpu, made)
    return policy
