"""The engine that runs on the integer model: what the device would answer, bit for bit, at PyTorch speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from statecell.link.errors import LinkError
from statecell.model import integer
from statecell.model.rows import Rows
from statecell.runtime.engine import Append, Attend, Attended
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.tokens import TokenMap
from statecell.spec import formats
from statecell.spec.commands import COUNTER_FIELDS, Counters
from statecell.spec.geometry import Geometry

_QUERIES = 384
"""Queries of one vectorised pass: bounds memory, and lets causal prefill skip rows that nobody sees yet."""


class _Slot:
    def __init__(self) -> None:
        self.tokens = TokenMap()
        self.keys: Rows | None = None
        self.values: Rows | None = None


class ModelEngine:
    """Engine over the integer model, with as many slots and rows as memory holds.

    ``zero_point`` stores 4-bit rows in zero-point groups (needs a geometry with zero points). Rows and passes are
    counted as the device counts them; cycles stay 0.
    """

    def __init__(self, geometry: Geometry, *, zero_point: bool = False) -> None:
        self._geometry = geometry
        self._zero_point = zero_point
        self._slots: dict[int, _Slot] = {}
        self._next = 0
        self._closed = False
        self._states = ModelStates(geometry)
        self._counters = Counters(**dict.fromkeys(COUNTER_FIELDS, 0))

    @property
    def head_dim(self) -> int:
        """Lanes d of a row."""
        return self._geometry.head_dim

    @property
    def lanes(self) -> int:
        """Queries that one pass of the device serves."""
        return self._geometry.lanes

    @property
    def states(self) -> ModelStates:
        """Recurrent states, in the integer model too."""
        return self._states

    def open_slots(self, count: int) -> list[int]:
        """Open empty slots. Raises LinkError if the engine is closed, as every call below does."""
        self._check_open()
        slots = list(range(self._next, self._next + count))
        self._next += count
        self._slots.update({s: _Slot() for s in slots})
        return slots

    def free_slots(self, slots: Sequence[int]) -> None:
        """Drop slots."""
        for s in slots:
            self._slot(s)
            del self._slots[s]

    def length(self, slot: int) -> int:
        """Tokens stored in a slot."""
        return len(self._slot(slot).tokens)

    def truncate(self, slot: int, tokens: int) -> None:
        """Keep the first ``tokens`` tokens."""
        state = self._slot(slot)
        state.tokens.truncate(tokens)
        kept = slice(0, state.tokens.rows)
        if state.keys is not None and state.values is not None:
            state.keys, state.values = state.keys.take(kept), state.values.take(kept)

    def check_room(self, rows: Mapping[int, int]) -> None:
        """Nothing to check: there is room as long as memory lasts."""

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        """Do the items in order."""
        results: list[Attended | None] = []
        for item in items:
            if isinstance(item, Append):
                self._append(item)
                results.append(None)
            else:
                results.append(self._attend(item))
        return results

    def counters(self) -> Counters:
        """Rows and passes so far, those of recurrent states too."""
        c, states = self._counters, self._states.counters()
        return replace(c, key_rows=c.key_rows + states.rows_read // 2, value_rows=c.value_rows + states.rows_read // 2,
                       rows_written=c.rows_written + states.rows_written)

    def rows(self, slot: int) -> tuple[Rows, Rows]:
        """Key rows and value rows stored in a slot. Raises ValueError for a slot without rows."""
        state = self._slot(slot)
        if state.keys is None or state.values is None:
            raise ValueError(f"slot {slot} holds no rows; append first")
        return state.keys, state.values

    def bounds(self, item: Attend) -> tuple[torch.Tensor, torch.Tensor]:
        """Start and end rows of an Attend's queries, int64 [L]."""
        tokens = self._slot(item.slot).tokens
        return torch.from_numpy(tokens.row(item.start)), torch.from_numpy(tokens.row(item.end))

    def close(self) -> None:
        """Drop everything; afterwards every call that needs a slot is refused."""
        self._slots.clear()
        self._closed = True

    def _append(self, item: Append) -> None:
        state = self._slot(item.slot)
        state.tokens.append(len(item.k), wide=item.wide)
        zero_point = self._zero_point and not item.wide
        new = [integer.store(torch.from_numpy(x).long(), self._geometry, wide=item.wide, zero_point=zero_point)
               for x in (item.k, item.v)]
        state.keys = new[0] if state.keys is None else Rows.concatenate([state.keys, new[0]])
        state.values = new[1] if state.values is None else Rows.concatenate([state.values, new[1]])
        self._counters = replace(self._counters, rows_written=self._counters.rows_written + 2 * len(new[0]))

    def _attend(self, item: Attend) -> Attended:
        keys, values = self.rows(item.slot)
        start, end = self.bounds(item)
        shift = formats.score_shift(item.shift, self.head_dim)
        vectors, block = [], []
        rows = 0
        for i in range(0, len(item.q), _QUERIES):
            part = slice(i, i + _QUERIES)
            seen = slice(int(start[part].min()), int(end[part].max()))
            answer = integer.attend(
                torch.from_numpy(np.ascontiguousarray(item.q[part])).long(), keys.take(seen),
                values.take(seen), start[part] - seen.start, end[part] - seen.start, shift, self._geometry)
            vectors.append(answer.vectors)
            block.append(answer.block)
        for i in range(0, len(item.q), self.lanes):
            rows += int(end[i:i + self.lanes].max() - start[i:i + self.lanes].min())
        c = self._counters
        self._counters = replace(c, key_rows=c.key_rows + rows, value_rows=c.value_rows + rows,
                                 passes=c.passes + -(-len(item.q) // self.lanes))
        return Attended(out=torch.cat(vectors).numpy().astype(np.int16),
                        exponent=torch.cat(block).numpy() + formats.output_exponent(0, self.head_dim))

    def _check_open(self) -> None:
        if self._closed:
            raise LinkError("The engine is closed: open a new one.")

    def _slot(self, slot: int) -> _Slot:
        self._check_open()
        return self._slots[slot]
