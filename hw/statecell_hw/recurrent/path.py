"""Recurrent path: state rows of many heads in, one a cycle; outputs and rows to write back out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier
from statecell_hw.layouts import SCALE, QueryLoad
from statecell_hw.recurrent.operands import HALVES, HEAD, LOST_BITS, key_layout, state_row
from statecell_hw.recurrent.pipeline import late
from statecell_hw.recurrent.readout import VECTORS, vector_geometry
from statecell_hw.recurrent.readpath import ReadPath
from statecell_hw.recurrent.walk import FLAGS
from statecell_hw.recurrent.writepath import WritePath


class RecurrentPath(wiring.Component):
    """The recurrent step on rows; docs/numerics.md, 8.3 to 8.7.

    ``row`` comes with ``flags`` (see :class:`Walk`; a cycle may bring a row, a token of a sweep over ``swept``, both or
    nothing), a row of the state with its value ``v`` and, for supplied scales, ``supplied``, a logged key with its
    ``age``, the octaves that the factor had lost at its token. A head's rows of the state are MIN_ROWS or more, and
    come with any gaps, those of the log, and of commits, without.

    ``o_valid`` comes with ``o`` (RECUR_BITS, RECUR_FRACTION), ``o_last`` with that of the last channel: ``o_latency``
    cycles after the row, or, with a log, one a cycle from ``log_latency`` cycles after the last row of the pass on,
    when each channel's ``d`` comes with ``d_valid`` as well. ``write_valid`` comes ``latency`` cycles after the row
    that ends an update, for heads that write, with ``write_row`` and ``renewed``, the groups that took a new scale
    where it is held; ``written`` at that time for the last row of a pass without log, with ``noise``, the register that
    the head's next token begins with if this one writes. Interval 1, and ``gap`` idle cycles between passes.

    Operands: ``load`` (of :class:`Dot`) fills the vectors, ``full`` shows them; ``head`` must be right in the cycle of
    a ``first`` row; ``key`` is that of the oldest head whose ``key_taken`` has not come, and must stand from the cycle
    of its ``first`` row until then; keys of tokens that are logged are not taken here. Reset drops the rows inside.
    """

    flags: Any
    row: Any
    age: Signal
    swept: Signal
    v: Signal
    supplied: Any
    load: Any
    load_ready: Signal
    full: Signal
    head: Any
    key: Any
    key_taken: Signal
    o_valid: Signal
    o_last: Signal
    o: Signal
    d_valid: Signal
    d: Signal
    write_valid: Signal
    write_row: Any
    written: Signal
    renewed: list[Signal]
    noise: Signal

    def __init__(self, geometry: Geometry, *, multiplier: Multiplier = "native") -> None:
        self.geometry = g = geometry
        self.read = ReadPath(g, multiplier=multiplier)
        self.write = WritePath(g, d_time=self.read.d_latency, multiplier=multiplier)
        super().__init__({
            "flags": In(FLAGS),
            "row": In(state_row(g)),
            "age": In(LOST_BITS),
            "swept": In(range(g.head_dim)),
            "v": In(signed(formats.VECTOR_BITS)),
            "supplied": In(SCALE).array(g.groups),
            "load": In(QueryLoad(vector_geometry(g))),
            "load_ready": Out(1),
            "full": Out(HALVES * VECTORS),
            "head": In(HEAD),
            "key": In(key_layout(g)),
            "key_taken": Out(1),
            "o_valid": Out(1),
            "o_last": Out(1),
            "o": Out(signed(formats.RECUR_BITS)),
            "d_valid": Out(1),
            "d": Out(signed(formats.RECUR_BITS)),
            "write_valid": Out(1),
            "write_row": Out(state_row(g)),
            "written": Out(1),
            "renewed": Out(1).array(g.groups),
            "noise": Out(formats.LFSR_BITS),
        })

    @property
    def o_latency(self) -> int:
        """Cycles from a row to its output."""
        return self.read.o_latency

    @property
    def log_latency(self) -> int:
        """Cycles from the last row of a pass with a log to the first of its outputs."""
        return self.read.log_latency

    @property
    def latency(self) -> int:
        """Cycles from a row to the row written back, one more with halves."""
        return self.write.latency

    @property
    def gap(self) -> int:
        """Fewest idle cycles between the rows of two heads."""
        return self.read.gap

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        m.submodules.read, m.submodules.write = read, write = self.read, self.write
        wiring.connect(m, wiring.flipped(self.load), read.load)
        row = Value.cast(self.row)
        m.d.comb += [
            read.flags.eq(self.flags), read.row.eq(self.row),
            Cat(write.flags.as_value(), Value.cast(write.row)).eq(
                late(m, self.flags.halves, Cat(self.flags.as_value(), row), "late")),
            read.age.eq(self.age), read.v.eq(self.v), read.head.eq(self.head), self.load_ready.eq(read.load_ready),
            self.full.eq(read.full), self.o_valid.eq(read.o_valid), self.o_last.eq(read.o_last), self.o.eq(read.o),
            self.d_valid.eq(read.d_valid), self.d.eq(read.d),
            write.swept.eq(self.swept), write.head.eq(read.entered), write.d.eq(read.d), write.below.eq(read.below),
            write.key.eq(self.key), self.key_taken.eq(write.key_taken),
            *(a.eq(b) for a, b in zip(write.supplied, self.supplied, strict=True)),
            *(a.eq(b) for a, b in zip(write.codes, read.codes, strict=True)),
            *(a.eq(b) for a, b in zip(write.scales, read.scales, strict=True)),
            self.write_valid.eq(write.write_valid), self.write_row.eq(write.write_row),
            self.written.eq(write.written), self.noise.eq(write.noise),
            *(a.eq(b) for a, b in zip(self.renewed, write.renewed, strict=True)),
        ]
        return m
