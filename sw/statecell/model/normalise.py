"""Normaliser and block packer, the models of ``attention/normalise.py`` and ``attention/pack.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.spec import formats

_PIECES = 128
_BASE = torch.tensor([round(2**17 * _PIECES / (_PIECES + i)) for i in range(_PIECES + 1)])
"""2^17 / x at the ends of 128 pieces of [1, 2), worked out here and not read from the tables of the hardware."""


def log2(value: Tensor) -> Tensor:
    """floor(log2(value)) of int64 below 2^53; 0 for 0."""
    return torch.frexp(value.clamp(min=1).double()).exponent.to(torch.int64) - 1


def _shift(value: Tensor, left: int, right: Tensor) -> Tensor:
    """(value << left) >> right without losing high bits; int64 below 2^47."""
    return torch.where(right >= left, value >> (right - left).clamp(min=0), value << (left - right).clamp(min=0))


def reciprocal(fraction: Tensor) -> Tensor:
    """2^17 / (1 + fraction / 2^16), linear in 128 pieces, relative error below 2^-15; int64."""
    piece, rest = fraction >> formats.INVERSE_FRACTION, fraction & ((1 << formats.INVERSE_FRACTION) - 1)
    slope = _BASE[piece] - _BASE[piece + 1]
    return _BASE[piece] - ((slope * rest) >> formats.INVERSE_FRACTION)


def normalise(accumulator: Tensor, normaliser: Tensor) -> Tensor:
    """Accumulator / normaliser as OUTPUT_BITS integers, 4 fraction bits below the value LSB; int64 [..., L, d]."""
    log = log2(normaliser)
    fraction = _shift(normaliser, 16, log) & 0xFFFF
    inverse = reciprocal(fraction)
    limit = 1 << formats.OUTPUT_BITS
    scaled = _shift(accumulator, 16, log[..., None]).clamp(-limit, limit - 1)
    out = (scaled * inverse[..., None] + (1 << (formats.INVERSE_BITS - 1))) >> formats.INVERSE_BITS
    return out.clamp(-(limit >> 1), (limit >> 1) - 1)


def pack_block(z: Tensor) -> tuple[Tensor, Tensor]:
    """(vectors of 16 bits [..., d], block exponents [...]): (z + half) >> exponent, the least exponent that fits."""
    bits = log2(2 * torch.maximum(z, ~z).amax(-1))
    bits = torch.where(torch.maximum(z, ~z).amax(-1) == 0, 0, bits)
    block = (bits - (formats.VECTOR_BITS - 1)).clamp(min=0)
    half = torch.where(block > 0, 1 << (block - 1).clamp(min=0), 0)
    out = ((z + half[..., None]) >> block[..., None]).clamp(-formats.VECTOR_MAX, formats.VECTOR_MAX)
    return out, block
