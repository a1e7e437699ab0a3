"""A plain 4-bit cache to compare with: no rotation, no mean removal, one scale per vector."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer

from statecell.runtime.half import host_layers

CODE_BITS, CODE_MAX = 4, 7
SCALE_BITS = 16


def naive_bits(head_dim: int) -> float:
    """Stored bits per element, the scale included."""
    return CODE_BITS + SCALE_BITS / head_dim


def naive_int4(x: torch.Tensor) -> torch.Tensor:
    """X [..., d] as 4-bit codes of -7..7 and back: scale = largest magnitude / 7, as float16, round to nearest."""
    scale = (x.abs().amax(-1, keepdim=True) / CODE_MAX).half().to(x.dtype)
    codes = torch.where(scale > 0, x / scale, torch.zeros_like(x)).round().clamp(-CODE_MAX, CODE_MAX)
    return codes * scale


class NaiveLayer(DynamicLayer):
    """A layer that stores what `naive_int4` leaves of keys and values [B, heads, T, d]."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values; returns all of them."""
        return super().update(naive_int4(key_states), naive_int4(value_states), *args, **kwargs)


class NaiveCache(Cache):
    """A transformers cache of such layers for a model with this text configuration."""

    def __init__(self, config: Any) -> None:
        super().__init__(layers=host_layers(config, NaiveLayer))
