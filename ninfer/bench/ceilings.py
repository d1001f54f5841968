"""The machine's own limits, measured before anything else: reading memory, and multiplying matrices of the model."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from ninfer.artifact.config import TextConfig
from ninfer.bench.floors import products
from ninfer.bench.linear import read_ceiling, timed_s
from ninfer.bench.report import Json

_SWEEP_BYTES = {"cuda": 8 << 30, "cpu": 64 << 20}
_ROWS = {"cuda": 8192, "cpu": 64}
_REPEATS = {"cuda": 9, "cpu": 5}
_DTYPES = {"cuda": torch.bfloat16, "cpu": torch.float32}  # of activations


@dataclass(frozen=True, slots=True)
class ProductRate:
    """The library's product [rows, columns] with [tokens, columns], in the dtype of activations."""

    name: str
    rows: int
    columns: int
    tokens: int
    us: float
    tflop_per_s: float


@dataclass(frozen=True, slots=True)
class Ceilings:
    """read: bytes per second of a read-only sweep of `sweep_bytes`; flop: of the fastest of `products`."""

    read: float
    flop: float
    sweep_bytes: int
    products: tuple[ProductRate, ...]

    def to_json(self) -> Json:
        return {
            "read_tb_per_s": self.read / 1e12,
            "product_tflop_per_s": self.flop / 1e12,
            "sweep_bytes": self.sweep_bytes,
            "products": [asdict(rate) for rate in self.products],
        }


def measure_ceilings(config: TextConfig, device: torch.device) -> Ceilings:
    """Medians of CUDA-graph replays on a GPU, of calls elsewhere. What is allocated is given back."""
    repeats = _REPEATS[device.type]
    sweep = _SWEEP_BYTES[device.type]
    if device.type == "cuda":
        torch.cuda.set_device(device)
        sweep = min(sweep, torch.cuda.mem_get_info(device)[0] // 2 >> 20 << 20)
    with torch.inference_mode():
        read = read_ceiling(device, sweep, repeats) if device.type == "cuda" else _processor_read(sweep, repeats)
        rates = tuple(_rates(config, device, repeats))
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Ceilings(read, max(1e12 * rate.tflop_per_s for rate in rates), sweep, rates)


def _processor_read(nbytes: int, repeats: int) -> float:
    """Bytes per second of a sum; a rough figure, for trying the command out."""
    x = torch.ones(nbytes // 4)
    return nbytes / timed_s(x.sum, x.device, repeats)


def _rates(config: TextConfig, device: torch.device, repeats: int) -> list[ProductRate]:
    tokens, dtype = _ROWS[device.type], _DTYPES[device.type]
    rates = []
    for product in products(config):
        # Zeros would be multiplied with less power, and faster.
        x = torch.randn(tokens, product.columns, dtype=dtype, device=device)
        weight = torch.randn(product.rows, product.columns, dtype=dtype, device=device)
        out = torch.empty(tokens, product.rows, dtype=dtype, device=device)
        seconds = timed_s(lambda: torch.mm(x, weight.t(), out=out), device, repeats)  # noqa: B023
        rate = 2.0 * tokens * product.parameters / seconds / 1e12
        rates.append(ProductRate(product.name, product.rows, product.columns, tokens, 1e6 * seconds, rate))
    return rates
