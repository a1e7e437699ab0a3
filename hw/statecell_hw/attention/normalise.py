"""Normaliser: accumulators divided by the sum of the softmax weights, ``word`` elements a cycle."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array import arithmetic
from statecell_hw.array.arithmetic import choose
from statecell_hw.array.reciprocal import FRACTION_BITS, RECIPROCAL, reciprocal
from statecell_hw.attention.score import saturate
from statecell_hw.layouts import output_layout

SCALED_BITS = formats.OUTPUT_BITS + 1
LOW_BITS = SCALED_BITS // 2
"""Low part of an element, multiplied by itself: a block multiplier takes the part or the rest, not the whole."""
NORM_STAGES = 3
"""Registers of the shift that brings the sum's leading one to the top."""


class Normalise(wiring.Component):
    """Quotients of the drain registers; formulas in docs/numerics.md, section 6.

    ``done`` says that the accumulators hold the result of a pass of which ``lanes`` (>= 1) lanes are wanted. As soon as
    the drain registers are free, ``capture`` is high for a cycle, the cycle after ``done`` at the earliest; the next
    ``done`` must not come before that. ``elements`` is the first word of the drain registers, which move on by a word
    with each ``shift`` after the capture, lane after lane; ``shift`` is high with ``capture`` too, and both act
    ``drain_latency``, a parameter, cycles later. The words of lanes 0
    to ``lanes`` - 1 follow on ``o``, ``vector_words`` each: the first is valid ``latency`` cycles after ``done`` if the
    drain registers are free, then one a cycle; ``o.ready`` holds up only a buffer behind the pipeline, whose places are
    promised before a word leaves the drain registers. ``drained`` is high when the last word is about to leave them;
    ``busy`` while a result or a word is in the block.
    """

    done: Signal
    lanes: Signal
    capture: Signal
    shift: Signal
    elements: list[Signal]
    drain_sums: list[Signal]
    drained: Signal
    busy: Signal
    o: stream.Interface

    def __init__(self, geometry: Geometry, *, drain_latency: int = 0) -> None:
        self.geometry = g = geometry
        self.drain_latency = drain_latency
        super().__init__({
            "done": In(1),
            "lanes": In(range(g.lanes + 1)),
            "capture": Out(1),
            "shift": Out(1),
            "elements": In(signed(g.accumulator_bits)).array(g.word),
            "drain_sums": In(g.normaliser_bits).array(g.lanes),
            "drained": Out(1),
            "busy": Out(1),
            "o": Out(stream.Signature(output_layout(g))),
        })

    @property
    def _stages(self) -> int:
        """Cycles from a word's issue to the buffer: shift, drain registers, fetch, leading one, table, slope,
        reciprocal, products, sum, rounding.
        """
        return self.drain_latency + 2 + NORM_STAGES + 6

    @property
    def latency(self) -> int:
        """Cycles from ``done`` to the first word: capture, the stages, the buffer."""
        return 1 + self._stages + 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        depth = 1 << ceil_log2(self._stages + 2)
        m.submodules.buffer = buffer = SyncFIFO(width=output_layout(g).size, depth=depth)
        # -- which word of which lane ----------------------------------------------------------------------------------
        pending, running, start, issue, final = Signal(), Signal(), Signal(), Signal(), Signal()
        wanted = Signal.like(self.lanes, name="wanted", reset_less=True)
        count = Signal.like(self.lanes, name="count", reset_less=True)
        lane = Signal(range(g.lanes), reset_less=True)
        within = Signal(range(g.vector_words), reset_less=True)
        promised = Signal(range(depth + 1))
        taken = self.o.valid & self.o.ready
        m.d.comb += [
            start.eq((self.done | pending) & ~running),
            issue.eq(running & (promised != depth)),
            final.eq((within == g.vector_words - 1) & (lane + 1 == count)),
            self.drained.eq(issue & final),
            self.busy.eq(pending | running | (promised != 0)),
            self.o.valid.eq(buffer.r_rdy),
            self.o.payload.as_value().eq(buffer.r_data),
            buffer.r_en.eq(taken),
        ]
        with m.If(self.done):
            m.d.sync += wanted.eq(self.lanes)
        m.d.sync += [
            pending.eq((self.done | pending) & ~start),
            self.capture.eq(start),
            self.shift.eq(start | issue),
            promised.eq(promised + issue - taken),
        ]
        with m.If(start):
            m.d.sync += [running.eq(1), lane.eq(0), within.eq(0), count.eq(Mux(self.done, self.lanes, wanted))]
        with m.If(issue):
            m.d.sync += within.eq(within + 1)
            with m.If(within == g.vector_words - 1):
                m.d.sync += [within.eq(0), lane.eq(lane + 1)]
            with m.If(final):
                m.d.sync += running.eq(0)
        valid = [issue]
        for stage in range(1, self._stages + 1):
            valid.append(Signal(name=f"valid_{stage}"))
            m.d.sync += valid[stage].eq(valid[stage - 1])

        def hold(stage: int, value: Value, name: str) -> Any:
            """Register that takes a value of ``stage``."""
            return arithmetic.hold(m, valid[stage], [value], f"{name}_{stage + 1}")[0]

        # -- the sum, shifted up until its leading one is at the top ---------------------------------------------------
        chosen = lane
        drained = self.drain_latency
        for stage in range(drained + 1):
            chosen = hold(stage, chosen, "lane")
        total: Any = Array(self.drain_sums)[chosen]
        # a sum of 0 counts as 1
        total = hold(drained + 1, Cat(total[0] | ~total.any(), total[1:]), "sum")
        steps = [1 << i for i in reversed(range(ceil_log2(g.normaliser_bits)))]
        ups: dict[int, tuple[int, Signal]] = {}  # whether the sum takes a step, and the stage in which that is known
        stage = drained + 2
        for at in range(-2 * NORM_STAGES, 0, 2):
            # the second step is looked at for both outcomes of the first, beside it
            options: list[Value] = [total]
            chosen_ups: list[Value] = []
            for step in steps[max(0, at + len(steps)):at + 2 + len(steps)]:
                up = Signal(name=f"up_{step}")
                m.d.comb += up.eq(choose(chosen_ups, [~option[-step:].any() for option in options]))
                chosen_ups.append(up)
                options += [Cat(Const(0, step), option[:-step]) for option in options]
                ups[step] = stage, up
            total = hold(stage, choose(chosen_ups, options), "sum")
            stage += 1

        # -- the elements, shifted likewise, a step in a cycle, while the reciprocal is worked out ---------------------
        width = SCALED_BITS + g.normaliser_bits - 1 - FRACTION_BITS
        elements: list[Any] = [hold(drained + 1, Value.cast(e), f"element_{p}") for p, e in enumerate(self.elements)]
        elements = [hold(drained + 2, e, f"element_{p}") for p, e in enumerate(elements)]
        ready = drained + 3
        cycles = stage + RECIPROCAL - ready
        for cycle, first in enumerate([0, *range(len(steps) - cycles + 1, len(steps))]):
            for step in steps[first:len(steps) - cycles + 1 + cycle]:
                known, up = ups[step]
                for later in range(known, ready + cycle):
                    up = hold(later, up, f"up_{step}")
                raised = [Signal(signed(width), name=f"element_{p}_{step}") for p in range(g.word)]
                m.d.comb += [
                    r.eq(Mux(up, saturate(e.shift_left(step), width), e)) for r, e in zip(raised, elements, strict=True)
                ]
                elements = list(raised)
            elements = [hold(ready + cycle, e, f"element_{p}") for p, e in enumerate(elements)]

        # -- one reciprocal, worked out again for each word of a lane --------------------------------------------------
        inverse = reciprocal(m, hold, stage, total[-1 - FRACTION_BITS:-1])
        scaled: list[Value] = [e[-SCALED_BITS:].as_signed() for e in elements]
        high = [hold(stage + 3, s[LOW_BITS:].as_signed() * inverse, f"high_{p}") for p, s in enumerate(scaled)]
        low = [hold(stage + 3, s[:LOW_BITS] * inverse, f"low_{p}") for p, s in enumerate(scaled)]
        for later in (3, 4):
            scaled = [hold(stage + later, s, f"scaled_{p}") for p, s in enumerate(scaled)]
        # the product has as many bits below LEAST as the rounding drops, less one
        products = [hold(stage + 4, ((h << LOW_BITS) + l) >> (formats.INVERSE_BITS - 1), f"product_{p}")
                    for p, (h, l) in enumerate(zip(high, low, strict=True))]
        outputs = [hold(stage + 5, saturate((a + b + 1) >> 1, formats.OUTPUT_BITS), f"output_{p}")
                   for p, (a, b) in enumerate(zip(products, scaled, strict=True))]
        m.d.comb += [
            buffer.w_en.eq(valid[self._stages]),
            buffer.w_data.eq(Cat(o[:formats.OUTPUT_BITS] for o in outputs)),
        ]
        return m
