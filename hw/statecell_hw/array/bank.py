"""Row memory of one side, keys or values, and the views of a row that the datapath takes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.rowmemory import RowMemory, segments
from statecell_hw.layouts import SCALE, row_layout

EXPONENT_BITS = formats.SCALE_BITS - formats.SCALE_MANTISSA
"""Signed width of an exponent in force: a low plane has its high plane's less 4."""


class Bank(wiring.Component):
    """Simple dual-port memory of rows.

    One row is written and one read per cycle. A read in the cycle of a write to the same row is :class:`RowMemory`'s.
    ``raw`` is valid ``raw_latency`` cycles after ``read_en``, ``codes`` (zero points
    applied: code + 8 - z) after ``latency``. The scale in force of a row is known one cycle after its codes, because a
    low plane takes that of the row read next, which must be read in the next cycle: ``mantissa`` (without its leading
    8), ``sign``, ``exponent`` (signed, less 4 for a low plane) and ``low`` are valid after ``scale_latency``.
    The memory is not reset.
    """

    write_en: Signal
    write_row: Signal
    write_data: Signal
    read_en: Signal
    read_row: Signal
    raw: Signal
    codes: list[Signal]
    mantissa: list[Signal]
    sign: list[Signal]
    exponent: list[Signal]
    low: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.memory = RowMemory(geometry)
        super().__init__({
            "write_en": In(segments(geometry)),
            "write_row": In(range(geometry.rows)),
            "write_data": In(geometry.row_bits),
            "read_en": In(1),
            "read_row": In(range(geometry.rows)),
            "raw": Out(geometry.row_bits),
            "codes": Out(signed(geometry.effective_bits)).array(geometry.head_dim),
            "mantissa": Out(formats.SCALE_MANTISSA).array(geometry.groups),
            "sign": Out(1).array(geometry.groups),
            "exponent": Out(signed(EXPONENT_BITS)).array(geometry.groups),
            "low": Out(1),
        })

    @property
    def raw_latency(self) -> int:
        """Cycles from ``read_en`` to ``raw``."""
        return self.memory.latency

    @property
    def latency(self) -> int:
        """Cycles from ``read_en`` to ``codes``: one more where zero points are applied."""
        return self.raw_latency + int(self.geometry.zero_point)

    @property
    def scale_latency(self) -> int:
        """Cycles from ``read_en`` to the scale in force."""
        return self.latency + 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        m.submodules.memory = memory = self.memory
        m.d.comb += [
            memory.write_en.eq(self.write_en), memory.write_row.eq(self.write_row),
            memory.write_data.eq(self.write_data),
            memory.read_en.eq(self.read_en), memory.read_row.eq(self.read_row),
        ]
        m.d.comb += self.raw.eq(memory.read_data)
        row = data.View(row_layout(g), self.raw)
        valid: Signal = self.read_en
        for stage in range(self.raw_latency):
            after = Signal(name=f"valid_{stage}")
            m.d.sync += after.eq(valid)
            valid = after
        scales: list[Any] = [Signal(SCALE, name=f"scale_{i}", reset_less=True) for i in range(g.groups)]
        if g.zero_point:
            after = Signal()
            m.d.sync += after.eq(valid)
            with m.If(valid):
                for j in range(g.head_dim):
                    offset = formats.CODE_MAX + 1 - row.zeros[j // g.group]
                    m.d.sync += self.codes[j].eq(row.codes[j] + offset)
                m.d.sync += [scales[i].eq(row.scales[i]) for i in range(g.groups)]
            valid = after
        else:
            m.d.comb += [self.codes[j].eq(row.codes[j]) for j in range(g.head_dim)]
            m.d.comb += [scales[i].eq(row.scales[i]) for i in range(g.groups)]
        held: list[Any] = [Signal(SCALE, name=f"held_{i}", reset_less=True) for i in range(g.groups)]
        with m.If(valid):
            m.d.sync += [h.eq(s) for h, s in zip(held, scales, strict=True)]
        m.d.comb += self.low.eq(held[0].exponent == formats.LOW_PLANE)
        for i in range(g.groups):
            m.d.comb += [
                self.mantissa[i].eq(Mux(self.low, scales[i].mantissa, held[i].mantissa)),
                self.sign[i].eq(Mux(self.low, scales[i].sign, held[i].sign)),
                self.exponent[i].eq(Mux(self.low, scales[i].exponent - formats.CODE_BITS, held[i].exponent)),
            ]
        return m
