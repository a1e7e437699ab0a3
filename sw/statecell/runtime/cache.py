"""A transformers cache whose layers hold slots of an engine instead of tensors."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from statecell.errors import StatecellError
from statecell.runtime.calibration import Calibration
from statecell.runtime.errors import CacheStateError, UnsupportedError, other_batch
from statecell.runtime.layer import SlotLayer
from statecell.runtime.recurrent.cache import RecurrentCache
from statecell.runtime.recurrent.layer import LayerPlan, Remembered, StateLayer, StateStore
from statecell.runtime.sharing import SharedEngine
from statecell.runtime.state import CacheFormat, SlotState, Tally, ended_early


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A cache between two forward passes: the map of its tokens, their ids, and its recurrent layers."""

    valid: NDArray[np.bool_]
    ids: NDArray[np.int64] | None
    states: list[Remembered]


class SlotCache(RecurrentCache):
    """Cache of one batch of sequences in an engine: slots for keys and values, recurrent states.

    Made by the attachment's `new_cache`; `close` gives the slots back, `del` lets the engine's next use do so. A cache
    goes on from turn to turn: pass it as `cache=` with the whole history, or with the new ids and a mask over the whole
    history. A forward pass that raises leaves the cache as it was before; only the pages that its rows took stay with
    their slots. Where that is impossible, because the device failed, a call of it was interrupted, or the pass's mask
    had dropped rows, the cache is broken: it refuses further use until `reset`.
    """

    def __init__(
        self,
        engine: SharedEngine,
        *,
        layers: int,
        calibration: Calibration | None,
        cache_format: CacheFormat,
        tally: Tally,
        recurrent: Mapping[int, LayerPlan] | None = None,
    ) -> None:
        """`layers` counts all layers of the model, `recurrent` tells which of them hold states, and how."""
        self.state = SlotState(engine=engine, calibration=calibration, cache_format=cache_format, tally=tally)
        self._states: list[StateLayer] = []
        if recurrent:
            assert engine.states is not None, "the attachment refuses an engine without recurrent states"
            store = StateStore(engine=engine.states)
            self._states = [StateLayer(store, index, plan) for index, plan in recurrent.items()]
            self._state_finalizer = weakref.finalize(self, engine.states.discard, store.groups)
            self._state_finalizer.atexit = False
        held: dict[int, Any] = {layer.index: layer for layer in self._states}
        slots = [index for index in range(layers) if index not in held]
        held |= {index: SlotLayer(self.state, number) for number, index in enumerate(slots)}
        super().__init__(layers=[held[index] for index in range(layers)])
        self._incoming: NDArray[np.int64] | None = None
        self._before = self.checkpoint()
        # The layers do not refer to this object, so `del` runs the finaliser at once, which only notes the slots.
        self._finalizer = weakref.finalize(self, engine.discard, self.state.slots)
        self._finalizer.atexit = False

    @property
    def token_counts(self) -> list[int]:
        """Stored tokens of each sequence, without padding."""
        return [int(count) for count in self.state.valid.sum(axis=1)]

    @property
    def sequences(self) -> int:
        """Sequences of the batch; 0 before the first forward pass."""
        return int(self.state.valid.shape[0])

    def begin_forward(
        self, input_ids: torch.Tensor | None, given: torch.Tensor | None = None, mask: torch.Tensor | None = None
    ) -> None:
        """Called before a forward pass with the ids it will process (None where embeddings are passed).

        `given`: these, or the embeddings; `mask`: the pass's attention mask.
        """
        self.state.check()
        if self._states and input_ids is not None and self.sequences not in (0, len(input_ids)):
            # else the convolution, which comes before anything of ours, would fail with a sentence of torch's
            raise other_batch(len(input_ids), self.sequences)
        self.state.plan = None
        self._before = self.checkpoint()
        self._incoming = None if input_ids is None else input_ids.detach().cpu().numpy()
        if given is not None and all(self.is_linear):
            self._plan_states(len(given), given.shape[1], mask)

    def _plan_states(self, batch: int, new: int, mask: torch.Tensor | None) -> None:
        """The plan of a pass through recurrent layers only: these do not ask for one, and transformers gives a step
        that follows another no mask.
        """
        stored = self.state.valid
        if mask is None:
            past = stored if len(stored) else np.ones((batch, 0), np.bool_)
            mask = torch.from_numpy(np.concatenate([past, np.ones((batch, new), np.bool_)], axis=1))
        plan = self.state.plan_for(stored.shape[1], batch, new, mask.to(torch.bool))
        if plan.drops:
            self._states[0].crop(-1)

    def end_forward(self) -> None:
        """Called after a forward pass that returned."""
        state, new = self.state, self._incoming
        if state.plan is not None:
            state.valid = state.plan.valid  # as the layers with slots have it already
        past = state.plan.past if state.plan is not None else 0
        if new is None or (past and state.ids is None):
            state.ids = None
        else:
            state.ids = new.copy() if state.ids is None else np.concatenate([state.ids, new], axis=1)
        state.tally.add(state.counted)
        state.counted = Tally()

    def abandon_forward(self, error: BaseException) -> None:
        """Called after a forward pass that raised `error`: take back what it stored, or break the cache."""
        state, before = self.state, self._before
        state.counted = Tally()
        state.fault = state.fault or next((layer.store.fault for layer in self._states), None)
        if state.fault is not None:
            return
        state.fault = ended_early(error)  # stays if going back, too, ends early
        if state.valid is not before.valid and state.plan is not None and state.plan.drops:
            state.fault += " after it had dropped rows"
            return
        with contextlib.suppress(StatecellError):
            self.go_back(before)
            state.fault = None

    def checkpoint(self) -> Checkpoint:
        """The cache as it is now, for `go_back`."""
        return Checkpoint(valid=self.state.valid, ids=self.state.ids, states=[x.remember() for x in self._states])

    def go_back(self, before: Checkpoint) -> None:
        """The cache as it was at a checkpoint; only the pages that later rows took stay with their slots."""
        if not len(before.valid):
            self.reset()
            return
        self._shorten(before.valid, before.ids)
        for layer, remembered in zip(self._states, before.states, strict=True):
            layer.go_back(remembered)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions of the sequences, padding among them."""
        return super().get_seq_length(layer_idx) if not all(self.is_linear) else int(self.state.valid.shape[1])

    def check_history(self, input_ids: torch.Tensor) -> None:
        """Raise CacheStateError unless the whole history `input_ids` [B, n] begins with the ids stored here."""
        past = self.get_seq_length()
        ids = input_ids.detach().cpu().numpy()
        if ids.shape[1] <= past:
            raise CacheStateError(
                f"the cache holds {past} tokens and the input has {ids.shape[1]}, so nothing new is left to process; "
                "pass the whole history and new tokens, or only the new ids together with an attention_mask over the "
                "whole history"
            )
        if self.state.ids is None or ids.shape[0] != self.state.ids.shape[0]:
            return
        differs = (ids[:, :past] != self.state.ids) & self.state.valid
        if differs.any():
            sequence, position = (int(i) for i in np.argwhere(differs)[0])
            raise CacheStateError(
                f"the input differs from the cached history at token {position} of sequence {sequence}, so stored "
                "rows would be reused for other text; crop the cache to the part that is unchanged, or start a new one"
            )

    def repeats_history(self, input_ids: torch.Tensor) -> bool:
        """Whether the input is longer than the stored history and begins with it."""
        ids, past = self.state.ids, self.get_seq_length()
        if ids is None or past == 0 or input_ids.shape[0] != ids.shape[0] or input_ids.shape[1] <= past:
            return False
        return bool((input_ids[:, :past].detach().cpu().numpy() == ids).all())

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the last `-tokens_to_remove` positions of every sequence.

        Raises UnsupportedError where the model has recurrent states.
        """
        if tokens_to_remove > 0:
            raise ValueError(
                f"crop takes a negative count of tokens to remove, got {tokens_to_remove}; pass {-tokens_to_remove}"
            )
        state = self.state
        state.check()
        if tokens_to_remove == 0 or not state.valid.shape[1]:
            return
        for layer in self._states:
            layer.crop(tokens_to_remove)
        state.fault = "cropping it did not finish"
        self._shorten(
            state.valid[:, :tokens_to_remove], None if state.ids is None else state.ids[:, :tokens_to_remove]
        )
        state.fault = None

    def _shorten(self, valid: NDArray[np.bool_], ids: NDArray[np.int64] | None) -> None:
        """Go back to the first positions, of which `valid` and `ids` are the map of tokens and their ids."""
        state = self.state
        state.valid, state.ids, state.plan = valid, ids, None
        for layer in self._slot_layers():
            layer.pending, layer.positions = None, valid.shape[1]
            for slots, tokens in zip(layer.slots, self.token_counts, strict=True):
                for slot in slots:
                    if state.engine.length(slot) > tokens:
                        state.engine.truncate(slot, tokens)

    def reset(self) -> None:
        """Forget everything: the slots are freed and the cache is as new, a broken one too."""
        self.state.engine.free(list(self.state.slots))
        self.state.slots.clear()
        for layer in self._slot_layers():
            layer.reset()
        for state_layer in self._states:
            state_layer.reset()
            state_layer.store.fault = None
        self.state.valid = np.zeros((0, 0), np.bool_)
        self.state.ids, self.state.plan, self.state.fault = None, None, None
        self._incoming = None

    def close(self) -> None:
        """Give the slots back now. A second call does nothing, any other use afterwards raises CacheStateError."""
        self.reset()
        self.state.fault = "it is closed"

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Refuse to copy stored rows."""
        self._refuse_batch_change("batch_repeat_interleave")

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Refuse to drop or copy sequences."""
        self._refuse_batch_change("batch_select_indices")

    def _refuse_batch_change(self, what: str) -> None:
        if self.sequences:
            raise UnsupportedError(
                f"{what} would copy stored rows between sequences, which slots do not allow; start a new cache"
            )

    def _slot_layers(self) -> list[SlotLayer]:
        return [layer for layer in self.layers if isinstance(layer, SlotLayer) and layer.is_initialized]
