"""Scale finder: the smallest scale at which nothing of a group or of a query is clipped."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import larger, shared

CODE_BITS = formats.SCALE_BITS - 1
"""Magnitude of a scale: exponent and mantissa."""
NIBBLE = 4
"""Bits, and nibbles of a magnitude, among which the leading one is found at once."""
LEVELS = 2
"""Levels of the comparison tree between two registers."""


def smallest_scale(m: Module, magnitude: Value) -> Signal:
    """Least scale code whose value times 8 is >= magnitude (VECTOR_BITS, unsigned), at most SCALE_MAGNITUDE_MAX.

    Combinational: the magnitude is shifted up to its leading one; exponent, the next three bits, and one more if
    anything follows them. 0 gives 0.
    """
    return _code(m, *_raised(m, magnitude))


def leading_one(m: Module, magnitude: Value, bits: int = formats.VECTOR_BITS) -> tuple[Value, Value]:
    """The magnitude of ``bits`` (a power of two) shifted up to its leading one, and where that was: the exponent.
    Combinational.
    """
    shifted, top = shared(m, magnitude[:bits], "magnitude"), list[Value]()
    step = bits >> 1
    while step:
        empty = shifted[bits - step:] == 0
        shifted = shared(m, Mux(empty, shifted << step, shifted)[:bits], f"shifted_{step}")
        top.insert(0, ~empty)
        step >>= 1
    return shifted, Cat(*top)


def _raised(m: Module, magnitude: Value) -> tuple[Value, Value]:
    """The magnitude shifted up by whole nibbles until its leading one is in the highest, and the exponent, the place
    where that was.
    """
    bits = formats.VECTOR_BITS
    magnitude = shared(m, magnitude[:bits], "magnitude")
    # which nibble leads, while each finds its own leading one: half the levels of a search bit by bit
    nibbles = [magnitude[i:i + NIBBLE] for i in range(0, bits, NIBBLE)]
    coarse = shared(m, _leading(Cat(n.any() for n in nibbles)), "leading_nibble")
    fine = Signal(2, name="leading_bit")
    shifted = Signal(bits, name="shifted")
    with m.Switch(coarse):
        for i, nibble in enumerate(nibbles):
            with m.Case(i):
                m.d.comb += [fine.eq(_leading(nibble)), shifted.eq(magnitude << (bits - NIBBLE * (i + 1)))]
    return shifted, Cat(fine, coarse)


def _leading(nibble: Value) -> Value:
    """Place of the leading one of four bits; 0 if there is none."""
    return Cat(nibble[3] | (~nibble[2] & nibble[1]), nibble[3] | nibble[2])


def least_scale(m: Module, shifted: Value, exponent: Value) -> Signal:
    """Least scale code, with an exponent of any size, of a magnitude as :func:`leading_one` gives it. Combinational."""
    low = len(shifted) - 1 - formats.SCALE_MANTISSA
    return shared(m, Cat(shifted[low:-1], exponent) + shifted[:low].any(), "code")


def _code(m: Module, shifted: Value, exponent: Value) -> Signal:
    """The scale code: what the highest nibble still needs of the shift, then exponent and mantissa, rounded up."""
    bits = formats.VECTOR_BITS
    low = bits - 1 - formats.SCALE_MANTISSA
    raised = Signal(bits, name="raised")
    with m.Switch(exponent[:2]):
        for i in range(NIBBLE):
            with m.Case(i):
                m.d.comb += raised.eq(shifted << (NIBBLE - 1 - i))
    below = shared(m, Cat(raised[low:-1], exponent), "below")
    limit = formats.SCALE_MAGNITUDE_MAX
    return shared(m, Mux(below >= limit, limit, below + raised[:low].any())[:CODE_BITS], "scale")


class ScaleFinder(wiring.Component):
    """Extremes of a run of words, and the scale they call for.

    A run is a group of a row or a whole query: words in order, one in each cycle with ``i_valid``, any gaps; the first
    with ``i_first``, the last with ``i_last``. ``latency`` cycles after the last word, for one cycle, ``o_valid`` comes
    with the results of the run, from registers: ``o_code`` the smallest scale of the largest magnitude, ``o_turned``
    whether that belongs to an element >= 0 (0 against 0 counts). Runs follow each other without a gap.

    With ``geometry.zero_point``, runs with ``i_zero_point`` get the smallest scale of (high + low) * 8 / 15,
    ``o_turned`` 0, and ``o_low``, the magnitude of the lowest negative element. Without it, ``i_zero_point`` is ignored
    and ``o_low`` is 0. Elements are within +-VECTOR_MAX.
    """

    i_valid: Signal
    i_data: data.View
    i_first: Signal
    i_last: Signal
    i_zero_point: Signal
    o_valid: Signal
    o_code: Signal
    o_turned: Signal
    o_low: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__({
            "i_valid": In(1),
            "i_data": In(data.ArrayLayout(signed(formats.VECTOR_BITS), geometry.word)),
            "i_first": In(1),
            "i_last": In(1),
            "i_zero_point": In(1),
            "o_valid": Out(1),
            "o_code": Out(CODE_BITS),
            "o_turned": Out(1),
            "o_low": Out(formats.VECTOR_BITS - 1),
        })

    @property
    def tree(self) -> int:
        """Registers of the comparison tree, which leaves two candidates for the largest and two for the lowest."""
        return max(0, -(-(exact_log2(self.geometry.word) - 1) // LEVELS))

    @property
    def latency(self) -> int:
        """Cycles from the last word of a run to its results: the running extremes, the tree, extremes, magnitude,
        leading one, scale.
        """
        return 1 + self.tree + 4

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        shape = signed(formats.VECTOR_BITS)
        # ~y is one less than -y and needs no carry; the lowest are compared so and get their 1 at the end
        highs = [Signal(shape, name=f"high_{p}", reset_less=True) for p in range(self.geometry.word)]
        lows = [Signal(shape, name=f"low_{p}", reset_less=True) for p in range(self.geometry.word)]
        with m.If(self.i_valid):
            for p, (high, low) in enumerate(zip(highs, lows, strict=True)):
                y = self.i_data[p]
                m.d.sync += [
                    high.eq(larger(m, y, Mux(self.i_first, 0, high))), low.eq(larger(m, ~y, Mux(self.i_first, -1, low)))
                ]
        valid = Signal()
        zero_point = Signal(reset_less=True)
        m.d.sync += [valid.eq(self.i_valid & self.i_last), zero_point.eq(self.i_zero_point)]
        for stage in range(self.tree):
            last = stage == self.tree - 1
            new_highs, new_lows = list[Value](highs), list[Value](lows)
            for _ in range(LEVELS):
                new_highs, new_lows = _halve(m, new_highs), _halve(m, new_lows)
            highs = [Signal(shape, name=f"high_{stage}_{i}", reset_less=True) for i in range(len(new_highs))]
            lows = [Signal(shape, name=f"low_{stage}_{i}", reset_less=True) for i in range(len(new_lows))]
            with m.If(valid):
                m.d.sync += [h.eq(new) for h, new in zip(highs, new_highs, strict=True)]
                m.d.sync += [l.eq(new + 1 if last else new) for l, new in zip(lows, new_lows, strict=True)]
            valid_1, zero_point_1 = Signal(name=f"valid_{stage}"), Signal(name=f"zero_point_{stage}", reset_less=True)
            m.d.sync += [valid_1.eq(valid), zero_point_1.eq(zero_point)]
            valid, zero_point = valid_1, zero_point_1
        largest = [h[:-1] for h in highs]
        lowest = [(l if self.tree else l + 1)[:formats.VECTOR_BITS - 1] for l in lows]
        self._finish(m, valid, zero_point, _reduce(m, largest), _reduce(m, lowest))
        return m

    def _finish(self, m: Module, valid: Signal, zero_point: Signal, largest: Value, lowest: Value) -> None:
        """Four more registers: extremes, the magnitude that the scale is for, its leading one, and the scale."""
        width = formats.VECTOR_BITS
        high, low = Signal(width - 1, reset_less=True), Signal(width - 1, reset_less=True)
        valid_high, zero_point_high = Signal(), Signal(reset_less=True)
        m.d.sync += [valid_high.eq(valid), zero_point_high.eq(zero_point), high.eq(largest), low.eq(lowest)]
        magnitude, turned, valid_magnitude = Signal(width, reset_less=True), Signal(reset_less=True), Signal()
        m.d.sync += [
            valid_magnitude.eq(valid_high),
            magnitude.eq(larger(m, high, low)),
            turned.eq(high >= low),
        ]
        raised, exponent = _raised(m, magnitude)
        raised_1, exponent_1 = (Signal(v.shape(), name=n, reset_less=True) for v, n in (
            (raised, "raised"), (exponent, "exponent")))
        turned_1, valid_raised = Signal(reset_less=True), Signal()
        m.d.sync += [
            valid_raised.eq(valid_magnitude), raised_1.eq(raised), exponent_1.eq(exponent), turned_1.eq(turned),
            self.o_valid.eq(valid_raised), self.o_code.eq(_code(m, raised_1, exponent_1)), self.o_turned.eq(turned_1),
        ]
        if self.geometry.zero_point:
            low_1, low_2 = Signal(width - 1, reset_less=True), Signal(width - 1, reset_less=True)
            m.d.sync += [low_1.eq(low), low_2.eq(low_1), self.o_low.eq(low_2)]
            with m.If(zero_point_high):
                # 1093 / 2048 is just above 8 / 15: fifteen steps must span high + low
                m.d.sync += [magnitude.eq(((high + low) * 1093 + 2047) >> 11), turned.eq(0)]


def _halve(m: Module, values: list[Value]) -> list[Value]:
    """Pairwise maxima, until two are left."""
    return values if len(values) <= 2 else _pairs(m, values)


def _reduce(m: Module, values: list[Value]) -> Value:
    while len(values) > 1:
        values = _pairs(m, values)
    return values[0]


def _pairs(m: Module, values: list[Value]) -> list[Value]:
    return [larger(m, a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
