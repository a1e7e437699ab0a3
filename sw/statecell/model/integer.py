"""The whole attention pass in integers, bit for bit what the device answers. Vectorised over heads and queries."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model import quantise, rotate
from statecell.model.accumulate import accumulate
from statecell.model.normalise import normalise, pack_block
from statecell.model.rows import Rows
from statecell.model.score import scores
from statecell.model.softmax import weights
from statecell.spec import formats
from statecell.spec.geometry import Geometry


@dataclass(frozen=True)
class Output:
    """``vectors`` int64 [..., L, d] of 16 bits; ``block`` int64 [..., L] the block exponents of the response."""

    vectors: Tensor
    block: Tensor

    def values(self, geometry: Geometry) -> Tensor:
        """Outputs in units of the value LSB, float64 [..., L, d]."""
        exponent = self.block + formats.output_exponent(0, geometry.head_dim)
        return self.vectors.double() * 2.0 ** exponent[..., None].double()


def store(x: Tensor, geometry: Geometry, *, wide: bool = False, zero_point: bool = False) -> Rows:
    """Rows that APPEND writes to one bank for vectors x, int64 [..., n, d] of 16 bits; wide gives two rows each."""
    y = rotate.forward(x, geometry)
    return quantise.wide_rows(y, geometry) if wide else quantise.narrow_rows(y, geometry, zero_point=zero_point)


def attend(q: Tensor, keys: Rows, values: Rows, start: Tensor, end: Tensor, shift: int | Tensor,
           geometry: Geometry) -> Output:
    """Attention of queries q int64 [..., L, d] of 16 bits over rows [..., n]; lane l sees rows start[l]..end[l]-1.

    start, end: int64 [L] or [..., L], on token boundaries, start < end. shift: the argument of ATTEND.
    """
    query = quantise.queries(rotate.forward(q, geometry), geometry)
    amount = torch.as_tensor(shift).expand(query.exponent.shape)
    position = torch.arange(len(keys))
    visible = (position >= start[..., None]) & (position < end[..., None])
    visible = visible.expand(*query.exponent.shape, len(keys))
    weight = weights(scores(query, keys, amount, geometry), visible, values)
    out = normalise(*accumulate(weight, values, geometry))
    return Output(*pack_block(rotate.transform(out)))
