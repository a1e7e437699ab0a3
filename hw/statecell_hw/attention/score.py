"""Score unit: dot products of one row, times the row's and the query's scales, to scores in 2^-8 octaves."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import hold
from statecell_hw.array.bank import EXPONENT_BITS
from statecell_hw.array.multiply import mantissa_parts, tree
from statecell_hw.array.rowstream import GAP

PRODUCT_GROWTH = formats.SCALE_MANTISSA + 1
"""Bits that the mantissa 8..15 adds."""
BASE = formats.PARTIAL_GUARD - 2
"""Part of the alignment that neither the pass nor the query changes."""
FINE_BITS = 3
"""Bits of an alignment that are done in its last cycle; the others are done with the product's sum."""


def saturate(value: Value, bits: int) -> Value:
    """Signed ``value`` limited to ``bits`` bits. Combinational."""
    if len(value) <= bits:
        return value
    return limited(value[:bits], within(value, bits), value[-1])


def within(value: Value, bits: int) -> Value:
    """Whether signed ``value`` fits ``bits`` bits. Combinational."""
    top = value[bits - 1:]
    return top.all() | ~top.any()


def limited(low: Value, fits: Value, negative: Value) -> Value:
    """The low bits of a value, as a signed one if it ``fits`` them, else the nearest that does. Combinational."""
    return Mux(fits, low.as_signed(), Cat(~negative.replicate(len(low) - 1), negative).as_signed())


