"""One recurrent token in integers, bit for bit what the device stores and answers. Vectorised over heads and rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model import rotate
from statecell.model.recurrent import factor, log
from statecell.model.recurrent.mode import RecurrentError, Scales
from statecell.model.recurrent.bits import clamp, round_shift
from statecell.model.recurrent.readout import read
from statecell.model.recurrent.state import Log, State
from statecell.model.recurrent.writeback import write_back
from statecell.spec import formats


@dataclass(frozen=True)
class Token:
    """One token of H heads, int64. q, k, b [H, d] with KEY_FRACTION bits, v [H, R] in value LSBs, all of 16 bits;
    decay [H, 1 or d] in DECAY_FRACTION, 1 to 2^24; beta [H] in BETA_FRACTION. b replaces k in q.k (RWKV's bonus).
    """

    q: Tensor
    k: Tensor
    b: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor


def check(state: State, token: Token) -> None:
    """Raise RecurrentError, before anything has changed, if the token does not fit the state."""
    h, r, d = state.heads, state.channels, state.geometry.head_dim
    shapes = {"q": (h, d), "k": (h, d), "b": (h, d), "v": (h, r), "decay": tuple(state.factor.shape), "beta": (h,)}
    limits = {name: (-formats.VECTOR_MAX, formats.VECTOR_MAX) for name in ("q", "k", "b", "v")}
    limits |= {"decay": (1, 1 << formats.DECAY_FRACTION), "beta": (0, (1 << formats.BETA_BITS) - 1)}
    for name, shape in shapes.items():
        value = getattr(token, name)
        if tuple(value.shape) != shape:
            raise RecurrentError(f"{name} has shape {tuple(value.shape)}; this state needs {shape}")
        low, high = limits[name]
        if bool(((value < low) | (value > high)).any()):
            raise RecurrentError(f"{name} must be {low} to {high}; it is {int(value.min())} to {int(value.max())}")


def step(state: State, token: Token, *, scales: Tensor | None = None) -> Tensor:
    """Take one token into the state; returns o int64 [H, R], RECUR_BITS with RECUR_FRACTION.

    With an interval of 1 the rows are written back, else the token joins the log; RecurrentError if the log is full.
    scales: scale bytes int64 [H, R, groups], needed by Scales.SUPPLIED when the rows are written.
    """
    check(state, token)
    if state.log is not None and bool((state.log.length >= state.mode.interval).any()):
        raise RecurrentError(f"the log holds {state.mode.interval} tokens; COMMIT it before the next token")
    if state.log is None:
        _check_scales(state, scales)
    frozen = factor.kept(token.decay, token.beta)
    after = factor.decayed(state.factor, token.decay)
    q, k = (rotate.forward(x, state.geometry) if state.mode.rotate else x for x in (token.q, token.k))
    q_factor = after if state.rule.decay_first else state.factor
    both = torch.stack([factor.times_half(q, q_factor), factor.times_half(k, after)], 1)
    o, r = read(state, both).unbind(1)
    mixed = log.mix(token.q, token.b)
    logged = torch.zeros_like(o)
    if state.log is not None:
        weights = factor.decayed(state.log.weights, token.decay[:, None])
        logged = log.contribution(state, q, weights if state.rule.decay_first else state.log.weights)
        of_key = log.contribution(state, k, weights)
        r = clamp(r + round_shift(of_key, formats.MIX_FRACTION), formats.RECUR_BITS)
        state.log.weights = torch.where(state.log.used[..., None], weights, state.log.weights)
    error = token.v << formats.RECUR_FRACTION
    if state.rule.delta:
        error = clamp(error - r, formats.RECUR_BITS)
    d = clamp(round_shift(token.beta[:, None] * error, formats.BETA_FRACTION), formats.RECUR_BITS)
    o = clamp(o + round_shift(logged + mixed[:, None] * d, formats.MIX_FRACTION), formats.RECUR_BITS)
    state.factor = after
    state.skipped = state.skipped + frozen.to(torch.int64)
    if state.log is None:
        write_back(state, k[:, None], d[:, None], ~frozen, supplied=scales)
    else:
        log.append(state, k, d, ~frozen)
    return o


def commit(state: State, *, scales: Tensor | None = None, fresh: bool = False) -> None:
    """Fold the log into the rows and empty it. fresh: recalibration, every row takes a new scale."""
    if not fresh:
        _check_scales(state, scales)
    everything = torch.ones(state.heads, dtype=torch.bool)
    if state.log is None:
        keys = torch.zeros(state.heads, 1, state.geometry.head_dim, dtype=torch.int64)
        values = torch.zeros(state.heads, 1, state.channels, dtype=torch.int64)
        moved = torch.ones(state.heads, dtype=torch.bool)
    else:
        keys = factor.weighted(state.log.keys, state.log.weights)
        values, moved = state.log.values, (state.log.length > 0) | fresh
        state.log = Log.empty(*keys.shape[:2], keys.shape[2], state.channels, state.log.weights.shape[-1])
    write_back(state, keys, values, moved, supplied=scales, fresh=fresh)


def _check_scales(state: State, scales: Tensor | None) -> None:
    if (scales is None) == (state.mode.scales == Scales.SUPPLIED):
        raise RecurrentError(f"scale mode {state.mode.scales.value} with{'out' if scales is None else ''} scales; "
                             f"scale bytes go with mode {Scales.SUPPLIED.value}, and only with it")
    if scales is not None and (scales.shape != state.scales.shape or bool(((scales & 127) > formats.SCALE_MAGNITUDE_MAX).any())):
        raise RecurrentError(f"scales must be bytes of exponents 0 to 14 in the shape {tuple(state.scales.shape)}")
