"""What the transformers glue asks of an attention engine: a device, or the integer model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from statecell.runtime.recurrent.engine import StateEngine
from statecell.spec.commands import Counters


@dataclass(frozen=True, kw_only=True)
class Append:
    """Store n rows at the end of a slot.

    `k` and `v` are int16 [n, d] in units of the slot's key and value LSB, means already removed. `wide` stores the
    rows in 8 bits (two nibble planes) instead of 4.
    """

    slot: int
    k: NDArray[np.int16]
    v: NDArray[np.int16]
    wide: bool = False


@dataclass(frozen=True, kw_only=True)
class Attend:
    """Attention of L queries, int16 [L, d], over the rows of one slot.

    Query i sees the tokens `start[i] .. end[i] - 1` (token indices in the slot, int64 [L], `start < end`). The dot
    product of a query and a key, both as the integers given here, times `2**-shift` is the score in log2 units.
    """

    slot: int
    q: NDArray[np.int16]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    shift: int


@dataclass(frozen=True, kw_only=True)
class Attended:
    """Result of an `Attend`: `out` int16 [L, d] and `exponent` int [L]; value = out * 2**exponent value LSBs."""

    out: NDArray[np.int16]
    exponent: NDArray[np.signedinteger]


class Engine(Protocol):
    """Slots of key and value rows, and attention over them. Every method may raise the engine's own named errors."""

    @property
    def head_dim(self) -> int:
        """Lanes d of a row."""

    @property
    def lanes(self) -> int:
        """Queries that one pass over the rows serves; an `Attend` may hold more, the engine splits it."""

    @property
    def states(self) -> StateEngine | None:
        """Where recurrent states are kept; None where the engine keeps none."""

    def open_slots(self, count: int) -> list[int]:
        """Open `count` empty slots."""

    def free_slots(self, slots: Sequence[int]) -> None:
        """Give slots and their rows back."""

    def length(self, slot: int) -> int:
        """Tokens stored in a slot."""

    def truncate(self, slot: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of a slot."""

    def check_room(self, rows: Mapping[int, int]) -> None:
        """Raise `statecell.device.ArrayFullError` unless so many more rows fit into each of these slots.

        A token takes one row, or two where it is `wide`.
        """

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        """Do the items in order (pipelined where the engine can); one result each, None for an `Append`.

        Raises `statecell.device.ArrayFullError` where an append does not fit; rows may then have been appended to the
        items' slots, and `truncate` takes them back. What the slots hold after any other error is not known.
        """

    def counters(self) -> Counters:
        """Totals so far, rows of recurrent states among them."""

    def close(self) -> None:
        """End the engine; its slots are gone."""
