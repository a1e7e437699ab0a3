"""The small device: what StateCell does, done by a program."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.link.crc import Crc
from statecell_hw.link.deframer import word_layout
from statecell_hw.link.port import LINK_PORT
from statecell_hw.small.isa import Strobe
from statecell_hw.small.machine import Machine
from statecell_hw.small.program import STORE_WORDS, firmware, row_cycles, tables, vector_cycles
from statecell_hw.small.rowstore import RowStore


class SmallCell(wiring.Component):
    """The whole device between two streams of link words, as StateCell is; for geometries with `small`.

    Every frame in gives one frame out, in order, and the same answer to the bit as StateCell's. One frame is handled at
    a time: the next waits on `i` until the answer's last word is taken. A vector of an APPEND costs at most
    `vector_cycles` cycles, a row and query of a pass at most `row_cycles` where it does not raise the maximum. Reset
    closes all slots.

    Parameters: `build_hash` and `serial` as StateCell's.

    Members
    -------
    i, o: link words in and out.
    link: LINK_PORT.
    """

    i: stream.Interface
    o: stream.Interface
    link: Any

    def __init__(self, g: Geometry, *, build_hash: int = 0, serial: SerialLink | None = None) -> None:
        self.g = g
        self.machine = Machine(firmware(g, build_hash, serial), tables())
        self.crc = Crc(link_bytes=g.link_bytes)
        self.store = RowStore(STORE_WORDS * g.rows)
        signature = stream.Signature(word_layout(g))
        super().__init__({"i": In(signature), "o": Out(signature), "link": Out(LINK_PORT)})

    @property
    def vector_cycles(self) -> int:
        """Most cycles from one vector of an APPEND to the next."""
        return vector_cycles(self.g)

    @property
    def row_cycles(self) -> int:
        """Most cycles of a row and query of a pass."""
        return row_cycles(self.g)

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.machine = machine = self.machine
        m.submodules.crc = crc = self.crc
        m.submodules.store = store = self.store
        # the word at the output
        full, last, data = Signal(), Signal(), Signal(8 * self.g.link_bytes, reset_less=True)

        def strobe(which: Strobe) -> Any:
            return machine.strobe[int(which).bit_length() - 1]

        m.d.comb += [
            machine.word.eq(self.i.payload),
            machine.word_valid.eq(self.i.valid),
            self.i.ready.eq(machine.word_take),
            machine.free.eq(~full),
            machine.crc.eq(crc.crc),
            machine.session.eq(self.link.session),
            machine.nibble.eq(store.nibble),
            machine.row.eq(store.word),
            crc.data.eq(machine.a),
            crc.en.eq(strobe(Strobe.CRC)),
            crc.clear.eq(strobe(Strobe.CLEAR)),
            store.address.eq(machine.a),
            store.data.eq(machine.a),
            store.seek.eq(strobe(Strobe.ROW)),
            store.write.eq(strobe(Strobe.WRITE)),
            store.next_nibble.eq(machine.next_nibble),
            store.next_word.eq(machine.next_row),
            self.link.accepted.eq(strobe(Strobe.ACCEPT)),
            self.link.rejected.eq(strobe(Strobe.REJECT)),
            self.link.connect.eq(strobe(Strobe.CONNECT)),
            self.link.token.eq(machine.a),
            self.link.divisor.eq(machine.a >> len(self.link.token)),
        ]
        m.d.comb += [self.o.valid.eq(full), self.o.payload.data.eq(data), self.o.payload.last.eq(last)]
        with m.If(full & self.o.ready):
            m.d.sync += full.eq(0)
            with m.If(last):
                m.d.sync += self.link.answering.eq(0)
        with m.If(strobe(Strobe.PUT) & ~full):
            m.d.sync += [full.eq(1), data.eq(machine.a), last.eq(strobe(Strobe.LAST))]
        with m.If(strobe(Strobe.ACCEPT) | strobe(Strobe.REJECT)):
            m.d.sync += self.link.answering.eq(1)
        return m
