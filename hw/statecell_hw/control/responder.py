"""Responses, in the order of the commands."""

from __future__ import annotations

from dataclasses import astuple
from typing import Any

from amaranth.hdl import Cat, Const, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.enum import Enum
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from statecell.spec import frame
from statecell.spec.commands import COUNTER_FIELDS, INFO_FIELDS, Info
from statecell.spec.fingerprint import fingerprint
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink, bit_cycles
from statecell_hw.attention.pack import packed_layout
from statecell_hw.control.counters import COUNTER_BITS
from statecell_hw.link.deframer import word_layout
from statecell_hw.link.framer import RESPONSE

DEPTH = 8
"""Responses that may wait."""
INFO_BITS = 32
EXPONENT_BITS = 8


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
    Latency from `i` to the first header word 2 cycles, from a result word to the same word out 0. A word a cycle
    but for the words of INFO and COUNTERS, each of which needs four: the first finds the counters copied.

    Parameters: `info`, what INFO answers.

    Members
    -------
    i: completed commands.
    vectors: packed results, in order.
    rows: payload words of READ_ROWS.
    counter_index, counter_word: payload words of COUNTERS.
    outputs, state: payload words of RECUR and of STATE, with states only.
    o: header and payload words; `last` ends the payload.
    idle: nothing is to be sent.
    """

    i: stream.Interface
    vectors: stream.Interface
    rows: stream.Interface
    counter_index: Signal
    counter_word: Signal
    outputs: stream.Interface
    state: stream.Interface
    o: stream.Interface
    idle: Signal

    def __init__(self, g: Geometry, *, info: Info) -> None:
        self.g = g
        self.info = info
        words = len(COUNTER_FIELDS) * COUNTER_BITS // 8 // g.link_bytes
        words_in = stream.Signature(8 * g.link_bytes)
        super().__init__(
            {
                "i": In(stream.Signature(completion_layout(g))),
                "vectors": In(stream.Signature(packed_layout(g))),
                "rows": In(words_in),
                "counter_index": Out(range(words)),
                "counter_word": In(8 * g.link_bytes),
                "o": Out(stream.Signature(word_layout(g))),
                "idle": Out(1),
                **({"outputs": In(words_in), "state": In(words_in)} if g.states else {}),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        bits = 8 * g.link_bytes
        layout = completion_layout(g)
        m.submodules.queue = queue = SyncFIFO(width=layout.size, depth=DEPTH)
        head = data.View(layout, queue.r_data)
        kinds: dict[Answer, Signal] = {
            answer: Signal(name=f"is_{answer.name.lower()}") for answer in Answer if answer != Answer.NOTHING
        }

        # A response is a header, and behind it a table (INFO, COUNTERS), blocks of rows, outputs or a state, or vectors
        # and a block of their exponents. What is asked about a word is known a cycle before it: all ways out are short.
        block_words = frame.BLOCK // g.link_bytes
        table_words = {
            Answer.INFO: len(INFO_FIELDS) * INFO_BITS // bits,
            Answer.COUNTERS: len(COUNTER_FIELDS) * COUNTER_BITS // bits,
        }
        own, of_vectors = Signal(), Signal()  # where the word on `o` comes from, and a signal for each of `blocks`
        blocks = {Answer.ROWS: self.rows}
        if g.states:
            blocks |= {Answer.OUTPUTS: self.outputs, Answer.STATE: self.state}
        of_blocks = {answer: Signal(name=f"of_{answer.name.lower()}") for answer in blocks}
        foreign = Cat(of_vectors, *of_blocks.values()).any()
        sources = [(of_vectors, self.vectors.valid, self.vectors.payload.data)]
        sources += [(of_blocks[answer], block.valid, block.payload) for answer, block in blocks.items()]
        valid: Value = Const(0)
        chosen: Value = sources[-1][2]
        for of, is_valid, payload in reversed(sources):
            valid, chosen = Mux(of, is_valid, valid), Mux(of, payload, chosen)
        pause, near, found = Signal(), Signal(), Signal()  # a table's word is on its way; a cycle from here; there
        opening, tabular = Signal(), Signal()  # own words: of the header; of a table; neither: exponents
        word = Signal(bits, reset_less=True)  # own word on `o`
        index = Signal(range(max(block_words, *table_words.values())))  # own word to come behind it
        left = Signal(range(max(block_words, g.vector_words, *table_words.values())))  # words of the part to come
        end, closing = Signal(init=1), Signal(init=1)  # no word is to come; no part
        parts = Signal(range(max(1 << len(head.header.blocks), g.lanes + 1)))  # vectors or blocks to come
        lane = Signal(g.lanes)  # which vector
        single = Signal()  # only one is, a cycle late
        info, counter = Signal(bits, reset_less=True), Signal(bits, reset_less=True)  # word `index`, a cycle late
        table = Signal(bits, reset_less=True)  # that of the table, two cycles late
        quiet, moves, fresh = Signal(), Signal(), Signal()
        ready, popped = Signal(), Signal()  # a command waits; all of the queue's first one was taken a cycle ago
        m.d.comb += [
            queue.w_data.eq(self.i.payload),
            queue.w_en.eq(self.i.valid),
            self.i.ready.eq(queue.w_rdy),
            quiet.eq(~(own | foreign | pause)),
            self.idle.eq(~ready & quiet),
            self.o.valid.eq(own | valid),
            self.o.payload.data.eq(Mux(own, word, chosen)),
            self.o.payload.last.eq(fresh),
            self.vectors.ready.eq(of_vectors & self.o.ready),
            *(blocks[answer].ready.eq(of_blocks[answer] & self.o.ready) for answer in blocks),
            self.counter_index.eq(index),
            moves.eq(quiet | (self.o.valid & self.o.ready)),
            fresh.eq(end & closing),  # the next word begins a response
            queue.r_en.eq(popped),
            ready.eq(queue.r_rdy & ~popped),
        ]
        m.d.sync += [
            popped.eq(moves & (fresh & ready if block_words == 1 else opening & (left == 1))),
            single.eq(parts == 1),
            info.eq(self._info_word(m, index)),
            counter.eq(self.counter_word),
            table.eq(Mux(kinds[Answer.COUNTERS], counter, info)),
            near.eq(pause & ~near & ~found),
            found.eq(near),
        ]
        exponents = self._exponents(m, clear=opening, lane=lane & of_vectors.replicate(g.lanes))

        def begin(words: int, at: int = 0) -> None:
            m.d.sync += [index.eq(at), left.eq(words - 1), end.eq(words == 1)]

        with m.If(found & ~(own | foreign)):
            m.d.sync += [word.eq(table), own.eq(1), pause.eq(0), index.eq(Mux(end, 0, index + 1))]
        with m.Elif(moves):
            m.d.sync += [left.eq(left - 1), end.eq(left == 1)]
            with m.If(tabular):
                m.d.sync += [own.eq(0), pause.eq(1)]
            with m.Elif(own):
                m.d.sync += index.eq(Mux(left == 1, 0, index + 1))
            with m.If(fresh | (opening & ~end)):
                m.d.sync += word.eq(self._of_block(self._header(head), index))
            with m.Else():
                m.d.sync += word.eq(self._of_block(exponents, index))
            with m.If(end):
                is_table = Cat(kinds[answer] for answer in table_words).any()
                m.d.sync += [
                    own.eq(Mux(closing, ready, of_vectors & single)),
                    opening.eq(closing & ready),
                    of_vectors.eq(~closing & Mux(opening, kinds[Answer.VECTORS], of_vectors & ~single)),
                    *(of.eq(~closing & Mux(opening, kinds[answer], of)) for answer, of in of_blocks.items()),
                    tabular.eq(~closing & opening & is_table),
                    pause.eq(~closing & opening & is_table),
                    parts.eq(parts - ~opening),
                    lane.eq(Mux(of_vectors, lane << 1, 1)),
                ]
                begin(block_words, int(block_words != 1))
                with m.If(closing):
                    m.d.sync += [
                        closing.eq(~ready | (head.answer == Answer.NOTHING)),
                        parts.eq(Mux(head.answer == Answer.VECTORS, head.lanes, head.header.blocks)),
                        *(kind.eq(head.answer == answer) for answer, kind in kinds.items()),
                    ]
                    with m.If(~ready):
                        m.d.sync += [index.eq(0), end.eq(1)]
                with m.Elif(opening):
                    is_blocks = Cat(kinds[answer] for answer in blocks).any()
                    m.d.sync += [closing.eq(is_table | (is_blocks & (parts == 1))), index.eq(0)]
                    for answer, words in {**table_words, Answer.VECTORS: g.vector_words}.items():
                        with m.If(kinds[answer]):
                            begin(words)
                with m.Elif(of_vectors):
                    m.d.sync += closing.eq(single)
                    with m.If(~single):
                        begin(g.vector_words)
                with m.Else():
                    m.d.sync += [closing.eq(parts == 2), index.eq(0)]
        return m

    def _of_block(self, block: Value, index: Signal) -> Value:
        """Word `index` of a block."""
        bits = 8 * self.g.link_bytes
        return block.word_select(index[: (len(block) // bits - 1).bit_length()], bits) if bits < len(block) else block

    def _header(self, head: Any) -> Value:
        """The header of the response `head`."""
        version = RESPONSE["version"].width
        return Cat(Const(frame.VERSION, version), head.header.as_value()[version:])

    def _exponents(self, m: Module, *, clear: Signal, lane: Value) -> Value:
        """The block of the vectors' exponents, from the second word of the last vector on.

        `clear`: all are 0, as those of vectors that there are not stay; `lane`: the vector that passes by, a bit each.
        """
        flat = Signal(8 * frame.BLOCK)
        exponents = []
        for number in range(self.g.lanes):
            exponent = Signal.like(self.vectors.payload.block, name=f"exponent_{number}", reset_less=True)
            exponents.append(exponent)
            with m.If(clear):
                m.d.sync += exponent.eq(0)
            with m.Elif(lane[number] & self.vectors.valid):
                m.d.sync += exponent.eq(self.vectors.payload.block)
            m.d.comb += flat.word_select(number, EXPONENT_BITS).eq(exponent)
        return flat

    def _info_word(self, m: Module, index: Signal) -> Signal:
        """Word `index` of INFO's table."""
        bits = 8 * self.g.link_bytes
        fields = sum(int(value) << (INFO_BITS * i) for i, value in enumerate(astuple(self.info)))
        word = Signal(bits, name="info_word")
        with m.Switch(index):
            for number in range(len(INFO_FIELDS) * INFO_BITS // bits):
                with m.Case(number):
                    m.d.comb += word.eq(fields >> (number * bits) & ((1 << bits) - 1))
        return word
