"""One engine used by several caches and threads."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence

from statecell.runtime.engine import Append, Attend, Attended, Engine


class SharedEngine:
    """An engine behind a lock, with slots that can be discarded at any moment.

    `generate` may run in a streamer's thread, and a cache may be garbage-collected in any thread, even in the middle of
    an engine call. `discard` therefore only notes the slots; the next `open` or `run` frees them.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.head_dim = engine.head_dim
        self._lock = threading.RLock()
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
