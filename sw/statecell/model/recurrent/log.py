"""The log: tokens between two write-backs as 8-bit rows, their share of the read-out. docs/numerics.md, 8.6."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model import quantise
from statecell.model.recurrent import factor
from statecell.model.recurrent.bits import clamp, round_shift, scaled
from statecell.model.recurrent.state import State
from statecell.spec import formats
from statecell.spec.geometry import Geometry


def mix(q: Tensor, k: Tensor, gain: Tensor | int = 0) -> Tensor:
    """2^gain q . k over the last axis, MIX_BITS with MIX_FRACTION; int64. gain: 0 or -1, an integer or [H, 1]."""
    return clamp(round_shift((q * k).sum(-1), 2 * formats.KEY_FRACTION - formats.MIX_FRACTION - gain), formats.MIX_BITS)


def contribution(state: State, vector: Tensor, weights: Tensor) -> Tensor:
    """Sum over the log of (vector . weighted key) * value, with RECUR_FRACTION + MIX_FRACTION bits; int64 [H, R]."""
    assert state.log is not None
    mixed = mix(vector[:, None], factor.weighted(state.log.keys, weights), state.rotation_gain[:, None])
    return (mixed[..., None] * state.log.values).sum(1)


def append(state: State, k: Tensor, d: Tensor, moved: Tensor) -> None:
    """Store k [H, d] and d [H, R] (RECUR_FRACTION) of the heads in ``moved`` as the next entries of their logs."""
    log = state.log
    assert log is not None
    here = ((torch.arange(log.keys.shape[1]) == log.length[:, None]) & moved[:, None])[..., None]
    whole = clamp(round_shift(d, formats.RECUR_FRACTION), formats.VECTOR_BITS)
    log.keys = torch.where(here, eight_bits(k, state.geometry, 0)[:, None], log.keys)
    log.values = torch.where(here, eight_bits(whole, state.geometry, formats.RECUR_FRACTION)[:, None], log.values)
    log.length = log.length + moved.to(torch.int64)


def eight_bits(y: Tensor, geometry: Geometry, fraction: int) -> Tensor:
    """Vectors int64 [H, n] as two-plane rows give them back, with ``fraction`` bits; a short group is filled up."""
    fill = -y.shape[-1] % geometry.group
    codes, scales = quantise.wide_codes(torch.nn.functional.pad(y, (0, fill)), geometry)
    magnitude = scales & 127
    value = codes * (8 + (magnitude & 7)) * torch.where(scales >= 128, -1, 1)
    left = (magnitude >> formats.SCALE_MANTISSA) - formats.SCALE_BIAS - formats.CODE_BITS + fraction
    back = torch.floor(scaled(value, left) + 0.5).to(torch.int64)
    return back.flatten(-2)[..., : y.shape[-1]]
