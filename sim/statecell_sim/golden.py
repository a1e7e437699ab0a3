"""The whole device in software: what it must answer to every request, from the specification and the integer model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from statecell.link.framing import Request
from statecell.model import integer
from statecell.model.rows import Rows, pack, unpack
from statecell.spec import formats, frame
from statecell.spec.commands import CLEAR_COUNTERS, Flag, Opcode, Status, opcodes
from statecell.spec.geometry import Geometry
from statecell.spec.serial import DIVISOR_BITS, LEAST_DIVISOR

_SLOTLESS = (Opcode.INFO, Opcode.COUNTERS, Opcode.RESET, Opcode.CONNECT)
_STORING = (Opcode.APPEND, Opcode.WRITE_ROWS)
_Raw = tuple[bytes, bytes]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Outcome of a request; ``payload`` is None where it is not the golden device's to know (INFO, COUNTERS)."""

    status: Status
    value: int = 0
    payload: bytes | None = b""


@dataclass
class _Slot:
    pages: list[int] = field(default_factory=list)
    rows: int = 0


class GoldenDevice:
    """A device of geometry ``g``, without states, that answers one request after another; see docs/protocol.md.

    ``passes``, ``rows_read`` (of each bank) and ``rows_written`` count what the device's counters count, since RESET or
    the last clear. ``products`` counts the row-query dot products of all ATTENDs.
    """

    def __init__(self, g: Geometry) -> None:
        self.g = g
        self.slots: dict[int, _Slot] = {}
        self.products = 0
        self._clear_counters()
        self._cells: dict[tuple[int, int], _Raw] = {}

    def answer(self, request: Request, *, damaged: bool = False) -> Answer:
        """Carry out a request; ``damaged``: the CRC of its frame does not match, so that it changes no slot."""
        status = self._refusal(request)
        if damaged:
            if status is Status.OK and request.opcode in _STORING:  # stored as they arrive, before the CRC is known
                self.rows_written += 2 * _added(request)
            return Answer(status=Status.BAD_CRC)
        if status is not Status.OK:
            return Answer(status=status)
        opcode = Opcode(request.opcode)
        if opcode is Opcode.RESET or (opcode is Opcode.COUNTERS and request.count == CLEAR_COUNTERS):
            self._clear_counters()
        if opcode in (Opcode.INFO, Opcode.COUNTERS):
            return Answer(status=Status.OK, payload=None)
        if opcode is Opcode.CONNECT:  # without a serial link no session ever runs
            return Answer(status=Status.OK, value=0 if request.slot else request.first)
        if opcode is Opcode.RESET:
            self.slots.clear()
        elif opcode is Opcode.OPEN:
            self.slots[request.slot] = _Slot()
        elif opcode is Opcode.FREE:
            del self.slots[request.slot]
        else:
            return self._on_slot(opcode, request, self.slots[request.slot])
        return Answer(status=Status.OK)

    def rows(self, slot: int, first: int, end: int) -> tuple[Rows, Rows]:
        """Key rows and value rows first .. end - 1 of a slot, decoded."""
        raw = [self._get(slot, row) for row in range(first, end)]
        keys, values = (unpack(b"".join(pair[bank] for pair in raw), self.g) for bank in (0, 1))
        return keys, values

    def raw_rows(self, slot: int, first: int, end: int) -> bytes:
        """Rows first .. end - 1 of a slot as READ_ROWS sends them, key row and value row in turn."""
        return b"".join(b"".join(self._get(slot, row)) for row in range(first, end))

    def _clear_counters(self) -> None:
        self.passes = self.rows_read = self.rows_written = 0

    # -- checks, in the order of docs/protocol.md -------------------------------------------------------------
    def _refusal(self, r: Request) -> Status:
        g = self.g
        if r.opcode not in opcodes(0):
            return Status.BAD_OPCODE
        opcode = Opcode(r.opcode)
        slot = self.slots.get(r.slot)
        if opcode not in _SLOTLESS:
            if r.slot >= g.slots:
                return Status.BAD_SLOT
            if opcode is Opcode.OPEN and slot is not None:
                return Status.SLOT_OPEN
            if opcode is not Opcode.OPEN and slot is None:
                return Status.SLOT_CLOSED
        if (opcode is Opcode.APPEND and (
            r.flags not in (0, Flag.WIDE, Flag.ZERO_POINT) or (r.flags & Flag.ZERO_POINT and not g.zero_point)
        )) or (opcode is Opcode.ATTEND and r.shift > formats.SHIFT_LIMIT):
            return Status.BAD_FLAGS
        most = {Opcode.MAP: g.pages_per_slot, Opcode.ATTEND: g.lanes, Opcode.APPEND: g.slot_rows,
                Opcode.READ_ROWS: g.slot_rows, Opcode.WRITE_ROWS: g.slot_rows}.get(opcode)
        if most is not None and not 1 <= r.count <= most:
            return Status.BAD_COUNT
        if opcode is Opcode.CONNECT and r.count and not LEAST_DIVISOR <= r.count < 1 << DIVISOR_BITS:
            return Status.BAD_COUNT
        if len(r.payload) != self._payload_bytes(opcode, r.count):
            return Status.BAD_LENGTH
        return Status.OK if slot is None else self._range_refusal(opcode, r, slot)

    def _payload_bytes(self, opcode: Opcode, count: int) -> int:
        g = self.g
        return {
            Opcode.MAP: len(frame.pad(bytes(2 * count))) if opcode is Opcode.MAP else 0,
            Opcode.APPEND: count * 4 * g.head_dim,
            Opcode.ATTEND: 16 * -(-count // 4) + count * 2 * g.head_dim,
            Opcode.WRITE_ROWS: count * 2 * g.row_bytes,
        }.get(opcode, 0)

    def _range_refusal(self, opcode: Opcode, r: Request, slot: _Slot) -> Status:
        g = self.g
        if opcode is Opcode.MAP:
            if len(slot.pages) + r.count > g.pages_per_slot:
                return Status.FULL
            return Status.BAD_PAGE if max(_u16(r.payload, r.count)) >= g.pages else Status.OK
        if opcode in _STORING:
            return Status.FULL if slot.rows + _added(r) > len(slot.pages) * g.page_rows else Status.OK
        if opcode is Opcode.ATTEND:
            bounds = _u16(r.payload, 2 * r.count)
            good = all(s < e <= slot.rows for s, e in zip(bounds[::2], bounds[1::2], strict=True))
            return Status.OK if good else Status.BAD_RANGE
        beyond = opcode is Opcode.TRUNCATE and r.count > slot.rows
        beyond |= opcode is Opcode.READ_ROWS and r.first + r.count > slot.rows
        return Status.BAD_RANGE if beyond else Status.OK

    # -- commands on an open slot -------------------------------------------------------------
    def _on_slot(self, opcode: Opcode, r: Request, slot: _Slot) -> Answer:
        if opcode is Opcode.MAP:
            slot.pages += _u16(r.payload, r.count)
            return Answer(status=Status.OK, value=len(slot.pages))
        if opcode is Opcode.TRUNCATE:
            slot.rows = r.count
            return Answer(status=Status.OK, value=slot.rows)
        if opcode is Opcode.READ_ROWS:
            return Answer(status=Status.OK, payload=self.raw_rows(r.slot, r.first, r.first + r.count))
        if opcode is Opcode.ATTEND:
            return Answer(status=Status.OK, payload=self._attend(r))
        for pair in self._stored(r) if opcode is Opcode.APPEND else self._written(r):
            self._cells[self._place(r.slot, slot.rows)] = pair
            slot.rows += 1
        self.rows_written += 2 * _added(r)
        return Answer(status=Status.OK, value=slot.rows)

    def _stored(self, r: Request) -> list[_Raw]:
        g = self.g
        tokens = torch.from_numpy(np.frombuffer(r.payload, "<i2").reshape(r.count, 2, g.head_dim).astype(np.int64))
        banks = [
            _cut(pack(integer.store(tokens[:, bank], g, wide=bool(r.flags & Flag.WIDE),
                                    zero_point=bool(r.flags & Flag.ZERO_POINT)), g), g.row_bytes)
            for bank in (0, 1)
        ]
        return list(zip(*banks, strict=True))

    def _written(self, r: Request) -> list[_Raw]:
        g = self.g
        kept = (1 << g.row_bits) - 1
        cells = (int.from_bytes(x, "little") & kept for x in _cut(r.payload, g.row_bytes))
        raw = [cell.to_bytes(g.row_bytes, "little") for cell in cells]
        return list(zip(raw[::2], raw[1::2], strict=True))

    def _attend(self, r: Request) -> bytes:
        g = self.g
        size = 16 * -(-r.count // 4)
        bounds = torch.tensor(_u16(r.payload, 2 * r.count)).reshape(-1, 2)
        q = torch.from_numpy(np.frombuffer(r.payload[size:], "<i2").reshape(r.count, g.head_dim).astype(np.int64))
        first, end = int(bounds[:, 0].min()), int(bounds[:, 1].max())
        keys, values = self.rows(r.slot, first, end)
        out = integer.attend(q, keys, values, bounds[:, 0] - first, bounds[:, 1] - first, r.shift, g)
        self.passes += 1
        self.rows_read += end - first
        self.products += int((bounds[:, 1] - bounds[:, 0]).sum())
        return out.vectors.numpy().astype("<i2").tobytes() + frame.pad(bytes(out.block.tolist()))

    def _place(self, slot: int, row: int) -> tuple[int, int]:
        page, within = divmod(row, self.g.page_rows)
        return slot % self.g.tiles, self.slots[slot].pages[page] * self.g.page_rows + within

    def _get(self, slot: int, row: int) -> _Raw:
        return self._cells[self._place(slot, row)]


def _added(request: Request) -> int:
    """Rows of each bank that an APPEND or WRITE_ROWS adds."""
    return request.count * (2 if request.opcode == Opcode.APPEND and request.flags & Flag.WIDE else 1)


def _u16(payload: bytes, count: int) -> list[int]:
    return [int(x) for x in np.frombuffer(payload, "<u2", count)]


def _cut(data: bytes, size: int) -> list[bytes]:
    return [data[i:i + size] for i in range(0, len(data), size)]
