"""Units in which a layer's Gated DeltaNet tokens become integers, and the tokens themselves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statecell.model.recurrent.families import GatedDeltaNet
from statecell.model.recurrent.host import Units
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import RecurrentError
from statecell.model.recurrent.reference import Sequence
from statecell.runtime.errors import NotFiniteError
from statecell.spec import formats

HEADROOM = 4.0
"""Full scale of a value over the largest one seen: room for r and o, and for values that were not seen."""
_EPSILON = 1e-6
_LEAST_DECAY = 2.0**-formats.DECAY_FRACTION


def delta_units(value_peak: Tensor, state_peak: Tensor, dim: int) -> Units:
    """Units of heads whose keys have norm 1 and queries norm 1/sqrt(dim), with these largest magnitudes [H]."""
    rule = GatedDeltaNet.rule
    v = value_peak.double().clamp(min=2.0**-40) * HEADROOM / formats.VECTOR_MAX
    over = state_peak.double() * HEADROOM / (v * formats.VECTOR_MAX)
    shift = torch.ceil(torch.log2(over.clamp(min=1))).to(torch.int64).clamp(max=formats.STATE_SHIFT_MAX)
    one = torch.ones_like(v)
    query = 2.0 ** math.ceil(math.log2(dim**-0.5 * 2**0.5 / 1.99))  # a rotation may gain sqrt(2)
    return Units(rule, one * query, one, v, shift)


def delta_tokens(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, layer: int) -> Sequence:
    """What transformers' gated delta rules do before their loop, as tokens [T, B * H, ...] in float64.

    query, key [B, T, Hk, d], value [B, T, H, R], g (log of the decay) and beta [B, T, H]: queries and keys are repeated
    for the value heads and brought to norm 1, queries divided by sqrt(d). Raises NotFiniteError.
    """
    groups = value.shape[2] // key.shape[2]
    q, k = (x.double().repeat_interleave(groups, 2) for x in (query, key))
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _EPSILON) for x in (q, k))
    decay = g.double().exp().clamp(min=_LEAST_DECAY)
    parts = (_merged(x) for x in (q / q.shape[-1] ** 0.5, k, value.double(), decay, beta.double()))
    try:
        return GatedDeltaNet.tokens(*parts)
    except RecurrentError as error:
        raise NotFiniteError(f"the Gated DeltaNet layer {layer} got vectors that cannot be stored: {error}") from error


def integers(units: Units, tokens: Sequence, batch: int) -> Token:
    """The tokens of ``batch`` sequences in the integers of a step; units [H] are those of one sequence's heads."""
    return repeated(units, batch).token(tokens)


def repeated(units: Units, batch: int) -> Units:
    """The units of the heads of ``batch`` sequences, one after the other."""
    return Units(units.rule, *(x.repeat(batch) for x in (units.q, units.k, units.v, units.shift)))


def _merged(x: Tensor) -> Tensor:
    """[B, T, H, ...] as [T, B * H, ...]."""
    return x.transpose(0, 1).flatten(1, 2)
