"""Online base-2 softmax, the model of ``attention/softmax.py``. Formulas: docs/numerics.md, section 5."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statecell.model.rows import Rows
from statecell.spec import formats

_POWERS = torch.tensor([round(65535 * 2 ** (-i / 256)) for i in range(256)], dtype=torch.int32)
"""2^-f over one octave as 16-bit fractions, worked out here and not read from the tables of the hardware."""
_NEVER = -(1 << 20)
_EVER = 1 << 20


@dataclass(frozen=True)
class Weights:
    """What the softmax sends to the accumulators for each row, int32.

    ``values``: per scale group a tensor [..., L, n], weight times the value scale's mantissa and exponent, 20 bits;
    ``sums`` [..., L, n]: the term of the normaliser; ``level`` [..., L, n]: steps of 4 octaves by which the running
    maximum has climbed since the lane's accumulators were last empty. Rows that the lane does not see, or that were
    dropped, have weight 0.
    """

    values: list[Tensor]
    sums: Tensor
    level: Tensor


def _accumulate(ufunc: np.ufunc, x: Tensor) -> Tensor:
    return torch.from_numpy(ufunc.accumulate(x.numpy(), axis=-1))


def running_maximum(need: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """(maximum, kept): the running maximum in steps at each row, and which rows outlive the drops; [..., L, n].

    The goal sees LOOKAHEAD rows ahead; the maximum climbs towards it one step a row. A row still above it (a rise of
    more than LOOKAHEAD + 1 steps) drops what was accumulated before and sets the maximum to the goal.
    """
    count = need.shape[-1]
    need = need.masked_fill(~visible, _NEVER)
    running = _accumulate(np.maximum, need)
    ahead = min(formats.LOOKAHEAD, count)
    goal = torch.cat([running[..., ahead:], running[..., -1:].expand(*running.shape[:-1], ahead)], -1)
    started = running > _NEVER
    time = torch.arange(count, dtype=need.dtype)
    maximum = _accumulate(np.minimum, torch.where(started, goal - time, _EVER)).add_(time)
    kept = visible
    late = (need > maximum).logical_and_(visible).any(-1)
    if bool(late.any()):
        kept = visible.clone()
        maximum[late], kept[late] = _climb(need[late], goal[late], visible[late])
    return maximum, kept


def _climb(need: Tensor, goal: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """The same row by row, for the lanes that drop rows; [lanes, n]."""
    maximum = torch.zeros_like(need)
    kept = visible.clone()
    current = torch.zeros_like(need[:, 0])
    empty = torch.ones_like(current, dtype=torch.bool)
    for t in range(need.shape[-1]):
        current = torch.where(empty, goal[:, t], current + (goal[:, t] > current).to(current.dtype))
        drop = visible[:, t] & ~empty & (need[:, t] > current)
        kept[:, :t] &= ~drop[:, None]
        current = torch.where(drop, goal[:, t], current)
        empty &= ~visible[:, t]
        maximum[:, t] = current
    return maximum, kept


def _shift_round(value: Tensor, amount: Tensor) -> Tensor:
    """Value / 2^amount, rounded half up; value below 2^21, so that shifts beyond 31 are 31."""
    return ((value << 1) >> amount).add_(1) >> 1


def weights(score: Tensor, visible: Tensor, values: Rows) -> Weights:
    """Weights of all rows; score int32 [..., L, n], visible bool [..., L, n], value rows [..., n]."""
    step = formats.SCORE_FRACTION + formats.STEP
    maximum, kept = running_maximum((score + ((1 << step) - 1)) >> step, visible)
    below = ((maximum << step) - score).masked_fill_(~kept, 0)
    table = _POWERS.index_select(0, (below & ((1 << formats.SCORE_FRACTION) - 1)).flatten()).view(below.shape)
    table.masked_fill_(~kept, 0)
    octaves = (below >> formats.SCORE_FRACTION).clamp_(max=formats.SHIFT_MAX)
    terms = _shift_round(table << (formats.WEIGHT_BITS - formats.EXP_BITS), octaves)
    if bool(values.low.any()):
        terms = terms.masked_fill(values.low[..., None, :], 0)
    mantissa = values.signed_mantissa.abs().to(torch.int32)
    drop = (formats.VALUE_EXPONENT - values.exponent).clamp(min=0).to(torch.int32)
    scaled = [
        _shift_round(table * mantissa[..., None, :, g], (octaves + drop[..., None, :, g]).clamp_(max=formats.SHIFT_MAX))
        for g in range(mantissa.shape[-1])
    ]
    first = maximum.masked_fill(~kept, _EVER).amin(-1, keepdim=True)
    return Weights(scaled, terms, (maximum - first).masked_fill_(~kept, 0))
