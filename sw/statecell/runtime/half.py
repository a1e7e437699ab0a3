"""Caches on the host that the array is compared with: keys and values in float16, or in the model's own type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, LinearAttentionLayer

from statecell.runtime.support import recurrent_layers


class HalfLayer(DynamicLayer):
    """A layer that stores float16 and hands out the type it was given. Keys and values beyond 65504 become infinite."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values [B, heads, T, d]; returns all of them."""
        keys, values = super().update(key_states.half(), value_states.half(), *args, **kwargs)
        return keys.to(key_states.dtype), values.to(value_states.dtype)


class HalfCache(Cache):
    """A transformers cache of such layers for a model with this text configuration.

    The states of recurrent layers keep the model's type.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(layers=host_layers(config, HalfLayer))


def host_layers(config: Any, make: Callable[[], DynamicLayer]) -> list[Any]:
    """One layer a layer of the model: those that `make` makes, and transformers' own where it is recurrent."""
    recurrent = recurrent_layers(config)
    return [LinearAttentionLayer() if index in recurrent else make() for index in range(config.num_hidden_layers)]


def host_cache(config: Any) -> DynamicCache:
    """An empty cache in the model's own types that keeps every row, for a text configuration."""
    # given the configuration it would drop the rows that sliding layers no longer see; recurrent layers need it
    return DynamicCache(config=config) if recurrent_layers(config) else DynamicCache()
