"""Shifts and saturation of the recurrent step."""

from __future__ import annotations

import torch
from torch import Tensor

_LIMIT = 128
_POWERS = torch.tensor([2.0**i for i in range(-_LIMIT, _LIMIT + 1)], dtype=torch.float64)


def clamp(value: Tensor, bits: int) -> Tensor:
    """Saturation to signed ``bits``."""
    return value.clamp(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def round_shift(value: Tensor, right: Tensor | int) -> Tensor:
    """Quotient value / 2^right, rounded half up; int64, right >= 1."""
    return (value + (1 << (right - 1))) >> right


def scaled(value: Tensor, left: Tensor) -> Tensor:
    """Product value * 2^left in float64, exact for integers below 2^53; left int64 within +-128, from a table."""
    return value.double() * _POWERS[left + _LIMIT]
