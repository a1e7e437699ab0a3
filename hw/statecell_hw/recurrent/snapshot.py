"""STATE and RESTORE: all of a recurrent slot but its rows, as words."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats, frame
from statecell.spec.commands import STATE_FIELDS, STATE_MODE_BITS, StateFlag
from statecell.spec.geometry import Geometry
from statecell_hw.recurrent.ages import AgeAccess
from statecell_hw.recurrent.decays import FactorAccess
from statecell_hw.recurrent.operands import LOST_BITS, slot_layout
from statecell_hw.recurrent.status import STATUS
from statecell_hw.recurrent.tokens import WORD_BITS

MODE_BLOCK = data.StructLayout(STATE_MODE_BITS)
REGISTERS = data.StructLayout(dict.fromkeys(STATE_FIELDS, 64))
HEAD_BITS = MODE_BLOCK.size + REGISTERS.size
"""Bits in front of the factors."""


class Snapshot(wiring.Component):
    """Sends a slot's mode, registers, factors and ages after ``save``, or takes them and sets the last two after
    ``restore``. Ages: what the factor had lost at each token of the log.

    ``slot`` is named all the while, ``held`` is its configuration and ``current`` what its tokens have changed; no
    token is on its way in the recurrent unit from ``save`` or ``restore`` until ``busy`` falls.

    ``start`` comes a cycle before RESTORE's payload on ``i``, which is always ready; words ``of_mode`` go to
    :class:`Opening` as well, which gives ``given``. Two cycles after the last word ``bad`` tells that a register or
    factor is outside its range, ``differs`` that the mode is not the slot's, and ``registers`` are the payload's, but
    for ``noise``, which is 0. ``restore`` then copies factors and ages, one word and one age a cycle.

    ``o``: the words that STATE answers with, three cycles each. Reset ends both.
    """

    start: Signal
    i: stream.Interface
    of_mode: Signal
    given: Any
    slot: Signal
    held: Any
    current: Any
    bad: Signal
    differs: Signal
    registers: Any
    save: Signal
    restore: Signal
    busy: Signal
    factors: Any
    ages: Any
    o: stream.Interface

    def __init__(self, geometry: Geometry, *, slots: int) -> None:
        self.geometry = g = geometry
        super().__init__({
            "start": In(1),
            "i": In(stream.Signature(8 * g.link_bytes)),
            "of_mode": Out(1),
            "given": In(slot_layout(g)),
            "slot": In(range(slots)),
            "held": In(slot_layout(g)),
            "current": In(STATUS),
            "bad": Out(1),
            "differs": Out(1),
            "registers": Out(STATUS),
            "save": In(1),
            "restore": In(1),
            "busy": Out(1),
            "factors": Out(FactorAccess(g, slots=slots)),
            "ages": Out(AgeAccess(slots=slots)),
            "o": Out(stream.Signature(8 * g.link_bytes)),
        })

    @property
    def _head_words(self) -> int:
        return HEAD_BITS // (8 * self.geometry.link_bytes)

    @property
    def _block_words(self) -> int:
        return frame.BLOCK // self.geometry.link_bytes

    @property
    def _numbers(self) -> int:
        """Most words of factors and ages."""
        return max(2 * self.geometry.vector_words, self._block_words * (1 + formats.LOG_MAX))

    def _entry(self, number: Signal) -> tuple[Value, Value, Value]:
        """(whether a word of factors and ages has an age, whether it may, the log's entry), with one factor a head."""
        block = number >> exact_log2(self._block_words)
        begins = number % self._block_words == 0
        return (block != 0) & begins, block != 0, (block - 1)[: (formats.LOG_MAX - 1).bit_length()]

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g, access, ages = self.geometry, self.factors, self.ages
        bits = 8 * g.link_bytes
        lanes, interval = self.held.lane_decay, self.held.interval
        logs = Signal()
        m.d.sync += logs.eq(interval > 1)
        factors, known = self._take(m, lanes, logs)
        place = Signal(range(self._head_words + self._numbers))  # word of the answer, or factors and age to copy
        last, of_numbers = Signal(), Signal()
        word = Signal(bits, reset_less=True)
        number = Signal(range(self._numbers))
        shown = Cat(access.factors.word_select(i, formats.FACTOR_BITS) | Const(0, WORD_BITS)
                    for i in range(bits // WORD_BITS))
        of_age, behind, entry = self._entry(number)
        single = Mux(of_age, ages.age, Mux(number == 0, access.factors[:formats.FACTOR_BITS], 0))
        head = self._head()
        m.d.comb += [
            of_numbers.eq(place >= self._head_words), number.eq(place - self._head_words),
            access.slot.eq(self.slot), access.number.eq(Mux(behind & ~lanes, 0, number)), factors.addr.eq(place),
            access.written.eq(factors.data), ages.slot.eq(self.slot), ages.entry.eq(entry), known.addr.eq(place),
            ages.written.eq(known.data), self.o.payload.eq(word),
        ]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.sync += place.eq(0)
                with m.If(self.save):
                    m.next = "ASK"
                with m.If(self.restore):
                    m.next = "COPY"
            with m.State("ASK"):
                m.d.comb += [access.reads.eq(1), ages.reads.eq(1)]
                m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += [access.reads.eq(1), ages.reads.eq(1)]
                m.d.sync += word.eq(Mux(of_numbers, Mux(lanes, shown, single), head.word_select(
                    place[:(self._head_words - 1).bit_length()], bits)))
                m.next = "SEND"
            with m.State("SEND"):
                singles = (Mux(logs, interval, 0) + 1) << exact_log2(self._block_words)
                m.d.comb += [
                    self.o.valid.eq(1),
                    last.eq(place == self._head_words - 1 + Mux(lanes, 2 * g.vector_words, singles)),
                ]
                with m.If(self.o.ready):
                    m.d.sync += place.eq(place + 1)
                    m.next = "ASK"
                    with m.If(last):
                        m.next = "IDLE"
            with m.State("COPY"):
                m.d.comb += [
                    access.number.eq(place), access.writes.eq(place < Mux(lanes, 2 * g.vector_words, 1)),
                    ages.entry.eq(place), ages.writes.eq(logs),
                ]
                m.d.sync += place.eq(place + 1)
                with m.If(place == Mux(lanes, 2 * g.vector_words, interval) - 1):
                    m.next = "IDLE"
        m.d.comb += self.busy.eq(~fsm.ongoing("IDLE"))
        return m

    def _head(self) -> Value:
        """Mode block and registers of the slot as they are now."""
        held, mode, current = self.held, self.held.mode, self.current
        flag = {
            StateFlag.DELTA: mode.delta, StateFlag.WIDE: mode.wide, StateFlag.RESIDUAL: mode.blind,
            StateFlag.FRESH: mode.fresh, StateFlag.SUPPLIED: mode.supplied, StateFlag.STOCHASTIC: mode.stochastic,
            StateFlag.ROTATE: held.rotate, StateFlag.LANE_DECAY: held.lane_decay,
            StateFlag.DECAY_FIRST: held.decay_first, StateFlag.BONUS: held.bonus, StateFlag.HALVES: held.halves,
        }
        values = {
            "flags": Cat(flag[f] for f in StateFlag), "feedback": mode.feedback, "shift": mode.shift,
            "channels": held.channels, "first_page": held.base >> exact_log2(self.geometry.page_rows),
            "interval": held.interval, "seed": current.noise,
        }
        parts = [(values[name], width) for name, width in STATE_MODE_BITS.items()]
        parts += [(current[name], 64) for name in STATE_FIELDS]
        return Cat((Value.cast(value) | Const(0, width))[:width] for value, width in parts)

    def _take(self, m: Module, lanes: Signal, logs: Signal) -> tuple[Any, Any]:
        """RESTORE's payload; returns the ports that read its factors and its ages."""
        g, word = self.geometry, self.i.payload
        bits = 8 * g.link_bytes
        memory: Memory = Memory(shape=bits // WORD_BITS * formats.FACTOR_BITS, depth=2 * g.vector_words, init=[])
        ages: Memory = Memory(shape=LOST_BITS, depth=formats.LOG_MAX, init=[])
        m.submodules.memory, m.submodules.ages = memory, ages
        write, keep = memory.write_port(), ages.write_port()
        index = Signal(range(self._head_words + self._numbers + 1))
        number = Signal(range(self._numbers))
        registers: Any = data.View(REGISTERS, Signal(REGISTERS.size, name="taken", reset_less=True))
        at = Signal(range(max(2, self._head_words)))
        of_registers = (index >= self._block_words) & (index < self._head_words)
        longs = [word.word_select(i, WORD_BITS) for i in range(bits // WORD_BITS)]
        strange = Cat(~x[formats.FACTOR_BITS - 1] | x[formats.FACTOR_BITS:].any() for x in longs)
        of_age, behind, entry = self._entry(number)
        wrong = Signal()  # a factor or an age
        comes = self.i.valid & (index >= self._head_words)
        m.d.comb += [
            self.i.ready.eq(1), self.of_mode.eq(index < self._block_words), at.eq(index - self._block_words),
            number.eq(index - self._head_words),
            write.addr.eq(number), write.data.eq(Cat(x[:formats.FACTOR_BITS] for x in longs)),
            write.en.eq(comes & (lanes | ~behind)),
            keep.addr.eq(entry), keep.data.eq(longs[0]), keep.en.eq(comes & logs & of_age),
            *(self.registers[name].eq(registers[name]) for name in STATE_FIELDS),
        ]
        with m.If(self.i.valid & of_registers):
            m.d.sync += registers.as_value().word_select(at[:(REGISTERS.size // bits - 1).bit_length()], bits).eq(word)
        with m.If(write.en & Mux(lanes, strange.any(), strange[0] & (number == 0))):
            m.d.sync += wrong.eq(1)
        with m.If(keep.en & longs[0][LOST_BITS:].any()):
            m.d.sync += wrong.eq(1)
        with m.If(self.start):
            m.d.sync += [index.eq(0), wrong.eq(0)]
        with m.Elif(self.i.valid & (index != self._head_words + self._numbers)):
            m.d.sync += index.eq(index + 1)
        beyond = Cat(registers[name][len(Value.cast(self.registers[name])):] for name in STATE_FIELDS)
        beyond = Cat(beyond, self.registers.logged > Mux(logs, self.held.interval, 0))
        apart = [self.given[name].as_value() != self.held[name].as_value() if name == "mode"
                 else self.given[name] != self.held[name] for name, _ in slot_layout(g) if name != "base"]
        m.d.sync += [self.bad.eq(wrong | beyond.any()), self.differs.eq(Cat(apart).any())]
        return memory.read_port(domain="comb"), ages.read_port(domain="comb")
