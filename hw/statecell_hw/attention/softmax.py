"""Online base-2 softmax: scores to weights against a running maximum that climbs in steps of four octaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed, unsigned
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import UNREAD, hold
from statecell_hw.array.bank import EXPONENT_BITS
from statecell_hw.array.multiply import mantissa_parts

STEP_FRACTION = formats.SCORE_FRACTION + formats.STEP
"""Bits of a score below one step."""
NEED_BITS = formats.SCORE_BITS - STEP_FRACTION + 1
"""Signed width of a maximum in steps, with one value to spare below the lowest."""
NEVER = -(1 << (NEED_BITS - 1))
"""Goal of a lane that has seen no row: below every score."""
AMOUNT_BITS = (formats.WEIGHT_BITS + 1).bit_length()
"""Bits of a shift; the largest leaves nothing of a weight, and stands for all that are larger."""
FINE_BITS = 3
"""Bits of a shift that are done in the cycle of the rounding; the others are done the cycle before."""


class Softmax(wiring.Component):
    """Weights of all lanes, one row per cycle; formulas in docs/numerics.md, section 5.

    ``first`` (first row of a pass), ``visible`` (one bit per lane) and ``scores`` come with ``valid``; the value row's
    scale in force (``mantissa``, ``sign``, ``exponent``, ``low``) ``scale_lead`` cycles later. ``latency`` cycles after
    ``valid`` come, for each lane: ``weights`` [lane][group] (signed by the value scale), ``terms`` (of the normaliser)
    and three bits: ``enable``, the lane sees the row; ``fresh``, what was accumulated before counts no more (first
    visible row, or a score that rose too fast); ``step``, what was accumulated before is 2^4 too large. ``fresh`` and
    ``step`` are never both set; all of them matter only with ``enable``.

    Rows of a pass come in adjacent cycles; LOOKAHEAD cycles or more must pass between two passes.
    """

    valid: Signal
    first: Signal
    visible: Signal
    scores: list[Signal]
    mantissa: list[Signal]
    sign: list[Signal]
    exponent: list[Signal]
    low: Signal
    weights: list[list[Signal]]
    terms: list[Signal]
    enable: Signal
    fresh: Signal
    step: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "valid": In(1),
            "first": In(1),
            "visible": In(g.lanes),
            "scores": In(signed(formats.SCORE_BITS)).array(g.lanes),
            "mantissa": In(formats.SCALE_MANTISSA).array(g.groups),
            "sign": In(1).array(g.groups),
            "exponent": In(signed(EXPONENT_BITS)).array(g.groups),
            "low": In(1),
            "weights": Out(signed(formats.WEIGHT_BITS + 1)).array(g.lanes, g.groups),
            "terms": Out(formats.WEIGHT_BITS).array(g.lanes),
            "enable": Out(g.lanes),
            "fresh": Out(g.lanes),
            "step": Out(g.lanes),
        })

    @property
    def scale_lead(self) -> int:
        """Cycles from a row's scores to its value scale: the look-ahead, the goal, and the maximum."""
        return formats.LOOKAHEAD + 2

    @property
    def latency(self) -> int:
        """Cycles from a row's scores to its weights: once the maximum is known, distance and table, two for the
        mantissa, shift, sign.
        """
        return self.scale_lead + 5

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        valid, first, visible = [self.valid], [self.first], [self.visible]
        for i in range(1, self.latency):
            valid.append(Signal(name=f"valid_{i}"))
            first.append(Signal(name=f"first_{i}", reset_less=True))
            visible.append(Signal(g.lanes, name=f"visible_{i}", reset_less=True))
            m.d.sync += valid[i].eq(valid[i - 1])
            with m.If(valid[i - 1]):
                m.d.sync += [first[i].eq(first[i - 1]), visible[i].eq(visible[i - 1])]
        decide = self.scale_lead - 1
        # the value scale's share of the shift: 14 - exponent, the same for all lanes
        largest = formats.VALUE_EXPONENT + formats.CODE_BITS
        share = [Signal(range(largest + 1), name=f"share_{i}", reset_less=True) for i in range(g.groups)]
        with m.If(valid[self.scale_lead]):
            for held, exponent in zip(share, self.exponent, strict=True):
                difference = formats.VALUE_EXPONENT - exponent
                m.d.sync += held.eq(Mux(difference < 0, 0, difference))
        row = _Row(
            share=share,
            mantissa=_delay(m, valid, self.scale_lead, 1, self.mantissa, "mantissa"),
            sign=_delay(m, valid, self.scale_lead, 4, self.sign, "sign"),
            low=_delay(m, valid, self.scale_lead, 3, [self.low], "low")[0],
        )
        m.d.sync += self.enable.eq(Mux(valid[-1], visible[-1], 0))
        for lane in range(g.lanes):
            score = self.scores[lane]
            goal = Signal(signed(NEED_BITS), name=f"goal_{lane}", reset_less=True)
            need = (score + ((1 << STEP_FRACTION) - 1)) >> STEP_FRACTION
            before = Mux(self.first, NEVER, goal)
            with m.If(self.valid):
                m.d.sync += goal.eq(Mux(self.visible[lane] & (need > before), need, before))
            for i in range(decide - 1):
                held = Signal(signed(formats.SCORE_BITS), name=f"score_{lane}_{i + 1}", reset_less=True)
                with m.If(valid[i]):
                    m.d.sync += held.eq(score)
                score = held
            needed = Signal(signed(NEED_BITS), name=f"need_{lane}", reset_less=True)
            # ceil(score / step) - 1
            less = Signal(signed(NEED_BITS), name=f"less_{lane}", reset_less=True)
            below = Signal(signed(formats.SCORE_BITS + 1), name=f"below_{lane}", reset_less=True)
            with m.If(valid[decide - 1]):
                m.d.sync += [
                    needed.eq((score + ((1 << STEP_FRACTION) - 1)) >> STEP_FRACTION),
                    less.eq((score - 1) >> STEP_FRACTION),
                    below.eq(-score),
                ]
            maximum, fresh, step = self._climb(
                m, lane, valid[decide], first[decide], visible[decide], needed, less, goal)
            self._weigh(m, lane, valid, visible, below, maximum, row)
            with m.If(valid[-1]):
                m.d.sync += [self.fresh[lane].eq(fresh), self.step[lane].eq(step)]
        return m

    def _climb(self, m: Module, lane: int, valid: Signal, first: Signal, visible: Signal, need: Signal,
               less: Signal, goal: Signal) -> tuple[Signal, Value, Value]:
        """The running maximum of the next cycle; fresh and step one cycle after that."""
        maximum = Signal(signed(NEED_BITS), name=f"maximum_{lane}", reset_less=True)
        empty = Signal(name=f"empty_{lane}", reset_less=True)
        is_empty, climbs, drops = (Signal(name=f"{n}_{lane}") for n in ("is_empty", "climbs", "drops"))
        later = self.latency - self.scale_lead
        fresh, step = (Signal(later, name=f"{n}_{lane}", reset_less=True) for n in ("fresh", "step"))
        m.d.comb += [
            is_empty.eq(first | empty),
            # the signs of differences; need > maximum + climbs, without waiting for the sum
            climbs.eq(~is_empty & (maximum - goal)[-1]),
            drops.eq(visible[lane] & ~is_empty & Mux((maximum - goal)[-1], (maximum - less)[-1], (maximum - need)[-1])),
        ]
        with m.If(valid):
            m.d.sync += [
                maximum.eq(Mux(is_empty | drops, goal, Mux(climbs, maximum + 1, maximum))),
                empty.eq(is_empty & ~visible[lane]),
                fresh[0].eq(is_empty | drops),
                step[0].eq(climbs & ~drops),
            ]
        m.d.sync += [fresh[1:].eq(fresh), step[1:].eq(step)]
        return maximum, fresh[-1], step[-1]

    def _weigh(self, m: Module, lane: int, valid: list[Signal], visible: list[Signal], below: Signal, maximum: Signal,
               row: _Row) -> None:
        """Weights from the maximum."""
        g = self.geometry
        table: Memory = Memory(
            shape=unsigned(formats.EXP_BITS), depth=len(formats.EXP_TABLE), init=formats.EXP_TABLE
        )
        m.submodules[f"table_{lane}"] = table
        read = table.read_port()
        for signal in (*self.weights[lane], self.terms[lane]):
            signal.attrs[UNREAD] = 1
        decide = self.scale_lead - 1
        seen: list[Value] = [valid[i] & visible[i][lane] for i in range(self.latency)]

        def later(after: int, value: Value, name: str, cycles: int = 1) -> Signal:
            """The value, known ``after`` cycles after the scale, some cycles later."""
            return _delay(m, seen, self.scale_lead + after, cycles, [value], f"{name}_{lane}_{after}")[0]

        m.d.comb += [read.en.eq(seen[decide]), read.addr.eq(below[:formats.SCORE_FRACTION])]
        # the fraction does not depend on the maximum, whose lowest bit stands for four octaves
        whole = later(-1, below[formats.SCORE_FRACTION:].as_signed(), "whole")
        distance = maximum.shift_left(formats.STEP) + whole
        # a row that the lane sees is never above the maximum
        octaves = later(0, _amount(distance[:-1]), "octaves")
        power = later(0, read.data, "power")
        for group in range(g.groups):
            name = f"_{group}"
            parts = [later(1, part, f"part_{i}{name}") for i, part in enumerate(
                mantissa_parts(power, row.mantissa[group]))]
            total = octaves + row.share[group]
            amount = later(1, _amount(total), f"amount{name}")
            scaled = later(2, shift_coarse((parts[0] + parts[1])[:formats.WEIGHT_BITS], amount), f"scaled{name}")
            fine = later(2, amount[:FINE_BITS], f"fine{name}")
            weight = later(3, shift_round(scaled, fine), f"weight{name}")
            with m.If(seen[-1]):
                m.d.sync += self.weights[lane][group].eq(Mux(row.sign[group], -weight, weight))
        fine = later(1, octaves[:FINE_BITS], "fine", 2)
        full = Cat(Const(0, formats.WEIGHT_BITS - formats.EXP_BITS), power)
        term = shift_round(later(1, shift_coarse(full, octaves), "coarse", 2), fine)
        term = later(3, Mux(row.low, 0, term), "term")
        with m.If(seen[-1]):
            m.d.sync += self.terms[lane].eq(term)


