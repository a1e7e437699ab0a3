"""An engine that keeps the 16-bit integers as they are and computes exact attention over them in float64.

With it the glue alone is under test: whatever differs from sdpa beyond 16-bit rounding is a fault of the glue.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from statecell.device import ArrayFullError
from statecell.runtime.engine import Append, Attend, Attended
from statecell.runtime.quantise import log2_score
from statecell.runtime.recurrent.engine import StateEngine
from statecell.spec.commands import COUNTER_FIELDS, Counters, Status


class ExactEngine:
    def __init__(self, head_dim: int, capacity: int = 1 << 30, lanes: int = 4) -> None:
        self.head_dim = head_dim
        self.lanes = lanes
        self.capacity = capacity
        self.rows: dict[int, tuple[NDArray, NDArray]] = {}  # slot -> k, v as float64 [n, d]
        self.wide: dict[int, list[bool]] = {}
        self.runs: list[int] = []  # items of each call
        self.truncations = 0
        self.states: StateEngine | None = None
        self._next = 0

    def open_slots(self, count: int) -> list[int]:
        slots = list(range(self._next, self._next + count))
        self._next += count
        for slot in slots:
            self.rows[slot] = (np.zeros((0, self.head_dim)), np.zeros((0, self.head_dim)))
            self.wide[slot] = []
        return slots

    def free_slots(self, slots: Sequence[int]) -> None:
        for slot in slots:
            del self.rows[slot], self.wide[slot]

    def length(self, slot: int) -> int:
        return len(self.rows[slot][0])

    def truncate(self, slot: int, tokens: int) -> None:
        self.truncations += 1
        k, v = self.rows[slot]
        assert tokens <= len(k)
        self.rows[slot] = (k[:tokens], v[:tokens])
        del self.wide[slot][tokens:]

    def check_room(self, rows: Mapping[int, int]) -> None:
        if sum(len(k) for k, _ in self.rows.values()) + sum(rows.values()) > self.capacity:
            raise ArrayFullError("the array is full", Status.FULL)

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        self.runs.append(len(items))
        results: list[Attended | None] = []
        for item in items:
            if isinstance(item, Append):
                self._append(item)
                results.append(None)
            else:
                results.append(self._attend(item))
        return results

    def counters(self) -> Counters:
        return Counters(**dict.fromkeys(COUNTER_FIELDS, 0))

    def close(self) -> None:
        self.rows.clear()

    def _append(self, item: Append) -> None:
        assert item.k.dtype == item.v.dtype == np.int16
        assert item.k.shape == item.v.shape == (len(item.k), self.head_dim)
        assert len(item.k) > 0
        if sum(len(k) for k, _ in self.rows.values()) + len(item.k) > self.capacity:
            raise ArrayFullError("the array is full", Status.FULL)
        k, v = self.rows[item.slot]
        self.rows[item.slot] = (np.concatenate([k, item.k]), np.concatenate([v, item.v]))
        self.wide[item.slot] += [item.wide] * len(item.k)

    def _attend(self, item: Attend) -> Attended:
        assert item.q.dtype == np.int16
        assert item.start.dtype == item.end.dtype == np.int64
        k, v = self.rows[item.slot]
        assert (item.start >= 0).all() and (item.start < item.end).all() and (item.end <= len(k)).all()
        score = log2_score(item.q.astype(np.float64) @ k.T, item.shift)
        index = np.arange(len(k))
        hidden = (index < item.start[:, None]) | (index >= item.end[:, None])
        score[hidden] = -np.inf
        weight = np.exp2(score - score.max(axis=1, keepdims=True))
        value = weight @ v / weight.sum(axis=1, keepdims=True)
        # int16 with one exponent per query, as the device returns it
        largest = np.abs(value).max(axis=1)
        exponent = np.where(largest > 0, np.frexp(largest)[1] - 15, 0)
        out = np.clip(np.rint(np.ldexp(value, -exponent[:, None])), -32767, 32767)
        return Attended(out=out.astype(np.int16), exponent=exponent.astype(np.int32))
