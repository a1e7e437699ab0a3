"""Token buffer: the payloads of tokens from their arrival until their rows have been read."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats, frame
from statecell.spec.geometry import Geometry
from statecell_hw.layouts import SCALE
from statecell_hw.recurrent.factor import DECAY_BITS
from statecell_hw.recurrent.operands import BAYS, ENTRIES, HALVES, channel_limit, slot_layout

PLACES = 8
"""Places in a bay of the words' memory, a vector each."""
WORD_BITS = 32
"""Bits of beta and of a decay in a payload."""


class Section(enum.Enum, shape=3):
    """Parts of a payload, in their order. All but the first lie in memories of their own or at places by section."""

    SCALARS = 0
    DECAYS = 4
    Q = 1
    K = 2
    B = 3
    VALUES = 6
    SCALES = 7


def token_layout(geometry: Geometry, slots: int) -> data.StructLayout:
    """A token that has come whole: of ``slot`` with its ``config``, in ``bay`` of the buffer. ``decay`` is right only
    with one a head. ``entries``: tokens in the slot's log before it; ``commit``: no token, the log goes to the rows.
    """
    return data.StructLayout({
        "slot": range(slots), "config": slot_layout(geometry), "bay": range(BAYS), "beta": formats.BETA_BITS,
        "decay": DECAY_BITS, "entries": range(ENTRIES), "commit": 1,
    })


def head_layout(geometry: Geometry, slots: int) -> data.StructLayout:
    """What a token of ``slot`` brings before its payload; see `token_layout`."""
    known = token_layout(geometry, slots).members
    return data.StructLayout({name: known[name] for name in ("slot", "config", "entries", "commit")})


class WordRead(wiring.Signature):
    """Read port: ``data`` is the word of the cycle before. ``section``: Q, K, B or DECAYS; ``word`` counts those of
    both halves.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__({
            "bay": Out(range(BAYS)), "section": Out(Section), "word": Out(range(2 * geometry.vector_words)),
            "data": In(8 * geometry.link_bytes),
        })


class ChannelRead(wiring.Signature):
    """Read port: ``v`` and ``scales`` of the channel of ``latency`` cycles before."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__({
            "bay": Out(range(BAYS)), "channel": Out(range(channel_limit(geometry))),
            "v": In(signed(formats.VECTOR_BITS)), "scales": In(SCALE).array(geometry.groups),
        })