@dataclass(frozen=True, kw_only=True)
class _Row:
    """A value row's scale in force, each part in the cycle that needs it."""

    share: list[Signal]
    mantissa: list[Signal]
    sign: list[Signal]
    low: Signal


def _delay(m: Module, valid: Sequence[Value], stage: int, cycles: int, values: Sequence[Value],
           name: str) -> list[Signal]:
    """The values of ``stage``, ``cycles`` cycles later."""
    for at in range(stage, stage + cycles):
        values = held = hold(m, valid[at], values, f"{name}_{at}")
    return held


def _amount(value: Value) -> Value:
    """Unsigned value, at most the largest shift."""
    return value[:AMOUNT_BITS] | value[AMOUNT_BITS:].any().replicate(AMOUNT_BITS)


def shift_coarse(value: Value, amount: Value) -> Value:
    """First part of a rounded shift: unsigned value / 2^amount without the FINE_BITS lowest bits of the amount, a
    fraction bit more than the value. Combinational.
    """
    return value.shift_left(1) >> Cat(Const(0, FINE_BITS), amount[FINE_BITS:])


def shift_round(value: Value, amount: Value) -> Value:
    """Second part: value / 2^amount, rounded half up to whole units, a bit less than ``value``. Value must be below the
    last half unit of its width. Combinational.
    """
    return ((value >> amount) + 1)[1:len(value)]
