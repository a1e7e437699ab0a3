from __future__ import annotations

import random
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring

from statecell.link.framing import Request
from statecell.spec import frame
from statecell.spec.commands import Flag, Opcode, Status, opcodes
from statecell.spec.geometry import config
from statecell.spec.serial import LEAST_DIVISOR
from statecell_hw.control.command import BARRIER, Command
from statecell_hw.control.responder import Answer
from statecell_hw.control.slots import SlotTable
from statecell_hw.link.deframer import Deframer
from tests.hw.streams import send, simulate, words_of

G = config("tiny")
SESSION = 1
UNITS = {Opcode.MAP: "mapping", Opcode.ATTEND: "attending", Opcode.APPEND: "appending", Opcode.WRITE_ROWS: "writing"}
ANSWERS = {
    Opcode.INFO: Answer.INFO, Opcode.COUNTERS: Answer.COUNTERS, Opcode.ATTEND: Answer.VECTORS,
    Opcode.READ_ROWS: Answer.ROWS,
}  # fmt: skip


class Slots:
    """What the slot table must hold, in software."""

    def __init__(self) -> None:
        self.slots: dict[int, list[int]] = {}  # rows, pages of the open slots

    def apply(self, r: Request, fault: Status) -> tuple[Status, int]:
        """(status, value) of a well-formed command whose payload gives `fault`."""
        slot = self.slots.get(r.slot)
        if r.opcode == Opcode.CONNECT:
            if r.count not in (0, LEAST_DIVISOR):
                return Status.BAD_COUNT, 0
            return Status.OK, r.first if r.slot == SESSION else SESSION
        if r.opcode in (Opcode.INFO, Opcode.COUNTERS, Opcode.RESET):
            if r.opcode == Opcode.RESET:
                self.slots.clear()
            return Status.OK, 0
        if r.opcode == Opcode.OPEN:
            if slot is not None:
                return Status.SLOT_OPEN, 0
            self.slots[r.slot] = [0, 0]
            return Status.OK, 0
        if slot is None:
            return Status.SLOT_CLOSED, 0
        rows, pages = slot
        added = r.count * (2 if r.flags & Flag.WIDE else 1)
        if r.opcode == Opcode.MAP and pages + r.count > G.pages_per_slot:
            return Status.FULL, 0
        if r.opcode in (Opcode.APPEND, Opcode.WRITE_ROWS) and rows + added > pages * G.page_rows:
            return Status.FULL, 0
        if r.opcode == Opcode.TRUNCATE and r.count > rows:
            return Status.BAD_RANGE, 0
        if r.opcode == Opcode.READ_ROWS and r.first + r.count > rows:
            return Status.BAD_RANGE, 0
        if fault != Status.OK and r.opcode in UNITS:
            return fault, 0
        if r.opcode == Opcode.FREE:
            del self.slots[r.slot]
        elif r.opcode == Opcode.MAP:
            slot[1] += r.count
            return Status.OK, slot[1]
        elif r.opcode == Opcode.TRUNCATE:
            slot[0] = r.count
            return Status.OK, r.count
        elif r.opcode in (Opcode.APPEND, Opcode.WRITE_ROWS):
            slot[0] += added
            return Status.OK, slot[0]
        return Status.OK, 0


def request(rng: random.Random) -> Request:
    opcode = rng.choice([*opcodes(G.states), Opcode.OPEN, Opcode.MAP, Opcode.APPEND, Opcode.APPEND, Opcode.ATTEND])
    if opcode == Opcode.RESET and rng.random() < 0.8:
        opcode = Opcode.ATTEND
    count = rng.randint(1, 2)
    size = {
        Opcode.MAP: 1, Opcode.APPEND: count * G.head_dim // 4,
        Opcode.WRITE_ROWS: 2 * count * G.row_bytes // frame.BLOCK, Opcode.ATTEND: 1 + count * G.head_dim // 8,
    }.get(opcode, 0)  # fmt: skip
    flags = Flag.WIDE if opcode == Opcode.APPEND and rng.random() < 0.3 else 0
    payload = rng.randbytes(frame.BLOCK * size)
    slot, first = rng.randrange(2), rng.randrange(3)
    if opcode == Opcode.CONNECT:
        count = rng.choice((0, LEAST_DIVISOR - 1, LEAST_DIVISOR))
    return Request(opcode=opcode, slot=slot, count=count, first=first, flags=flags, payload=payload)


