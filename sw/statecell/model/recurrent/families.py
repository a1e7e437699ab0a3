"""The families of recurrent layers as inputs of one step: each turns its own parameters into a rule and tokens.

Vectors are [T, H, d] (keys) and [T, H, R] (values), gates [T, H] or [T, H, d]; k and q are what the recurrence itself
uses, after feature map, normalisation and scaling.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from statecell.model.recurrent.mode import Rule
from statecell.model.recurrent.reference import Sequence


def _ones(k: Tensor) -> Tensor:
    return torch.ones(k.shape[:2], dtype=k.dtype)


def _lanes(decay: Tensor) -> Tensor:
    """A scalar decay [T, H] as [T, H, 1]."""
    return decay[..., None]


class Family:
    """One family: its rule; ``tokens`` turns its parameters into the tokens of the step."""

    rule: ClassVar[Rule]


class LinearAttention(Family):
    """S <- S + phi(k) v, o = phi(q).S / phi(q).z, z the sum of the phi(k) (Katharopoulos et al. 2020, equations 16-20).

    The normaliser z is one more value channel, the last, whose value is always 1.
    """

    rule = Rule()

    @staticmethod
    def tokens(q: Tensor, k: Tensor, v: Tensor) -> Sequence:
        """q, k after the feature map (positive)."""
        one = torch.ones(*v.shape[:2], 1, dtype=v.dtype)
        return Sequence(q, k, k, torch.cat([v, one], -1), _lanes(_ones(k)), _ones(k))

    @staticmethod
    def output(o: Tensor) -> Tensor:
        """From o [..., R + 1] of the step to attention outputs [..., R]."""
        return o[..., :-1] / o[..., -1:]


class RetNet(Family):
    """S <- gamma S + k v, gamma fixed for each head (Sun et al. 2023, equation 6); q, k carry xPos."""

    rule = Rule()

    @staticmethod
    def tokens(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor) -> Sequence:
        """With gamma [H]."""
        return Sequence(q, k, k, v, _lanes(gamma.expand(k.shape[:2])), _ones(k))


class GatedLinearAttention(Family):
    """S <- diag(alpha_t) S + k v (Yang et al. 2023, equation 3)."""

    rule = Rule()

    @staticmethod
    def tokens(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Sequence:
        """With alpha [T, H, d]."""
        return Sequence(q, k, k, v, alpha, _ones(k))


class Mamba2(Family):
    """S <- exp(dt A) S + B (dt x), y = C.S (Dao and Gu 2024); the skip D x is added by the caller.

    dt is in the values: as a write strength, of 14 fraction bits, it would be rounded to a few units, and end at 4.
    """

    rule = Rule()

    @staticmethod
    def tokens(c: Tensor, b: Tensor, x: Tensor, dt: Tensor, a: Tensor) -> Sequence:
        """With c, b [T, H, N], x [T, H, P], dt [T, H] after softplus, a [H] negative."""
        return Sequence(c, b, b, dt[..., None] * x, _lanes(torch.exp(dt * a)), _ones(b))


class Rwkv(Family):
    """o = r.(S + diag(u) k v), S <- diag(w_t) S + k v (Peng et al. 2024, Eagle and Finch).

    RWKV-4 is one head of one lane per channel, with a normaliser channel.
    """

    rule = Rule(decay_first=False)

    @staticmethod
    def tokens(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Sequence:
        """With decays w [T, H, d] in (0, 1] and the bonus u [H, d]."""
        return Sequence(r, k, u * k, v, w, _ones(k))


class DeltaNet(Family):
    """S <- S + k beta (v - k.S) (Schlag et al. 2021; Yang et al. 2024)."""

    rule = Rule(delta=True)

    @staticmethod
    def tokens(q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Sequence:
        """With beta [T, H]; k of unit norm."""
        return Sequence(q, k, k, v, _lanes(_ones(k)), beta)


class GatedDeltaNet(Family):
    """S <- g S + k beta (v - k.(g S)) (Yang, Kautz and Hatamizadeh 2024); with lane-wise g, Kimi Delta Attention."""

    rule = Rule(delta=True)

    @staticmethod
    def tokens(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Sequence:
        """With the decay g in (0, 1], [T, H] or [T, H, d], and beta [T, H]; k of unit norm."""
        return Sequence(q, k, k, v, _lanes(g) if g.ndim == 2 else g, beta)


FAMILIES: dict[str, type[Family]] = {
    "linear": LinearAttention, "retnet": RetNet, "gla": GatedLinearAttention, "mamba2": Mamba2, "rwkv": Rwkv,
    "deltanet": DeltaNet, "gdn": GatedDeltaNet,
}
"""The families by the names that commands use."""
