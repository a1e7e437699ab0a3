"""Backlog: the products of rows wait until the share of their head's log is known."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.attention.score import saturate
from statecell_hw.recurrent.operands import HEAD
from statecell_hw.recurrent.readout import VECTORS
from statecell_hw.recurrent.walk import FLIGHTS

PRODUCTS = data.StructLayout({
    "o": signed(formats.RECUR_BITS), "r": signed(formats.RECUR_BITS), "v": signed(formats.VECTOR_BITS),
})
"""Products of a row with q and k, and its value."""


class Backlog(wiring.Component):
    """Adds a log's shares to the products of the rows; docs/numerics.md, 8.6.

    ``products`` of head_dim rows come with ``valid``, the ``head`` of the first with ``begins``, at most two heads'
    rows and FLIGHTS heads ahead. ``closing`` comes when a head's shares are known and its first row has been here two
    cycles: from the next cycle on ``drain`` asks for the ``shares`` of one channel after the other, which come a cycle
    later. ``swap`` comes ``latency`` - 1 cycles after ``closing``, and from the cycle after it on ``sums`` with
    ``sums_valid``, one a cycle, ``last`` with the last, and their ``sums_head``. Heads close head_dim cycles apart or
    more. Reset forgets all.
    """

    valid: Signal
    products: Any
    begins: Signal
    head: Any
    closing: Signal
    drain: Signal
    shares: list[Signal]
    swap: Signal
    sums_head: Any
    sums_valid: Signal
    last: Signal
    sums: Any

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__({
            "valid": In(1),
            "products": In(PRODUCTS),
            "begins": In(1),
            "head": In(HEAD),
            "closing": In(1),
            "drain": Out(1),
            "shares": In(signed(formats.RECUR_BITS)).array(VECTORS),
            "swap": Out(1),
            "sums_head": Out(HEAD),
            "sums_valid": Out(1),
            "last": Out(1),
            "sums": Out(PRODUCTS),
        })

    @property
    def latency(self) -> int:
        """Cycles from a closing to the first sum: drain, share, sum."""
        return 3

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        lanes = self.geometry.head_dim
        m.submodules.waiting = waiting = SyncFIFOBuffered(width=PRODUCTS.size, depth=2 * lanes)
        m.submodules.heads = heads = SyncFIFOBuffered(width=HEAD.size, depth=FLIGHTS)
        place, ends = Signal(range(lanes)), Signal()
        shown: Any = Signal(PRODUCTS, reset_less=True)
        drained, last = Signal(), Signal()
        m.d.comb += [
            waiting.w_en.eq(self.valid), waiting.w_data.eq(self.products), waiting.r_en.eq(self.drain),
            heads.w_en.eq(self.begins), heads.w_data.eq(self.head), heads.r_en.eq(self.swap),
            ends.eq(place == lanes - 1),
        ]
        with m.If(self.drain):
            m.d.sync += [place.eq(place + 1), self.drain.eq(~ends)]
        with m.If(self.closing):
            m.d.sync += self.drain.eq(1)
        m.d.sync += [
            self.swap.eq(self.drain & (place == 0)),
            drained.eq(self.drain), last.eq(self.drain & ends), shown.as_value().eq(waiting.r_data),
            self.sums_valid.eq(drained), self.last.eq(last), self.sums.v.eq(shown.v),
            self.sums.o.eq(saturate(shown.o + self.shares[0], formats.RECUR_BITS)),
            self.sums.r.eq(saturate(shown.r + self.shares[1], formats.RECUR_BITS)),
        ]
        with m.If(self.swap):
            m.d.sync += self.sums_head.eq(heads.r_data)
        return m
