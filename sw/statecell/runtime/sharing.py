"""One engine used by several caches and threads."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode
from statecell.runtime.engine import Append, Attend, Attended, Engine
from statecell.runtime.recurrent.engine import StateCounters, StateEngine, StateShape
from statecell.runtime.recurrent.scales import ScaleSource
from statecell.spec.geometry import Geometry


class SharedStates:
    """An engine's recurrent states behind the engine's lock, with groups that can be discarded at any moment."""

    def __init__(self, states: StateEngine, lock: threading.RLock) -> None:
        self._states, self._lock = states, lock
        self._discarded: deque[list[int]] = deque()

    @property
    def geometry(self) -> Geometry:
        """Of the array that holds the state rows."""
        return self._states.geometry

    def check_modes(self, modes: Sequence[Mode], shape: StateShape) -> None:
        """Raise UnsupportedError for modes that the engine does not keep."""
        self._states.check_modes(modes, shape)

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int],
                    feedback: Sequence[int] | None = None) -> int:
        """Open a group, after freeing the discarded ones."""
        with self._lock:
            while self._discarded:
                self._states.free_states(self._discarded.popleft())
            return self._states.open_states(modes, shape, shift, feedback)

    def free_states(self, groups: Sequence[int]) -> None:
        """Free groups at once."""
        with self._lock:
            self._states.free_states(groups)

    def discard(self, groups: list[int]) -> None:
        """Note groups to be freed later; safe in a finaliser. Empties the list, so that no group is freed twice."""
        self._discarded.append(list(groups))
        groups.clear()

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        """Take tokens as one uninterrupted batch."""
        with self._lock:
            return self._states.step(group, tokens, scales)

    def recalibrate(self, group: int) -> None:
        """New scales for a group."""
        with self._lock:
            self._states.recalibrate(group)

    def snapshot(self, group: int) -> Any:
        """A snapshot."""
        with self._lock:
            return self._states.snapshot(group)

    def restore(self, group: int, snapshot: Any) -> None:
        """Back to a snapshot."""
        with self._lock:
            self._states.restore(group, snapshot)

    def counters(self) -> StateCounters:
        """Totals so far."""
        with self._lock:
            return self._states.counters()


class SharedEngine:
    """An engine behind a lock, with slots that can be discarded at any moment.

    `generate` may run in a streamer's thread, and a cache may be garbage-collected in any thread, even in the middle of
    an engine call. `discard` therefore only notes the slots; the next `open` or `run` frees them.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.head_dim = engine.head_dim
        self._lock = threading.RLock()
        self.states = None if engine.states is None else SharedStates(engine.states, self._lock)
        self._discarded: deque[list[int]] = deque()

    def open(self, count: int) -> list[int]:
        """Open `count` slots, after freeing the discarded ones."""
        with self._lock:
            self._free_discarded()
            return self.engine.open_slots(count)

    def free(self, slots: Sequence[int]) -> None:
        """Free slots at once."""
        with self._lock:
            self.engine.free_slots(slots)

    def discard(self, slots: dict[int, int]) -> None:
        """Note slots (the keys) to be freed later; safe in a finaliser. Empties it, so that no slot is freed twice."""
        self._discarded.append(list(slots))
        slots.clear()

    def length(self, slot: int) -> int:
        """Tokens stored in a slot."""
        with self._lock:
            return self.engine.length(slot)

    def truncate(self, slot: int, tokens: int) -> None:
        """Keep the first `tokens` tokens of a slot."""
        with self._lock:
            self.engine.truncate(slot, tokens)

    def check_room(self, rows: Mapping[int, int]) -> None:
        """Raise ArrayFullError unless so many more rows fit into each of these slots."""
        with self._lock:
            self._free_discarded()
            self.engine.check_room(rows)

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        """Run items as one uninterrupted batch."""
        with self._lock:
            if self._discarded:
                self._free_discarded()
            return self.engine.run(items)

    def _free_discarded(self) -> None:
        while self._discarded:
            slots = self._discarded.popleft()
            if slots:
                self.engine.free_slots(slots)


_shared: weakref.WeakValueDictionary[int, SharedEngine] = weakref.WeakValueDictionary()


def share(engine: Engine) -> SharedEngine:
    """The one `SharedEngine` of an engine. It keeps the engine alive, so the identity it is filed under stays valid."""
    shared = _shared.get(id(engine))
    if shared is None:
        shared = SharedEngine(engine)
        _shared[id(engine)] = shared
    return shared
