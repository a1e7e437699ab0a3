"""Recurrent states in the integer model: what the device would answer, bit for bit, at PyTorch speed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from statecell.model.recurrent import integer
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode
from statecell.model.recurrent.state import State, new_state
from statecell.runtime.recurrent.engine import StateCounters, StateShape
from statecell.runtime.recurrent.scales import ScaleSource, Stored
from statecell.spec.geometry import Geometry

_SEED_STEP = 7919
"""Distance of the noise seeds of neighbouring heads."""


class ModelStates:
    """StateEngine over the integer model, with as many states as memory holds."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self._states: dict[int, State] = {}
        self._next = 0
        self._counters = StateCounters()

    @property
    def geometry(self) -> Geometry:
        """Of the array that the model stands for."""
        return self._geometry

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int],
                    feedback: Sequence[int] | None = None) -> int:
        """Open empty states."""
        strength = {} if feedback is None else {"feedback": torch.tensor(list(feedback))}
        group, self._next = self._next, self._next + 1
        self._states[group] = new_state(
            modes, shape.rule, self._geometry, channels=shape.channels, lane_decay=shape.lane_decay,
            shift=torch.tensor(list(shift)), seed=1 + torch.arange(len(modes)) * _SEED_STEP,
            **strength)
        return group

    def free_states(self, groups: Sequence[int]) -> None:
        """Drop groups."""
        for group in groups:
            del self._states[group]

    def state(self, group: int) -> State:
        """The stored state of a group."""
        return self._states[group]

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        """Token after token; a full log is written back at once."""
        state = self._states[group]
        integer.check(state, tokens, len(tokens.k))
        fields = vars(tokens)
        each = [Token(**{name: value[t] for name, value in fields.items()}) for t in range(len(tokens.k))]
        outputs = []
        skipped, rescaled = int(state.skipped.sum()), int(state.rescaled.sum())
        written = commits = 0
        planes = torch.tensor([mode.planes for mode in state.modes.each])
        at_once = state.modes.interval == 1
        for t, token in enumerate(each):
            before = state.skipped
            given = None if scales is None else scales(t, Stored(
                energy=state.row_energy(), scales=state.scales, factor=state.factor, shift=state.shift))
            outputs.append(integer.take(state, token, scales=given))
            written += int((planes * at_once * (state.skipped == before)).sum())
            due = integer.due(state)
            if bool(due.any()):
                integer.commit(state, due, scales=given)
                commits += int(due.sum())
                written += int((planes * due).sum())
        c, rows = self._counters, state.channels
        self._counters = replace(
            c, tokens=c.tokens + len(each) * state.heads, rows_read=c.rows_read + len(each) * rows * int(planes.sum()),
            rows_written=c.rows_written + rows * written, commits=c.commits + commits,
            skipped=c.skipped + int(state.skipped.sum()) - skipped,
            rescaled=c.rescaled + int(state.rescaled.sum()) - rescaled)
        return torch.stack(outputs)

    def snapshot(self, group: int) -> State:
        """The tensors as they are: the model replaces them and never writes into them."""
        return _copied(self._states[group])

    def restore(self, group: int, snapshot: State) -> None:
        """Back to a snapshot."""
        self._states[group] = _copied(snapshot)

    def counters(self) -> StateCounters:
        """Totals so far."""
        return self._counters


def _copied(state: State) -> State:
    return replace(state, log=copy(state.log))
