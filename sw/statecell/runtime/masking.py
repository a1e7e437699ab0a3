"""Which stored tokens a query sees.

transformers builds one mask per forward pass and kind of layer. The mask function here keeps it two-dimensional (which
of the padded positions are tokens) and notes the window; a `Plan` then turns it into token ranges of each sequence's
slots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

from statecell.runtime.errors import CacheStateError, UnsupportedError

_WINDOW = "statecell_window"
Selection = tuple[slice, slice | NDArray[np.int64]]


def slot_mask(
    batch_size: int,
    kv_length: int,
    mask_function: Callable = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device: torch.device | None = None,
    **_: Any,
) -> torch.Tensor:
    """The mask of a forward pass: bool [batch, padded length], True where a position is a token.

    Carries the sliding window as an attribute (see `window_of`). Raises UnsupportedError for any mask function but the
    causal one and the causal one with a sliding window.
    """
    window = _window(mask_function)
    if attention_mask is None:
        mask = torch.ones((batch_size, kv_length), dtype=torch.bool, device=device)
    else:
        mask = attention_mask.to(torch.bool).view(attention_mask.shape)  # a new object: the caller's gets no attribute
    setattr(mask, _WINDOW, window)
    return mask


def window_of(mask: torch.Tensor | None, sliding_window: int | None) -> int | None:
    """Window of a layer call: the mask's, as in the other attention implementations; without a mask, the argument."""
    window: int | None = getattr(mask, _WINDOW, sliding_window)
    return window


def _window(mask_function: Callable) -> int | None:
    if mask_function is causal_mask_function:
        return None
    # The sliding function is a closure over (overlay closure over the window, causal function): compare its code
    # objects.
    if _code(mask_function) is _code(sliding_window_causal_mask_function(1)):
        parts = _cells(mask_function).get("mask_functions", ())
        if len(parts) == 2 and parts[1] is causal_mask_function:
            window = _cells(parts[0]).get("sliding_window")
            if isinstance(window, int) and _code(parts[0]) is _code(_overlay(sliding_window_causal_mask_function(1))):
                return window
    raise UnsupportedError(
        f"the model asks for a mask of kind {getattr(mask_function, '__qualname__', mask_function)}, the engine knows "
        "the "
        "causal mask and the causal sliding window; packed, chunked, bidirectional and blockwise masks are not "
        "supported"
    )


def _overlay(sliding: Callable) -> Callable:
    part: Callable = _cells(sliding)["mask_functions"][0]
    return part


def _code(function: Callable) -> object:
    return getattr(function, "__code__", None)


def _cells(function: Any) -> dict[str, Any]:
    names = function.__code__.co_freevars
    return {name: cell.cell_contents for name, cell in zip(names, function.__closure__ or (), strict=True)}


class Plan:
    """What one forward pass appends and sees, computed once and used by every layer.

    `past` and `new` count padded positions. `take` [B, new] tells which new positions are tokens, `keep[b]` is the
    number of stored tokens of sequence b that remain: fewer than stored where the mask now hides the last ones, as
    it does after a batch in which one sequence ended early. `valid` [B, past + new] is the resulting map of tokens.

    Raises CacheStateError where the mask does not fit the stored tokens.
    """

    def __init__(self, stored: NDArray[np.bool_], new: int, mask: torch.Tensor | None) -> None:
        batch, self.past = stored.shape
        self.new = new
        self.keep: list[int | None] = [None] * batch
        if mask is None:
            self.valid = np.ones((batch, self.past + new), np.bool_)
        else:
            if tuple(mask.shape) != (batch, self.past + new):
                raise CacheStateError(
                    f"the attention mask has shape {tuple(mask.shape)}, but the cache holds {self.past} positions of "
                    f"{batch} sequences and {new} are new; pass a mask of shape ({batch}, {self.past + new}) over the "
                    "whole history"
                )
            self.valid = mask.detach().cpu().numpy().copy()
        self._fit(stored)
        self.take = self.valid[:, self.past :]
        # tokens[b, p]: tokens of sequence b before padded position p
        self._tokens = np.zeros((batch, self.past + new + 1), np.int64)
        np.cumsum(self.valid, axis=1, out=self._tokens[:, 1:])
        self.selections: list[Selection]
        if self.take.all():
            self.selections = [(slice(0, batch), slice(0, new))]
        else:
            columns = [np.flatnonzero(row) for row in self.take]
            self.selections = [(slice(b, b + 1), column) for b, column in enumerate(columns) if column.size]
        self._ranges: dict[tuple[int, int, int | None], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def _fit(self, stored: NDArray[np.bool_]) -> None:
        seen = self.valid[:, : self.past]
        if (seen == stored).all():
            return
        if (seen & ~stored).any():
            raise CacheStateError(
                "the attention mask shows positions that were padding when they were processed, so no row was stored "
                "for them; pass the mask of the whole history with the padding of the earlier turns still 0"
            )
        for b in np.flatnonzero((seen != stored).any(axis=1)):
            kept = int(seen[b].sum())
            places = np.flatnonzero(stored[b])
            if seen[b, places[kept:]].any():
                raise CacheStateError(
                    f"the attention mask hides tokens in the middle of sequence {b}, but only its last tokens can be "
                    "dropped; pass the mask of the earlier turns, or start a new cache"
                )
            self.keep[int(b)] = kept

    @property
    def drops(self) -> bool:
        """Whether it removes stored tokens."""
        return any(keep is not None for keep in self.keep)

    def first_is_new(self, sequence: int) -> bool:
        """Whether this pass brings the first token of a sequence."""
        return not self._tokens[sequence, self.past] and bool(self.take[sequence].any())

    def ranges(self, sequence: int, group: int, window: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Start and end, int64 [tokens * group], of the queries of a sequence: `group` adjacent rows per token."""
        key = (sequence, group, window)
        if key not in self._ranges:
            after = self.past + 1 + np.flatnonzero(self.take[sequence])
            end = self._tokens[sequence, after]
            first = np.zeros_like(after) if window is None else np.maximum(after - window, 0)
            start = self._tokens[sequence, first]
            self._ranges[key] = (np.repeat(start, group), np.repeat(end, group))
        return self._ranges[key]
