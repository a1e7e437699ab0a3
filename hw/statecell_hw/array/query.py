"""Query collector: gathers the words of a quantised query and hands the whole query to its tile."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.scale import CODE_BITS
from statecell_hw.layouts import QueryLoad


def query_tag(geometry: Geometry) -> data.StructLayout:
    """What a word of a query needs to know: its place, the query's scale, and the tile and lane it is for."""
    return data.StructLayout({
        "word": range(geometry.vector_words),
        "code": CODE_BITS,
        "turned": 1,
        "tile": range(geometry.tiles),
        "lane": range(geometry.lanes),
    })


class QueryCollector(wiring.Component):
    """Registers for the codes of one query.

    In: the words of a query in order, two or more, one in each cycle with ``i_valid``, any gaps; they must not come in
    a cycle with ``stall``. Out: ``query`` for ``tile``; the lane's bit of ``query.valid``, a register because it
    enables the lane's whole shadow, is raised for one cycle, the cycle after ``ready`` was high and after the last word
    at the earliest. Lane and tile are valid from the first word on, so that ``ready``, which may depend on them, is
    looked at a cycle ahead; they and the codes hold until ``query.valid``, and ``ready`` must, once high. ``stall``, a
    register, is high while a complete query cannot leave; ``busy`` while there is one. Reset drops the query.
    """

    i_valid: Signal
    i_tag: Any
    i_codes: list[Signal]
    query: Any
    tile: Signal
    ready: Signal
    stall: Signal
    busy: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__({
            "i_valid": In(1),
            "i_tag": In(query_tag(geometry)),
            "i_codes": In(signed(geometry.query_bits)).array(geometry.word),
            "query": Out(QueryLoad(geometry)),
            "tile": Out(range(geometry.tiles)),
            "ready": In(1),
            "stall": Out(1),
            "busy": Out(1),
        })

    @property
    def latency(self) -> int:
        """Cycles from the last word in to ``query.valid``."""
        return 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        codes = [Signal(signed(g.query_bits), name=f"code_{j}", reset_less=True) for j in range(g.head_dim)]
        with m.If(self.i_valid), m.Switch(self.i_tag.word):
            for j in range(g.vector_words):
                with m.Case(j):
                    m.d.sync += [codes[j * g.word + p].eq(self.i_codes[p]) for p in range(g.word)]
        held: Any = Signal(query_tag(g), reset_less=True)
        stays = self.stall | (self.i_valid & (self.i_tag.word == g.vector_words - 1))
        with m.If(self.i_valid & (self.i_tag.word == 0)):
            m.d.sync += held.eq(self.i_tag)
        leaves = [stays & self.ready & (held.lane == lane) for lane in range(g.lanes)]
        m.d.sync += [self.busy.eq(stays), self.stall.eq(stays & ~self.ready), self.query.valid.eq(Cat(leaves))]
        m.d.comb += [
            self.tile.eq(held.tile),
            self.query.lane.eq(held.lane),
            self.query.sign.eq(held.turned),
            self.query.mantissa.eq(held.code[:formats.SCALE_MANTISSA]),
            self.query.exponent.eq(held.code[formats.SCALE_MANTISSA:]),
            *(self.query.codes[j].eq(code) for j, code in enumerate(codes)),
        ]
        return m
