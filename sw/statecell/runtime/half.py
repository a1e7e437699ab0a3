"""The FP16 cache that the array is compared with: transformers' own attention over keys and values in float16."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


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
    """A transformers cache of `layers` such layers."""

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[HalfLayer() for _ in range(layers)])
