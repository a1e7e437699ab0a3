"""Event counters of the device."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.commands import COUNTER_FIELDS
from statecell.spec.geometry import Geometry

COUNTER_BITS = 64
COUNTER_BLOCKS = len(COUNTER_FIELDS) * COUNTER_BITS // 128


class Counters(wiring.Component):
    """One 64-bit counter per field of `Counters` in the command table, and a copy of them all that COUNTERS sends.

    All inputs pass two registers, because they come from everywhere, so an event counts three cycles after it, and the
    copy is there three cycles after `capture`, of the events before its cycle; `clear` sets all counters to zero and
    wins over events in its cycle. Reset clears.

    Members
    -------
    events: by counter, in the order of the table, how much to add in this cycle.
    capture, clear: see above.
    index, word: word `index` of the copy.
    """

    events: list[Signal]
    capture: Signal
    clear: Signal
    index: Signal
    word: Signal

    def __init__(self, g: Geometry) -> None:
        self.g = g
        words = len(COUNTER_FIELDS) * COUNTER_BITS // 8 // g.link_bytes
        super().__init__(
            {
                # Each tile can read a row of each bank, and write one to both, in one cycle.
                "events": In(range(2 * g.tiles + 1)).array(len(COUNTER_FIELDS)),
                "capture": In(1),
                "clear": In(1),
                "index": In(range(words)),
                "word": Out(8 * g.link_bytes),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        counts = [Signal(COUNTER_BITS, name=name) for name in COUNTER_FIELDS]
        copies = [Signal(COUNTER_BITS, name=f"{name}_copy", reset_less=True) for name in COUNTER_FIELDS]
        captures, clears = Signal(2), Signal(2)  # a cycle late, and two
        m.d.sync += [captures.eq(Cat(self.capture, captures)), clears.eq(Cat(self.clear, clears))]
        for count, given, copy in zip(counts, self.events, copies, strict=True):
            come, event = Signal.like(given, name=f"{count.name}_come"), Signal.like(given, name=f"{count.name}_event")
            # cleared too, though it need not be: else it would be merged with a register of the array, far from here
            m.d.sync += [come.eq(given), event.eq(Mux(clears[0], 0, come))]
            with m.If(event.any()):
                m.d.sync += count.eq(count + event)
            with m.If(clears[1]):
                m.d.sync += count.eq(0)
            with m.If(captures[1]):
                m.d.sync += copy.eq(count)
        # a tree of selectors: cases of `index` would each compare it
        m.d.comb += self.word.eq(Cat(copies).word_select(self.index, len(self.word)))
        return m
