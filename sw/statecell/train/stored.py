"""Training over stored states: read-outs are the integer model's, their gradients the float recurrence's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from statecell.runtime.recurrent.cache import RecurrentCache
from statecell.runtime.recurrent.layer import LayerPlan, StateLayer, StateStore
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.recurrent.units import repeated
from statecell.train.carry import CarriedConvolution, CarriedRows
from statecell.train.recipe import TrainError


class StoredState(CarriedConvolution, StateLayer):
    """A recurrent layer whose states are in the integer model, with a straight-through estimator around it.

    Forward: the integer model's read-outs, bit for bit. Backward: the gradient of the float recurrence ``chunked`` over
    the same segment, begun at the stored states (Bengio, Leonard and Courville 2013: a rounding counts as identity).
    """

    def __init__(self, states: ModelStates, store: StateStore, index: int, plan: LayerPlan, chunked: Callable) -> None:
        super().__init__(store, index, plan)
        self._states, self._chunked = states, chunked

    def rule(self, query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """As `StateLayer.rule`, with gradients. Raises TrainError where a log still holds tokens at the start."""
        out: Tensor = self._chunked(query, key, value, g=g, beta=beta, initial_state=self.real_state(),
                                    use_qk_l2norm_in_kernel=True)[0]
        with torch.no_grad():
            stored = super().rule(query, key, value, g, beta)
        return out + (stored - out).detach()

    def real_state(self) -> Tensor | None:
        """The stored states in real units, float32 [B, H, d, R], as transformers keeps them; None before any token."""
        if self.group is None or self.units is None:
            return None
        state = self._states.state(self.group)
        if state.log is not None and bool(state.log.length.any()):
            raise TrainError("A segment begins while tokens wait in a log: give segments of a multiple of the "
                             "write-back interval.")
        real = repeated(self.units, self.batch).state(state.unrotated_values())
        shaped: Tensor = real.unflatten(0, (self.batch, -1)).transpose(-1, -2)
        return shaped.float()


class StoredCache(RecurrentCache):
    """Stored states of a batch of streams between two segments of training; ``recurrent`` plans them by layer."""

    def __init__(self, states: ModelStates, layers: int, recurrent: Mapping[int, LayerPlan], chunked: Callable) -> None:
        store = StateStore(engine=states)
        held: list[Any] = [StoredState(states, store, i, recurrent[i], chunked) if i in recurrent else CarriedRows()
                           for i in range(layers)]
        super().__init__(layers=held)
