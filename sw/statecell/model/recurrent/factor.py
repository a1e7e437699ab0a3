"""The factor that collects a head's decays, which never touch the codes. Formulas: docs/numerics.md, 8.2."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model.normalise import log2, reciprocal
from statecell.model.recurrent.bits import round_shift
from statecell.spec import formats

_INDEX = formats.FACTOR_BITS - 1 - 16
"""Bits of a factor's fraction below those that the reciprocal looks at."""


def decayed(value: Tensor, decay: Tensor) -> Tensor:
    """Product value * decay, rounded, at least 1: a factor or a log weight never becomes 0; int64."""
    return round_shift(value * decay, formats.DECAY_FRACTION).clamp(min=1)


def normalised(factor: Tensor) -> tuple[Tensor, Tensor]:
    """(factor brought back to 1.0 .. 2.0, octaves that it had lost)."""
    octaves = formats.FACTOR_BITS - 1 - log2(factor)
    return factor << octaves, octaves


def times_half(vector: Tensor, factor: Tensor) -> Tensor:
    """Product vector * factor / 2, rounded: 16-bit vectors stay 16-bit; int64 [H, d] with factor [H, 1 or d]."""
    return round_shift(vector * factor, formats.FACTOR_BITS)


def divided(vector: Tensor, factor: Tensor) -> Tensor:
    """Quotient vector / factor, factors 1.0 to 2.0, by the reciprocal table, rounded; 16-bit vectors stay 16-bit."""
    inverse = reciprocal((factor >> _INDEX) & 0xFFFF)
    return round_shift(vector * inverse, formats.INVERSE_BITS)


def weighted(vector: Tensor, weight: Tensor) -> Tensor:
    """Product vector * weight (a decay), rounded; int64."""
    return round_shift(vector * weight, formats.DECAY_FRACTION)


def kept(decay: Tensor, beta: Tensor) -> Tensor:
    """True for heads whose token leaves the state as it is: all decays 1 and beta 0; bool [H]."""
    one = decay == 1 << formats.DECAY_FRACTION
    return torch.all(one, -1) & (beta == 0)
