"""Drift of a stored recurrent state in each storage mode: predicted from the transition, and measured."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Values
from dataclasses import replace

import torch
from torch import Tensor

from statecell.errors import StatecellError
from statecell.evaluate.driftrows import DriftRow, series, windows
from statecell.evaluate.sequences import synthetic
from statecell.evaluate.tracks import ArrayTrack, NaiveTrack, Track
from statecell.model.recurrent import reference
from statecell.model.recurrent.families import FAMILIES
from statecell.model.recurrent.host import Units
from statecell.model.recurrent.mode import Rule
from statecell.model.recurrent.named import DEFAULT, FAST, MODES, SLOW
from statecell.model.recurrent.reference import Sequence
from statecell.spec.geometry import config

NAIVE = {"naive-int4": 4, "naive-int8": 8}
"""The controls: a float scale per column from its largest magnitude at every token, decays on the values."""
SLOW_DECAY = 0.9994
"""Mean decay from which a head is stored in two planes by default."""
_SAMPLES, _ALIGN = 32, 32
"""Write-backs whose error is measured, and a multiple of every interval, at which they start."""
GEOMETRY = config("bench64")


class DriftError(StatecellError):
    """Arguments that no drift can be measured with."""


def drift(family: str = "gdn", decays: Values[float] = (0.9, 0.97, 0.99, 0.999, 0.9998), modes: Values[str] = (), *,
          tokens: int = 4096, channels: int = 8, seed: int = 0,
          progress: Callable[[int, int], None] | None = None) -> list[DriftRow]:
    """Drift of each mode (all, if none are named) on ``sequences.synthetic`` tokens, keys of 64 lanes.

    A head's value channels are independent rows, so ``channels`` of them stand for a head of any width. ``progress``
    gets (steps done, steps in all). Raises DriftError.
    """
    check(modes, tokens)
    if family not in FAMILIES:
        raise DriftError(f"There is no family {family!r}: use one of {', '.join(FAMILIES)}.")
    if not decays or not all(0 < decay <= 1 for decay in decays):
        raise DriftError(f"Decays are {', '.join(map(str, decays))}: each must be above 0 and at most 1.")
    sequence, rule = synthetic(family, decays, tokens, dim=GEOMETRY.head_dim, channels=channels, seed=seed)
    return drift_of(sequence, rule, modes, progress=progress)


def check(modes: Values[str], tokens: int) -> None:
    """Raise DriftError for a mode that does not exist, or too few tokens."""
    known = [*NAIVE, *MODES, DEFAULT]
    if wrong := [name for name in modes if name not in known]:
        raise DriftError(f"There is no storage mode {wrong[0]!r}: use {', '.join(known)}.")
    if tokens < 8 * _ALIGN:
        raise DriftError(f"{tokens} tokens are too few to see a drift: give at least {8 * _ALIGN}.")


def drift_of(sequence: Sequence, rule: Rule, modes: Values[str] = (), *,
             progress: Callable[[int, int], None] | None = None) -> list[DriftRow]:
    """Drift of each mode (all, if none are named) on these tokens; keys of 32, 64 or 128 lanes. Raises DriftError."""
    tokens, heads, dim = sequence.k.shape
    check(modes, tokens)
    if dim not in (32, 64, 128):
        raise DriftError(f"The keys have {dim} lanes: an array's rows have 32, 64 or 128.")
    names = list(modes) or [*NAIVE, *MODES, DEFAULT]
    needed = [name for name in names if name != DEFAULT]
    needed += [name for name in (FAST, SLOW) if DEFAULT in names and name not in needed]

    def step(done: int) -> None:
        if progress is not None:
            progress(done, 2 * tokens)

    with torch.inference_mode():  # a third less time for the many small operations
        exact, peak, radius = _reference(sequence, rule, step)
        tracks = _tracks(needed, sequence, rule, Units.fit(sequence, rule, peak))
        rows = _measure(sequence, rule, exact, radius, tracks, lambda done: step(tokens + done))
    if DEFAULT in names:
        rows += [_default(rows, head) for head in range(heads)]
    return [row for name in names for row in rows if row.mode == name]


def _reference(sequence: Sequence, rule: Rule, step: Callable[[int], None]) -> tuple[Tensor, Tensor, Tensor]:
    """(o [T, H, R], largest state magnitude [H], spectral radius [H]).

    The radius is the mean growth of random vectors under the product of the transitions g (I - beta k k^T), with their
    norm restored at every token (power iteration); 1 at most.
    """
    length, heads, dim = sequence.k.shape
    state = torch.zeros(heads, sequence.v.shape[-1], dim, dtype=torch.float64)
    probe = torch.randn(heads, 4, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probe /= probe.norm(dim=(1, 2), keepdim=True)
    out, peak, logs = [], torch.zeros(heads, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
    for t in range(length):
        token = sequence.token(t)
        o, state = reference.step(state, token, rule)
        out.append(o)
        peak = torch.maximum(peak, state.abs().amax((1, 2)))
        _, probe = reference.step(probe, _without_values(token, probe.shape[1]), rule)
        size = probe.norm(dim=(1, 2), keepdim=True).clamp(min=1e-300)
        probe, logs = probe / size, logs + size.flatten().log()
        step(t + 1)
    return torch.stack(out), peak, torch.exp(logs / length).clamp(max=1)


def _without_values(token: Sequence, channels: int) -> Sequence:
    """The token with ``channels`` values of 0: what is left of a step is the transition of the state."""
    return replace(token, v=torch.zeros(token.v.shape[0], channels, dtype=torch.float64))


def _tracks(names: list[str], sequence: Sequence, rule: Rule, units: Units) -> list[Track]:
    heads, lanes = sequence.k.shape[1], sequence.decay.shape[-1] > 1
    rows, geometry = sequence.v.shape[-1], replace(GEOMETRY, head_dim=sequence.k.shape[-1])
    tracks: list[Track] = [NaiveTrack(name, rule, NAIVE[name], heads, rows, sequence.k.shape[-1])
                           for name in names if name in NAIVE]
    chosen = {name: replace(MODES[name], rotate=MODES[name].rotate and not lanes) for name in names if name in MODES}
    for interval in sorted({mode.interval for mode in chosen.values()}):
        part = {name: mode for name, mode in chosen.items() if mode.interval == interval}
        tracks.append(ArrayTrack(part, rule, geometry, units, heads, rows, lanes))
    return tracks


def _measure(sequence: Sequence, rule: Rule, exact: Tensor, radius: Tensor, tracks: list[Track],
             step: Callable[[int], None]) -> list[DriftRow]:
    length, heads, dim = sequence.k.shape
    state = torch.zeros(heads, sequence.v.shape[-1], dim, dtype=torch.float64)
    every = max(_ALIGN, length // _SAMPLES // _ALIGN * _ALIGN)
    square = [torch.zeros(length, len(track.names), heads, dtype=torch.float64) for track in tracks]
    sampled: list[list[Tensor]] = [[] for _ in tracks]
    before: list[Tensor | None] = [None] * len(tracks)
    for t in range(length):
        token = sequence.token(t)
        _, state = reference.step(state, token, rule)
        for i, track in enumerate(tracks):
            if t % every == 0 and t > 0:
                before[i] = track.state()
            square[i][t] = (track.step(token) - exact[t]).square().sum(-1)
            old = before[i]
            if old is not None:
                old = before[i] = torch.stack([reference.step(one, token, rule)[1] for one in old])
                if t % every == track.interval - 1:
                    sampled[i].append(_norm(track.state() - old) / _norm(state))
                    before[i] = None
        step(t + 1)
    rows = []
    for i, track in enumerate(tracks):
        final = track.state()
        epsilon = torch.stack(sampled[i]).square().mean(0).sqrt()
        bits = track.bits()
        for m, name in enumerate(track.names):
            for h in range(heads):
                errors = windows(square[i][:, m, h], exact[:, h].square().sum(-1))
                decay = float(sequence.decay[:, h].double().log().mean().exp())
                rho, eps = float(radius[h]), float(epsilon[m, h])
                rows.append(DriftRow(
                    mode=name, head=h, decay=decay, spectral_radius=rho, bits_per_element=bits[m][0],
                    log_bits_per_element=bits[m][1], epsilon=eps,
                    bound=eps * series(rho, length, track.interval),
                    expected=eps * series(rho**2, length, track.interval) ** 0.5,
                    state_error=float((_norm(final - state) / _norm(state))[m, h]),
                    inflation=float((_norm(final) / _norm(state))[m, h]),
                    read_error=errors, growth=errors[length] / errors[min(errors)],
                ))
    return rows


def _norm(state: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(state, dim=(-2, -1))
    return size.clamp(min=1e-300)


def _default(rows: list[DriftRow], head: int) -> DriftRow:
    """The default's row of a head: that of the mode which the head's decay chooses."""
    mine = {row.mode: row for row in rows if row.head == head}
    return replace(mine[SLOW if mine[SLOW].decay >= SLOW_DECAY else FAST], mode=DEFAULT)
