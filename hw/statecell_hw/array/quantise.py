"""Quantiser: divides words of a rotated vector by a scale and rounds, P elements a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import clamp
from statecell_hw.array.scale import CODE_BITS

UNIT_SHIFT = formats.RECIPROCAL_BITS - formats.SCALE_BIAS
"""value * reciprocal >> UNIT_SHIFT + exponent is value / scale."""
NEAR_BITS = formats.CODE_BITS + 2
"""Signed width of a rounded quotient that may still be clipped: its magnitude is below 20."""


class Mode(enum.Enum, shape=2):
    """What the codes are for: one 4-bit plane, two planes, or a query."""

    NARROW = 0
    WIDE = 1
    QUERY = 2


class Quantiser(wiring.Component):
    """floor(value * reciprocal of the scale >> shift), then the roundings of the three modes.

    ``i_data`` (P elements within +-VECTOR_MAX) is divided by the scale ``i_code``, negated first if ``i_turned``;
    ``i_low`` is divided likewise but never negated. Registers, all enabled by ``enable``: operands, factor,
    product, quotient, roundings; ``o_valid`` and the outputs follow ``latency`` enabled cycles after ``i_valid``, one
    word a cycle. ``tag_shape`` values travel along.
    ``busy``: a word is inside.

    o_query: codes of query_bits, saturated (QUERY).
    o_near, o_fraction: NARROW: the quotient rounded half up, not clipped, and its four fraction bits as they were
      before the rounding, so quotient = near + fraction / 16 with ``fraction`` read as signed. WIDE: high and low
      nibble of the saturated 8-bit code, each signed.
    o_zero: zero point of a NARROW word, i_low / scale rounded and limited to 0..15; 0 without geometry.zero_point.

    Reset drops what is inside; data registers are not reset.
    """

    enable: Signal
    i_valid: Signal
    i_data: list[Signal]
    i_low: Signal
    i_code: Signal
    i_turned: Signal
    i_mode: Any
    i_tag: Any
    busy: Signal
    o_valid: Signal
    o_query: list[Signal]
    o_near: list[Signal]
    o_fraction: list[Signal]
    o_zero: Signal
    o_mode: Any
    o_tag: Any

    def __init__(self, geometry: Geometry, tag_shape: data.Layout) -> None:
        self.geometry = geometry
        self.tag_shape = tag_shape
        super().__init__({
            "enable": In(1),
            "i_valid": In(1),
            "i_data": In(signed(formats.VECTOR_BITS)).array(geometry.word),
            "i_low": In(formats.VECTOR_BITS - 1),
            "i_code": In(CODE_BITS),
            "i_turned": In(1),
            "i_mode": In(Mode),
            "i_tag": In(tag_shape),
            "busy": Out(1),
            "o_valid": Out(1),
            "o_query": Out(signed(geometry.query_bits)).array(geometry.word),
            "o_near": Out(signed(NEAR_BITS)).array(geometry.word),
            "o_fraction": Out(formats.ERROR_FRACTION).array(geometry.word),
            "o_zero": Out(formats.ZERO_BITS),
            "o_mode": Out(Mode),
            "o_tag": Out(tag_shape),
        })

    @property
    def latency(self) -> int:
        """Cycles from ``i_valid`` to ``o_valid``."""
        return 5

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        stages = range(self.latency)
        valid = [self.i_valid, *(Signal(name=f"valid_{s}") for s in stages)]
        modes: list[Any] = [self.i_mode, *(Signal(Mode, name=f"mode_{s}", reset_less=True) for s in stages)]
        tags: list[Any] = [self.i_tag, *(Signal(self.tag_shape, name=f"tag_{s}", reset_less=True) for s in stages)]
        go = [Signal(name=f"go_{s}") for s in stages]
        for s in stages:
            m.d.comb += go[s].eq(valid[s] & self.enable)
            with m.If(self.enable):
                m.d.sync += valid[s + 1].eq(valid[s])
            with m.If(go[s]):
                m.d.sync += [modes[s + 1].eq(modes[s]), tags[s + 1].eq(tags[s])]
        m.d.comb += self.busy.eq(Cat(*valid[1:]).any())
        m.d.comb += [self.o_valid.eq(valid[-1]), self.o_mode.eq(modes[-1]), self.o_tag.eq(tags[-1])]

        code = Signal(CODE_BITS, reset_less=True)
        turned = Signal(reset_less=True)
        with m.If(go[0]):
            m.d.sync += [code.eq(self.i_code), turned.eq(self.i_turned)]
        reciprocal = Signal(range(formats.SCALE_RECIPROCALS[0] + 1))
        factor = Signal(signed(len(reciprocal) + 1), reset_less=True)
        with m.Switch(code[:formats.SCALE_MANTISSA]):
            for mantissa, value in enumerate(formats.SCALE_RECIPROCALS):
                with m.Case(mantissa):
                    m.d.comb += reciprocal.eq(value)
        reciprocal_1 = Signal.like(reciprocal, reset_less=True)
        octave = Signal(CODE_BITS - formats.SCALE_MANTISSA, reset_less=True)
        with m.If(go[1]):
            m.d.sync += [
                factor.eq(Mux(turned, -reciprocal, reciprocal)),
                reciprocal_1.eq(reciprocal),
                octave.eq(code[formats.SCALE_MANTISSA:]),
            ]
        # bits of the quotient that the mode rounds away or keeps as a fraction
        wide, query = UNIT_SHIFT - formats.CODE_BITS - 1, UNIT_SHIFT - g.query_fraction - 1
        start = Mux(modes[2] == Mode.NARROW, UNIT_SHIFT - formats.ERROR_FRACTION,
                    Mux(modes[2] == Mode.WIDE, wide, query))
        shift = Signal(range(UNIT_SHIFT + (formats.SCALE_MAGNITUDE_MAX >> formats.SCALE_MANTISSA)), reset_less=True)
        with m.If(go[2]):
            m.d.sync += shift.eq(start + octave)

        def divide(name: str, i: Value, by: Value) -> Signal:
            value = Signal(signed(formats.VECTOR_BITS), name=f"value_{name}", reset_less=True)
            product = Signal(signed(formats.VECTOR_BITS + len(reciprocal) - 1), name=f"product_{name}", reset_less=True)
            # the largest quotient is 2 * 8.54 * 2^query_fraction, or 16 * 18.5 for a clipped candidate
            quotient = Signal(signed(g.query_bits + 2), name=f"quotient_{name}", reset_less=True)
            with m.If(go[0]):
                m.d.sync += value.eq(i)
            value_1 = Signal.like(value, name=f"value_{name}_1", reset_less=True)
            with m.If(go[1]):
                m.d.sync += value_1.eq(value)
            with m.If(go[2]):
                m.d.sync += product.eq(value_1 * by)
            with m.If(go[3]):
                m.d.sync += quotient.eq(product >> shift)
            return quotient

        half = 1 << (formats.ERROR_FRACTION - 1)
        limit = 1 << (g.query_bits - 1)
        wide_word = modes[4] == Mode.WIDE
        for p in range(g.word):
            quotient = divide(str(p), self.i_data[p], factor)
            eight = Signal(signed(2 * formats.CODE_BITS), name=f"eight_{p}")
            high_plane = _halve(quotient, formats.WIDE_MIN, formats.WIDE_MAX, half=half, shift=formats.CODE_BITS)
            near = Mux(wide_word, high_plane, (quotient + half) >> formats.ERROR_FRACTION)
            fraction = Mux(wide_word, eight[:formats.CODE_BITS], quotient[:formats.ERROR_FRACTION])
            m.d.comb += eight.eq(_halve(quotient, formats.WIDE_MIN, formats.WIDE_MAX))
            self._leave(m, go[4], [
                (self.o_query[p], _halve(quotient, -limit, limit - 1)), (self.o_near[p], near),
                (self.o_fraction[p], fraction),
            ], f"leaving_{p}")
        if g.zero_point:
            low = divide("low", Cat(self.i_low, Const(0, 1)), reciprocal_1)
            zero = (low + half) >> formats.ERROR_FRACTION
            self._leave(m, go[4], [(self.o_zero, clamp(m, zero, 0, (1 << formats.ZERO_BITS) - 1))], "leaving_zero")
        return m

    def _leave(self, m: Module, go: Signal, outputs: list[tuple[Signal, Value]], name: str) -> None:
        """Outputs through registers that take their values in a cycle with ``go``."""
        for i, (output, value) in enumerate(outputs):
            held = Signal.like(output, name=f"{name}_{i}", reset_less=True)
            with m.If(go):
                m.d.sync += held.eq(value)
            m.d.comb += output.eq(held)


def _halve(quotient: Value, low: int, high: int, *, half: int = 0, shift: int = 0) -> Value:
    """(eight + half) >> shift, where eight is quotient / 2, rounded half up and limited to low..high. The limits are
    compared with the quotient itself, beside the addition.
    """
    rounded = (quotient + (1 + 2 * half)) >> (shift + 1)
    return Mux(quotient > 2 * high, (high + half) >> shift, Mux(quotient < 2 * low - 1, (low + half) >> shift, rounded))
