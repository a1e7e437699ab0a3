"""Rows of a state as the two banks have them."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.search import MIDDLE
from statecell_hw.layouts import row_layout
from statecell_hw.recurrent.operands import state_row

ENTRY = 1
"""Cycles from a bank's row to the state's."""


class BankAccess(wiring.Signature):
    """Both banks' ports: ``row`` is read where ``read_en`` is high, a fixed time before ``key`` and ``value`` show it.
    ``write_key`` and ``write_value`` go to ``write_row``.
    """

    def __init__(self, geometry: Geometry) -> None:
        rows, bits = range(geometry.rows), geometry.row_bits
        super().__init__({
            "read_en": Out(1), "row": Out(rows), "key": In(bits), "value": In(bits),
            "write_key_en": Out(1), "write_value_en": Out(1), "write_row": Out(rows),
            "write_key": Out(bits), "write_value": Out(bits),
        })


class BankRows(wiring.Component):
    """Choice of bank and plane, both ways.

    With two planes, ``wide``, a row's high plane lies in the key bank and its low one in the value bank, with its scale
    marked as in a wide row; with one plane the row lies in the key bank, or in the value bank if it is the ``second``
    or ``write_odd``.

    In: ``key`` and ``value``, a row of each bank, with ``valid``; ``row`` is the state's ENTRY cycles later, 0 unless
    ``stored``. Out: with ``write_en`` the row ``write`` goes to the banks at once. Interval 1.
    """

    valid: Signal
    second: Signal
    wide: Signal
    stored: Signal
    key: Signal
    value: Signal
    row: Any
    write_en: Signal
    write_odd: Signal
    write_wide: Signal
    write: Any
    write_key_en: Signal
    write_value_en: Signal
    write_key: Signal
    write_value: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "valid": In(1),
            "second": In(1),
            "wide": In(1),
            "stored": In(1),
            "key": In(g.row_bits),
            "value": In(g.row_bits),
            "row": Out(state_row(g)),
            "write_en": In(1),
            "write_odd": In(1),
            "write_wide": In(1),
            "write": In(state_row(g)),
            "write_key_en": Out(1),
            "write_value_en": Out(1),
            "write_key": Out(g.row_bits),
            "write_value": Out(g.row_bits),
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g, wide = self.geometry, self.write_wide
        key, value, one, low = (data.View(row_layout(g), raw) for raw in (
            self.key, self.value, self.write_key, self.write_value))
        row: Any = Signal(state_row(g), name="entry_row", reset_less=True)
        with m.If(self.valid):
            for j in range(g.head_dim):
                high = Mux(self.second, value.codes[j], key.codes[j])
                m.d.sync += [row.high[j].eq(Mux(self.stored, high, 0)),
                             row.low[j].eq(Mux(self.stored & self.wide, value.codes[j], 0))]
            for i in range(g.groups):
                scale = Mux(self.second, Value.cast(value.scales[i]), Value.cast(key.scales[i]))
                m.d.sync += Value.cast(row.scales[i]).eq(Mux(self.stored, scale, 0))
        m.d.comb += [
            self.row.eq(row),
            self.write_key_en.eq(self.write_en & (wide | ~self.write_odd)),
            self.write_value_en.eq(self.write_en & (wide | self.write_odd)),
        ]
        for j in range(g.head_dim):
            high = self.write.high[j]
            m.d.comb += [one.codes[j].eq(high), low.codes[j].eq(Mux(wide, self.write.low[j], high))]
        for i in range(g.groups):
            scale = self.write.scales[i]
            m.d.comb += [
                Value.cast(one.scales[i]).eq(Value.cast(scale)),
                low.scales[i].sign.eq(scale.sign), low.scales[i].mantissa.eq(scale.mantissa),
                low.scales[i].exponent.eq(Mux(wide, formats.LOW_PLANE, scale.exponent)),
            ]
            if g.zero_point:
                m.d.comb += [one.zeros[i].eq(MIDDLE), low.zeros[i].eq(MIDDLE)]
        return m
