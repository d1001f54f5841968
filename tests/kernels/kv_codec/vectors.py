"""The single rows of the cache specification and their bytes (kv-and-state spec 7.1)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

KEY_CODES = bytes.fromhex(
    "0c000000ff00020d0605fa0607fb08051fe9d7de47357fbdd5edcb1858d88faf"
    "0505d0bd0101f4160809e11c06fa0a0b0002ca30f906070af8fd131c020109ee"
    "00b301000000b200d9d9da2626dadada332e3bcfb73652410d47eef51d127fe9"
    "01b4f30c0000b403dad8de2d27d9dad8282632e9d8262825004d06fbff014eff"
    "00005801ff57fe01d42c2c2b2a2c2dd547e503be89f836681ff281e741d170cc"
    "0303391b01570506d52a36392c2b2ed22ed2eef7d2d3d72800ffb7f4feaa01ff"
    "ff00008281000000c140c1c1c0c140c13dc142423a3cb7440201047d78030805"
    "01000183810000ffc140c1c0c0c140c13fc0413e3f3fc03f0000ff7e7e00ff01"
)
KEY_SCALES = bytes.fromhex("98299b1ee01d0a1c")
VALUE_CODES = bytes.fromhex(
    "3b2b211702ddb19296c30c557f794c0ed9bebcc7d0d4dcf31d4f737246fcb286"
    "87b1eb1c363a3635363119eab28a87b2fc477476511cefd6cfcec8c1c3dc0e4b"
    "7378510cc49894b3df061b242b3744452dfabc8d84a9ed3360674d2605f1e7db"
    "c8b5b0c9fe40737e5c1ad6a9a0b5d6f2020e1f385159410ac59081a0df214e59"
    "492e180afee9c9aa9fb5ee356e7f6328e8bcb0bbd0e0eaf60f355a69541bd297"
    "839bd30f39474032282216f9cea491a4dd27647b6632fad2c4c7ced1d3defe2e"
    "5f77652ce0a18699c8fd2333343337392e0cd6a18594cd185874663b0be9d9d4"
    "cec4bcc6ea245e7e713bf0b0939dc3ed0b1a232f404d4520e2a4818bbf084766"
)
VALUE_SCALES = bytes.fromhex("6120992099208120")


def key_row() -> Tensor:
    """[256] bf16"""
    return _row(lambda d: math.sin(0.98 * d) + 0.5 * math.cos(1.67 * d + 1.6) + (2.0 if d % 67 == 13 else 0.0))


def value_row() -> Tensor:
    """[256] bf16"""
    return _row(lambda d: 0.8 * math.cos(0.49 * d) - 0.35 * math.sin(0.83 * d + 1.0))


def _row(value: Callable[[int], float]) -> Tensor:
    return torch.tensor([value(d) for d in range(256)], dtype=torch.float64).bfloat16()