def test_commits_good_commands_only_and_waits_at_barriers() -> None:
    rng = random.Random(19)
    m = Module()
    m.submodules.deframer = deframer = Deframer(G)
    m.submodules.slots = slots = SlotTable(G)
    m.submodules.dut = dut = Command(G)
    wiring.connect(m, deframer.header, dut.header)
    wiring.connect(m, deframer.verdict, dut.verdict)
    m.d.comb += [
        slots.read_slot.eq(dut.read_slot), dut.read_entry.eq(slots.entry), slots.write_en.eq(dut.write_en),
        slots.write_slot.eq(dut.read_slot), slots.write_entry.eq(dut.write_entry), slots.clear.eq(dut.clear_slots),
        dut.slots_ready.eq(slots.ready), deframer.payload.ready.eq(1),
    ]  # fmt: skip
    model = Slots()
    frames, expected = [], []
    for index in range(250):
        r = request(rng)
        data = r.encode(index, G.link_bytes)
        fault = rng.choice([Status.OK] * 4 + [Status.BAD_RANGE])
        damage = rng.random()
        if damage < 0.1:
            data = data[:-1] + bytes([data[-1] ^ 1])
            outcome = (Status.BAD_CRC, 0)
        elif damage < 0.2:
            data = data[: -G.link_bytes]
            outcome = (Status.BAD_FRAME, 0)
        else:
            outcome = model.apply(r, fault)
        frames.append(data)
        expected.append((r, fault, *outcome))
    assert {e[2] for e in expected} >= {Status.OK, Status.FULL, Status.BAD_RANGE, Status.SLOT_OPEN, Status.SLOT_CLOSED}
    done = 0

    async def source(ctx: Any) -> None:
        await send(ctx, deframer.i, [w for f in frames for w in words_of(f, G.link_bytes)], random.Random(20), 0.1)

    async def surroundings(ctx: Any) -> None:
        nonlocal done
        mine = random.Random(21)
        begun, attended, busy = 0, None, 0
        ctx.set(dut.session, SESSION)
        while done < len(expected):
            r, fault, status, value = expected[done]
            idle, sent = int(mine.random() < 0.3), r.count if r.opcode == Opcode.ATTEND else 0
            for signal, level in (
                (dut.idle, idle), (dut.settled, mine.random() < 0.5), (dut.faulty, fault if r.opcode in UNITS else 0),
                (dut.attend_sent, sent), (dut.attend_ready, mine.random() < 0.5), (dut.read_busy, busy > 0),
                (dut.completion.ready, mine.random() < 0.5),
            ):  # fmt: skip
                ctx.set(signal, level)
            _, _, begin, attend, good, complete, completion, reading, write, connect = await ctx.tick().sample(
                dut.begin, dut.attend_valid & dut.attend_ready, dut.attend_good,
                dut.completion.valid & dut.completion.ready, dut.completion.payload, dut.reading, dut.write_en,
                dut.connect,
            )  # fmt: skip
            busy = 5 if reading else max(0, busy - 1)
            if begin:
                begun += 1
                assert r.opcode not in BARRIER or idle
                assert [getattr(dut, name) is not None and ctx.get(getattr(dut, name)) for name in UNITS.values()] == [
                    int(r.opcode == opcode) for opcode in UNITS
                ]
            if attend:
                attended = good
            if complete:
                header = completion.header
                assert (header.status, header.value, header.sequence) == (status, value, done), (r.opcode, r.slot)
                assert header.opcode == r.opcode | frame.RESPONSE
                answer = ANSWERS.get(r.opcode, Answer.NOTHING) if status == Status.OK else Answer.NOTHING
                assert completion.answer == answer
                assert (header.blocks > 0) == (answer != Answer.NOTHING)
                if status == Status.OK:
                    assert begun == 1
                else:
                    assert not write
                assert attended == (int(status == Status.OK) if r.opcode == Opcode.ATTEND and begun else None)
                assert reading == (status == Status.OK and r.opcode == Opcode.READ_ROWS)
                assert connect == (status == Status.OK and r.opcode == Opcode.CONNECT and r.slot == SESSION)
                begun, attended = 0, None
                done += 1

    simulate(m, source, surroundings)
