"""Walsh-Hadamard rotation, the model of ``array/rotate.py``.

The transform is H[i, j] = (-1)^popcount(i & j) (Sylvester order, its own inverse up to 1/d).
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from statecell.spec.formats import VECTOR_MAX
from statecell.spec.geometry import Geometry


@cache
def hadamard(dim: int) -> Tensor:
    """Sylvester-Hadamard matrix, float64 [dim, dim], entries +-1; float64 products of our integers are exact."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return matrix


def transform(x: Tensor) -> Tensor:
    """H x over the last axis, exact: int64 [..., d] -> int64 [..., d] with log2(d) more bits."""
    return (x.double() @ hadamard(x.shape[-1])).to(torch.int64)


def forward(x: Tensor, geometry: Geometry) -> Tensor:
    """Rotated vectors: (H x + half) >> rotate_shift, saturated to +-VECTOR_MAX; int64 [..., d]."""
    shift = geometry.rotate_shift
    return ((transform(x) + (1 << (shift - 1))) >> shift).clamp(-VECTOR_MAX, VECTOR_MAX)
