"""Caches that carry states from one training segment to the next, without their gradients."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer, LinearAttentionLayer


class CarriedConvolution(LinearAttentionLayer):
    """Replaces the convolution's last inputs instead of writing into them: autograd still needs the old ones."""

    def update_conv_state(self, conv_states: torch.Tensor, state_idx: int = 0, conv_kernel_size: int | None = None,
                          **_: Any) -> torch.Tensor:
        """The last inputs and the new ones, joined."""
        before = self.conv_states[state_idx]
        kernel = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
        seen = conv_states if before is None else torch.cat([before, conv_states], dim=-1)
        kept = torch.nn.functional.pad(seen, (max(0, kernel - seen.shape[-1]), 0))[..., -kernel:]
        self.conv_states[state_idx] = kept.detach()
        self.has_previous_state[state_idx] = True
        return seen


class CarriedState(CarriedConvolution):
    """Replaces its states in the same way."""

    def update_recurrent_state(self, recurrent_states: torch.Tensor, state_idx: int = 0, **_: Any) -> torch.Tensor:
        """The new states."""
        self.recurrent_states[state_idx] = recurrent_states.detach()
        return recurrent_states


class CarriedRows(DynamicLayer):
    """Keys and values; those of earlier segments have no gradient."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any,
               **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """All keys and values so far."""
        both: tuple[torch.Tensor, torch.Tensor] = super().update(key_states, value_states, *args, **kwargs)
        self.keys, self.values = both[0].detach(), both[1].detach()
        return both


class CarriedCache(Cache):
    """Float states of a batch of streams between two segments of training, for a model with these ``layer_types``."""

    def __init__(self, layer_types: list[str]) -> None:
        super().__init__(layers=[CarriedState() if kind == "linear_attention" else CarriedRows()
                                 for kind in layer_types])
