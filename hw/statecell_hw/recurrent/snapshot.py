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
from statecell_hw.recurrent.decays import FactorAccess
from statecell_hw.recurrent.operands import slot_layout
from statecell_hw.recurrent.tokens import WORD_BITS
from statecell_hw.recurrent.unit import STATUS

MODE_BLOCK = data.StructLayout(STATE_MODE_BITS)
REGISTERS = data.StructLayout(dict.fromkeys(STATE_FIELDS, 64))
HEAD_BITS = MODE_BLOCK.size + REGISTERS.size
"""Bits in front of the factors."""


class Snapshot(wiring.Component):
    """Sends a slot's mode, registers and factors after ``save``, or takes them and sets the factors after ``restore``.

    ``slot`` is named all the while, ``held`` is its configuration and ``current`` what its tokens have changed; no
    token is on its way in the recurrent unit from ``save`` or ``restore`` until ``busy`` falls.

    ``start`` comes a cycle before RESTORE's payload on ``i``, which is always ready; words ``of_mode`` go to
    :class:`Opening` as well, which gives ``given``. Two cycles after the last word ``bad`` tells that a register or
    factor is outside its range, ``differs`` that the mode is not the slot's, and ``registers`` are the payload's, but
    for ``noise``, which is 0. ``restore`` then copies the factors, one word a cycle.

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
            "o": Out(stream.Signature(8 * g.link_bytes)),
        })

    @property
    def _head_words(self) -> int:
        return HEAD_BITS // (8 * self.geometry.link_bytes)

    @property
    def _most_words(self) -> int:
        return self._head_words + 2 * self.geometry.vector_words

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g, access = self.geometry, self.factors
        bits, block_words = 8 * g.link_bytes, frame.BLOCK // g.link_bytes
        lanes = self.held.lane_decay
        memory = self._take(m, lanes)
        place = Signal(range(self._most_words))  # word of the answer, or of the factors to copy
        last, of_factors = Signal(), Signal()
        word = Signal(bits, reset_less=True)
        number = Signal(range(2 * g.vector_words))
        shown = Cat(access.factors.word_select(i, formats.FACTOR_BITS) | Const(0, WORD_BITS)
                    for i in range(bits // WORD_BITS))
        single = Mux(number == 0, access.factors[:formats.FACTOR_BITS], 0)
        head = self._head()
        m.d.comb += [
            of_factors.eq(place >= self._head_words), number.eq(place - self._head_words),
            access.slot.eq(self.slot), access.number.eq(number), memory.addr.eq(place), access.written.eq(memory.data),
            self.o.payload.eq(word),
        ]
        with m.FSM() as fsm:
            with m.State("IDLE"):
                m.d.sync += place.eq(0)
                with m.If(self.save):
                    m.next = "ASK"
                with m.If(self.restore):
                    m.next = "COPY"
            with m.State("ASK"):
                m.d.comb += access.reads.eq(1)
                m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += access.reads.eq(1)
                m.d.sync += word.eq(Mux(of_factors, Mux(lanes, shown, single), head.word_select(
                    place[:(self._head_words - 1).bit_length()], bits)))
                m.next = "SEND"
            with m.State("SEND"):
                m.d.comb += [
                    self.o.valid.eq(1),
                    last.eq(place == self._head_words - 1 + Mux(lanes, 2 * g.vector_words, block_words)),
                ]
                with m.If(self.o.ready):
                    m.d.sync += place.eq(place + 1)
                    m.next = "ASK"
                    with m.If(last):
                        m.next = "IDLE"
            with m.State("COPY"):
                m.d.comb += [access.number.eq(place), access.writes.eq(1)]
                m.d.sync += place.eq(place + 1)
                with m.If(place == Mux(lanes, 2 * g.vector_words - 1, 0)):
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
            StateFlag.DECAY_FIRST: held.decay_first, StateFlag.BONUS: held.bonus,
        }
        values = {
            "flags": Cat(flag[f] for f in StateFlag), "feedback": mode.feedback, "shift": mode.shift,
            "channels": held.channels, "first_page": held.base >> exact_log2(self.geometry.page_rows),
            "interval": held.interval, "seed": current.noise,
        }
        parts = [(values[name], width) for name, width in STATE_MODE_BITS.items()]
        parts += [(current[name], 64) for name in STATE_FIELDS]
        return Cat((Value.cast(value) | Const(0, width))[:width] for value, width in parts)

    def _take(self, m: Module, lanes: Signal) -> Any:
        """RESTORE's payload; returns the port that reads its factors."""
        g, word = self.geometry, self.i.payload
        bits, block_words = 8 * g.link_bytes, frame.BLOCK // g.link_bytes
        memory: Memory = Memory(shape=bits // WORD_BITS * formats.FACTOR_BITS, depth=2 * g.vector_words, init=[])
        m.submodules.memory = memory
        write = memory.write_port()
        index = Signal(range(self._most_words + 1))
        number = Signal(range(2 * g.vector_words))
        registers: Any = data.View(REGISTERS, Signal(REGISTERS.size, name="taken", reset_less=True))
        at = Signal(range(max(2, self._head_words)))
        of_registers = (index >= block_words) & (index < self._head_words)
        longs = [word.word_select(i, WORD_BITS) for i in range(bits // WORD_BITS)]
        strange = Cat(~x[formats.FACTOR_BITS - 1] | x[formats.FACTOR_BITS:].any() for x in longs)
        wrong = Signal()  # a factor
        m.d.comb += [
            self.i.ready.eq(1), self.of_mode.eq(index < block_words), at.eq(index - block_words),
            number.eq(index - self._head_words),
            write.addr.eq(number), write.data.eq(Cat(x[:formats.FACTOR_BITS] for x in longs)),
            write.en.eq(self.i.valid & (index >= self._head_words)),
            *(self.registers[name].eq(registers[name]) for name in STATE_FIELDS),
        ]
        with m.If(self.i.valid & of_registers):
            m.d.sync += registers.as_value().word_select(at[:(REGISTERS.size // bits - 1).bit_length()], bits).eq(word)
        with m.If(write.en & Mux(lanes, strange.any(), strange[0] & (number == 0))):
            m.d.sync += wrong.eq(1)
        with m.If(self.start):
            m.d.sync += [index.eq(0), wrong.eq(0)]
        with m.Elif(self.i.valid & (index != self._most_words)):
            m.d.sync += index.eq(index + 1)
        beyond = Cat(registers[name][len(Value.cast(self.registers[name])):] for name in STATE_FIELDS)
        apart = [self.given[name].as_value() != self.held[name].as_value() if name == "mode"
                 else self.given[name] != self.held[name] for name, _ in slot_layout(g) if name != "base"]
        m.d.sync += [self.bad.eq(wrong | beyond.any()), self.differs.eq(Cat(apart).any())]
        return memory.read_port(domain="comb")
