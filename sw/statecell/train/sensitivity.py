"""How stored states answer to a predicted scale or to the error feedback's alpha: gradients that no rounding gives.

Beside the integer model and token by token, a rounding counting as identity (straight through):
- alpha, one number a head, has the read-outs' own gradient, in forward mode. With the step's float transition A S =
  g S - beta (k . g S) k, D = dS/dalpha becomes A D + g low, low what the read-out does not see of the stored rows.
- A row's scale s, new at every write, has that of half the squared error of the write over the row's squared norm,
  where dS/dlog s is the rounding error, or the code if it was clipped (Esser et al. 2020, equation 3). The loss's own
  gradient would say the same with far more noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model import rotate
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.state import State
from statecell.spec import formats

_CLIPPED = 0.75
"""An error above so many steps of the scale is no rounding."""


class Sensitivity:
    """What each token of a step gives, float64 [H, R]: ``alpha``, the gradient of its read-out in the unit of the
    device's o, and ``error``, that of a write's relative error. Zero for heads without error feedback or scales that
    are supplied.
    """

    def __init__(self, state: State) -> None:
        shape = (state.heads, state.channels, state.geometry.head_dim)
        self._before = self._low = self._of_alpha = torch.zeros(shape, dtype=torch.float64)
        self.error: list[Tensor] = []
        self.alpha: list[Tensor] = []

    def before(self, state: State) -> None:
        """Look at the states before a token."""
        self._before = state.values()
        self._low = self._before - _high(state)

    def after(self, state: State, token: Token) -> None:
        """Look at them after it; ``token`` [1, H, ...]."""
        one = 2.0**-formats.KEY_FRACTION
        turn = state.modes.rotate[:, None]
        q, k = (torch.where(turn, rotate.forward(x[0], state.geometry), x[0]).double() * one
                for x in (token.q, token.k))
        g = token.decay[0].double()[..., None] * 2.0**-formats.DECAY_FRACTION
        beta = token.beta[0].double()[:, None] * 2.0**-formats.BETA_FRACTION
        gain = 2.0 ** state.rotation_gain.double()[:, None]

        def moved(direction: Tensor) -> Tensor:
            seen = g[..., 0] * gain * torch.einsum("hrd,hd->hr", direction, k)
            through: Tensor = g * direction - (beta * seen)[..., None] * k[:, None]
            return through

        unit = gain * (1 << formats.RECUR_FRACTION)
        self._of_alpha = moved(self._of_alpha)
        self.alpha.append(torch.einsum("hrd,hd->hr", self._of_alpha, q) * unit)
        stored = state.values()
        exact = moved(self._before) + (beta * token.v[0])[..., None] * k[:, None]
        error = stored - exact
        clipped = error.abs() > _CLIPPED * _steps(state).abs()
        supplied, blind = (x[:, None, None] for x in (state.modes.supplied, state.modes.blind))
        of_scale = torch.where(clipped, stored, error)
        size = exact.square().sum(-1).clamp(min=1.0)
        self.error.append(torch.where(supplied[..., 0], (error * of_scale).sum(-1) / size, 0.0))
        self._of_alpha = torch.where(blind, self._of_alpha + g * self._low, 0.0)


def _high(state: State) -> Tensor:
    """The states as read-outs of heads with error feedback see them: the high planes alone."""
    low = (state.codes - (state.high << formats.CODE_BITS)).flatten(-2)
    return state.values() - low * _steps(state) / (1 << formats.CODE_BITS)


def _steps(state: State) -> Tensor:
    """One 4-bit code in value LSBs, with its sign, float64 [H, R, d]."""
    magnitude = state.scales & 127
    signed = torch.where(state.scales >= 128, -1.0, 1.0) * (8 + (magnitude & 7)).double()
    power = (magnitude >> formats.SCALE_MANTISSA) - formats.SCALE_BIAS + state.shift[:, None, None]
    each = (signed * 2.0 ** power.double())[..., None].expand(*state.scales.shape, state.geometry.group)
    return each.flatten(-2) * (state.factor.double() / (1 << formats.FACTOR_BITS - 1))[:, None]
