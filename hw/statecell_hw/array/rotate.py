"""Walsh-Hadamard transform of vectors that arrive one word a cycle; serves both the rotation and its inverse."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.arithmetic import clamp

LEVELS = 2
"""Butterfly levels between two registers."""


class Fold(wiring.Component):
    """One butterfly level over words ``stride`` apart, of blocks of 2 * stride words.

    Words of a block come in order, with any gaps. The sum of words k and k + stride leaves in the cycle that brings
    word k + stride; the differences leave in the ``stride`` cycles after the block's last word, so the outputs are in
    order too and never meet those of the next block. Latency 0 from word k + stride to its sum; interval 1 word.

    Parameters: ``stride``, a power of two; ``lanes``, elements of a word; ``width``, signed bits of an input element,
    an output element has one more. Members: ``i_valid``, ``i_data``, ``o_valid``, ``o_data``. Reset drops the block.
    """

    i_valid: Signal
    i_data: list[Signal]
    o_valid: Signal
    o_data: list[Signal]

    def __init__(self, *, stride: int, lanes: int, width: int) -> None:
        self.stride = stride
        self.lanes = lanes
        self.width = width
        super().__init__({
            "i_valid": In(1),
            "i_data": In(signed(width)).array(lanes),
            "o_valid": Out(1),
            "o_data": Out(signed(width + 1)).array(lanes),
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        upper = Signal()
        draining = Signal()
        # a counter of one state would have no bits
        index = Signal(max(1, exact_log2(self.stride)))
        drained = Signal.like(index)
        last, drained_last = Signal(), Signal()
        m.d.comb += [last.eq(index == self.stride - 1), drained_last.eq(drained == self.stride - 1)]
        # where the next cycle reads is known a cycle ahead: the memory comes right after a register
        place = Signal.like(index)
        next_index, next_drained, next_draining = Signal.like(index), Signal.like(index), Signal()
        m.d.comb += [
            next_index.eq(Mux(self.i_valid, Mux(last, 0, index + 1), index)),
            next_drained.eq(Mux(draining, Mux(drained_last, 0, drained + 1), drained)),
            next_draining.eq((self.i_valid & upper & last) | (draining & ~drained_last)),
        ]
        m.d.sync += [
            index.eq(next_index), drained.eq(next_drained), draining.eq(next_draining),
            place.eq(Mux(next_draining, next_drained, next_index)),
        ]
        with m.If(self.i_valid):
            m.d.sync += upper.eq(upper ^ last)
        m.d.comb += self.o_valid.eq(draining | (self.i_valid & upper))
        for lane, (i, o) in enumerate(zip(self.i_data, self.o_data, strict=True)):
            held: Value
            new = Signal(signed(self.width + 1), name=f"new_{lane}")
            if self.stride == 1:
                held = word = Signal(signed(self.width + 1), name=f"held_{lane}", reset_less=True)
                with m.If(self.i_valid):
                    m.d.sync += word.eq(new)
            else:
                memory: Any = Memory(
                    shape=signed(self.width + 1), depth=self.stride, init=[]
                )
                m.submodules[f"held_{lane}"] = memory
                write, read = memory.write_port(), memory.read_port(domain="comb")
                held = read.data
                m.d.comb += [
                    read.addr.eq(place),
                    write.en.eq(self.i_valid), write.addr.eq(index), write.data.eq(new),
                ]
            # the choice comes before the sum: of the two, the input is there first
            m.d.comb += [new.eq(Mux(upper, held - i, i)), o.eq(held + Mux(draining, 0, i))]
        return m


class Rotate(wiring.Component):
    """y = H x over vectors of ``head_dim`` elements, H[i, j] = (-1)^popcount(i & j).

    In: words of P elements, W words a vector, in order, one in each cycle with ``i_valid``, any gaps; no back-pressure.
    Out: the W words of the transform in W consecutive cycles, the first ``latency`` cycles after the vector's last
    word came in; interval W cycles. ``o_data`` is exact in ``transform_bits``. ``o_forward`` is
    (y + half) >> ``rotate_shift``, saturated to +-VECTOR_MAX; it holds for input elements of VECTOR_BITS only and is
    combinational from the output register. ``o_first`` and ``o_last`` mark the first and the last word of a vector.
    Reset drops what is inside; data registers and memories are not reset.
    """

    i_valid: Signal
    i_data: data.View
    o_valid: Signal
    o_first: Signal
    o_last: Signal
    o_data: data.View
    o_forward: data.View

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        super().__init__({
            "i_valid": In(1),
            "i_data": In(data.ArrayLayout(signed(formats.OUTPUT_BITS), geometry.word)),
            "o_valid": Out(1),
            "o_first": Out(1),
            "o_last": Out(1),
            "o_data": Out(data.ArrayLayout(signed(geometry.transform_bits), geometry.word)),
            "o_forward": Out(data.ArrayLayout(signed(formats.VECTOR_BITS), geometry.word)),
        })

    @property
    def latency(self) -> int:
        """Cycles from the last word of a vector in to the first word out: entry, one register for LEVELS levels."""
        return 1 + -(-exact_log2(self.geometry.head_dim) // LEVELS)

    @property
    def interval(self) -> int:
        """Cycles from one vector to the next."""
        return self.geometry.vector_words

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        total = exact_log2(g.head_dim)
        valid = Signal()
        entry = [Signal(signed(formats.OUTPUT_BITS), name=f"entry_{p}", reset_less=True) for p in range(g.word)]
        m.d.sync += valid.eq(self.i_valid)
        with m.If(self.i_valid):
            m.d.sync += [e.eq(self.i_data[p]) for p, e in enumerate(entry)]
        values: list[Value] = list(entry)
        for level in range(total):
            width = formats.OUTPUT_BITS + level
            if level < exact_log2(g.word):
                bit = 1 << level
                values = [values[p - bit] - values[p] if p & bit else values[p] + values[p + bit]
                          for p in range(g.word)]
            else:
                stride = g.head_dim >> (level + 1)
                m.submodules[f"fold_{stride}"] = fold = Fold(stride=stride, lanes=g.word, width=width)
                m.d.comb += fold.i_valid.eq(valid)
                m.d.comb += [i.eq(v) for i, v in zip(fold.i_data, values, strict=True)]
                valid, values = fold.o_valid, list(fold.o_data)
            if (level + 1) % LEVELS == 0 or level + 1 == total:
                valid_1 = Signal(name=f"valid_{level}")
                held = [Signal(signed(width + 1), name=f"data_{level}_{p}", reset_less=True) for p in range(g.word)]
                m.d.sync += valid_1.eq(valid)
                with m.If(valid):
                    m.d.sync += [h.eq(v) for h, v in zip(held, values, strict=True)]
                valid, values = valid_1, list(held)

        position = Signal(range(g.vector_words))
        with m.If(valid):
            m.d.sync += position.eq(Mux(self.o_last, 0, position + 1))
        m.d.comb += [
            self.o_valid.eq(valid),
            self.o_first.eq(position == 0),
            self.o_last.eq(position == g.vector_words - 1),
        ]
        half = 1 << (g.rotate_shift - 1)
        for p, value in enumerate(values):
            forward = Signal(signed(formats.VECTOR_BITS + total), name=f"forward_{p}")
            rounded = (forward + half) >> g.rotate_shift
            m.d.comb += [
                self.o_data[p].eq(value),
                forward.eq(value),
                self.o_forward[p].eq(clamp(m, rounded, -formats.VECTOR_MAX, formats.VECTOR_MAX)),
            ]
        return m
