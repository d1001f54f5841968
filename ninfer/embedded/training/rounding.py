"""Weights as the artifact will hold them: the quantiser of the artifact spec, 7.1, with a straight-through gradient."""

from __future__ import annotations

import torch
from torch import Tensor

# Codes per format of recipe `generic_int`: largest code, columns of a group.
Q4, Q5, Q8 = (7, 64), (15, 64), (127, 32)


def rounded(weight: Tensor, qmax: Tensor, group: int, amount: Tensor) -> Tensor:
    """`weight` moved towards its quantised value by `amount`, the gradient passing through unchanged.

    weight   [N, K] float32, K a multiple of `group`
    qmax     [N, 1] float32, largest code of each row; codes reach down to -qmax - 1, for 127 to -127
    amount   scalar in [0, 1]
    """
    with torch.no_grad():
        lanes = weight.view(weight.shape[0], -1, group)
        largest = lanes.abs().amax(-1)
        scale = (largest / qmax).half().float()
        scale = torch.where((scale == 0) & (largest != 0), 2.0**-24, scale)
        inverse = torch.where(largest == 0, 0.0, 1.0 / scale)
        limit = qmax.unsqueeze(-1)
        low = -torch.where(limit == 127, limit, limit + 1)
        codes = torch.minimum(torch.maximum((lanes * inverse.unsqueeze(-1)).round(), low), limit)
        change = ((codes * scale.unsqueeze(-1)) - lanes).view_as(weight) * amount
    return weight + change
