"""Recurrent states kept twice, on a device and in the integer model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode
from statecell.runtime.recurrent.engine import StateCounters, StateEngine, StateShape
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.scales import ScaleSource
from statecell.spec.geometry import Geometry


class TwinStates:
    """States that give every token to a device and to the integer model, and compare every read-out bit for bit.

    Read-outs are the device's. `readouts` and `different` count vectors and unequal vectors.
    """

    def __init__(self, device: StateEngine, model: ModelStates) -> None:
        self._device, self._model = device, model
        self._twins: dict[int, int] = {}
        self.readouts = self.different = 0

    @property
    def geometry(self) -> Geometry:
        """Of the device."""
        return self._device.geometry

    def check_modes(self, modes: Sequence[Mode], shape: StateShape) -> None:
        """Whether the device keeps these modes."""
        self._device.check_modes(modes, shape)

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int],
                    feedback: Sequence[int] | None = None) -> int:
        """Open a group in both."""
        group = self._device.open_states(modes, shape, shift, feedback)
        self._twins[group] = self._model.open_states(modes, shape, shift, feedback)
        return group

    def free_states(self, groups: Sequence[int]) -> None:
        """Free groups in both."""
        self._device.free_states(groups)
        self._model.free_states([self._twins.pop(group) for group in groups])

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        """Take tokens in both and compare."""
        o = self._device.step(group, tokens, scales)
        same = (o == self._model.step(self._twins[group], tokens, scales)).all(-1)
        self.readouts += same.numel()
        self.different += int((~same).sum())
        return o

    def recalibrate(self, group: int) -> None:
        """New scales in both."""
        self._device.recalibrate(group)
        self._model.recalibrate(self._twins[group])

    def snapshot(self, group: int) -> tuple[Any, Any]:
        """Snapshots of both."""
        return self._device.snapshot(group), self._model.snapshot(self._twins[group])

    def restore(self, group: int, snapshot: tuple[Any, Any]) -> None:
        """Both back."""
        self._device.restore(group, snapshot[0])
        self._model.restore(self._twins[group], snapshot[1])

    def counters(self) -> StateCounters:
        """The device's."""
        return self._device.counters()
