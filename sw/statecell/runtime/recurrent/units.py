"""Units in which a recurrent layer's tokens become integers, and the tokens themselves.

Queries and keys have norm 1, or 1/sqrt(d) the queries of the delta rule, whose keys have it by themselves. Without that
rule a state is linear in its keys and a read-out in its query: norms go into the values, and out of the read-outs.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from statecell.model.recurrent import reference
from statecell.model.recurrent.families import GatedDeltaNet
from statecell.model.recurrent.host import Units
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import RecurrentError, Rule
from statecell.model.recurrent.reference import Sequence
from statecell.runtime.errors import NotFiniteError
from statecell.spec import formats

HEADROOM = 4.0
"""Full scale of a value over the largest one seen: room for r and o, and for values that were not seen."""
_EPSILON = 1e-6
_LEAST_DECAY = 2.0**-formats.DECAY_FRACTION
_ROW = 4.0
"""Norm of a state's row over the full scale of a value that a read-out still holds, with the same headroom."""
_UNSEEN = 16.0
"""Values without the delta rule hold a step and a key's norm, so a few of them say less about those to come."""
_LEAST_LOSS = 2.0**-16
"""Least share that a head is taken to forget of its state while it takes the first tokens."""


def units_of(rule: Rule, value_peak: Tensor, state_peak: Tensor, dim: int) -> Units:
    """Units of heads with these largest magnitudes [H] of values, and of their states: elements, or without the delta
    rule, where sums may grow beyond all values, norms of rows.
    """
    if rule.delta:
        return delta_units(value_peak, state_peak, dim)
    return _units(rule, torch.maximum(value_peak.double(), state_peak.double() / _ROW), state_peak, 1.0)


def delta_units(value_peak: Tensor, state_peak: Tensor, dim: int) -> Units:
    """Units of heads whose keys have norm 1 and queries norm 1/sqrt(dim), with these largest magnitudes [H]."""
    return _units(GatedDeltaNet.rule, value_peak, state_peak, dim**-0.5)


def _units(rule: Rule, value_peak: Tensor, state_peak: Tensor, query_norm: float) -> Units:
    v = value_peak.double().clamp(min=2.0**-40) * HEADROOM / formats.VECTOR_MAX
    over = state_peak.double() * HEADROOM / (v * formats.VECTOR_MAX)
    shift = torch.ceil(torch.log2(over.clamp(min=1))).to(torch.int64).clamp(max=formats.STATE_SHIFT_MAX)
    one = torch.ones_like(v)
    query = 2.0 ** math.ceil(math.log2(query_norm * 2**0.5 / 1.99))  # a rotation may gain sqrt(2)
    return Units(rule, one * query, one, v, shift)


def first_units(rule: Rule, tokens: Sequence, batch: int, dim: int) -> Units:
    """Units of one sequence's heads from the first tokens [T, B * H, ...], nothing else being known.

    Without the delta rule states will grow from where these tokens leave them as sums of independent terms do.
    """
    value = peak = tokens.v.abs().amax((0, 2))
    if not rule.delta:
        value = (_UNSEEN * value.max()).expand_as(value)
        lost = 1 - tokens.decay[..., 0].prod(0).square()
        state = reference.run(tokens, rule)[1]
        peak = state.norm(dim=-1).amax(-1) / lost.clamp(min=_LEAST_LOSS).sqrt()
    value, peak = (x.unflatten(0, (batch, -1)).amax(0) for x in (value, peak))
    return units_of(rule, value, peak, dim)


def tokens_of(rule: Rule, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor,
              layer: int) -> tuple[Sequence, Tensor]:
    """A gated rule's tokens [T, B * H, ...] in float64, and what their read-outs are to be multiplied by [T, B * H].

    query, key [B, T, Hk, d], value [B, T, H, R], g (log of the decay) and beta [B, T, H]; queries and keys are repeated
    for the value heads. Raises NotFiniteError.
    """
    if rule.delta:
        return delta_tokens(query, key, value, g, beta, layer), torch.ones(1, 1, dtype=torch.float64)
    (q, gain), (k, size) = (_unit(_repeated(x, value)) for x in (query, key))
    return _sequence(q, k, value.double() * size, g, beta, layer), _merged(gain[..., 0])


def delta_tokens(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, layer: int) -> Sequence:
    """What transformers' gated delta rules do before their loop, as `tokens_of`: queries and keys are brought to norm
    1, queries divided by sqrt(d).
    """
    q, k = (_repeated(x, value) for x in (query, key))
    q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _EPSILON) for x in (q, k))
    return _sequence(q / q.shape[-1] ** 0.5, k, value.double(), g, beta, layer)


def _sequence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, layer: int) -> Sequence:
    decay = g.double().exp().clamp(min=_LEAST_DECAY)[..., None]
    q, k, v, decay, strength = (_merged(x) for x in (q, k, v, decay, beta.double()))
    try:
        return Sequence(q, k, k, v, decay, strength)
    except RecurrentError as error:
        raise NotFiniteError(f"the recurrent layer {layer} got vectors that cannot be stored: {error}") from error


def widened(tokens: Sequence, dim: int) -> Sequence:
    """The tokens with zeros behind queries and keys, up to ``dim`` lanes."""
    more = dim - tokens.k.shape[-1]
    return replace(tokens, **{name: functional.pad(getattr(tokens, name), (0, more)) for name in ("q", "k", "b")})


def integers(units: Units, tokens: Sequence, batch: int) -> Token:
    """The tokens of ``batch`` sequences in the integers of a step; units [H] are those of one sequence's heads."""
    every = repeated(units, batch)
    return every.token(tokens if units.rule.delta else _levelled(every, tokens))


def _levelled(units: Units, tokens: Sequence) -> Sequence:
    """The same tokens, but that of beta v a power of two is moved: small values are raised to the range of v's
    integers, as far as what is written has fraction bits, and those beyond the range fall into it by an octave.
    """
    octaves = torch.log2(units.v * formats.VECTOR_MAX / tokens.v.abs().amax(-1).clamp(min=2.0**-60))
    power = torch.exp2(octaves.floor().clamp(-1, formats.RECUR_FRACTION))
    return replace(tokens, v=tokens.v * power[..., None], beta=tokens.beta / power)


def repeated(units: Units, batch: int) -> Units:
    """The units of the heads of ``batch`` sequences, one after the other."""
    return Units(units.rule, *(x.repeat(batch) for x in (units.q, units.k, units.v, units.shift)))


def _repeated(x: Tensor, value: Tensor) -> Tensor:
    """Vectors [B, T, Hk, d], each for all heads of the values that share it, in float64."""
    return x.double().repeat_interleave(value.shape[2] // x.shape[2], 2)


def _unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors brought to norm 1, but for zeros, and their norms."""
    norm = x.norm(dim=-1, keepdim=True)
    return torch.where(norm > 0, x / norm, 0), norm


def _merged(x: Tensor) -> Tensor:
    """[B, T, H, ...] as [T, B * H, ...]."""
    return x.transpose(0, 1).flatten(1, 2)
