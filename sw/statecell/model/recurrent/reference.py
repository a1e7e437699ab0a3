"""Float reference of the recurrent step, and the same recurrence over a whole sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model.recurrent.mode import RecurrentError, Rule


@dataclass(frozen=True)
class Sequence:
    """T tokens of H heads as floats. q, k, b [T, H, d], v [T, H, R], decay [T, H, 1 or d] in (0, 1], beta [T, H].

    b takes k's place in the current token's product q.b: k itself but for RWKV's bonus.
    """

    q: Tensor
    k: Tensor
    b: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not bool(torch.isfinite(value).all()):
                raise RecurrentError(f"{name} holds NaN or infinite values; give finite ones")
        if bool(((self.decay <= 0) | (self.decay > 1)).any()):
            raise RecurrentError(f"decays must be in (0, 1]; they are {float(self.decay.min()):.6g} "
                                 f"to {float(self.decay.max()):.6g}")

    def __len__(self) -> int:
        return self.k.shape[0]

    def token(self, t: int) -> Sequence:
        """Token t alone, with a leading axis of 1 dropped: tensors [H, ...]."""
        one = object.__new__(Sequence)
        for name, value in vars(self).items():
            object.__setattr__(one, name, value[t])
        return one

    def frozen(self, gate: Tensor) -> Sequence:
        """The sequence behind a freeze gate [T, H] in [0, 1]: S <- gate * step(S) + (1 - gate) * S.

        decay becomes 1 - gate (1 - decay), beta gate * beta; exact for d = beta v, and with the delta rule d is
        worked out from the state as the gated decay leaves it.
        """
        if bool(((gate < 0) | (gate > 1)).any()) or not bool(torch.isfinite(gate).all()):
            raise RecurrentError("gates must be in [0, 1]")
        return Sequence(self.q, self.k, self.b, self.v, 1 - gate[..., None] * (1 - self.decay), gate * self.beta)


def step(state: Tensor, token: Sequence, rule: Rule) -> tuple[Tensor, Tensor]:
    """(o [H, R], new state [H, R, d]) in float64 from state [H, R, d], row j the column of value channel j.

    r_j = k.(g S_j); d_j = beta (v_j - r_j) or beta v_j; o_j = q.(g S_j) + (q.b) d_j; S_j <- g S_j + k d_j. It is the
    gated delta rule (Yang, Kautz and Hatamizadeh 2024, equation 10) and, without r, gated linear attention (Yang et al.
    2023, equation 3), read without a second pass over the new state.
    """
    q, k, b, v, decay, beta = (x.double() for x in (token.q, token.k, token.b, token.v, token.decay, token.beta))
    kept = state * decay[:, None]
    d = beta[:, None] * (v - (kept @ k[..., None]).squeeze(-1) if rule.delta else v)
    seen = kept if rule.decay_first else state
    o = (seen @ q[..., None]).squeeze(-1) + (q * b).sum(-1, keepdim=True) * d
    return o, kept + d[..., None] * k[:, None]


def run(sequence: Sequence, rule: Rule, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(o [T, H, R], final state [H, R, d]) in float64; ``state`` defaults to zeros."""
    t, h, d = sequence.k.shape
    if state is None:
        state = torch.zeros(h, sequence.v.shape[-1], d, dtype=torch.float64)
    out = torch.empty(t, h, sequence.v.shape[-1], dtype=torch.float64)
    for i in range(t):
        out[i], state = step(state, sequence.token(i), rule)
    return out, state
