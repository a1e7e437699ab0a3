"""The device in software: what every command must answer, with numbers from the integer model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from statecell.link.framing import Request, Response
from statecell.model import integer
from statecell.model.rows import Rows, pack, unpack
from statecell.spec import frame
from statecell.spec.commands import FLAG_MASK, Flag, Opcode, Status
from statecell.spec.geometry import Geometry

_Run = Callable[[Request], tuple[int, bytes]]


def vector_bytes(x: Tensor) -> bytes:
    """Vectors as the link carries them, i16."""
    return x.numpy().astype("<i2").tobytes()


class Refused(Exception):
    """A command that the device must refuse."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


def _require(condition: bool, status: Status) -> None:
    if not condition:
        raise Refused(status)


@dataclass
class Slot:
    """An open slot: ``pages`` mapped, the rows of both banks."""

    keys: Rows
    values: Rows
    pages: list[int] = field(default_factory=list)

    def keep(self, count: int) -> None:
        """Keep the first ``count`` rows."""
        kept = slice(0, count)
        self.keys, self.values = self.keys.take(kept), self.values.take(kept)

    def add(self, keys: Rows, values: Rows) -> None:
        """Append rows."""
        self.keys, self.values = Rows.concatenate([self.keys, keys]), Rows.concatenate([self.values, values])


