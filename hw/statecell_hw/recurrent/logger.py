"""Logger: the values of a token and its key as rows of the log."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.quantise import Mode
from statecell_hw.array.writer import Writer
from statecell_hw.layouts import Kind, row_layout
from statecell_hw.recurrent.operands import key_layout, state_row
from statecell_hw.recurrent.readout import vector_geometry
from statecell_hw.recurrent.walk import FLIGHTS


def place_layout(geometry: Geometry) -> data.StructLayout:
    """Where a token's rows go: ``key`` and ``value`` row, if it is ``logged``."""
    return data.StructLayout({"key": range(geometry.rows), "value": range(geometry.rows), "logged": 1})


class Logger(wiring.Component):
    """Rounds the d of a token to whole value LSBs, quantises them as a wide row, and writes them and the key.

    ``place`` of each token of the log comes with ``begins``, FLIGHTS tokens or fewer ahead; then ``d`` (RECUR_BITS,
    RECUR_FRACTION) of its head_dim channels with ``valid``, any gaps; tokens begin ``interval`` cycles apart or more.
    ``write_en`` brings ``write_row`` for both planes to ``row``: first the values, a cycle later ``key``, whose
    ``taken`` it is; ``landed`` with that, also for tokens that are not logged, with ``skips``. Reset forgets the
    tokens.
    """

    begins: Signal
    place: Any
    valid: Signal
    d: Signal
    key: Any
    taken: Signal
    write_en: Signal
    row: Signal
    write_row: Any
    landed: Signal
    skips: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        self.writer = Writer(vector_geometry(g))
        assert self.writer.interval(Mode.WIDE) <= g.head_dim
        super().__init__({
            "begins": In(1),
            "place": In(place_layout(g)),
            "valid": In(1),
            "d": In(signed(formats.RECUR_BITS)),
            "key": In(key_layout(g)),
            "taken": Out(1),
            "write_en": Out(1),
            "row": Out(range(g.rows)),
            "write_row": Out(state_row(g)),
            "landed": Out(1),
            "skips": Out(1),
        })

    @property
    def interval(self) -> int:
        """Cycles from the first d of one token to that of the next: a d for each lane."""
        return self.geometry.head_dim

    @property
    def latency(self) -> int:
        """Cycles from a token's last d to its landing: rounding, word, wide row, values and key."""
        return 2 + self.writer.wide_latency + 2

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        m.submodules.writer = writer = self.writer
        layout = place_layout(g)
        m.submodules.places = places = SyncFIFO(width=layout.size, depth=FLIGHTS)
        m.d.comb += [places.w_en.eq(self.begins), places.w_data.eq(self.place), places.r_en.eq(self.landed)]
        self._words(m)
        row = data.View(row_layout(writer.geometry), writer.write.data)
        second, first_write, last_write = Signal(), Signal(), Signal()
        value: Any = Signal(state_row(g), reset_less=True)
        with m.If(writer.write.key_en):
            m.d.sync += second.eq(~second)
            with m.If(second):
                m.d.sync += [value.high.eq(row.codes), value.scales.eq(row.scales)]
            with m.Else():
                m.d.sync += value.low.eq(row.codes)
        place: Any = data.View(layout, places.r_data)
        m.d.sync += [first_write.eq(writer.write.key_en & second), last_write.eq(first_write)]
        m.d.comb += [
            self.write_en.eq((first_write | last_write) & place.logged),
            self.row.eq(Mux(first_write, place.value, place.key)),
            self.taken.eq(last_write), self.landed.eq(last_write), self.skips.eq(~place.logged),
        ]
        shown: Any = self.write_row
        for j, code in enumerate(self.key.codes[0]):
            low = code[:formats.CODE_BITS]
            high = (code[formats.CODE_BITS:] + low[-1])[:formats.CODE_BITS]
            m.d.comb += [
                shown.high[j].eq(Mux(first_write, value.high[j], high.as_signed())),
                shown.low[j].eq(Mux(first_write, value.low[j], low.as_signed())),
            ]
        for i, scale in enumerate(self.key.scales[0]):
            m.d.comb += Value.cast(shown.scales[i]).eq(
                Mux(first_write, Value.cast(value.scales[i]), Value.cast(scale)))
        return m

    def _words(self, m: Module) -> None:
        """Rounded values, a word of them at a time, to the writer; its job is there before the first of them."""
        g, writer = self.geometry, self.writer
        rounded = ((self.d >> (formats.RECUR_FRACTION - 1)) + 1) >> 1
        limit = formats.VECTOR_MAX
        held = Signal(signed(formats.VECTOR_BITS), reset_less=True)
        arrived, full = Signal(), Signal()
        place = Signal(range(g.word))
        word = Signal(formats.VECTOR_BITS * g.word, reset_less=True)
        m.d.sync += [
            held.eq(Mux(rounded > limit, limit, Mux(rounded < -limit, -limit, rounded))), arrived.eq(self.valid),
            full.eq(arrived & (place == g.word - 1)),
        ]
        due, count = Signal(), Signal(range(g.head_dim))
        with m.If(arrived):
            m.d.sync += [place.eq(place + 1), word.eq(Cat(word[formats.VECTOR_BITS:], held))]
        with m.If(self.valid):
            m.d.sync += count.eq(count + 1)
        m.d.comb += [
            writer.i_valid.eq(full), writer.i_data.as_value().eq(word),
            writer.job.valid.eq(due), writer.job.payload.kind.eq(Kind.KEY), writer.job.payload.wide.eq(1),
        ]
        with m.If(writer.take):
            m.d.sync += due.eq(1)
        with m.Elif(writer.job.ready):
            m.d.sync += due.eq(0)
        m.d.comb += writer.take.eq(self.valid & (count == 0))
