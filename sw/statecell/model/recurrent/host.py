"""From floats to the integers of a recurrent step and back: what the host does before and after the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import RecurrentError, Rule
from statecell.model.recurrent.reference import Sequence
from statecell.spec import formats

_TINY = 1e-30
_ROOM = 4
"""State rows are scaled so that the largest element seen leaves a factor of this to full scale."""


@dataclass(frozen=True)
class Units:
    """Real value of one unit of each head, float64 [H]: ``q`` and ``k`` of 1.0 in KEY_FRACTION, ``v`` of the value LSB.

    ``shift`` int64 [H]: state shift. Keys are divided by ``k``; the delta rule's r stays what it is if the state is
    multiplied by ``k`` and beta by its square, so the outputs are ``o q v / k``; without the delta rule ``o q v k``.
    """

    rule: Rule
    q: Tensor
    k: Tensor
    v: Tensor
    shift: Tensor

    @staticmethod
    def fit(sequence: Sequence, rule: Rule, state_peak: Tensor) -> Units:
        """Units for tokens like those of ``sequence`` whose state reaches magnitudes of ``state_peak`` [H].

        Rotated keys and queries cannot saturate, values keep a factor of 4 for r and o.
        """
        q, k = _unit(sequence.q), _unit(torch.cat([sequence.k, sequence.b]))
        k = k.clamp(min=1) if rule.delta else k
        v = sequence.v.double().abs().amax((0, 2)).clamp(min=_TINY) * 4 / formats.VECTOR_MAX
        peak = state_peak.double() * (k if rule.delta else 1 / k) * _ROOM / (v * formats.VECTOR_MAX)
        shift = torch.ceil(torch.log2(peak.clamp(min=1))).to(torch.int64).clamp(max=formats.STATE_SHIFT_MAX)
        return Units(rule, q, k, v, shift)

    def token(self, token: Sequence) -> Token:
        """One token (tensors [H, ...]) in integers; vectors saturate, decays are at least 2^-24."""
        one = float(1 << formats.KEY_FRACTION)
        beta = token.beta.double() * (self.k**2 if self.rule.delta else 1)
        strength = torch.round(beta * (1 << formats.BETA_FRACTION)).to(torch.int64)
        if bool((strength >= 1 << formats.BETA_BITS).any()) or bool((strength < 0).any()):
            raise RecurrentError(f"beta must be in [0, 4); it is {float(beta.min()):.6g} to {float(beta.max()):.6g}")
        decay = torch.round(token.decay.double() * (1 << formats.DECAY_FRACTION)).to(torch.int64).clamp(min=1)
        q, k, b = (_vector(x.double() * one / unit[:, None])
                   for x, unit in ((token.q, self.q), (token.k, self.k), (token.b, self.k)))
        return Token(q, k, b, _vector(token.v.double() / self.v[:, None]), decay, strength)

    def output(self, o: Tensor) -> Tensor:
        """Real outputs float64 [..., H, R] of the device's o."""
        unit = self.q * self.v * (1 / self.k if self.rule.delta else self.k)
        return o.double() * (unit / (1 << formats.RECUR_FRACTION))[:, None]

    def state(self, values: Tensor) -> Tensor:
        """Real state float64 [H, R, d] of ``State.values()``, on the rotated key axis if the mode rotates."""
        return values * (self.v * (1 / self.k if self.rule.delta else self.k))[:, None, None]


def _unit(vectors: Tensor) -> Tensor:
    """Power of two [H] that divides vectors [T, H, d] so that any rotation (gain up to sqrt 2) leaves them below 2."""
    norm = vectors.double().norm(dim=-1).amax(0).clamp(min=_TINY)
    return torch.exp2(torch.ceil(torch.log2(norm * (2**0.5 / 1.99))))


def _vector(value: Tensor) -> Tensor:
    return torch.round(value).clamp(-formats.VECTOR_MAX, formats.VECTOR_MAX).to(torch.int64)
