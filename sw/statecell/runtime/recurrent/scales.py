"""Scales of state rows that the host supplies: what the predictor wants, held while the stored scale is no worse.

A row's scale is to be a multiple of the one that gives its codes a root mean square of _CODES. The row's norm after a
token is not known before it; sqrt(|g S_j|^2 + (beta v_j |k|)^2) stands for it. A scale that changes rounds every code
of the row again, so the stored one is kept while it is at least the wanted one and at most _HELD steps (an eighth of an
octave each) above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model.recurrent import factor
from statecell.model.recurrent.integer import Token
from statecell.runtime.recurrent.modules import ScalePredictor
from statecell.spec import formats

_CODES = 5.0
_HELD = 16


@dataclass(frozen=True, kw_only=True)
class Stored:
    """What an engine tells of H heads before a token: ``energy`` [H, R] of the rows, ``scales`` [H, R, groups],
    ``factor`` [H, 1] and ``shift`` [H], as `model.recurrent.state.State` has them.
    """

    energy: Tensor
    scales: Tensor
    factor: Tensor
    shift: Tensor


ScaleSource = Callable[[int, Stored], Tensor]
"""Gives the scale bytes [H, R, groups] with which rows are written after a token, by its number in the step."""


class Predicted:
    """The scales of one layer for the tokens [T, H, ...] of a step, whose normalised ``embedding`` is [B, T, E]."""

    def __init__(self, predictor: ScalePredictor, embedding: Tensor, tokens: Token) -> None:
        self._predictor, self._embedding, self._tokens = predictor, embedding, tokens
        self._octaves: list[Tensor] = []  # log2 of the norms that the predictor was shown, [H] a token

    def __call__(self, t: int, stored: Stored) -> Tensor:
        """The bytes, int64."""
        norms, fallen = self._norms(t, stored)
        self._octaves.append(torch.log2(norms.norm(dim=-1)))
        with torch.no_grad():
            shown = self._octaves[-1].float().unflatten(0, (len(self._embedding), -1))
            multipliers = self._predictor(self._embedding[:, t], shown).flatten(0, 1).double()
        wanted = magnitudes(multipliers * norms / (_CODES * self._tokens.k.shape[-1] ** 0.5))[..., None]
        held = (stored.scales & 127) - (fallen << formats.SCALE_MANTISSA)[:, None, None]
        above = held - wanted
        kept = (held >= 0) & (above >= 0) & (above <= _HELD)
        return torch.where(kept, held, wanted)

    def multipliers(self) -> Tensor:
        """The multipliers of every token asked for so far, [B, T, H, R], with their gradients."""
        shown = torch.stack(self._octaves).float().unflatten(1, (len(self._embedding), -1)).transpose(0, 1)
        out: Tensor = self._predictor(self._embedding[:, :shown.shape[1]], shown)
        return out

    def _norms(self, t: int, stored: Stored) -> tuple[Tensor, Tensor]:
        """(expected norms [H, R] of the rows after token t, codes times scales, octaves that their factor loses)."""
        decay, one = self._tokens.decay[t], float(1 << formats.DECAY_FRACTION)
        after, octaves = factor.normalised(factor.decayed(stored.factor, decay))
        kept = stored.energy.double().sqrt() * 2.0**-formats.SCALE_BIAS * (stored.factor * (decay / one) / after)
        unit = 2.0 ** -stored.shift.double() * (1 << formats.FACTOR_BITS - 1) / after[:, 0]
        beta = self._tokens.beta[t] / (1 << formats.BETA_FRACTION)
        key = self._tokens.k[t].double().norm(dim=-1) / (1 << formats.KEY_FRACTION)
        added = (beta * key * unit)[:, None] * self._tokens.v[t]
        return torch.hypot(kept, added).clamp(min=2.0**-formats.SCALE_BIAS), octaves[:, 0]


def magnitudes(scales: Tensor) -> Tensor:
    """Magnitude codes of the scales nearest to positive real ones, within the range of the format; int64."""
    mantissa, exponent = torch.frexp(scales)  # mantissa 0.5 to 1
    steps = torch.round(mantissa * 16).long() - 8  # 8 at the upper end: the next octave
    places = exponent.long() - 1 - 3 + formats.SCALE_BIAS
    return ((places << formats.SCALE_MANTISSA) + steps).clamp(0, formats.SCALE_MAGNITUDE_MAX)
