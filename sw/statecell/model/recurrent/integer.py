"""One recurrent token in integers, bit for bit what the device stores and answers. Vectorised over heads and rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model.recurrent import factor, log
from statecell.model.recurrent.bits import clamp, round_shift
from statecell.model.recurrent.mode import RecurrentError, Rule
from statecell.model.recurrent.readout import queries, read
from statecell.model.recurrent.state import State
from statecell.model.recurrent.writeback import of_log, of_token, write_back
from statecell.spec import formats


@dataclass(frozen=True)
class Token:
    """One token of H heads, int64. q, k, b [H, width] with KEY_FRACTION bits, v [H, R] in value LSBs, all of 16 bits;
    decay [H, 1 or width] in DECAY_FRACTION, 1 to 2^24; beta [H] in BETA_FRACTION. b replaces k in q.k (RWKV's bonus).
    """

    q: Tensor
    k: Tensor
    b: Tensor
    v: Tensor
    decay: Tensor
    beta: Tensor


def check(state: State, token: Token, tokens: int | None = None) -> None:
    """Raise RecurrentError, before anything has changed, if the token does not fit the state.

    tokens: so many of them are in ``token``, along a first axis.
    """
    check_token(token, heads=state.heads, channels=state.channels, dim=state.width,
                decays=state.factor.shape[1], tokens=tokens)


def check_token(token: Token, *, heads: int, channels: int, dim: int, decays: int, tokens: int | None) -> None:
    """`check` against the sizes of a state; ``decays``: of a head, 1 or one a lane."""
    h, r, d = heads, channels, dim
    shapes = {"q": (h, d), "k": (h, d), "b": (h, d), "v": (h, r), "decay": (h, decays), "beta": (h,)}
    limits = dict.fromkeys(("q", "k", "b", "v"), (-formats.VECTOR_MAX, formats.VECTOR_MAX))
    limits |= {"decay": (1, 1 << formats.DECAY_FRACTION), "beta": (0, (1 << formats.BETA_BITS) - 1)}
    for name, one in shapes.items():
        shape = one if tokens is None else (tokens, *one)
        value = getattr(token, name)
        if tuple(value.shape) != shape:
            raise RecurrentError(f"{name} has shape {tuple(value.shape)}; this state needs {shape}")
        low, high = limits[name]
        if bool(((value < low) | (value > high)).any()):
            raise RecurrentError(f"{name} must be {low} to {high}; it is {int(value.min())} to {int(value.max())}")


def step(state: State, token: Token, *, scales: Tensor | None = None) -> Tensor:
    """Take one token into the state; returns o int64 [H, R], RECUR_BITS with RECUR_FRACTION.

    Rows of heads with an interval of 1 are written back; other heads log the token, and RecurrentError is raised if a
    log is full. scales: scale bytes int64 [H, R, groups] for the heads with Scales.SUPPLIED whose rows are written.
    """
    check(state, token)
    return take(state, token, scales=scales)


def take(state: State, token: Token, *, scales: Tensor | None = None) -> Tensor:
    """`step` for a token that `check` has seen."""
    at_once = state.modes.interval == 1
    if state.log is not None and bool((~at_once & (state.log.length >= state.modes.interval)).any()):
        raise RecurrentError("a head's log is full; COMMIT it before the next token")
    _check_scales(state, scales, at_once)
    frozen = factor.kept(token.decay, token.beta)
    before, lost_before = state.factor, state.lost
    after = factor.decayed(before, token.decay)
    lost = lost_before
    if after.shape[1] == 1:
        after, octaves = factor.normalised(after)
        lost = lost + octaves[:, 0]
    q, k = state.turned(token.q), state.turned(token.k)
    first = state.rule.decay_first
    query = queries(state, torch.stack(
        [factor.times_half(q, after if first else before), factor.times_half(k, after)], 1))
    losses = torch.stack([lost if first else lost_before, lost], 1)
    both = read(state, query, losses)
    mixed = log.mix(token.q, token.b)
    if state.log is not None:
        weights = state.log.weights
        if weights is not None:
            later = factor.decayed(weights, token.decay[:, None])
            state.log.weights = torch.where(state.log.used[..., None], later, weights)
            weights = torch.stack([later if first else weights, later], 1)
        of_log = log.weights_of(state, query, torch.stack([q, k], 1), losses, weights)
        both = clamp(both + log.share(state, of_log), formats.RECUR_BITS)
    o, r = both.unbind(1)
    d = added(state.rule, token, r)
    o = clamp(o + round_shift(mixed[:, None] * d, formats.MIX_FRACTION), formats.RECUR_BITS)
    state.factor, state.lost = after, lost
    state.skipped = state.skipped + frozen.to(torch.int64)
    if bool(at_once.any()):
        write_back(state, of_token(state, k, d), ~frozen & at_once, supplied=scales)
    if state.log is not None:
        log.append(state, k, d, ~frozen & ~at_once)
    return o


def added(rule: Rule, token: Token, r: Tensor) -> Tensor:
    """The d of a token's channels, int64 [H, R] like r, RECUR_BITS with RECUR_FRACTION."""
    error = token.v << formats.RECUR_FRACTION
    if rule.delta:
        error = clamp(error - r, formats.RECUR_BITS)
    return clamp(round_shift(token.beta[:, None] * error, formats.BETA_FRACTION), formats.RECUR_BITS)


def due(state: State) -> Tensor:
    """Heads whose log is full, bool [H]."""
    if state.log is None:
        return torch.zeros(state.heads, dtype=torch.bool)
    return (state.modes.interval > 1) & (state.log.length >= state.modes.interval)


def commit(state: State, heads: Tensor, *, scales: Tensor | None = None, fresh: bool = False) -> None:
    """Fold the logs of ``heads`` (bool [H]) into their rows. fresh: recalibration, every row takes a new scale."""
    if not fresh:
        _check_scales(state, scales, heads)
    if state.log is None:
        if fresh:
            nothing = torch.zeros(state.heads, state.width, dtype=torch.int64)
            gains = of_token(state, nothing, nothing[:, :1].expand(-1, state.channels))
            write_back(state, gains, heads, fresh=True)
        return
    write_back(state, of_log(state), heads & ((state.log.length > 0) | fresh), supplied=scales, fresh=fresh)
    state.log.clear(heads)


def _check_scales(state: State, scales: Tensor | None, written: Tensor) -> None:
    if scales is None and bool((state.modes.supplied & written).any()):
        raise RecurrentError("a head with supplied scales is written back; give its scale bytes")
    if scales is not None and (scales.shape != state.scales.shape or bool(((scales < 0) | (scales > 255) | (
            (scales & 127) > formats.SCALE_MAGNITUDE_MAX)).any())):
        raise RecurrentError(f"scales must be bytes of exponents 0 to 14 in the shape {tuple(state.scales.shape)}")
