"""Scores, the model of ``array/dot.py`` and ``attention/score.py``. Formulas: docs/numerics.md, section 4."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model.quantise import Queries
from statecell.model.rows import Rows
from statecell.spec import formats
from statecell.spec.geometry import Geometry


def _clamp(value: Tensor, bits: int) -> Tensor:
    return value.clamp_(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def partials(query: Queries, keys: Rows, shift: Tensor, geometry: Geometry) -> Tensor:
    """Aligned products summed over the groups, before the query's mantissa; float64 integers [..., L, n].

    query codes [..., L, d], rows [..., n, d], shift [..., L] or broadcastable. The alignment by a power of two and the
    scale's mantissa are folded into the operands of one float64 product, which is exact: codes, mantissas and the sum
    over a group stay below 2^24, and powers of two cost no bits. The hardware clamps the shift to 0..ALIGN_MAX, so
    operands outside that range are clamped pair by pair.
    """
    exponent, mantissa, effective = keys.exponent, keys.signed_mantissa, keys.effective
    base = shift + geometry.query_fraction - 2 - query.exponent + formats.PARTIAL_GUARD
    total: Tensor | None = None
    for g in range(geometry.groups):
        lanes = slice(g * geometry.group, (g + 1) * geometry.group)
        rows = effective[..., lanes].double() * mantissa[..., g, None].double()
        codes = query.codes[..., lanes].double() * query.sign[..., None].double()
        low, high = int(exponent[..., g].min()), int(exponent[..., g].max())
        if int(base.min()) >= high and int(base.max()) - low <= formats.ALIGN_MAX:
            rows = rows * 2.0 ** exponent[..., g, None].double()
            codes = codes * 2.0 ** (formats.PARTIAL_GUARD - base)[..., None].double()
            product = codes @ rows.transpose(-1, -2)
        else:
            align = (base[..., :, None] - exponent[..., None, :, g]).clamp(0, formats.ALIGN_MAX)
            product = (codes @ rows.transpose(-1, -2)) * 2.0 ** (formats.PARTIAL_GUARD - align).double()
        product = _clamp(product.floor_(), formats.PARTIAL_BITS)
        total = product if total is None else total.add_(product)
    assert total is not None
    return total


def scores(query: Queries, keys: Rows, shift: Tensor, geometry: Geometry) -> Tensor:
    """Scores in 2^-8 octaves, int32 [..., L, n]; both planes of a two-plane row carry the row's whole score."""
    part = partials(query, keys, shift, geometry)
    low = keys.low
    if bool(low.any()):
        low = low[..., None, :]
        after = torch.cat([part[..., 1:], torch.zeros_like(part[..., :1])], -1)
        before = torch.cat([torch.zeros_like(part[..., :1]), part[..., :-1]], -1)
        low_before = torch.cat([torch.zeros_like(low[..., :1]), low[..., :-1]], -1)
        part = part + torch.where(low, after, 0) + torch.where(low_before, before, 0)
    half = 1 << (formats.MANTISSA_SHIFT - 1)
    scaled = part.mul_(query.mantissa[..., :, None].double()).add_(half).mul_(2.0**-formats.MANTISSA_SHIFT).floor_()
    return _clamp(scaled, formats.SCORE_BITS).to(torch.int32)
