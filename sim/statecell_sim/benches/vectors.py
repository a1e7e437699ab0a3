"""Vectors that reach the corners of the number formats, and their words on a stream."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch
from torch import Tensor

from statecell.spec.formats import VECTOR_MAX


def words_of(vector: Iterable[int], bits: int, word: int) -> list[int]:
    """Words of ``word`` signed fields of ``bits`` bits each, the first lowest."""
    values = [int(v) & ((1 << bits) - 1) for v in vector]
    return [sum(v << (i * bits) for i, v in enumerate(values[at:at + word])) for at in range(0, len(values), word)]


def corners(dim: int, limit: int = VECTOR_MAX) -> list[Tensor]:
    """All zero, saturated both ways, alternating, one element, equal, tiny, a ramp."""
    sign = torch.where(torch.arange(dim) % 2 == 0, 1, -1)
    full = torch.full((dim,), limit, dtype=torch.int64)
    single = torch.where(torch.arange(dim) == dim // 3, limit, 0)
    ramp = (torch.arange(dim) - dim // 2) * (2 * limit // dim)
    return [full * 0, full, -full, sign * limit, single, -single, full * 0 + 1, full * 0 - 1, sign, ramp]


def random_vector(rng: random.Random, dim: int, limit: int = VECTOR_MAX) -> Tensor:
    """A corner now and then, else noise of any size with an outlier."""
    if rng.random() < 0.2:
        return rng.choice(corners(dim, limit))
    size = limit * 2.0 ** -rng.uniform(0, 14)
    values = [rng.gauss(0, 0.4) * size for _ in range(dim)]
    values[rng.randrange(dim)] *= rng.choice([1, 8])
    return torch.tensor([max(-limit, min(limit, round(v))) for v in values])
