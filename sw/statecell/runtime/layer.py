"""One layer of a slot cache, and the handle that stands for its keys and values."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from statecell.runtime.errors import UnsupportedError
from statecell.runtime.handle import Handle
from statecell.runtime.quantise import LayerScales
from statecell.runtime.state import SlotState
from statecell.runtime.support import check_head_dim


class SlotHandle(Handle):
    """Stands for the stored keys and values of a layer on their way to the attention function."""

    __slots__ = ()
    layer: SlotLayer
    REFUSAL = (
        "the model computes on cached keys or values itself ({what}), but they are stored in the engine only; "
        "use a model that goes through transformers' attention interface, or detach the engine"
    )


class SlotLayer(CacheLayerMixin):
    """One layer: a slot per sequence and KV head, `slots[sequence][head]`, opened at the first rows."""

    is_compileable = False
    is_croppable = True
    supports_early_init = False

    def __init__(self, state: SlotState, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.state = state
        self.index = index
        self.positions = 0
        self.slots: list[list[int]] = []
        self.scales: LayerScales | None = None
        self.pending: tuple[torch.Tensor, torch.Tensor] | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Open the slots for keys and values [B, kv_heads, T, d]."""
        for states in (key_states, value_states):
            check_head_dim(states.shape[-1], self.state.engine.head_dim)
        batch, heads = key_states.shape[:2]
        opened = self.state.engine.open(batch * heads)
        self.state.slots.update({slot: number // heads for number, slot in enumerate(opened)})
        self.slots = [opened[b * heads : (b + 1) * heads] for b in range(batch)]
        if self.state.calibration is not None:
            self.scales = LayerScales.calibrated(self.state.calibration, self.index)
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Any, Any]:
        """Keep new rows until the attention function, which alone knows the mask, stores them; returns two handles."""
        self.state.check()
        if self.pending is not None:
            self.state.fault = f"layer {self.index} got new rows before its attention had stored the last ones"
            self.state.check()
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.pending = (key_states, value_states)
        handle = SlotHandle(self)
        return handle, handle

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length of the mask and its offset: a sliding layer, too, gets the whole mask."""
        return self.positions + query_length, 0

    def get_seq_length(self) -> int:
        """Padded length, by which `generate` slices its input."""
        return self.positions

    def get_max_length(self) -> int:
        """No maximum that is known here: the engine says when it is full."""
        return -1

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Refuse beam search."""
        raise UnsupportedError("beam search reorders the cache, which slots do not allow; use num_beams=1")

    def reset(self) -> None:
        """Forget the slots (the cache frees them)."""
        self.slots, self.scales, self.pending = [], None, None
        self.positions, self.is_initialized = 0, False
