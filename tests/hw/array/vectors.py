"""Vectors that reach the corners of rotation and quantiser."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.spec.formats import VECTOR_MAX
from statecell.spec.geometry import Geometry


def signed_words(raw: int, bits: int, count: int) -> list[int]:
    """``count`` signed fields of ``bits`` bits, the lowest first."""
    half = 1 << (bits - 1)
    return [((raw >> (i * bits) & (2 * half - 1)) ^ half) - half for i in range(count)]


def pack_words(vector: Tensor, bits: int, word: int) -> list[int]:
    """Words of ``word`` signed fields of ``bits`` bits each."""
    values = [v & ((1 << bits) - 1) for v in vector.tolist()]
    return [sum(v << (i * bits) for i, v in enumerate(values[at:at + word])) for at in range(0, len(values), word)]


def corner_vectors(dim: int, limit: int = VECTOR_MAX) -> list[Tensor]:
    """All zero, saturated, alternating, one element, equal, tiny."""
    sign = torch.where(torch.arange(dim) % 2 == 0, 1, -1)
    single = torch.zeros(dim, dtype=torch.int64)
    single[dim // 3] = limit
    some = torch.full((dim,), limit, dtype=torch.int64)
    ramp = torch.arange(dim) - dim // 2
    return [some * 0, some, -some, sign * limit, single, -single, some * 0 + 1, some * 0 - 1, sign, ramp,
            ramp * (limit // dim), torch.where(torch.arange(dim) == 5, -1, 0), torch.where(sign > 0, some, 0)]


def random_vectors(geometry: Geometry, count: int, seed: int) -> list[Tensor]:
    """Vectors with a random size per group and some outliers, within +-VECTOR_MAX."""
    rng = torch.Generator().manual_seed(seed)
    shape = (count, geometry.groups, geometry.group)
    size = 2.0 ** torch.empty(count, geometry.groups, 1).uniform_(-2, 15, generator=rng)
    x = torch.randn(shape, generator=rng) * size
    x = torch.where(torch.rand(shape, generator=rng) < 0.02, x * 6, x)
    return list(x.round().clamp(-VECTOR_MAX, VECTOR_MAX).to(torch.int64).flatten(-2))
