"""Read-out of the stored rows: r = k.S and o = q.S in one pass. Formulas: docs/numerics.md, 8.3."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model import quantise
from statecell.model.quantise import Queries
from statecell.model.recurrent.bits import clamp, round_shift, scaled
from statecell.model.recurrent.state import State
from statecell.spec import formats


def queries(state: State, vectors: Tensor) -> Queries:
    """P vectors of each head (times half the factor), int64 [H, P, width]; each half is one: Queries [H, P, halves]."""
    return quantise.queries(vectors.unflatten(-1, (state.halves, -1)), state.geometry)


def read(state: State, query: Queries, lost: Tensor) -> Tensor:
    """Products of every row with `queries` -> int64 [H, P, R].

    lost int64 [H, P]: octaves that the query's factor stands above the rows. Results have RECUR_BITS with
    RECUR_FRACTION bits below the value LSB.
    """
    codes = state.codes
    if bool(state.modes.blind.any()):
        codes = torch.where(state.modes.blind[:, None, None, None], state.high << formats.CODE_BITS, codes)
    fall = lost.clamp(max=formats.LOST_MAX)[..., None] - state.shift[:, None, None]
    return _products(state, codes, state.scales, query, fall)


def keys(state: State, query: Queries, lost: Tensor) -> Tensor:
    """Products of every logged key with queries, as `read` for rows: int64 [H, P, C], MIX_BITS with MIX_FRACTION."""
    log = state.log
    assert log is not None
    fall = (lost[..., None] - log.lost[:, None]).clamp(max=formats.LOST_MAX) + _KEY_FALL
    return _products(state, log.keys, log.key_scales, query, fall)


def _products(state: State, codes: Tensor, scales: Tensor, query: Queries, fall: Tensor) -> Tensor:
    """Rows [H, R, groups, group] with `queries`, shifted right by ``fall`` [H, P, 1 or R]; int64 [H, P, R]."""
    groups = state.geometry.groups
    grouped = query.codes.unflatten(-1, (groups, -1)).flatten(2, 3)
    dot = torch.einsum("hrgl,hpgl->hprg", codes.double(), grouped.double())  # exact: 8 + 12 + 7 bits at most
    magnitude = scales & 127
    mantissa = torch.where(scales >= 128, -1, 1) * (8 + (magnitude & 7))
    dot = dot * mantissa[:, None].double()
    exponent = (magnitude >> formats.SCALE_MANTISSA)[:, None] + query.exponent.repeat_interleave(groups, -1)[:, :, None]
    left = exponent + _alignment(state)[:, None, None, None] - fall[..., None]
    part = clamp(scaled(dot, left).floor().to(torch.int64), formats.RECUR_PARTIAL_BITS)
    part = part.unflatten(-1, (state.halves, groups)).sum(-1) * (query.sign * query.mantissa)[:, :, None]
    return clamp(round_shift(part.sum(-1), formats.RECUR_GUARD), formats.RECUR_BITS)


_KEY_FALL = formats.KEY_FRACTION + formats.RECUR_FRACTION - formats.MIX_FRACTION
"""Right shift from a product with a logged key, whose LSB is 2^-KEY_FRACTION, to MIX_FRACTION."""


def _alignment(state: State) -> Tensor:
    """Left shift [H] of a group's product at exponents 0: what the formats' fraction bits add up to."""
    geometry = state.geometry
    scales = -2 * formats.SCALE_BIAS - geometry.query_fraction - formats.CODE_BITS
    return scales + 1 - formats.KEY_FRACTION + state.rotation_gain + formats.RECUR_FRACTION + formats.RECUR_GUARD
