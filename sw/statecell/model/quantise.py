"""Quantiser of rows and queries, the model of ``array/writer.py``. Formulas: docs/numerics.md, section 3."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model.rows import Rows
from statecell.spec import formats
from statecell.spec.geometry import Geometry

RECIPROCALS = torch.tensor([round(2**18 / mantissa) for mantissa in range(8, 16)])
"""1 / (8 + m) in 2^-18, worked out here and not read from the tables of the hardware."""


@dataclass(frozen=True)
class Queries:
    """Stored queries, int64: ``codes`` [..., d]; per query ``sign`` (+1 or -1), ``mantissa`` 8..15, ``exponent``."""

    codes: Tensor
    sign: Tensor
    mantissa: Tensor
    exponent: Tensor


def least_scale(magnitude: Tensor) -> Tensor:
    """Least scale code (e << 3 | m) whose value times 8 is >= magnitude, with an exponent of any size; int64."""
    safe = magnitude.clamp(min=1)
    top = torch.floor(torch.log2(safe.double())).to(torch.int64)  # exact: magnitudes are far below 2^53
    mantissa = -((-safe << 3) >> top)  # ceil(magnitude * 8 / 2^top), 8..16
    code = (top << formats.SCALE_MANTISSA) + mantissa - 8  # a mantissa of 16 carries into the exponent
    return torch.where(magnitude == 0, 0, code)


def smallest_scale(magnitude: Tensor) -> Tensor:
    """The least scale code, at most SCALE_MAGNITUDE_MAX; int64."""
    return least_scale(magnitude).clamp(max=formats.SCALE_MAGNITUDE_MAX)


def _divide(value: Tensor, code: Tensor, fraction: int) -> Tensor:
    """floor(value * R / 2^...): value over the scale ``code``, with ``fraction`` fraction bits."""
    return (value * RECIPROCALS[code & 7]) >> (12 + (code >> 3) - fraction)


def _round(value: Tensor, code: Tensor, fraction: int) -> Tensor:
    return (_divide(value, code, fraction + 1) + 1) >> 1


def _extremes(y: Tensor) -> tuple[Tensor, Tensor]:
    return y.amax(-1, keepdim=True).clamp(min=0), (-y).amax(-1, keepdim=True).clamp(min=0)


def _oriented(y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(y turned so that its largest magnitude is negative, that magnitude, whether it was turned)."""
    high, low = _extremes(y)
    turned = high >= low
    return torch.where(turned, -y, y), torch.maximum(high, low), turned


def _search(groups: Tensor, start: Tensor, turned: Tensor, zero_point: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scale code and zero point of least squared error; the larger scale wins a tie."""
    best: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    for step in range(formats.CANDIDATES):
        code = (start - step).clamp(min=0)
        if zero_point:
            zero = _round(_extremes(groups)[1], code, 0).clamp(0, 15)
            stored = (_round(groups, code, 0) + zero).clamp(0, 15) - 8
        else:
            zero = torch.full_like(code, 8)
            stored = _round(groups, code, 0).clamp(formats.CODE_MIN, formats.CODE_MAX)
        residue = _divide(groups, code, formats.ERROR_FRACTION) - ((stored + 8 - zero) << formats.ERROR_FRACTION)
        octave = (code >> 3) - (start >> 3) + 1
        error = ((residue * residue).sum(-1, keepdim=True) * (8 + (code & 7)) ** 2) << (2 * octave)
        if best is None:
            best = (error, stored, code, zero)
        else:
            better = error < best[0]
            best = (torch.where(better, error, best[0]), torch.where(better, stored, best[1]),
                    torch.where(better, code, best[2]), torch.where(better, zero, best[3]))
    assert best is not None
    return best[1], best[2] + 128 * turned.to(torch.int64), best[3]


def narrow_rows(y: Tensor, geometry: Geometry, *, zero_point: bool = False) -> Rows:
    """One row per rotated vector: y int64 [..., n, d] within +-VECTOR_MAX -> Rows [..., n, d]."""
    groups = y.unflatten(-1, (geometry.groups, geometry.group))
    if zero_point:
        high, low = _extremes(groups)
        # 1093 / 2048 is just above 8 / 15: fifteen steps must span high + low
        start = smallest_scale(((high + low) * 1093 + 2047) >> 11)
        codes, scales, zeros = _search(groups, start, torch.zeros_like(start, dtype=torch.bool), True)
    else:
        oriented, magnitude, turned = _oriented(groups)
        codes, scales, zeros = _search(oriented, smallest_scale(magnitude), turned, False)
    return Rows(codes.flatten(-2), scales.squeeze(-1), zeros.squeeze(-1))


def wide_codes(y: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """8-bit codes [..., groups, group] and scale bytes [..., groups, 1] of vectors y int64 [..., d], whole groups."""
    oriented, magnitude, turned = _oriented(y.unflatten(-1, (-1, geometry.group)))
    scale = smallest_scale(magnitude)
    code = _round(oriented, scale, formats.CODE_BITS).clamp(formats.WIDE_MIN, formats.WIDE_MAX)
    return code, scale + 128 * turned.to(torch.int64)


def planes(code: Tensor, scale: Tensor) -> Rows:
    """Two rows per row of 8-bit codes, low plane first: the results of :func:`wide_codes` -> Rows [..., 2n, d]."""
    high = (code + 8) >> formats.CODE_BITS
    low = code - (high << formats.CODE_BITS)
    marked = (scale & 128) + (formats.LOW_PLANE << formats.SCALE_MANTISSA) + (scale & 7)
    codes = torch.stack([low.flatten(-2), high.flatten(-2)], -2).flatten(-3, -2)
    scales = torch.stack([marked.squeeze(-1), scale.squeeze(-1)], -2).flatten(-3, -2)
    return Rows(codes, scales, torch.full_like(scales, 8))


def wide_rows(y: Tensor, geometry: Geometry) -> Rows:
    """Two rows per rotated vector, low plane first: y int64 [..., n, d] -> Rows [..., 2n, d]."""
    return planes(*wide_codes(y, geometry))


def queries(y: Tensor, geometry: Geometry) -> Queries:
    """Query codes of query_bits with one scale each: y int64 [..., d] -> Queries [...]."""
    oriented, magnitude, turned = _oriented(y)
    scale = smallest_scale(magnitude)
    limit = 1 << (geometry.query_bits - 1)
    codes = _round(oriented, scale, geometry.query_fraction).clamp(-limit, limit - 1)
    scale = scale.squeeze(-1)
    return Queries(codes, torch.where(turned.squeeze(-1), -1, 1), 8 + (scale & 7), scale >> 3)