class TokenBuffer(wiring.Component):
    """Payloads of RECUR in, word for word; operands out.

    ``head`` takes what precedes a token while a bay is free; ``commit`` has no payload, and is ``complete`` at once.
    The payload of others follows on ``i``: a block with beta and the decay, u32 each; with a decay per lane, those,
    u32; q, k and, with a bonus, b, i16, of both halves where there are two; the channels' values, i16; with supplied
    scales, their bytes, a channel's groups together. Every part is padded to whole blocks.

    ``complete`` is high when all of it has come, until ``accept`` makes it a token; ``drop`` forgets what has come at
    any time. ``bad``: a decay of it is 0 or above 1.0, beta has more than its bits, an element of a vector is beyond
    +-VECTOR_MAX, or a scale has the exponent of a low plane. ``frozen``: with one decay, that is 1.0, and beta is 0.
    ``o``: accepted tokens in order. Words and channels of a
    token can be read until ``release`` frees the oldest bay. Latency from ``accept`` to ``o`` 1 cycle. Reset forgets
    all tokens.
    """

    head: stream.Interface
    i: stream.Interface
    complete: Signal
    bad: Signal
    frozen: Signal
    accept: Signal
    drop: Signal
    o: stream.Interface
    words: Any
    channels: Any
    release: Signal

    def __init__(self, geometry: Geometry, *, slots: int) -> None:
        self.geometry = g = geometry
        self.slots = slots
        super().__init__({
            "head": In(stream.Signature(head_layout(g, slots))),
            "i": In(stream.Signature(8 * g.link_bytes)),
            "complete": Out(1),
            "bad": Out(1),
            "frozen": Out(1),
            "accept": In(1),
            "drop": In(1),
            "o": Out(stream.Signature(token_layout(g, slots))),
            "words": In(WordRead(g)),
            "channels": In(ChannelRead(g)),
            "release": In(1),
        })

    @property
    def channel_latency(self) -> int:
        """Cycles from a channel to its value: memory, choice."""
        return 2

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        entries: list[Any] = [Signal(token_layout(g, self.slots), name=f"entry_{i}", reset_less=True)
                              for i in range(BAYS)]
        bay, oldest = Signal(range(BAYS)), Signal(range(BAYS))
        held, waiting = Signal(range(BAYS + 1)), Signal(range(BAYS + 1))
        section = Signal(Section)
        index = Signal(range(max(2 * g.vector_words, self._value_words, self._scale_words)))
        active = Signal()
        config = Array(entries)[bay].config
        first, commits = Array(entries)[bay], self.head.payload.commit
        takes = self.i.valid & self.i.ready
        taken = self.o.valid & self.o.ready
        accepted = self.complete & self.accept
        m.d.comb += [
            self.head.ready.eq((held != BAYS) & ~active & ~self.complete),
            self.i.ready.eq(active),
            self.frozen.eq((first.beta == 0) & first.decay[-1]),
            self.o.valid.eq(waiting != 0),
            self.o.payload.eq(Array(entries)[oldest]),
        ]
        m.d.sync += [
            held.eq(held + accepted - self.release), waiting.eq(waiting + accepted - taken), oldest.eq(oldest + taken),
        ]
        with m.If(self.head.valid & self.head.ready):
            m.d.sync += [active.eq(~commits), self.complete.eq(commits), section.eq(Section.SCALARS), index.eq(0)]
            for number, entry in enumerate(entries):
                with m.If(bay == number):
                    m.d.sync += [*(entry[name].eq(self.head.payload[name]) for name in self.head.payload.shape()
                                   .members), entry.bay.eq(number)]
        last = Signal()
        with m.If(takes):
            m.d.sync += index.eq(Mux(last, 0, index + 1))
        with m.If(takes & self._bad(section, index, config)):
            m.d.sync += self.bad.eq(1)
        self._sections(m, config, section, index, last, takes, active)
        with m.If(accepted | self.drop):
            m.d.sync += [self.complete.eq(0), active.eq(0), self.bad.eq(0), bay.eq(bay + accepted)]
        with m.If(takes & (section == Section.SCALARS)):
            self._scalars(m, entries, bay, index)
        self._memories(m, section, index, bay, takes)
        return m

    def _bad(self, section: Signal, index: Signal, config: Any) -> Value:
        """Whether a word has a value outside its range."""
        g, word = self.geometry, self.i.payload
        per_word = 8 * g.link_bytes // WORD_BITS
        longs = [word.word_select(i, WORD_BITS) for i in range(per_word)]
        decays = Cat((x == 0) | (x > 1 << formats.DECAY_FRACTION) for x in longs)
        vectors = Cat(word.word_select(i, formats.VECTOR_BITS) == formats.VECTOR_MAX + 1 for i in range(g.word))
        scales = Cat(word.word_select(i, formats.SCALE_BITS)[formats.SCALE_MANTISSA:-1] == formats.LOW_PLANE
                     for i in range(g.link_bytes))
        beta = (index == 0) & longs[0][formats.BETA_BITS:].any()
        decay = (index == 1 // per_word) & decays[1 % per_word] & ~config.lane_decay
        of_vector = [section == s for s in (Section.Q, Section.K, Section.B, Section.VALUES)]
        return Value.cast(
            (section == Section.SCALARS) & (beta | decay) | (section == Section.DECAYS) & decays.any()
            | (section == Section.SCALES) & scales.any() | Cat(of_vector).any() & vectors.any())

    @property
    def _block_words(self) -> int:
        return frame.BLOCK // self.geometry.link_bytes

    @property
    def _value_words(self) -> int:
        """Most words of the values."""
        return channel_limit(self.geometry) // self.geometry.word

    @property
    def _scale_words(self) -> int:
        """Most words of the scales."""
        return channel_limit(self.geometry) * self.geometry.groups // self.geometry.link_bytes

    def _sections(self, m: Module, config: Any, section: Signal, index: Signal, last: Signal, takes: Value,
                  active: Signal) -> None:
        """How long each part is, and which comes next."""
        g, block_words = self.geometry, self._block_words

        def blocks(count: Value, per_block: int) -> Value:
            return (count + (per_block - 1)) >> exact_log2(per_block)

        length = Signal(len(index) + 1)
        vector = Mux(config.halves, HALVES * g.vector_words, g.vector_words)
        values = blocks(config.channels, frame.BLOCK * 8 // formats.VECTOR_BITS)
        scales = blocks(config.channels, frame.BLOCK // g.groups)
        m.d.comb += last.eq(index == length - 1)
        ends = takes & last

        def then(following: Section) -> None:
            with m.If(ends):
                m.d.sync += section.eq(following)

        def finish() -> None:
            with m.If(ends):
                m.d.sync += [active.eq(0), self.complete.eq(1)]

        with m.Switch(section):
            with m.Case(Section.SCALARS):
                m.d.comb += length.eq(block_words)
                with m.If(config.lane_decay):
                    then(Section.DECAYS)
                with m.Else():
                    then(Section.Q)
            with m.Case(Section.DECAYS):
                m.d.comb += length.eq(2 * g.vector_words)
                then(Section.Q)
            with m.Case(Section.Q):
                m.d.comb += length.eq(vector)
                then(Section.K)
            with m.Case(Section.K):
                m.d.comb += length.eq(vector)
                with m.If(config.bonus):
                    then(Section.B)
                with m.Else():
                    then(Section.VALUES)
            with m.Case(Section.B):
                m.d.comb += length.eq(vector)
                then(Section.VALUES)
            with m.Case(Section.VALUES):
                m.d.comb += length.eq(values * block_words)
                with m.If(config.mode.supplied):
                    then(Section.SCALES)
                with m.Else():
                    finish()
            with m.Case(Section.SCALES):
                m.d.comb += length.eq(scales * block_words)
                finish()

    def _scalars(self, m: Module, entries: list[Any], bay: Signal, index: Signal) -> None:
        """Beta and decay of the first block."""
        per_word = 8 * self.geometry.link_bytes // WORD_BITS
        for place, (name, bits) in enumerate((("beta", formats.BETA_BITS), ("decay", DECAY_BITS))):
            field = self.i.payload.word_select(place % per_word, WORD_BITS)[:bits]
            for number, entry in enumerate(entries):
                with m.If((bay == number) & (index == place // per_word)):
                    m.d.sync += entry[name].eq(field)

    def _memories(self, m: Module, section: Signal, index: Signal, bay: Signal, takes: Value) -> None:
        """Words of vectors and decays; values; scales."""
        g, bits = self.geometry, 8 * self.geometry.link_bytes
        read: Any = self.words
        words: Memory = Memory(shape=bits, depth=BAYS * PLACES * g.vector_words, init=[])
        m.submodules.words = words
        write, fetch = words.write_port(), words.read_port()
        m.d.comb += [
            write.en.eq(takes & (section != Section.VALUES) & (section != Section.SCALES)),
            write.addr.eq(self._place(section, index, bay)), write.data.eq(self.i.payload),
            fetch.addr.eq(self._place(read.section, read.word, read.bay)), read.data.eq(fetch.data),
        ]
        groups = exact_log2(g.groups)
        per_value, per_scale = exact_log2(g.word), exact_log2(g.link_bytes) - groups
        channel, which = self.channels.channel, self.channels.bay
        for name, depth, shift, at in (("values", self._value_words, per_value, Section.VALUES),
                                       ("scales", self._scale_words, per_scale, Section.SCALES)):
            memory: Memory = Memory(shape=bits, depth=BAYS * depth, init=[])
            m.submodules[name] = memory
            write, fetch = memory.write_port(), memory.read_port()
            m.d.comb += [
                write.en.eq(takes & (section == at)), write.data.eq(self.i.payload),
                write.addr.eq(Cat(index[:exact_log2(depth)], bay)), fetch.addr.eq(Cat(channel[shift:], which)),
            ]
            chosen = Signal(shift, name=f"chosen_{name}", reset_less=True)
            m.d.sync += chosen.eq(channel[:shift])
            word = fetch.data.word_select(chosen, bits >> shift) if shift else fetch.data
            if at is Section.VALUES:
                m.d.sync += self.channels.v.eq(word)
            else:
                m.d.sync += Cat(scale.as_value() for scale in self.channels.scales).eq(word)

    def _place(self, section: Any, word: Value, bay: Value) -> Value:
        """Address of a word: the decays, twice as many as a vector's words, have the upper places of a bay, and where
        there are none of them the second halves.
        """
        bits = exact_log2(self.geometry.vector_words)
        number = Value.cast(section)
        low, middle = Mux(number[2], word[bits], number[0]), Mux(number[2], 0, number[1])
        return Cat(word[:bits], low, middle, number[2] | word[bits], bay)
