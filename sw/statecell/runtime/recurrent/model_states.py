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
from statecell.model.recurrent.state import DEFAULT_FEEDBACK, State, new_state
from statecell.runtime.recurrent.engine import (
    StateCounters,
    StateShape,
    commit_rows,
    log_rows,
    recalibration_rows,
    seed_of,
)
from statecell.runtime.recurrent.scales import ScaleSource, Stored
from statecell.spec.geometry import Geometry


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

    def check_modes(self, modes: Sequence[Mode], shape: StateShape) -> None:
        """Every mode is kept."""

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int],
                    feedback: Sequence[int] | None = None) -> int:
        """Open empty states."""
        group, self._next = self._next, self._next + 1
        self._states[group] = new_state(
            modes, shape.rule, self._geometry, channels=shape.channels, halves=shape.halves,
            lane_decay=shape.lane_decay, shift=torch.tensor(list(shift)),
            seed=torch.tensor([seed_of(head) for head in range(len(modes))]),
            feedback=DEFAULT_FEEDBACK if feedback is None else torch.tensor(list(feedback)))
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
        read = written = commits = 0
        channels, dim = state.channels, self._geometry.head_dim
        rows = channels * state.halves
        planes = torch.tensor([mode.planes for mode in state.modes.each])
        at_once = state.modes.interval == 1
        for t, token in enumerate(each):
            before = state.skipped
            read += self._logged(state) * log_rows(channels, dim)
            given = None if scales is None else scales(t, Stored(
                energy=state.row_energy(), scales=state.scales, factor=state.factor, shift=state.shift))
            outputs.append(integer.take(state, token, scales=given))
            moved = state.skipped == before
            written += rows * int((planes * at_once * moved).sum())
            written += log_rows(channels, dim) * int((~at_once & moved).sum())
            due = integer.due(state)
            if bool(due.any()):
                integer.commit(state, due, scales=given)
                commits += int(due.sum())
                read += sum(commit_rows(int(n), channels, dim) for n in state.modes.interval[due])
                written += rows * int((planes * due).sum())
        c = self._counters
        self._counters = replace(
            c, tokens=c.tokens + len(each) * state.heads,
            rows_read=c.rows_read + read + len(each) * rows * int(planes.sum()), rows_written=c.rows_written + written,
            commits=c.commits + commits,
            skipped=c.skipped + int(state.skipped.sum()) - skipped,
            rescaled=c.rescaled + int(state.rescaled.sum()) - rescaled)
        return torch.stack(outputs)

    def recalibrate(self, group: int) -> None:
        """COMMIT of every head with fresh scales."""
        state, c = self._states[group], self._counters
        logged = [None if mode.interval == 1 or state.log is None else int(state.log.length[head])
                  for head, mode in enumerate(state.modes.each)]
        moved = [recalibration_rows(n, state.channels * state.halves * mode.planes, state.channels,
                                    self._geometry.head_dim)
                 for n, mode in zip(logged, state.modes.each, strict=True)]
        integer.commit(state, torch.ones(state.heads, dtype=torch.bool), fresh=True)
        self._counters = replace(
            c, rows_read=c.rows_read + sum(read for read, _ in moved),
            rows_written=c.rows_written + sum(written for _, written in moved),
            recalibrations=c.recalibrations + state.heads)

    @staticmethod
    def _logged(state: State) -> int:
        """Tokens in the logs of a group."""
        return int(state.log.length.sum()) if state.log is not None else 0

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
