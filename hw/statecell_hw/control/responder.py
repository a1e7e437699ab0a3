"""Responses, in the order of the commands."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from amaranth.hdl import Array, Cat, Const, Elaboratable, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.enum import Enum
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from statecell.spec import frame
from statecell.spec.commands import COUNTER_FIELDS, INFO_FIELDS, STATE_FIELDS, Info
from statecell.spec.fingerprint import fingerprint
from statecell.spec.geometry import MAX_LANES, Geometry
from statecell.spec.serial import SerialLink, bit_cycles
from statecell_hw.attention.pack import packed_layout
from statecell_hw.control.counters import COUNTER_BITS
from statecell_hw.link.deframer import word_layout
from statecell_hw.link.framer import RESPONSE

DEPTH = 8
"""Responses that may wait."""
INFO_BITS = 32
EXPONENT_BITS = 8


STATE_BITS = 64 * len(STATE_FIELDS)


class Answer(Enum, shape=3):
    """Payload of a response."""

    NOTHING = 0
    INFO = 1
    COUNTERS = 2
    VECTORS = 3
    ROWS = 4
    OUTPUTS = 5
    STATE = 6


def completion_layout(g: Geometry) -> data.StructLayout:
    """A response to send: its header but for the version, the kind of its payload, and of how many queries."""
    return data.StructLayout({"header": RESPONSE, "answer": Answer, "lanes": range(g.lanes + 1)})


def device_info(g: Geometry, build_hash: int, link: SerialLink | None = None) -> Info:
    """What INFO answers for a device of geometry `g` whose sources hash to `build_hash` (64 bits)."""
    return Info(
        version=frame.VERSION,
        fingerprint=fingerprint(),
        build_low=build_hash & 0xFFFFFFFF,
        build_high=build_hash >> 32,
        head_dim=g.head_dim,
        rows=g.rows,
        lanes=g.lanes,
        tiles=g.tiles,
        group=g.group,
        page_rows=g.page_rows,
        slots=g.slots,
        pages_per_slot=g.pages_per_slot,
        link_bytes=g.link_bytes,
        query_bits=g.query_bits,
        features=g.features,
        clock_hz=g.clock_hz,
        request_bytes=link.request_bytes if link else 0,
        answer_bytes=link.answer_bytes if link else 0,
        answers=link.answers if link else 0,
        bit_cycles=bit_cycles(g) if link else 0,
    )


class Responder(wiring.Component):
    """Queue of completed commands, and the words of their responses.

    A header goes out as soon as the command is the oldest, so that an ATTEND's header does not wait for its vectors.
    Latency from `i` to the first header word 1 cycle, from a result word to the same word out 0.

    Parameters: `info`, what INFO answers.

    Members
    -------
    i: completed commands.
    vectors: packed results, in order.
    rows: payload words of READ_ROWS.
    counter_index, counter_word: payload words of COUNTERS.
    outputs, state: payload words of RECUR, and the registers that STATE answers with, with states only.
    o: header and payload words; `last` ends the payload.
    idle: nothing is to be sent.
    """

    i: stream.Interface
    vectors: stream.Interface
    rows: stream.Interface
    counter_index: Signal
    counter_word: Signal
    outputs: stream.Interface
    state: Signal
    o: stream.Interface
    idle: Signal

    def __init__(self, g: Geometry, *, info: Info) -> None:
        self.g = g
        self.info = info
        words = len(COUNTER_FIELDS) * COUNTER_BITS // 8 // g.link_bytes
        super().__init__(
            {
                "i": In(stream.Signature(completion_layout(g))),
                "vectors": In(stream.Signature(packed_layout(g))),
                "rows": In(stream.Signature(8 * g.link_bytes)),
                "counter_index": Out(range(words)),
                "counter_word": In(8 * g.link_bytes),
                "o": Out(stream.Signature(word_layout(g))),
                "idle": Out(1),
                **({"outputs": In(stream.Signature(8 * g.link_bytes)), "state": In(STATE_BITS)} if g.states else {}),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        bits = 8 * g.link_bytes
        block_words = frame.BLOCK // g.link_bytes
        info_words = len(INFO_FIELDS) * INFO_BITS // bits
        layout = completion_layout(g)
        m.submodules.queue = queue = SyncFIFO(width=layout.size, depth=DEPTH)
        head = data.View(layout, queue.r_data)
        version = RESPONSE["version"].width
        header = Cat(Const(frame.VERSION, version), head.header.as_value()[version:])
        exponents = data.View(
            data.ArrayLayout(EXPONENT_BITS, MAX_LANES), Signal(EXPONENT_BITS * MAX_LANES, name="exponents")
        )
        index = Signal(range(max(block_words, g.vector_words, info_words, 1 << len(self.counter_index))))
        left = Signal(len(head.header.blocks) + (block_words - 1).bit_length())  # words of READ_ROWS to come
        vector = Signal(range(g.lanes + 1))
        word, last, take, end = self.o.payload.data, self.o.payload.last, Signal(), Signal()
        m.d.comb += [
            queue.w_data.eq(self.i.payload),
            queue.w_en.eq(self.i.valid),
            self.i.ready.eq(queue.w_rdy),
            self.idle.eq(~queue.r_rdy),
            take.eq(self.o.valid & self.o.ready),
            queue.r_en.eq(take & last),
            self.counter_index.eq(index),
        ]
        with m.If(take):
            m.d.sync += index.eq(index + 1)
            with m.If(end):
                m.d.sync += index.eq(0)
        with m.FSM():
            with m.State("HEADER"):
                m.d.comb += [
                    self.o.valid.eq(queue.r_rdy),
                    word.eq(header.word_select(index, bits) if block_words > 1 else header),
                    end.eq(index == block_words - 1),
                    last.eq(end & (head.answer == Answer.NOTHING)),
                ]
                m.d.sync += [vector.eq(0), left.eq(head.header.blocks * block_words)]
                with m.If(take & end), m.Switch(head.answer):
                    recurrent = (Answer.OUTPUTS, Answer.STATE) if g.states else ()
                    for answer in (Answer.INFO, Answer.COUNTERS, Answer.VECTORS, Answer.ROWS, *recurrent):
                        with m.Case(answer):
                            m.next = answer.name
            with m.State("INFO"):
                fields = sum(int(v) << (INFO_BITS * i) for i, v in enumerate(astuple(self.info)))
                m.d.comb += [self.o.valid.eq(1), end.eq(index == info_words - 1), last.eq(end)]
                with m.Switch(index):
                    for number in range(info_words):
                        with m.Case(number):
                            m.d.comb += word.eq(fields >> (number * bits) & ((1 << bits) - 1))
                with m.If(take & end):
                    m.next = "HEADER"
            with m.State("COUNTERS"):
                m.d.comb += [
                    self.o.valid.eq(1),
                    word.eq(self.counter_word),
                    end.eq(index == len(COUNTER_FIELDS) * COUNTER_BITS // bits - 1),
                    last.eq(end),
                ]
                with m.If(take & end):
                    m.next = "HEADER"
            with m.State("VECTORS"):
                m.d.comb += [
                    self.o.valid.eq(self.vectors.valid),
                    self.vectors.ready.eq(self.o.ready),
                    word.eq(self.vectors.payload.data),
                    end.eq(index == g.vector_words - 1),
                ]
                with m.If(take & end):
                    m.d.sync += [
                        vector.eq(vector + 1),
                        Array(exponents[i] for i in range(g.lanes))[vector].eq(self.vectors.payload.block),
                    ]
                    with m.If(vector + 1 == head.lanes):
                        m.next = "EXPONENTS"
            with m.State("EXPONENTS"):
                flat = exponents.as_value()
                m.d.comb += [
                    self.o.valid.eq(1),
                    word.eq(flat.word_select(index, bits) if block_words > 1 else flat),
                    end.eq(index == block_words - 1),
                    last.eq(end),
                ]
                with m.If(take & end):
                    # The next response may have fewer lanes, and the bytes of the others must be 0.
                    m.d.sync += flat.eq(0)
                    m.next = "HEADER"
            with m.State("ROWS"):
                m.d.comb += [
                    self.o.valid.eq(self.rows.valid),
                    self.rows.ready.eq(self.o.ready),
                    word.eq(self.rows.payload),
                    last.eq(left == 1),
                    end.eq(left == 1),
                ]
                with m.If(take):
                    m.d.sync += left.eq(left - 1)
                    with m.If(last):
                        m.next = "HEADER"
            if g.states:
                with m.State("OUTPUTS"):
                    m.d.comb += [
                        self.o.valid.eq(self.outputs.valid), self.outputs.ready.eq(self.o.ready),
                        word.eq(self.outputs.payload), last.eq(left == 1), end.eq(left == 1),
                    ]
                    with m.If(take):
                        m.d.sync += left.eq(left - 1)
                        with m.If(last):
                            m.next = "HEADER"
                with m.State("STATE"):
                    m.d.comb += [
                        self.o.valid.eq(1), word.eq(self.state.word_select(index, bits)),
                        end.eq(index == STATE_BITS // bits - 1), last.eq(end),
                    ]
                    with m.If(take & end):
                        m.next = "HEADER"
        return m
