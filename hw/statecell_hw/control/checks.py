"""Header checks: what a command may ask of its slot."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats, frame
from statecell.spec.commands import FLAG_MASK, RECURRENT, Flag, Opcode, Status, opcodes
from statecell.spec.geometry import Geometry
from statecell.spec.serial import DIVISOR_BITS, LEAST_DIVISOR
from statecell_hw.array.multiply import tree
from statecell_hw.control.slots import slot_layout
from statecell_hw.link.deframer import REQUEST, STATUS_BITS

SLOT_COMMANDS = (
    Opcode.OPEN, Opcode.FREE, Opcode.MAP, Opcode.TRUNCATE, Opcode.APPEND, Opcode.ATTEND, Opcode.READ_ROWS,
    Opcode.WRITE_ROWS,
)  # fmt: skip
"""Commands that name a slot, without those of recurrent states."""
TOKEN_COMMANDS = (Opcode.TRUNCATE, Opcode.APPEND, Opcode.ATTEND, Opcode.WRITE_ROWS)
"""Commands that a slot with a recurrent state refuses."""


def row_blocks(g: Geometry) -> int:
    """Blocks of one raw row pair, key and value, in READ_ROWS and WRITE_ROWS."""
    return 2 * g.row_bytes // frame.BLOCK


class Checks(wiring.Component):
    """The status of a command as far as its header and its slot's entry tell: two cycles after the header, one after
    the entry.

    The first that applies, in this order: BAD_OPCODE, BAD_SLOT, SLOT_CLOSED or SLOT_OPEN, WRONG_KIND, BAD_FLAGS (also
    for a shift above SHIFT_LIMIT), BAD_COUNT, BAD_LENGTH, BAD_RANGE or FULL, OK.

    Members
    -------
    header: the request's header.
    entry: entry of its slot.
    status: outcome so far.
    added: rows that an APPEND or WRITE_ROWS adds, if `status` is OK; a cycle after the header.
    """

    header: data.View
    entry: data.View
    status: Signal
    added: Signal

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "header": In(REQUEST),
                "entry": In(slot_layout(g)),
                "status": Out(STATUS_BITS),
                "added": Out(range(2 * g.slot_rows + 1)),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g, header, entry = self.g, self.header, self.entry
        opcode = header.opcode
        # Every count that passes fits in `count`; wider arithmetic on it would only cost area.
        most = max(g.slot_rows, formats.VECTOR_BITS)
        count = Signal(range(most + 1))
        m.d.comb += count.eq(header.count)

        named = Signal()
        m.d.comb += named.eq(_among(opcode, SLOT_COMMANDS + (RECURRENT if g.states else ())))
        flagged = Signal()
        with m.If(opcode == Opcode.APPEND):
            flags = header.flags
            allowed = FLAG_MASK if g.zero_point else Flag.WIDE
            both = (flags & FLAG_MASK) == FLAG_MASK
            m.d.comb += flagged.eq((flags & ~int(allowed) & ((1 << len(flags)) - 1)).any() | both)
        with m.Elif(opcode == Opcode.ATTEND):
            m.d.comb += flagged.eq(header.shift > formats.SHIFT_LIMIT)
        if g.states:
            with m.If(opcode == Opcode.OPEN):
                unknown = header.flags & (((1 << len(header.flags)) - 1) & ~int(Flag.RECURRENT))
                m.d.comb += flagged.eq(unknown.any() | (header.flags.any() & (header.slot >= g.states)))

        counts = Signal()  # outside of 1..limit
        length = Signal(range(most * max(g.head_dim, row_blocks(g)) + g.head_dim))  # blocks expected
        vector_blocks = g.head_dim * formats.VECTOR_BITS // 8 // frame.BLOCK
        none = header.count == 0
        rows_limit = min(g.slot_rows, frame.MAX_BLOCKS // row_blocks(g))
        per_block = frame.BLOCK * 8 // formats.VECTOR_BITS
        with m.Switch(opcode):
            with m.Case(Opcode.CONNECT):
                slow_enough = none | (header.count >= LEAST_DIVISOR) & (header.count < 1 << DIVISOR_BITS)
                m.d.comb += counts.eq(~slow_enough)
            with m.Case(Opcode.MAP):
                m.d.comb += [counts.eq(none | (header.count > g.pages_per_slot)), length.eq(_blocks(count, per_block))]
            with m.Case(Opcode.APPEND):
                m.d.comb += [
                    counts.eq(none | (header.count > g.slot_rows)), length.eq(times(count, 2 * vector_blocks)),
                ]
            with m.Case(Opcode.ATTEND):
                m.d.comb += [
                    counts.eq(none | (header.count > g.lanes)),
                    length.eq(_blocks(count, per_block // 2) + times(count, vector_blocks)),
                ]
            with m.Case(Opcode.READ_ROWS):
                m.d.comb += counts.eq(none | (header.count > rows_limit))
            with m.Case(Opcode.WRITE_ROWS):
                m.d.comb += [
                    counts.eq(none | (header.count > rows_limit)), length.eq(times(count, row_blocks(g))),
                ]
            if g.states:
                with m.Case(Opcode.OPEN):
                    m.d.comb += length.eq(header.flags.any())

        # each finding waits in a register for the choice among all: a sum, a comparison and the choice are too much for
        # one cycle
        expected = Signal.like(length)
        strange, beyond, flagged_1, counts_1, length_1 = (Signal(name=f"header_{i}", reset_less=True) for i in range(5))
        m.d.sync += [
            strange.eq(~_among(opcode, opcodes(g.states))), beyond.eq(named & (header.slot >= g.slots)),
            flagged_1.eq(flagged), counts_1.eq(counts), expected.eq(length), length_1.eq(expected != header.blocks),
        ]
        room = entry.pages * g.page_rows
        wide = (header.flags & Flag.WIDE).any() & (opcode == Opcode.APPEND)
        # sums of the header are there with the entry
        reach = Signal(len(header.first) + 1, name="header_reach")
        m.d.sync += [self.added.eq(Mux(wide, count << 1, count)), reach.eq(header.first + count)]
        outside, full = Signal(), Signal()
        with m.Switch(opcode):
            with m.Case(Opcode.MAP):
                m.d.comb += full.eq(entry.pages + count > g.pages_per_slot)
            with m.Case(Opcode.TRUNCATE):
                m.d.comb += outside.eq(header.count > entry.rows)
            with m.Case(Opcode.READ_ROWS):
                m.d.comb += outside.eq(reach > entry.rows)
            with m.Case(Opcode.APPEND, Opcode.WRITE_ROWS):
                m.d.comb += full.eq(entry.rows + self.added > room)
            if g.states:
                with m.Case(Opcode.RECUR):
                    m.d.comb += full.eq((entry.interval > 1) & (entry.logged == entry.interval))

        opened, closed, outside_1, full_1 = (Signal(name=f"entry_{i}", reset_less=True) for i in range(4))
        m.d.sync += [
            opened.eq((opcode == Opcode.OPEN) & entry.open),
            closed.eq(named & (opcode != Opcode.OPEN) & ~entry.open),
            outside_1.eq(outside), full_1.eq(full),
        ]
        wrong_length: Value = length_1
        kind = Signal(name="entry_kind")
        if g.states:
            # what a token's payload and a snapshot have depends on the slot's mode
            blocks, recurs = Signal(name="entry_blocks"), Signal(name="header_recurs")
            whole = opcode == Opcode.RESTORE
            m.d.sync += [
                blocks.eq(Mux(whole, entry.snapshot, entry.blocks) != header.blocks),
                recurs.eq(whole | (opcode == Opcode.RECUR)),
                kind.eq(Mux(entry.recurrent, _among(opcode, TOKEN_COMMANDS), _among(opcode, RECURRENT) & named)),
            ]
            wrong_length = Mux(recurs, blocks, length_1)
        with m.If(strange):
            m.d.comb += self.status.eq(Status.BAD_OPCODE)
        with m.Elif(beyond):
            m.d.comb += self.status.eq(Status.BAD_SLOT)
        with m.Elif(opened):
            m.d.comb += self.status.eq(Status.SLOT_OPEN)
        with m.Elif(closed):
            m.d.comb += self.status.eq(Status.SLOT_CLOSED)
        if g.states:
            with m.Elif(kind):
                m.d.comb += self.status.eq(Status.WRONG_KIND)
        with m.Elif(flagged_1):
            m.d.comb += self.status.eq(Status.BAD_FLAGS)
        with m.Elif(counts_1):
            m.d.comb += self.status.eq(Status.BAD_COUNT)
        with m.Elif(wrong_length):
            m.d.comb += self.status.eq(Status.BAD_LENGTH)
        with m.Elif(outside_1):
            m.d.comb += self.status.eq(Status.BAD_RANGE)
        with m.Elif(full_1):
            m.d.comb += self.status.eq(Status.FULL)
        with m.Else():
            m.d.comb += self.status.eq(Status.OK)
        return m


def times(value: Value, constant: int) -> Value:
    """The product value * constant as a sum of shifted values: a block multiplier would be slower."""
    return tree([value.shift_left(i) for i in range(constant.bit_length()) if constant >> i & 1])


def _among(value: Any, options: tuple[Opcode, ...]) -> Any:
    return value.as_unsigned().matches(*(int(o) for o in options))


def _blocks(count: Any, per_block: int) -> Any:
    """Blocks that hold `count` items, `per_block` (a power of two) in each."""
    return (count + (per_block - 1)) >> (per_block.bit_length() - 1)
