"""Block packer: vectors of the inverse transform become 16-bit vectors with one block exponent each."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import clamp


def packed_layout(geometry: Geometry) -> data.StructLayout:
    """One word of a packed vector, ``data``: P elements of VECTOR_BITS; ``block``: the block exponent of its vector."""
    return data.StructLayout({
        "data": formats.VECTOR_BITS * geometry.word,
        "block": (geometry.transform_bits - formats.VECTOR_BITS).bit_length(),
    })


class BlockPack(wiring.Component):
    """Block exponent of a vector: the least that makes (z + half) >> block fit VECTOR_BITS; and the vector so shifted,
    saturated to +-VECTOR_MAX.

    In: W words a vector, one in each cycle with ``i_valid``, any gaps, no back-pressure. Out: stream of W words a
    vector, each with the vector's block exponent, in order; the first is offered ``latency`` cycles after the vector's
    last word came in if nothing waits before it; one word a cycle, interval W. ``BUFFERS`` vectors are held: ``space``
    is how many are free of those not promised; the sender pulses ``take`` for each vector that it will send, while
    ``space`` is not 0, and never sends without. A buffer is free again once its last word has left it. ``idle``: no
    vector is promised, held or offered. Reset forgets everything; memories and data registers are not reset.
    """

    BUFFERS = 4
    """A vector's buffer is bound from its promise, before the rotation, to its last word: about 3 W cycles."""

    i_valid: Signal
    i_data: data.View
    take: Signal
    space: Signal
    idle: Signal
    o: stream.Interface

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__({
            "i_valid": In(1),
            "i_data": In(data.ArrayLayout(signed(geometry.transform_bits), geometry.word)),
            "take": In(1),
            "space": Out(range(self.BUFFERS + 1), init=self.BUFFERS),  # type: ignore[call-arg]  # not in the stubs
            "idle": Out(1),
            "o": Out(stream.Signature(packed_layout(geometry))),
        })

    @property
    def latency(self) -> int:
        """Cycles from the last word in to the first word offered: magnitude, fetch and exponent, a register behind the
        memory, shift.
        """
        return 4

    @property
    def interval(self) -> int:
        """Cycles from one vector to the next while the stream is taken."""
        return self.geometry.vector_words

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        words = g.vector_words
        block_bits = len(self.o.payload.block)

        # load: store the words and gather which magnitude bits occur
        load = Signal(range(self.BUFFERS))
        loaded = Signal(range(self.BUFFERS), reset_less=True)
        word_in = Signal(range(words))
        seen = Signal(g.transform_bits - 1, reset_less=True)
        last_in, ends_in = Signal(), Signal(init=words == 1)  # a vector's last word comes; it is the next
        complete = Signal()
        lanes = [self.i_data[p] for p in range(g.word)]
        occur: Value = Mux(word_in == 0, 0, seen)
        for lane in lanes:
            occur = occur | (lane ^ lane[-1].replicate(len(lane)))[:-1]
        m.d.comb += last_in.eq(self.i_valid & ends_in)
        m.d.sync += complete.eq(last_in)
        with m.If(self.i_valid):
            m.d.sync += [seen.eq(occur), word_in.eq(Mux(ends_in, 0, word_in + 1))]
            m.d.sync += ends_in.eq(word_in == (words - 2) % words)
        with m.If(last_in):
            m.d.sync += [load.eq(load + 1), loaded.eq(load)]

        # the exponent of a vector, one cycle after its last word
        exponents = [Signal(block_bits, name=f"exponent_{b}", reset_less=True) for b in range(self.BUFFERS)]
        found = Signal(block_bits)
        for bit in range(formats.VECTOR_BITS - 1, g.transform_bits - 1):
            with m.If(seen[bit]):
                m.d.comb += found.eq(bit - (formats.VECTOR_BITS - 2))
        with m.If(complete), m.Switch(loaded):
            for b in range(self.BUFFERS):
                with m.Case(b):
                    m.d.sync += exponents[b].eq(found)

        # fetch, shift, round
        fetch = Signal(range(self.BUFFERS))
        word_out = Signal(range(words))
        ends_out = Signal(init=words == 1)  # the word to fetch is its vector's last
        some = Signal()  # a whole vector is there to fetch
        fetched, fetched_last = Signal(), Signal(reset_less=True)
        fetched_buffer = Signal(range(self.BUFFERS), reset_less=True)
        held, held_block = Signal(), Signal(block_bits, reset_less=True)
        shifted, shifted_block = Signal(), Signal(block_bits, reset_less=True)
        free, go, last_out, release = (Signal() for _ in range(4))
        m.d.comb += [
            # all steps move at once: `ready` comes late
            free.eq(~shifted | self.o.ready),
            go.eq(some & free),
            self.idle.eq((self.space == self.BUFFERS) & ~held & ~shifted),
            last_out.eq(go & ends_out),
            release.eq(free & fetched & fetched_last),  # not before: the exponent is still needed
        ]
        m.d.sync += self.space.eq(self.space - self.take + release)
        # of at most BUFFERS vectors, a power of two, one is there if `load` is one ahead
        m.d.sync += some.eq(last_in | (some & ~(free & ends_out & (load == (fetch + 1)[: len(fetch)]))))
        with m.If(go):
            m.d.sync += [word_out.eq(Mux(ends_out, 0, word_out + 1)), ends_out.eq(word_out == (words - 2) % words)]
        with m.If(last_out):
            m.d.sync += fetch.eq(fetch + 1)
        block = Signal(block_bits)
        with m.Switch(fetched_buffer):
            for b in range(self.BUFFERS):
                with m.Case(b):
                    m.d.comb += block.eq(exponents[b])
        with m.If(free):
            m.d.sync += [
                fetched.eq(some),
                fetched_buffer.eq(fetch),
                fetched_last.eq(ends_out),
                held.eq(fetched),
                held_block.eq(block),
                shifted.eq(held),
                shifted_block.eq(held_block),
            ]

        out = []
        for p, lane in enumerate(lanes):
            memory: Any = Memory(
                shape=signed(g.transform_bits), depth=self.BUFFERS << ceil_log2(words), init=[]
            )
            m.submodules[f"words_{p}"] = memory
            write, read = memory.write_port(), memory.read_port(domain="comb")
            value = Signal(signed(g.transform_bits), name=f"value_{p}", reset_less=True)
            held_value = Signal.like(value, name=f"held_value_{p}", reset_less=True)
            # one fraction bit, which rounds half up
            scaled = Signal(signed(formats.VECTOR_BITS + 1), name=f"scaled_{p}", reset_less=True)
            element = Signal(signed(formats.VECTOR_BITS), name=f"element_{p}")
            m.d.comb += [
                write.en.eq(self.i_valid), write.addr.eq(Cat(word_in, load)), write.data.eq(lane),
                read.addr.eq(Cat(word_out, fetch)),
                element.eq(clamp(m, (scaled + 1) >> 1, -formats.VECTOR_MAX, formats.VECTOR_MAX)),
            ]
            with m.If(free):
                m.d.sync += [
                    value.eq(read.data),
                    held_value.eq(value),
                    scaled.eq((held_value << 1) >> held_block),
                ]
            out.append(element)
        m.d.comb += [
            self.o.valid.eq(shifted),
            self.o.payload.data.eq(Cat(*out)),
            self.o.payload.block.eq(shifted_block),
        ]
        return m
