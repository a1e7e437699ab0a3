"""Tile: two banks and the datapath between them, from a pass descriptor to normalised output words."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import UNREAD, hold
from statecell_hw.array.bank import Bank
from statecell_hw.array.dot import Dot
from statecell_hw.array.multiply import Multiplier
from statecell_hw.array.rowmemory import enables, segments
from statecell_hw.array.rowstream import GAP, RowStream, TableRead, TableWrite, tag_layout
from statecell_hw.attention.accumulate import Accumulate
from statecell_hw.attention.normalise import Normalise
from statecell_hw.attention.score import Score
from statecell_hw.attention.softmax import Softmax
from statecell_hw.layouts import QueryLoad, RowWrite, output_layout, pass_layout
from statecell_hw.recurrent.bankrows import BankAccess

PASSES = 2
"""Passes that may be started and not fully drained: one in the drain registers, one in the accumulators."""


class RawRead(wiring.Signature):
    """Read port of whole rows: both banks' ``row`` a fixed time after ``en``."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__({
            "en": Out(1),
            "row": Out(range(geometry.rows)),
            "key_data": In(geometry.row_bits),
            "value_data": In(geometry.row_bits),
        })


class Tile(wiring.Component):
    """One tile: attention of up to ``lanes`` queries over the rows of one slot per pass, a row per cycle.

    ``write``, ``table_write`` and ``table_read``: :class:`RowWrite`, :class:`TableWrite` and :class:`TableRead`, at any
    time; a table entry written in the cycle that a pass reads it counts for the next pass, and so does a row written
    then or a cycle before.
    ``query``: :class:`QueryLoad`, only while ``query_ready`` is high: the shadow of ``query.lane`` (which must be held
    while waiting) is free. ``pass_`` is accepted once the shadows of its active lanes are full, the gap since the last
    pass is over and at most one pass before it is not drained; the shadows then become its queries. ``drop`` forgets
    shadow queries that no accepted pass is to use; queries are loaded from lane 0 up.
    ``o``: ``lanes`` * ``vector_words`` words per pass, in order; it may be held up for any time, and no row is lost.
    ``raw_read``: a row of both banks ``raw_latency`` cycles after ``en``; only while ``busy`` is low.
    ``busy``: a pass or its words are in the tile. ``key_row``, ``value_row``: that bank reads a row for a pass.
    ``recurrent``, with states: the banks for the recurrent unit, read ``raw_latency`` cycles after ``read_en``; only
    while ``busy`` is low and nothing else is written or read.

    The first row of a pass is issued one cycle after acceptance, is in the accumulators ``accumulate_latency`` cycles
    later, and the first word is on ``o`` ``output_latency`` cycles after the last row was issued. Passes follow each
    other in their rows plus ``GAP`` cycles, if the words of a pass have left when the next but one begins. Reset
    forgets passes and queries and keeps rows and page table.
    """

    write: wiring.FlippedInterface
    query: wiring.FlippedInterface
    query_ready: Signal
    drop: Signal
    table_write: wiring.FlippedInterface
    table_read: wiring.FlippedInterface
    pass_: stream.Interface
    o: stream.Interface
    raw_read: wiring.FlippedInterface
    busy: Signal
    key_row: Signal
    value_row: Signal
    recurrent: Any

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.rowstream = RowStream(g)
        self.keys, self.values = Bank(g), Bank(g)
        self.dot = Dot(g, multiplier=multiplier)
        self.score = Score(g, lead=self.dot.latency - (self.keys.scale_latency - self.keys.latency))
        self.softmax = Softmax(g)
        self.accumulate = Accumulate(g, multiplier=multiplier)
        self.normalise = Normalise(g, drain_latency=self.accumulate.drain_latency)
        super().__init__({
            "write": In(RowWrite(g)),
            "query": In(QueryLoad(g)),
            "query_ready": Out(1),
            "drop": In(1),
            "table_write": In(TableWrite(g)),
            "table_read": In(TableRead(g)),
            "pass_": In(stream.Signature(pass_layout(g))),
            "o": Out(stream.Signature(output_layout(g))),
            "raw_read": In(RawRead(g)),
            "busy": Out(1),
            "key_row": Out(1),
            "value_row": Out(1),
            **({"recurrent": In(BankAccess(g))} if g.states else {}),
        })

    # -- times, in cycles after a row's tag leaves the row stream ------------------------------------------------------
    @property
    def _key_time(self) -> int:
        return 1

    @property
    def _codes_time(self) -> int:
        return self._key_time + self.keys.latency

    @property
    def _scores_time(self) -> int:
        return self._codes_time + self.dot.latency + self.score.latency

    @property
    def _weights_time(self) -> int:
        return self._scores_time + self.softmax.latency

    @property
    def _value_time(self) -> int:
        return self._scores_time + self.softmax.scale_lead - self.values.scale_latency

    @property
    def _done_time(self) -> int:
        return self._weights_time + self.accumulate.latency

    @property
    def accumulate_latency(self) -> int:
        """Cycles from the issue of a row to the accumulators that contain it."""
        return self.rowstream.latency + self._done_time

    @property
    def output_latency(self) -> int:
        """Cycles from the issue of a pass's last row to its first word, drain registers free."""
        return self.accumulate_latency - self.accumulate.drain_latency + self.normalise.latency

    @property
    def raw_latency(self) -> int:
        """Cycles from ``raw_read.en`` to its data: address register and bank."""
        return 1 + self.keys.raw_latency

    @property
    def gap(self) -> int:
        """Cycles that a pass takes beyond its rows when passes follow each other."""
        return GAP

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        for name in ("rowstream", "keys", "values", "dot", "score", "softmax", "accumulate", "normalise"):
            m.submodules[name] = getattr(self, name)
        rows, keys, values, dot = self.rowstream, self.keys, self.values, self.dot
        score, softmax, accumulate, normalise = self.score, self.softmax, self.accumulate, self.normalise

        # -- passes ----------------------------------------------------------------------------------------------------
        wiring.connect(m, wiring.flipped(self.pass_), rows.pass_)
        wiring.connect(m, wiring.flipped(self.table_write), rows.table_write)
        wiring.connect(m, wiring.flipped(self.table_read), rows.table_read)
        wiring.connect(m, wiring.flipped(self.query), dot.load)
        wiring.connect(m, normalise.o, wiring.flipped(self.o))
        started = Signal(range(PASSES + 1))
        room = Signal(init=1)  # for a pass more
        claimed = Signal()
        active = self.pass_.payload.active
        m.d.comb += [
            rows.allowed.eq(room & (dot.full | ~active).all()),
            self.query_ready.eq(dot.load_ready),
            # between acceptance and swap the shadows are the accepted pass's: lane 0 lets no other query in
            dot.drop.eq(self.drop & ~claimed),
            self.busy.eq((started != 0) | normalise.busy),
        ]
        accepted = self.pass_.valid & self.pass_.ready
        remaining = started - normalise.drained
        m.d.sync += [
            started.eq(remaining + accepted),
            room.eq(Mux(accepted, remaining + 1 != PASSES, remaining != PASSES)),
            claimed.eq((claimed | accepted) & ~dot.swap),
        ]

        # -- tags: every row's fields, by the time since they left the row stream --------------------------------------
        valid: list[Signal] = [rows.valid]
        tag: list[Any] = [rows.tag]
        for i in range(1, self._done_time + 1):
            valid.append(Signal(name=f"valid_{i}"))
            tag.append(Signal(tag_layout(g), name=f"tag_{i}", reset_less=True, attrs={UNREAD: 1}))
            m.d.sync += valid[i].eq(valid[i - 1])
            with m.If(valid[i - 1]):
                m.d.sync += tag[i].eq(tag[i - 1])

        # -- banks -----------------------------------------------------------------------------------------------------
        raw = self.raw_read
        # rows to write come from far: a register of their own, a cycle more before they are in the banks
        write: Any = Signal(
            data.StructLayout({"row": range(g.rows), "data": g.row_bits}), reset_less=True, attrs={UNREAD: 1})
        with m.If(self.write.key_en | self.write.value_en):
            m.d.sync += [write.row.eq(self.write.row), write.data.eq(self.write.data)]
        for bank, time, write_strobe, data_out, strobe in (
            (keys, self._key_time, self.write.key_en, raw.key_data, self.key_row),
            (values, self._value_time, self.write.value_en, raw.value_data, self.value_row),
        ):
            write_en = Signal(segments(g), name=f"write_en_{time}")
            m.d.sync += write_en.eq(enables(write_strobe, self.write.row, g))
            reading = Signal(name=f"reading_{time}")
            row = Signal(range(g.rows), name=f"row_{time}", reset_less=True, attrs={UNREAD: 1})
            m.d.sync += reading.eq(valid[time - 1] | raw.en)
            with m.If(valid[time - 1] | raw.en):
                m.d.sync += row.eq(Mux(raw.en, raw.row, tag[time - 1].row))
            m.d.comb += [
                bank.write_en.eq(write_en), bank.write_row.eq(write.row), bank.write_data.eq(write.data),
                bank.read_en.eq(reading), bank.read_row.eq(row), data_out.eq(bank.raw), strobe.eq(valid[time]),
            ]
            if g.states:
                self._recur(m, bank, reading, row, strobe)

        # -- key side --------------------------------------------------------------------------------------------------
        start = self._codes_time - 1
        scale_time = self._key_time + keys.scale_latency
        # registers behind registers: the swap enables all queries'
        early = max(0, start - 3)
        swap: Value = valid[early] & tag[early].first
        for time in range(early + 1, start):
            later = Signal(name=f"swap_{time}")
            m.d.sync += later.eq(swap)
            swap = later
        m.d.sync += dot.swap.eq(swap)
        m.d.comb += [
            dot.valid.eq(valid[self._codes_time]),
            score.swap.eq(dot.swap),
            score.shift.eq(rows.shift),
            score.valid.eq(valid[scale_time]),
            *(a.eq(b) for a, b in zip(dot.codes, keys.codes, strict=True)),
        ]
        for lane in range(g.lanes):
            m.d.comb += [
                score.query_sign[lane].eq(dot.query_sign[lane]),
                score.query_mantissa[lane].eq(dot.query_mantissa[lane]),
                score.query_exponent[lane].eq(dot.query_exponent[lane]),
                *(a.eq(b) for a, b in zip(score.dots[lane], dot.dots[lane], strict=True)),
                softmax.scores[lane].eq(score.scores[lane]),
                accumulate.terms[lane].eq(softmax.terms[lane]),
                *(a.eq(b) for a, b in zip(accumulate.weights[lane], softmax.weights[lane], strict=True)),
                normalise.drain_sums[lane].eq(accumulate.drain_sums[lane]),
            ]
        for bank, block in ((keys, score), (values, softmax)):
            m.d.comb += block.low.eq(bank.low)
            for group in range(g.groups):
                m.d.comb += [
                    block.mantissa[group].eq(bank.mantissa[group]),
                    block.sign[group].eq(bank.sign[group]),
                    block.exponent[group].eq(bank.exponent[group]),
                ]

        # -- value side ------------------------------------------------------------------------------------------------
        last = self._done_time - accumulate.drain_latency
        m.d.comb += [
            softmax.valid.eq(valid[self._scores_time]),
            softmax.first.eq(tag[self._scores_time].first),
            softmax.visible.eq(tag[self._scores_time].visible),
            accumulate.enable.eq(softmax.enable),
            accumulate.fresh.eq(softmax.fresh),
            accumulate.step.eq(softmax.step),
            accumulate.capture.eq(normalise.capture),
            accumulate.shift.eq(normalise.shift),
            *(a.eq(b) for a, b in zip(normalise.elements, accumulate.drain, strict=True)),
            normalise.done.eq(valid[last] & tag[last].last),
            normalise.lanes.eq(tag[last].lanes),
        ]
        codes = list(values.codes)
        for time in range(self._value_time + values.latency, self._weights_time):
            codes = hold(m, valid[time], codes, f"code_{time}")
        m.d.comb += [a.eq(b) for a, b in zip(accumulate.codes, codes, strict=True)]
        return m

    def _recur(self, m: Module, bank: Bank, reading: Signal, row: Signal, strobe: Signal) -> None:
        """A bank's ports for the recurrent unit: registers like those of the other rows."""
        access: Any = self.recurrent
        keys = bank is self.keys
        name = "key" if keys else "value"
        enable, given, shown = (access.write_key_en, access.write_key, access.key) if keys else (
            access.write_value_en, access.write_value, access.value)
        written = Signal(segments(self.geometry), name=f"recurrent_write_{name}")
        reads = Signal(name=f"recurrent_read_{name}")
        place: Any = Signal(
            data.StructLayout({"row": range(self.geometry.rows), "data": self.geometry.row_bits}),
            name=f"recurrent_{name}", reset_less=True)
        m.d.sync += [written.eq(enables(enable, access.write_row, self.geometry)), reads.eq(access.read_en)]
        with m.If(enable):
            m.d.sync += [place.row.eq(access.write_row), place.data.eq(given)]
        with m.If(access.read_en):
            m.d.sync += [reading.eq(1), row.eq(access.row)]
        with m.If(written.any()):
            m.d.comb += [bank.write_en.eq(written), bank.write_row.eq(place.row), bank.write_data.eq(place.data)]
        with m.If(reads):
            m.d.comb += strobe.eq(1)
        m.d.comb += shown.eq(bank.raw)
