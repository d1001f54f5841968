"""Plain-torch route: fp32, each operation rounded by itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ninfer.kernels.kv_codec.pool import SCALE_GROUP, Pool


def hadamard(x: Tensor) -> Tensor:
    width = x.shape[-1]
    assert width & (width - 1) == 0
    y = x.float()
    stride = 1
    while stride < width:
        pairs = y.reshape(*x.shape[:-1], width // (2 * stride), 2, stride)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack([first + second, first - second], dim=-2).reshape(x.shape)
        stride *= 2
    return y.mul_(float(width**-0.5))


def int8_codes(x: Tensor, narrow: bool) -> tuple[Tensor, Tensor]:
    groups = x.reshape(*x.shape[:-1], x.shape[-1] // SCALE_GROUP, SCALE_GROUP)
    scales = groups.abs().amax(-1) / 127.0
    if narrow:
        scales = scales.half()
    wide = scales.float()
    inverse = torch.where(wide == 0.0, 0.0, 1.0 / wide)
    codes = (groups * inverse.unsqueeze(-1)).round().clamp(-127.0, 127.0).to(torch.int8)
    return codes.reshape(x.shape), scales


def decoded(codes: Tensor, scales: Tensor) -> Tensor:
    groups = codes.float().reshape(*scales.shape, SCALE_GROUP)
    return (groups * scales.float().unsqueeze(-1)).reshape(codes.shape)


def store(k: Tensor, v: Tensor, pages: Tensor, offsets: Tensor, pool: Pool) -> None:
    if pool.key_scales is None or pool.value_scales is None:
        pool.keys[pages, :, offsets] = k.to(pool.keys.dtype)
        pool.values[pages, :, offsets] = v.to(pool.values.dtype)
        return
    for rows, codes, scales in (
        (hadamard(k), pool.keys, pool.key_scales),
        (v.float(), pool.values, pool.value_scales),
    ):
        codes[pages, :, offsets], scales[pages, :, offsets] = int8_codes(rows, narrow=True)


def decoded_pages(pool: Pool, pages: Tensor) -> tuple[Tensor, Tensor]:
    keys, values = pool.keys.index_select(0, pages), pool.values.index_select(0, pages)
    if pool.key_scales is None or pool.value_scales is None:
        return keys.float(), values.float()
    return (
        decoded(keys, pool.key_scales.index_select(0, pages)),
        decoded(values, pool.value_scales.index_select(0, pages)),
    )
