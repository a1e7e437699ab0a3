"""Read-out of the stored rows: r = k.S and o = q.S in one pass. Formulas: docs/numerics.md, 8.3."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model import quantise
from statecell.model.recurrent.bits import clamp, round_shift, scaled
from statecell.model.recurrent.state import State
from statecell.spec import formats


def read(state: State, vectors: Tensor) -> Tensor:
    """Products of every row with vectors int64 [H, P, d] (16 bits, times half the factor) -> int64 [H, P, R].

    Results have RECUR_BITS with RECUR_FRACTION bits below the value LSB.
    """
    geometry = state.geometry
    query = quantise.queries(vectors, geometry)
    codes = state.codes
    if bool(state.modes.blind.any()):
        codes = torch.where(state.modes.blind[:, None, None, None], state.high << formats.CODE_BITS, codes)
    grouped = query.codes.unflatten(-1, (geometry.groups, geometry.group))
    dot = torch.einsum("hrgl,hpgl->hprg", codes.double(), grouped.double())  # exact: 8 + 12 + 7 bits at most
    magnitude = state.scales & 127
    mantissa = torch.where(state.scales >= 128, -1, 1) * (8 + (magnitude & 7))
    dot = dot * mantissa[:, None].double()
    exponent = (magnitude >> formats.SCALE_MANTISSA)[:, None] + query.exponent[:, :, None, None]
    left = exponent + (state.shift + _alignment(state))[:, None, None, None]
    part = clamp(scaled(dot, left).floor().to(torch.int64), formats.RECUR_PARTIAL_BITS).sum(-1)
    sign = (query.sign * query.mantissa)[..., None]
    return clamp(round_shift(part * sign, formats.RECUR_GUARD), formats.RECUR_BITS)


def _alignment(state: State) -> Tensor:
    """Left shift [H] of a group's product at exponents 0: what the formats' fraction bits add up to."""
    geometry = state.geometry
    scales = -2 * formats.SCALE_BIAS - geometry.query_fraction - formats.CODE_BITS
    return scales + 1 - formats.KEY_FRACTION + state.rotation_gain + formats.RECUR_FRACTION + formats.RECUR_GUARD
