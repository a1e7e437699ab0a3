"""The engine that runs on a device: pages, tokens to rows, passes of M query lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from statecell.device import ArrayFullError, Device, append_request, attend_request, attention, map_request
from statecell.link.framing import Request
from statecell.runtime.engine import Append, Attend, Attended
from statecell.runtime.places import Places
from statecell.runtime.recurrent.device_states import DeviceStates
from statecell.runtime.tokens import TokenMap
from statecell.spec import formats, frame
from statecell.spec.commands import Counters, Flag, Opcode, Status

_APPEND_TOKENS = 64
"""Most tokens of one APPEND frame: 16 KiB at head_dim 64. On a serial link two frames fit in the device's queue."""


class _Slot:
    def __init__(self) -> None:
        self.tokens = TokenMap()
        self.pages: list[int] = []


class DeviceEngine:
    """Engine over a Device, which it owns the slots and pages of; ``close`` closes the device.

    Raises what Device raises. ArrayFullError is raised before anything is sent when an append does not fit.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._geometry = device.geometry
        token_bytes = 2 * device.geometry.head_dim * formats.VECTOR_BITS // 8
        queue = device.info.request_bytes or 2 * _APPEND_TOKENS * token_bytes
        self._append_tokens = max(1, min(_APPEND_TOKENS, (queue // 2 - 2 * frame.BLOCK) // token_bytes))
        device.reset()
        self._slots: dict[int, _Slot] = {}
        self._places = Places(self._geometry)
        self._states = DeviceStates(device, self._places) if self._geometry.states else None

    @property
    def head_dim(self) -> int:
        """Lanes d of a row."""
        return self._geometry.head_dim

    @property
    def lanes(self) -> int:
        """Queries that one pass serves."""
        return self._geometry.lanes

    @property
    def states(self) -> DeviceStates | None:
        """The recurrent states that the device keeps; None for a device built without."""
        return self._states

    def open_slots(self, count: int) -> list[int]:
        """Open empty slots; ArrayFullError if the device has no ``count`` slots left."""
        slots = self._places.take_slots(count)
        self.device.require([Request(opcode=Opcode.OPEN, slot=s) for s in slots])
        self._slots.update({s: _Slot() for s in slots})
        return slots

    def free_slots(self, slots: Sequence[int]) -> None:
        """Close slots and take their pages back."""
        self.device.require([Request(opcode=Opcode.FREE, slot=s) for s in slots])
        for s in slots:
            self._places.give_pages(s % self._geometry.tiles, self._slots.pop(s).pages)
        self._places.give_slots(list(slots))

    def length(self, slot: int) -> int:
        """Tokens stored in a slot."""
        return len(self._slots[slot].tokens)

    def truncate(self, slot: int, tokens: int) -> None:
        """Keep the first ``tokens`` tokens; the slot keeps its pages."""
        state = self._slots[slot]
        state.tokens.truncate(tokens)
        self.device.truncate(slot, state.tokens.rows)

    def check_room(self, rows: Mapping[int, int]) -> None:
        """Raise ArrayFullError unless so many more rows fit into each of these slots."""
        self._missing_pages({s: self._slots[s].tokens.rows + more for s, more in rows.items()})

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        """Do the items in order, in one pipelined exchange."""
        pages = self._allocate(items)
        requests: list[Request] = []
        spans: list[tuple[int, int]] = []
        for item in items:
            first = len(requests)
            if isinstance(item, Append):
                if pages.get(item.slot):
                    requests.append(map_request(item.slot, pages.pop(item.slot)))
                self._append(item, requests)
            else:
                self._attend(item, requests)
            spans.append((first, len(requests)))
        responses = self.device.require(requests)
        results: list[Attended | None] = []
        for item, (first, end) in zip(items, spans, strict=True):
            if isinstance(item, Append):
                results.append(None)
                continue
            parts = [attention(responses[i], requests[i].count, self.head_dim) for i in range(first, end)]
            block = np.concatenate([p.block for p in parts])
            results.append(Attended(out=np.concatenate([p.out for p in parts]),
                                    exponent=block + formats.output_exponent(0, self.head_dim)))
        return results

    def counters(self) -> Counters:
        """The device's counters since it was opened."""
        return self.device.counters()

    def close(self) -> None:
        """Close the device."""
        self.device.close()

    def _allocate(self, items: Sequence[Append | Attend]) -> dict[int, list[int]]:
        """Pages that the appends need, taken from the free lists; nothing is taken if they do not all fit."""
        rows: dict[int, int] = {}
        for item in items:
            if isinstance(item, Append):
                held = rows.get(item.slot, self._slots[item.slot].tokens.rows)
                rows[item.slot] = held + len(item.k) * (2 if item.wide else 1)
        tiles = self._geometry.tiles
        taken = {s: self._places.take_pages(s % tiles, n) for s, n in self._missing_pages(rows).items()}
        for s, new in taken.items():
            self._slots[s].pages.extend(new)
        return taken

    def _missing_pages(self, rows: Mapping[int, int]) -> dict[int, int]:
        """Pages that slots lack for this many rows in all, where they lack some. Raises ArrayFullError."""
        g = self._geometry
        need = {s: max(0, -(-r // g.page_rows) - len(self._slots[s].pages)) for s, r in rows.items()}
        wanted = [sum(n for s, n in need.items() if s % g.tiles == tile) for tile in range(g.tiles)]
        for tile in range(g.tiles):
            free = self._places.free_pages(tile)
            if wanted[tile] > free:
                raise ArrayFullError(
                    f"the array is full: {wanted[tile]} more pages of {g.page_rows} rows are needed in tile {tile} and "
                    f"{free} of {g.pages} are free; shorten the text, free other sequences, or use a "
                    "configuration with more rows", Status.FULL)
        longest = max(rows.values(), default=0)
        if longest > g.slot_rows:
            raise ArrayFullError(f"a sequence would need {longest} rows and a slot holds at most {g.slot_rows}; "
                                 "shorten the text or use a configuration with more pages per slot", Status.FULL)
        return {s: n for s, n in need.items() if n}

    def _append(self, item: Append, requests: list[Request]) -> None:
        flags = Flag.WIDE if item.wide else 0
        for i in range(0, len(item.k), self._append_tokens):
            part = slice(i, i + self._append_tokens)
            requests.append(append_request(item.slot, item.k[part], item.v[part], flags))
        self._slots[item.slot].tokens.append(len(item.k), wide=item.wide)

    def _attend(self, item: Attend, requests: list[Request]) -> None:
        tokens = self._slots[item.slot].tokens
        start, end = tokens.row(item.start), tokens.row(item.end)
        shift = formats.score_shift(item.shift, self.head_dim)
        for i in range(0, len(item.q), self.lanes):
            part = slice(i, i + self.lanes)
            requests.append(attend_request(item.slot, item.q[part], start[part], end[part], shift))
