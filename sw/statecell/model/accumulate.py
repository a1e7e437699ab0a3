"""Accumulate unit, the model of ``attention/accumulate.py``: integer sums that drop 4 bits at each step."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model.rows import Rows
from statecell.model.softmax import Weights
from statecell.spec import formats
from statecell.spec.geometry import Geometry


def accumulate(weight: Weights, values: Rows, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """(accumulators int64 [..., L, d], normaliser int64 [..., L]) after the last row.

    Rows of one level add up plainly, so the levels are summed by one product each, exact in float64; a step between
    two levels is an arithmetic shift right by 4 of what was there.
    """
    sign = torch.where(values.signed_mantissa < 0, -1, 1).repeat_interleave(geometry.group, -1)
    terms = (values.effective * sign).double()
    top = weight.level.amax(-1)
    levels = int(top.max()) + 1
    accumulator = torch.zeros(*weight.sums.shape[:-1], geometry.head_dim, dtype=torch.int64)
    normaliser = torch.zeros_like(top, dtype=torch.int64)
    for level in range(levels):
        here = weight.level == level
        parts = []
        for g, value in enumerate(weight.values):
            lanes = slice(g * geometry.group, (g + 1) * geometry.group)
            parts.append((value * here if levels > 1 else value).double() @ terms[..., lanes])
        reached = top >= level
        total = (accumulator >> formats.STEP_OCTAVES) + torch.cat(parts, -1).to(torch.int64)
        accumulator = torch.where(reached[..., None], total, accumulator)
        term = (normaliser >> formats.STEP_OCTAVES) + (weight.sums * here).sum(-1, dtype=torch.int64)
        normaliser = torch.where(reached, term, normaliser)
    return accumulator, normaliser
