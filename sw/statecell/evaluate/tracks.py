"""States that are carried along a token sequence in some storage: the array's modes, and naive ones as controls."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from statecell.evaluate.naive_states import naive_bits, naive_rounded
from statecell.model.recurrent import integer, reference
from statecell.model.recurrent.host import Units
from statecell.model.recurrent.mode import Mode, Rule
from statecell.model.recurrent.reference import Sequence
from statecell.model.recurrent.state import new_state
from statecell.spec.geometry import Geometry


class Track(Protocol):
    """N modes side by side, each on the same H heads, all with the same write-back interval."""

    names: list[str]
    interval: int

    def step(self, token: Sequence) -> Tensor:
        """Take a token (tensors [H, ...]); read-outs float64 [N, H, R]."""

    def state(self) -> Tensor:
        """The stored state in real units on the unrotated key axis, float64 [N, H, R, d]."""

    def bits(self) -> list[tuple[float, float]]:
        """(stored bits, log bits) per state element, one pair a mode."""


class NaiveTrack:
    """One float scale per column from its largest magnitude, anew at every token; nearest rounding, no rotation."""

    interval = 1

    def __init__(self, name: str, rule: Rule, width: int, heads: int, channels: int, dim: int) -> None:
        self.names = [name]
        self._rule, self._width = rule, width
        self._state = torch.zeros(heads, channels, dim, dtype=torch.float64)

    def step(self, token: Sequence) -> Tensor:
        """Exact step on the stored state, which is then rounded."""
        o, state = reference.step(self._state, token, self._rule)
        self._state = naive_rounded(state, self._width)
        return o[None]

    def state(self) -> Tensor:
        """[1, H, R, d]."""
        return self._state[None]

    def bits(self) -> list[tuple[float, float]]:
        """Those of `naive_states`."""
        return [(naive_bits(self._width, self._state.shape[-1]), 0.0)]


class ArrayTrack:
    """Modes of the array in the integer model, batched along the head axis; noise seeds differ by head."""

    def __init__(self, modes: dict[str, Mode], rule: Rule, geometry: Geometry, units: Units, heads: int, channels: int,
                 lane_decay: bool) -> None:
        self.names = list(modes)
        self._modes, self._units, self._heads = list(modes.values()), units, heads
        self.interval = self._modes[0].interval
        count = len(self._modes) * heads
        self._state = new_state([mode for mode in self._modes for _ in range(heads)], rule, geometry, channels=channels,
                                lane_decay=lane_decay, shift=units.shift.repeat(len(self._modes)),
                                seed=1 + torch.arange(count) * 7919)

    def step(self, token: Sequence) -> Tensor:
        """One integer step, and the write-back of the log where it is full."""
        one = self._units.token(token)
        repeated = integer.Token(*(x.repeat(len(self._modes), *[1] * (x.ndim - 1)) for x in vars(one).values()))
        o = integer.step(self._state, repeated)
        due = integer.due(self._state)
        if bool(due.any()):
            integer.commit(self._state, due)
        return self._units.output(o.unflatten(0, (-1, self._heads)))

    def state(self) -> Tensor:
        """Right after a write-back the log is empty and this is the whole state."""
        return self._units.state(self._state.unrotated_values().unflatten(0, (-1, self._heads)))

    def bits(self) -> list[tuple[float, float]]:
        """For a head with as many value channels as key lanes."""
        geometry = self._state.geometry
        return [(mode.bits_per_element(geometry), mode.log_bits_per_element(geometry, geometry.head_dim))
                for mode in self._modes]
