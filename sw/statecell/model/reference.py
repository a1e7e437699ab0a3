"""Float reference: exact attention over unquantised K and V."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, start: Tensor, end: Tensor, scaling: float) -> Tensor:
    """softmax(scaling * q k^T) v in float64 (Vaswani et al. 2017, equation 1); q [..., L, d], k and v [..., n, d].

    Query l sees tokens start[l]..end[l]-1. Returns float64 [..., L, d].
    """
    position = torch.arange(k.shape[-2])
    hidden = (position < start[..., None]) | (position >= end[..., None])
    score = scaling * (q.double() @ k.double().transpose(-1, -2))
    return torch.softmax(score.masked_fill(hidden, float("-inf")), -1) @ v.double()
