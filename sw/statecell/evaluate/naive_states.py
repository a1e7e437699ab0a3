"""Recurrent states as most 4-bit states are stored, as a control: one float scale a column, decays on the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from statecell.model.recurrent import reference
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode
from statecell.runtime.recurrent.engine import StateCounters, StateShape
from statecell.runtime.recurrent.scales import ScaleSource
from statecell.spec import formats
from statecell.spec.geometry import Geometry


def naive_rounded(state: Tensor, width: int) -> Tensor:
    """Every column (the last axis) to ``width`` bits, nearest, with a float scale from its largest magnitude."""
    scale = (state.abs().amax(-1, keepdim=True) / ((1 << (width - 1)) - 1)).clamp(min=1e-300)
    return torch.round(state / scale) * scale


def naive_bits(width: int, dim: int) -> float:
    """Stored bits of an element; the scale counts as 16."""
    return width + 16 / dim


class NaiveStates:
    """StateEngine that steps in float64 and rounds the state to ``width`` bits after every token; modes are ignored."""

    def __init__(self, geometry: Geometry, width: int) -> None:
        self._geometry, self._width = geometry, width
        self._states: dict[int, tuple[StateShape, Tensor]] = {}
        self._next = self._tokens = 0

    @property
    def geometry(self) -> Geometry:
        """The geometry that it was made with."""
        return self._geometry

    def check_modes(self, modes: Sequence[Mode], shape: StateShape) -> None:
        """Nothing to check: modes are ignored."""

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int],
                    feedback: Sequence[int] | None = None) -> int:
        """Open empty states; modes with error feedback do not exist here."""
        group, self._next = self._next, self._next + 1
        zeros = torch.zeros(len(modes), shape.channels, shape.halves * self._geometry.head_dim, dtype=torch.float64)
        self._states[group] = (shape, zeros)
        return group

    def free_states(self, groups: Sequence[int]) -> None:
        """Drop groups."""
        for group in groups:
            del self._states[group]

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        """Exact steps, each followed by the rounding, whose scales are always fresh."""
        shape, state = self._states[group]
        sequence = real_tokens(tokens)
        outputs = []
        for t in range(len(sequence)):
            o, state = reference.step(state, sequence.token(t), shape.rule)
            state = naive_rounded(state, self._width)
            outputs.append(torch.round(o * (1 << formats.RECUR_FRACTION)).to(torch.int64))
        self._states[group] = (shape, state)
        self._tokens += len(sequence) * state.shape[0]
        return torch.stack(outputs)

    def recalibrate(self, group: int) -> None:
        """Nothing: the scales are fresh at every token."""

    def snapshot(self, group: int) -> Any:
        """The state."""
        return self._states[group]

    def restore(self, group: int, snapshot: Any) -> None:
        """Back to a snapshot."""
        self._states[group] = snapshot

    def counters(self) -> StateCounters:
        """Tokens alone: nothing else happens here as it does in an array."""
        return StateCounters(tokens=self._tokens)


def real_tokens(tokens: Token) -> reference.Sequence:
    """What the integers of tokens [T, H, ...] mean: values and read-outs in value LSBs."""
    key = 2.0**-formats.KEY_FRACTION
    return reference.Sequence(
        tokens.q.double() * key, tokens.k.double() * key, tokens.b.double() * key, tokens.v.double(),
        tokens.decay.double() * 2.0**-formats.DECAY_FRACTION, tokens.beta.double() * 2.0**-formats.BETA_FRACTION)
