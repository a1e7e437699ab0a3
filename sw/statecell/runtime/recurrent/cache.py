"""Caches whose recurrent layers hold states of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.cache_utils import Cache, DynamicLayer

from statecell.runtime.recurrent.engine import StateEngine
from statecell.runtime.recurrent.layer import LayerPlan, StateLayer, StateStore


class RecurrentCache(Cache):
    """A cache with `StateLayer`s among its layers."""

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Any:
        """The handle of a recurrent layer's states, from the first token on: what computes on them is the engine."""
        layer = self.layers[layer_idx]
        return layer.handle if isinstance(layer, StateLayer) else super().get_recurrent_state(layer_idx, state_idx)


class StateCache(RecurrentCache):
    """Recurrent states in an engine, keys and values on the host as the model computes them.

    `layers` counts all layers of the model, `recurrent` tells which of them hold states, and how. `close` frees them.
    """

    def __init__(self, engine: StateEngine, layers: int, recurrent: Mapping[int, LayerPlan]) -> None:
        self.store = StateStore(engine=engine)
        held: list[Any] = [StateLayer(self.store, i, recurrent[i]) if i in recurrent else DynamicLayer()
                           for i in range(layers)]
        super().__init__(layers=held)

    def close(self) -> None:
        """Free the states."""
        self.store.engine.free_states(self.store.groups)
        self.store.groups.clear()