class ModelDevice:
    """Answers requests as the device must; INFO and COUNTERS are left to the bench.

    ``rows_written``, ``rows_read`` (of one bank) and ``passes`` count what the device's counters count. Rows of a slot
    are the slot's own: a bench maps no page twice.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.slots: dict[int, Slot] = {}
        self.rows_written = 0
        self.rows_read = 0
        self.passes = 0

    def answer(self, request: Request, sequence: int, *, damaged: bool = False) -> Response:
        """The response; ``damaged``: the CRC of the frame does not match, so that the command changes nothing."""
        value, payload, status = 0, b"", Status.OK
        try:
            run = self._checked(request)
            if damaged:
                if request.opcode is Opcode.APPEND:  # its rows are written, beyond those that the slot holds
                    self.rows_written += 2 * self._planes(request) * request.count
                status = Status.BAD_CRC
            else:
                value, payload = run(request)
        except Refused as refused:
            status = Status.BAD_CRC if damaged else refused.status
        return Response(opcode=request.opcode, sequence=sequence, slot=request.slot, status=status, value=value,
                        payload=payload)

    def read(self, slot: int, first: int, count: int) -> bytes:
        """Raw rows, key row and value row in turn."""
        g = self.geometry
        banks = (self.slots[slot].keys, self.slots[slot].values)
        rows = [pack(bank.take(slice(first, first + count)), g) for bank in banks]
        return b"".join(bank[i:i + g.row_bytes] for i in range(0, len(rows[0]), g.row_bytes) for bank in rows)

    @staticmethod
    def _planes(request: Request) -> int:
        return 2 if request.flags & Flag.WIDE else 1

    def _checked(self, request: Request) -> _Run:
        """The handler of a request that passes the checks, in the order that the protocol gives them."""
        g, opcode, count = self.geometry, request.opcode, request.count
        blocks = len(request.payload) // frame.BLOCK
        if opcode is Opcode.RESET:
            _require(blocks == 0, Status.BAD_LENGTH)
            return self._reset
        _require(request.slot < g.slots, Status.BAD_SLOT)
        if opcode is Opcode.OPEN:
            _require(request.slot not in self.slots, Status.SLOT_OPEN)
            _require(blocks == 0, Status.BAD_LENGTH)
            return self._open
        _require(request.slot in self.slots, Status.SLOT_CLOSED)
        slot = self.slots[request.slot]
        held, room = len(slot.keys), len(slot.pages) * g.page_rows
        if opcode in (Opcode.FREE, Opcode.TRUNCATE):
            _require(blocks == 0, Status.BAD_LENGTH)
            _require(opcode is Opcode.FREE or count <= held, Status.BAD_RANGE)
            return self._free if opcode is Opcode.FREE else self._truncate
        if opcode is Opcode.APPEND:
            flags = Flag(request.flags)
            known = not flags & ~FLAG_MASK and (g.zero_point or not flags & Flag.ZERO_POINT)
            _require(known and flags != FLAG_MASK, Status.BAD_FLAGS)
        most = {Opcode.MAP: g.pages_per_slot, Opcode.ATTEND: g.lanes}.get(opcode, g.slot_rows)
        _require(1 <= count <= most, Status.BAD_COUNT)
        vector = g.head_dim * 2 // frame.BLOCK
        size = {
            Opcode.MAP: -(-count // 8), Opcode.APPEND: 2 * vector * count, Opcode.READ_ROWS: 0,
            Opcode.ATTEND: -(-count // 4) + vector * count, Opcode.WRITE_ROWS: 2 * g.row_bytes // frame.BLOCK * count,
        }[opcode]
        _require(blocks == size, Status.BAD_LENGTH)
        if opcode is Opcode.MAP:
            _require(len(slot.pages) + count <= g.pages_per_slot, Status.FULL)
            _require(int(self._pages(request).max()) < g.pages, Status.BAD_PAGE)
            return self._map
        if opcode is Opcode.READ_ROWS:
            _require(request.first + count <= held, Status.BAD_RANGE)
            return self._read
        if opcode is Opcode.ATTEND:
            start, end = self._bounds(request).T
            _require(bool((start < end).all() and (end <= held).all()), Status.BAD_RANGE)
            return self._attend
        _require(held + self._planes(request) * count <= room, Status.FULL)
        return self._append if opcode is Opcode.APPEND else self._write

    def _pages(self, request: Request) -> np.ndarray:
        return np.frombuffer(request.payload, "<u2", request.count)

    def _bounds(self, request: Request) -> np.ndarray:
        return np.frombuffer(request.payload, "<u2", 2 * request.count).reshape(-1, 2).astype(np.int64)

    def _vectors(self, data: bytes, *shape: int) -> Tensor:
        return torch.from_numpy(np.frombuffer(data, "<i2").astype(np.int64)).reshape(*shape, self.geometry.head_dim)

    # -- commands -----------------------------------------------------------------------------------------------------
    def _reset(self, request: Request) -> tuple[int, bytes]:
        self.slots.clear()
        self.rows_written = self.rows_read = self.passes = 0
        return 0, b""

    def _open(self, request: Request) -> tuple[int, bytes]:
        g = self.geometry
        none = torch.zeros(0, g.groups, dtype=torch.int64)
        empty = Rows(torch.zeros(0, g.head_dim, dtype=torch.int64), none, none)
        self.slots[request.slot] = Slot(empty, empty)
        return 0, b""

    def _free(self, request: Request) -> tuple[int, bytes]:
        del self.slots[request.slot]
        return 0, b""

    def _map(self, request: Request) -> tuple[int, bytes]:
        pages = self.slots[request.slot].pages
        pages.extend(self._pages(request).tolist())
        return len(pages), b""

    def _truncate(self, request: Request) -> tuple[int, bytes]:
        self.slots[request.slot].keep(request.count)
        return request.count, b""

    def _append(self, request: Request) -> tuple[int, bytes]:
        slot = self.slots[request.slot]
        pairs = self._vectors(request.payload, request.count, 2)
        kind = {"wide": bool(request.flags & Flag.WIDE), "zero_point": bool(request.flags & Flag.ZERO_POINT)}
        keys, values = (integer.store(pairs[:, i], self.geometry, **kind) for i in range(2))
        slot.add(keys, values)
        self.rows_written += 2 * len(keys)
        return len(slot.keys), b""

    def _attend(self, request: Request) -> tuple[int, bytes]:
        g, n = self.geometry, request.count
        slot = self.slots[request.slot]
        start, end = torch.from_numpy(self._bounds(request)).unbind(-1)
        query = self._vectors(request.payload[-2 * g.head_dim * n:], n)
        first = int(start.min())
        seen = slice(first, int(end.max()))
        out = integer.attend(query, slot.keys.take(seen), slot.values.take(seen), start - first, end - first,
                             request.shift, g)
        self.rows_read += seen.stop - first
        self.passes += 1
        return 0, vector_bytes(out.vectors) + frame.pad(bytes(out.block.tolist()))

    def _read(self, request: Request) -> tuple[int, bytes]:
        return 0, self.read(request.slot, request.first, request.count)

    def _write(self, request: Request) -> tuple[int, bytes]:
        g = self.geometry
        slot = self.slots[request.slot]
        pairs = np.frombuffer(request.payload, np.uint8).reshape(-1, 2, g.row_bytes)
        slot.add(unpack(pairs[:, 0].tobytes(), g), unpack(pairs[:, 1].tobytes(), g))
        self.rows_written += 2 * request.count
        return len(slot.keys), b""