class Score(wiring.Component):
    """Scores of all lanes, one row per cycle; formulas in docs/numerics.md, section 4.

    ``dots`` come ``lead`` cycles after ``valid`` and the key row's scale in force (``mantissa``, ``sign``,
    ``exponent``, ``low``), where ``lead`` >= 2 is a parameter; ``scores`` [lane] are valid ``latency`` cycles after the
    dots; interval 1. Both planes of a two-plane row carry the whole row's score: they must come in adjacent cycles,
    and the last row before a pause must not be a low plane.

    ``query_sign``, ``query_mantissa``, ``query_exponent`` and ``shift`` belong to the pass that starts with the
    ``valid`` row ``swap_lead`` cycles after ``swap``: they are taken in the cycle after ``swap``. Passes start at least
    ``GAP`` + 1 cycles apart.
    """

    valid: Signal
    mantissa: list[Signal]
    sign: list[Signal]
    exponent: list[Signal]
    low: Signal
    dots: list[list[Signal]]
    swap: Signal
    query_sign: list[Signal]
    query_mantissa: list[Signal]
    query_exponent: list[Signal]
    shift: Signal
    scores: list[Signal]

    def __init__(self, geometry: Geometry, *, lead: int) -> None:
        self.geometry = g = geometry
        self.lead = lead
        super().__init__({
            "valid": In(1),
            "mantissa": In(formats.SCALE_MANTISSA).array(g.groups),
            "sign": In(1).array(g.groups),
            "exponent": In(signed(EXPONENT_BITS)).array(g.groups),
            "low": In(1),
            "dots": In(signed(g.dot_bits)).array(g.lanes, g.groups),
            "swap": In(1),
            "query_sign": In(1).array(g.lanes),
            "query_mantissa": In(formats.SCALE_MANTISSA).array(g.lanes),
            "query_exponent": In(formats.SCALE_BITS - formats.SCALE_MANTISSA - 1).array(g.lanes),
            "shift": In(range(formats.SHIFT_LIMIT + 1)),
            "scores": Out(signed(formats.SCORE_BITS)).array(g.lanes),
        })

    @property
    def latency(self) -> int:
        """Cycles from the dot products to the scores: sign, two for the row's mantissa, align, add groups, two for the
        planes, two for the query's mantissa, round.
        """
        return 10

    @property
    def swap_lead(self) -> int:
        """Cycles from ``swap`` to the ``valid`` of the pass's first row."""
        return 2

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        valid = [self.valid]
        for i in range(1, self.lead + self.latency):
            valid.append(Signal(name=f"valid_{i}"))
            m.d.sync += valid[i].eq(valid[i - 1])
        mantissa, sign, exponent, low = list(self.mantissa), list(self.sign), list(self.exponent), self.low
        scaled = self.lead + self.latency - 3  # stage that applies the query's mantissa
        query_mantissa = self._hold(m, scaled)
        offset = g.query_fraction + BASE
        bases = range(offset - formats.LOW_PLANE, offset + formats.SHIFT_LIMIT + 1)
        base = [Signal(bases, name=f"base_{i}", reset_less=True) for i in range(g.lanes)]
        swapped = Signal()
        m.d.sync += swapped.eq(self.swap)
        with m.If(swapped):
            m.d.sync += [
                base[i].eq(self.shift - self.query_exponent[i] + offset) for i in range(g.lanes)
            ]

        def delay(stage: int, values: Sequence[Value], name: str) -> list[Signal]:
            return hold(m, valid[stage], values, f"{name}_{stage}")

        lows = [low]
        for stage in range(scaled):
            # reset, for an aborted pass must not leave a mark behind
            lows.append(Signal(name=f"low_{stage}"))
            with m.If(valid[stage]):
                m.d.sync += lows[-1].eq(lows[-2])
        for stage in range(self.lead - 1):
            mantissa = delay(stage, mantissa, "mantissa")
            sign = delay(stage, sign, "sign")
            exponent = delay(stage, exponent, "exponent")
        for stage in (self.lead - 1, self.lead):
            mantissa = delay(stage, mantissa, "mantissa")
        for lane in range(g.lanes):
            totals = []
            for group in range(g.groups):
                name = f"{lane}_{group}"
                negative = Signal(name=f"negative_{name}", reset_less=True)
                align = Signal(range(formats.ALIGN_MAX + 1), name=f"align_{name}", reset_less=True)
                exact = base[lane] - exponent[group]
                difference = Signal(exact.shape(), name=f"difference_{name}", reset_less=True)
                with m.If(valid[self.lead - 1]):
                    m.d.sync += [
                        negative.eq(sign[group] ^ self.query_sign[lane]),
                        difference.eq(exact),
                    ]
                dot = Signal(signed(g.dot_bits + 1), name=f"dot_{name}", reset_less=True)
                product = Signal(signed(len(dot) + PRODUCT_GROWTH), name=f"product_{name}")
                # shifted by the higher bits of the alignment
                coarse = Signal(
                    signed(len(product) + formats.PARTIAL_GUARD), name=f"coarse_{name}", reset_less=True
                )
                # and by the others, up to PARTIAL_BITS and a sign that says which way it does not fit
                partial = Signal(signed(formats.PARTIAL_BITS), name=f"partial_{name}", reset_less=True)
                fits, below = (Signal(name=f"{n}_{name}", reset_less=True) for n in ("fits", "below"))
                with m.If(valid[self.lead]):
                    m.d.sync += align.eq(Mux(difference < 0, 0, Mux(
                        difference > formats.ALIGN_MAX, formats.ALIGN_MAX, difference)))
                    flipped = self.dots[lane][group].as_unsigned() ^ negative.replicate(g.dot_bits)
                    m.d.sync += dot.eq(flipped.as_signed() + negative)
                parts = delay(self.lead + 1, mantissa_parts(dot, mantissa[group]), f"part_{name}")
                align = delay(self.lead + 1, [align], f"align_{name}")[0]
                m.d.comb += product.eq(parts[0] + parts[1])
                with m.If(valid[self.lead + 2]):
                    m.d.sync += coarse.eq(
                        product.shift_left(formats.PARTIAL_GUARD) >> Cat(Const(0, FINE_BITS), align[FINE_BITS:])
                    )
                fine = delay(self.lead + 2, [align[:FINE_BITS]], f"fine_{name}")[0]
                shifted = Signal(coarse.shape(), name=f"shifted_{name}")
                m.d.comb += shifted.eq(coarse >> fine)
                with m.If(valid[self.lead + 3]):
                    m.d.sync += [
                        partial.eq(shifted), fits.eq(within(shifted, formats.PARTIAL_BITS)), below.eq(shifted[-1]),
                    ]
                totals.append(limited(partial, fits, below))
            total = tree(list(totals))
            planes = [Signal(total.shape(), name=f"total_{lane}_{i}", reset_less=True) for i in range(3)]
            sum_ = Signal(signed(len(total) + 2), name=f"sum_{lane}", reset_less=True)
            for i, plane in enumerate(planes):
                with m.If(valid[self.lead + 4 + i]):
                    m.d.sync += plane.eq(planes[i - 1] if i else total)
            # planes: the row after, this row, the row before
            with m.If(valid[scaled - 1]):
                m.d.sync += sum_.eq(
                    planes[1] + Mux(lows[scaled - 1], planes[0], 0) + Mux(lows[scaled], planes[2], 0)
                )
            parts = delay(scaled, mantissa_parts(sum_, query_mantissa[lane]), f"part_{lane}")
            scored = delay(scaled + 1, [parts[0] + parts[1]], f"scored_{lane}")[0]
            with m.If(valid[scaled + 2]):
                rounded = (scored[formats.MANTISSA_SHIFT - 1:].as_signed() + 1) >> 1
                m.d.sync += self.scores[lane].eq(saturate(rounded, formats.SCORE_BITS))
        return m

    def _hold(self, m: Module, stage: int) -> list[Signal]:
        """Query mantissas of the pass whose row is at ``stage``: handed on often enough that no short pass is lost."""
        current = list(self.query_mantissa)
        time = 1 - self.swap_lead  # of the current registers, counted from the first row's valid
        strobe = self.swap
        age = -self.swap_lead  # of the strobe
        hop = 0
        while time < stage:
            target = min(stage, time + GAP + 1)
            while age < target - 1:
                delayed = Signal(name=f"swap_{age + self.swap_lead + 1}")
                m.d.sync += delayed.eq(strobe)
                strobe, age = delayed, age + 1
            held = [Signal.like(s, name=f"query_mantissa_{i}_{hop}", reset_less=True) for i, s in enumerate(current)]
            with m.If(strobe):
                m.d.sync += [h.eq(s) for h, s in zip(held, current, strict=True)]
            current, time, hop = held, target, hop + 1
        return current
