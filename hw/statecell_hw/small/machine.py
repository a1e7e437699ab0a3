"""The machine of the small device: one instruction a cycle on one accumulator."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

from amaranth.hdl import Array, Cat, Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec.serial import SESSION_BITS
from statecell_hw.link.crc import CRC_BITS
from statecell_hw.small.alu import Alu
from statecell_hw.small.assembler import Program
from statecell_hw.small.isa import (
    ADDRESS_BITS,
    CLOCK_BITS,
    COUNT_BITS,
    INSTRUCTION_BITS,
    MODE_BITS,
    OP_BITS,
    POINTERS,
    READERS,
    SLOW,
    SLOW_CYCLES,
    STACK,
    TABLE_SECTION,
    WORD_BITS,
    Mode,
    Op,
    Port,
    Strobe,
)  # fmt: skip
from statecell_hw.small.rowstore import NIBBLE_BITS, ROW_WORD_BITS

TABLE_BITS = 16
WORD_PORT_BITS = 17
"""A word of the link and its `last` flag."""


class Machine(wiring.Component):
    """Runs a program: `statecell_hw.small.isa` says what each instruction does.

    Two stages. The first has the instruction, moves the pointers, reads the data word and samples every other operand;
    the second has the operand, changes the accumulator, writes, and jumps. Each instruction stays in each stage for one
    cycle, those that are SLOW for SLOW_CYCLES in the second; a jump that is taken drops the instruction behind it. What
    a program may not do in two neighbouring instructions, the assembler knows. Reset begins at the first instruction;
    data words keep their values.

    Parameters: `program`; `tables`, the sections of the table memory, one after the other.

    Members
    -------
    word, word_valid, word_take: the word at the input, and that it is taken.
    free: the output takes a word.
    crc, session: see isa.Port.
    strobe: bits of Strobe, with `a`.
    a: the accumulator.
    nibble, row: what stands at the address of the row memory; `next_nibble`, `next_row` go on.
    """

    word: Signal
    word_valid: Signal
    word_take: Signal
    free: Signal
    crc: Signal
    session: Signal
    strobe: Signal
    a: Signal
    nibble: Signal
    row: Signal
    next_nibble: Signal
    next_row: Signal

    def __init__(self, program: Program, tables: tuple[int, ...]) -> None:
        self.program = program
        self.tables = tables
        self.alu = Alu()
        assert self.alu.latency == SLOW_CYCLES - 1
        super().__init__(
            {
                "word": In(WORD_PORT_BITS),
                "word_valid": In(1),
                "word_take": Out(1),
                "free": In(1),
                "crc": In(CRC_BITS),
                "session": In(SESSION_BITS),
                "strobe": Out(max(Strobe).bit_length()),
                "a": Out(signed(WORD_BITS)),
                "nibble": In(signed(NIBBLE_BITS)),
                "row": In(ROW_WORD_BITS),
                "next_nibble": Out(1),
                "next_row": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.alu = alu = self.alu
        code: Memory = Memory(shape=INSTRUCTION_BITS, depth=len(self.program.code), init=self.program.code)
        data: Memory = Memory(shape=WORD_BITS, depth=len(self.program.data), init=self.program.data)
        m.submodules.code = code
        m.submodules.data = data
        fetch, load, store = code.read_port(), data.read_port(), data.write_port()

        # -- first stage: the instruction --------------------------------------------------------------------------
        instruction = fetch.data
        argument = instruction[:ADDRESS_BITS]
        mode = instruction[ADDRESS_BITS:][:MODE_BITS]
        op = instruction[ADDRESS_BITS + MODE_BITS :]
        here = Signal(ADDRESS_BITS, init=-1)  # its address
        present = Signal()
        taken, stall = Signal(), Signal()
        target, address = Signal(ADDRESS_BITS), Signal(ADDRESS_BITS)
        m.d.comb += [
            fetch.addr.eq(Mux(taken, target, here + 1)),
            fetch.en.eq(~stall),
            load.addr.eq(address),
            load.en.eq(~stall),
        ]
        with m.If(~stall):
            m.d.sync += [here.eq(fetch.addr), present.eq(1)]

        # -- second stage: the operand -----------------------------------------------------------------------------
        good = Signal()  # the instruction goes on to the second stage
        what, value, place = Signal(OP_BITS), Signal(ADDRESS_BITS), Signal(ADDRESS_BITS)
        other = Signal(signed(WORD_BITS), reset_less=True)
        names = ("from_data", "changes", "slow", "stores", "takes", "nibble", "row", "late")
        from_data, changes, slow, stores, takes, nibble, row, late = (Signal(name=name) for name in names)
        strobe, reads = Signal.like(self.strobe), Signal()
        m.d.comb += [good.eq(present & ~taken), reads.eq(good & _among(op, READERS))]
        with m.If(~stall):
            m.d.sync += [
                what.eq(op),
                value.eq(argument),
                place.eq(address),
                other.eq(self._sampled(m, mode, argument)),
                from_data.eq(_among(mode, (Mode.DIRECT, Mode.AT, Mode.NEXT))),
                changes.eq(good & (_among(op, READERS) | (op == Op.TAB))),
                slow.eq(good & _among(op, SLOW)),
                stores.eq(good & (op == Op.ST)),
                takes.eq(reads & (mode == Mode.PORT) & (argument[:2] == Port.WORD)),
                nibble.eq(reads & (mode == Mode.NIBBLE)),
                row.eq(reads & (mode == Mode.ROW)),
                late.eq(good & (op == Op.PTR)),
                strobe.eq(Mux(good & (op == Op.OUT), argument, 0)),
            ]
        self._pointers(m, op, mode, argument, good & ~stall, late, address)

        cycle = Signal(range(SLOW_CYCLES))
        m.d.sync += cycle.eq(Mux(stall, cycle + 1, 0))
        m.d.comb += [
            stall.eq(slow & (cycle != SLOW_CYCLES - 1)),
            alu.op.eq(what),
            alu.a.eq(self.a),
            alu.b.eq(Mux(from_data, load.data, other)),
            alu.table.eq(self._table(m, value)),
            self.word_take.eq(takes & ~stall),
            self.next_nibble.eq(nibble & ~stall),
            self.next_row.eq(row & ~stall),
            self.strobe.eq(strobe),
            store.addr.eq(place),
            store.data.eq(self.a),
            store.en.eq(stores),
        ]
        with m.If(changes & ~stall):
            m.d.sync += self.a.eq(alu.result)
        self._jumps(m, op, good, value, here, stall, taken, target)
        return m

    def _pointers(
        self, m: Module, op: Any, mode: Any, argument: Any, moves: Any, late: Signal, address: Signal
    ) -> None:
        """The address of the data word, and the pointers' new values; ``late``: PTR is in the second stage."""
        pointers = Array(Signal(ADDRESS_BITS, name=f"pointer_{number}", reset_less=True) for number in range(POINTERS))
        held, write, number, new = Signal(ADDRESS_BITS), Signal(), Signal(range(POINTERS)), Signal(ADDRESS_BITS)
        late_number = Signal.like(number)
        m.d.sync += late_number.eq(mode)
        m.d.comb += [
            held.eq(pointers[argument[: len(number)]]),
            address.eq(Mux((mode == Mode.AT) | (mode == Mode.NEXT), held, argument)),
            number.eq(argument),
            new.eq(held + 1),
        ]
        with m.If(late):
            m.d.comb += [write.eq(1), number.eq(late_number), new.eq(self.a)]
        with m.Elif(op == Op.SET):
            m.d.comb += [write.eq(moves), number.eq(mode), new.eq(argument)]
        with m.Elif((op == Op.ST) | _among(op, READERS)):
            m.d.comb += write.eq(moves & (mode == Mode.NEXT))
        with m.If(write):
            m.d.sync += pointers[number].eq(new)

    def _sampled(self, m: Module, mode: Any, argument: Any) -> Signal:
        """The operand of the first stage's instruction that is no data word."""
        operand = Signal(signed(WORD_BITS))
        clock = Signal(CLOCK_BITS)
        m.d.sync += clock.eq(clock + 1)
        with m.Switch(mode):
            with m.Case(Mode.NIBBLE):
                m.d.comb += operand.eq(self.nibble)
            with m.Case(Mode.ROW):
                m.d.comb += operand.eq(self.row)
            with m.Case(Mode.PORT):
                ports = {Port.WORD: self.word, Port.CRC: self.crc, Port.CLOCK: clock, Port.SESSION: self.session}
                m.d.comb += operand.eq(Array(ports[port] for port in Port)[argument[:2]])
            with m.Default():
                m.d.comb += operand.eq(argument.as_signed())
        return operand

    def _table(self, m: Module, value: Signal) -> Signal:
        """The table's word for the accumulator and the section of the cycle before."""
        table: Memory = Memory(shape=TABLE_BITS, depth=len(self.tables), init=self.tables)
        m.submodules.table = table
        read = table.read_port()
        word, within = Signal(TABLE_BITS), TABLE_SECTION.bit_length() - 1
        m.d.comb += [read.addr.eq(Cat(self.a[:within], value[within:])), word.eq(read.data)]
        return word

    def _jumps(
        self, m: Module, op: Any, good: Any, value: Signal, behind: Signal, stall: Signal, taken: Signal, target: Signal
    ) -> None:
        """Whether the second stage jumps and where to; counter and stack. ``behind``: the address after its own."""
        count = Signal(COUNT_BITS, reset_less=True)
        stack = [Signal(ADDRESS_BITS, name=f"return_{depth}", reset_less=True) for depth in range(STACK)]
        left = Signal.like(count)
        zero = Signal()
        m.d.comb += [left.eq(count - 1), zero.eq(self.a == 0)]
        conditions = {
            Op.LOOP: left != 0, Op.JMP: 1, Op.JZ: zero, Op.JNZ: ~zero, Op.JN: self.a[-1], Op.JNN: ~self.a[-1],
            Op.JNI: ~self.word_valid, Op.JNO: ~self.free, Op.CALL: 1, Op.RET: 1,
        }  # fmt: skip
        does = {jump: Signal(name=f"does_{jump.name}") for jump in (*conditions, Op.CNT)}
        with m.If(~stall):
            m.d.sync += [flag.eq(good & (op == jump)) for jump, flag in does.items()]
        m.d.comb += [
            taken.eq(reduce(or_, (does[jump] & condition for jump, condition in conditions.items()))),
            target.eq(Mux(does[Op.RET], stack[0], value)),
        ]
        with m.If(does[Op.CNT]):
            m.d.sync += count.eq(value)
        with m.Elif(does[Op.LOOP]):
            m.d.sync += count.eq(left)
        with m.If(does[Op.CALL]):
            m.d.sync += [stack[0].eq(behind), *(b.eq(a) for a, b in pairwise(stack))]
        with m.Elif(does[Op.RET]):
            m.d.sync += [a.eq(b) for a, b in pairwise(stack)]


def _among(value: Any, options: tuple[Op, ...] | tuple[Mode, ...]) -> Any:
    return value.matches(*(int(option) for option in options))
