"""The log: tokens between two write-backs as 8-bit rows, their share of the read-out. docs/numerics.md, 8.6."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model import quantise
from statecell.model.quantise import Queries
from statecell.model.recurrent import factor, readout
from statecell.model.recurrent.bits import clamp, round_shift, scaled
from statecell.model.recurrent.state import State
from statecell.spec import formats
from statecell.spec.geometry import Geometry


def mix(q: Tensor, k: Tensor, gain: Tensor | int = 0) -> Tensor:
    """2^gain q . k over the last axis, MIX_BITS with MIX_FRACTION; int64. gain: 0 or -1, an integer or [H, 1]."""
    return clamp(round_shift((q * k).sum(-1), 2 * formats.KEY_FRACTION - formats.MIX_FRACTION - gain), formats.MIX_BITS)


def weights_of(state: State, query: Queries, vectors: Tensor, lost: Tensor, weights: Tensor | None) -> Tensor:
    """What each logged d has in the read-outs of P vectors: int64 [H, P, C], MIX_BITS with MIX_FRACTION.

    query, lost: as `readout.read` has them, for one decay a head. vectors int64 [H, P, d] and weights int64
    [H, P, C, d]: with a decay per lane.
    """
    if weights is None:
        return readout.keys(state, query, lost)
    assert state.log is not None
    keyed = factor.weighted(key_vectors(state)[:, None], weights)
    return mix(vectors[:, :, None], keyed, state.rotation_gain[:, None, None])


def share(state: State, mixed: Tensor) -> Tensor:
    """Sum over the log of its weights [H, P, C] times d: int64 [H, P, R], RECUR_BITS with RECUR_FRACTION."""
    log = state.log
    assert log is not None
    magnitude = log.value_scales & 127
    signed = torch.where(log.value_scales >= 128, -1, 1) * (8 + (magnitude & 7))
    left = (magnitude >> formats.SCALE_MANTISSA) - _TOP_SHARE
    weight = torch.floor(scaled(mixed[..., None] * signed[:, None], left[:, None]) + 0.5).to(torch.int64)
    weight = clamp(weight, formats.SHARE_BITS)
    # 20 + 8 bits, 7 for the sum: exact
    total = torch.einsum("hpcg,hcgl->hpgl", weight.double(), log.values.double()).to(torch.int64)
    return clamp(round_shift(total, formats.SHARE_GUARD), formats.RECUR_BITS).flatten(-2)[..., : state.channels]


_TOP_SHARE = (formats.MIX_FRACTION + formats.SCALE_BIAS + formats.CODE_BITS
              - formats.RECUR_FRACTION - formats.SHARE_GUARD)
"""Right shift of a weight at scale exponent 0."""


def append(state: State, k: Tensor, d: Tensor, moved: Tensor) -> None:
    """Store k [H, d] and d [H, R] (RECUR_FRACTION) of the heads in ``moved`` as the next entries of their logs."""
    log, geometry = state.log, state.geometry
    assert log is not None
    here = (torch.arange(log.keys.shape[1]) == log.length[:, None]) & moved[:, None]
    whole = round_shift(d, formats.RECUR_FRACTION).clamp(-formats.VECTOR_MAX, formats.VECTOR_MAX)
    k = k if log.weights is not None else factor.divided(k, state.factor)
    keys, key_scales = eight_bits(k, geometry)
    values, value_scales = eight_bits(whole, geometry)
    each = here[..., None]
    log.keys = torch.where(each[..., None], keys[:, None], log.keys)
    log.key_scales = torch.where(each, key_scales[:, None], log.key_scales)
    log.values = torch.where(each[..., None], values[:, None], log.values)
    log.value_scales = torch.where(each, value_scales[:, None], log.value_scales)
    log.lost = torch.where(here, state.lost[:, None], log.lost)
    log.length = log.length + moved.to(torch.int64)


def eight_bits(y: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """Codes int32 and scale bytes of vectors int64 [H, n] as two-plane rows; a short group is filled up with 0."""
    codes, scales = quantise.wide_codes(torch.nn.functional.pad(y, (0, -y.shape[-1] % geometry.group)), geometry)
    return codes.to(torch.int32), scales.squeeze(-1)


def key_vectors(state: State) -> Tensor:
    """The logged keys as 16-bit vectors again, rounded; int64 [H, C, d]."""
    log = state.log
    assert log is not None
    magnitude = log.key_scales & 127
    signed = torch.where(log.key_scales >= 128, -1, 1) * (8 + (magnitude & 7))
    left = (magnitude >> formats.SCALE_MANTISSA) - formats.SCALE_BIAS - formats.CODE_BITS
    back = torch.floor(scaled(log.keys * signed[..., None], left[..., None]) + 0.5)
    return back.to(torch.int64).flatten(-2)


def folded(state: State) -> tuple[Tensor, Tensor, Tensor]:
    """What COMMIT adds: key codes [H, C, groups, group] and their scale bytes [H, C, groups] in units of the rows'
    factor, and the octaves [H, C] that each entry lies below that factor.
    """
    log = state.log
    assert log is not None
    if log.weights is None:
        return log.keys, log.key_scales, state.lost[:, None] - log.lost
    after, _ = factor.normalised(state.factor)
    keys = factor.divided(factor.weighted(key_vectors(state), log.weights), after[:, None])
    codes, scales = quantise.wide_codes(keys, state.geometry)
    return codes.to(torch.int32), scales.squeeze(-1), log.lost
