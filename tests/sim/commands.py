"""Random command traffic for a golden device: mostly sound, now and then refused, ranges on token boundaries."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from statecell.link.framing import Request
from statecell.model import integer
from statecell.model.rows import pack
from statecell.spec import frame
from statecell.spec.commands import Flag, Opcode
from statecell_sim.golden import GoldenDevice

WEIGHTS = {
    Opcode.INFO: 1, Opcode.COUNTERS: 1, Opcode.OPEN: 4, Opcode.FREE: 1, Opcode.MAP: 6, Opcode.TRUNCATE: 3,
    Opcode.APPEND: 20, Opcode.ATTEND: 40, Opcode.READ_ROWS: 5, Opcode.WRITE_ROWS: 2,
}


class Traffic:
    """Requests that suit the state of ``golden``; each slot has pages of its own, so no two slots share a row."""

    def __init__(self, golden: GoldenDevice, seed: int) -> None:
        self.golden = golden
        self.g = golden.g
        self.rng = np.random.default_rng(seed)

    def vectors(self, count: int) -> NDArray[np.int16]:
        """Vectors [count, d] of a random size; at times all zero or all at one extreme."""
        kind = self.rng.integers(8)
        shape = (count, self.g.head_dim)
        if kind == 0:
            return np.zeros(shape, np.int16)
        if kind == 1:
            return np.full(shape, self.rng.choice([-32767, 32767, -32768, 5]), np.int16)
        spread = self.rng.choice([1, 30, 1000, 20000, 32767])
        return self.rng.normal(0, spread / 3, shape).clip(-32767, 32767).astype(np.int16)

    def next(self) -> Request:
        """One more request."""
        rng = self.rng
        names, weights = zip(*WEIGHTS.items(), strict=True)
        opcode = names[rng.choice(len(names), p=np.array(weights) / sum(weights))]
        slot = int(rng.integers(self.g.slots)) if rng.random() < 0.98 else int(rng.integers(1 << 16))
        fields: dict[str, Any] = {"opcode": opcode, "slot": slot} | self._arguments(opcode, slot)
        if rng.random() < 0.02:
            fields["count"] = int(rng.choice([0, 1, 2, self.g.slot_rows + 1, 1 << 31]))
        if rng.random() < 0.02:
            fields["payload"] = fields.get("payload", b"") + bytes(16)
        return Request(**fields)

    def _arguments(self, opcode: Opcode, slot: int) -> dict[str, Any]:
        rng, g = self.rng, self.g
        state = self.golden.slots.get(slot)
        rows = state.rows if state else 3
        if opcode is Opcode.COUNTERS:
            return {"count": int(rng.integers(2))}
        if opcode is Opcode.TRUNCATE:
            return {"count": self._boundary(slot, int(rng.integers(rows + 2)))}
        if opcode is Opcode.MAP:
            return self._map(slot, len(state.pages) if state else 0)
        if opcode is Opcode.APPEND:
            count = int(rng.integers(1, 4))
            flags = int(rng.choice([0, 0, 0, Flag.WIDE, Flag.ZERO_POINT if g.zero_point else 0]))
            if rng.random() < 0.02:
                flags = int(rng.integers(256))
            tokens = np.stack([self.vectors(count) for _ in "kv"], 1)
            return {"count": count, "flags": flags, "payload": tokens.tobytes()}
        if opcode is Opcode.WRITE_ROWS:
            raw = [pack(integer.store(torch.from_numpy(self.vectors(1)).long(), g), g) for _ in "kv"]
            return {"count": 1, "payload": b"".join(raw)}
        if opcode is Opcode.READ_ROWS:
            first = int(rng.integers(max(rows, 1)))
            return {"first": first, "count": int(rng.integers(1, 9))}
        if opcode is Opcode.ATTEND:
            return self._attend(slot, rows if state else 3)
        return {}

    def _map(self, slot: int, held: int) -> dict[str, Any]:
        g = self.g
        own = g.pages // g.tile_slots
        count = int(self.rng.integers(1, 4))
        base = slot // g.tiles % g.tile_slots * own
        pages = [base + (held + i) * 5 % own if own % 5 else base + (held + i) % own for i in range(count)]
        if held + count > own:
            pages, count = [], 0
        elif self.rng.random() < 0.03:
            pages[0] = g.pages + 1
        return {"count": count, "payload": frame.pad(np.array(pages, "<u2").tobytes())}

    def _attend(self, slot: int, rows: int) -> dict[str, Any]:
        rng = self.rng
        count = int(rng.integers(1, self.g.lanes + 1))
        bounds = np.zeros((count, 2), "<u2")
        for i in range(count):
            end = int(rng.integers(1, rows + 1)) if rows else 1
            start = int(rng.integers(end)) if rng.random() < 0.5 else 0
            bounds[i] = self._boundary(slot, start, down=True), self._boundary(slot, end)
        if rng.random() < 0.03:
            bounds[rng.integers(count)] = [(9, 9), (9, 5), (0, 60000), (0, rows + 1)][rng.integers(4)]
        payload = frame.pad(bounds.tobytes()) + self.vectors(count).tobytes()
        return {"count": count, "shift": int(rng.integers(40)), "payload": payload}

    def _boundary(self, slot: int, row: int, *, down: bool = False) -> int:
        """``row``, or the next (previous) row if the row before it is the low plane of a token."""
        state = self.golden.slots.get(slot)
        while state and 0 < row <= state.rows and bool(self.golden.rows(slot, row - 1, row)[0].low[0]):
            row += -1 if down else 1
        return row


def damaged(data: bytes, link_bytes: int, rng: np.random.Generator) -> bytes:
    """A frame cut short, with one flipped bit behind the header, or with words too many."""
    words = len(data) // link_bytes
    kind = rng.integers(3)
    if kind == 0:
        return data[: link_bytes * int(rng.integers(1, words))]
    if kind == 1:
        bit = int(rng.integers(8 * frame.BLOCK, 8 * (len(data) - frame.trailer_bytes(link_bytes) + frame.CRC_BYTES)))
        return (int.from_bytes(data, "little") ^ 1 << bit).to_bytes(len(data), "little")
    return data + rng.bytes(link_bytes * int(rng.integers(1, 30)))
