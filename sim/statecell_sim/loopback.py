"""The smallest design with the board's ports: what goes in comes out."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out


def link_payload(link_bytes: int) -> data.StructLayout:
    """One link word: the data bytes in the low bits, the flag of a frame's last word above them."""
    return data.StructLayout({"data": 8 * link_bytes, "last": 1})


class Loopback(wiring.Component):
    """A queue from the link to the link: every frame is its own response.

    Checks harness, transports and benches without the device. Latency 2 cycles, one word a cycle, at most `depth`
    words inside; reset empties it.

    Members
    -------
    i, o: link words in and out.
    """

    latency = 2  # cycles from a word in to the same word out when nothing waits

    i: stream.Interface
    o: stream.Interface

    def __init__(self, *, link_bytes: int, depth: int = 8) -> None:
        self.link_bytes = link_bytes
        self.depth = depth
        signature = stream.Signature(link_payload(link_bytes))
        super().__init__({"i": In(signature), "o": Out(signature)})

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.queue = queue = SyncFIFOBuffered(width=8 * self.link_bytes + 1, depth=self.depth)
        m.d.comb += [
            queue.w_data.eq(self.i.payload.as_value()),
            queue.w_en.eq(self.i.valid),
            self.i.ready.eq(queue.w_rdy),
            self.o.payload.as_value().eq(queue.r_data),
            self.o.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.o.ready),
        ]
        return m
