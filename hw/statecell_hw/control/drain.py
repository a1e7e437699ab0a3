"""Results of several tiles, in the order of their passes."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell_hw.control.passes import result_layout
from statecell_hw.layouts import output_layout


class Drain(wiring.Component):
    """Joins the tiles' result streams. Latency 0; a tile that is not next waits.

    Members
    -------
    order: which tile answers next; taken with the last word of its answer.
    tiles: results of each tile.
    o: results in order.
    """

    order: stream.Interface
    tiles: list[stream.Interface]
    o: stream.Interface

    def __init__(self, g: Geometry) -> None:
        self.g = g
        words = stream.Signature(output_layout(g))
        super().__init__(
            {"order": In(stream.Signature(result_layout(g))), "tiles": In(words).array(g.tiles), "o": Out(words)}
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        words = self.g.vector_words
        index = Signal(range(words))
        vector = Signal(range(self.g.lanes))
        end = Signal(init=words == 1)  # the word to come is its vector's last
        for number, tile in enumerate(self.tiles):
            with m.If(self.order.valid & (self.order.payload.tile == number)):
                m.d.comb += [
                    self.o.valid.eq(tile.valid),
                    self.o.payload.eq(tile.payload),
                    tile.ready.eq(self.o.ready),
                ]
        complete = vector + 1 == self.order.payload.lanes
        m.d.comb += self.order.ready.eq(self.o.valid & self.o.ready & end & complete)
        with m.If(self.o.valid & self.o.ready):
            m.d.sync += [index.eq(Mux(end, 0, index + 1)), end.eq(index == (words - 2) % words)]
            with m.If(end):
                m.d.sync += vector.eq(Mux(complete, 0, vector + 1))
        return m
