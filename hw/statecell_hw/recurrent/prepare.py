"""Vector side: from a token's vectors to the operands of its rows."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.rotate import Rotate
from statecell_hw.array.writer import Writer
from statecell_hw.layouts import Kind, QueryLoad, row_layout
from statecell_hw.recurrent.decays import Decays, FactorAccess
from statecell_hw.recurrent.factor import INVERSE_SHIFT
from statecell_hw.recurrent.lost import Lost
from statecell_hw.recurrent.mix import Mix
from statecell_hw.recurrent.operands import LOST_BITS, OCTAVE_BITS, key_layout, pass_layout
from statecell_hw.recurrent.readout import vector_geometry
from statecell_hw.recurrent.tokens import Section, WordRead, token_layout
from statecell_hw.recurrent.weigh import Weigh

AHEAD = 4
"""Tokens whose key is on its way to the rows or has not been taken by them."""
VECTORS = 3
"""Vectors that a half of a token sends through the writer: q and k as queries, k as a row."""


class Prepare(wiring.Component):
    """Decays, rotation, weighing and quantisation of one token after the other; docs/numerics.md, 8.2 to 8.4.

    ``i``: tokens, whose words are read through ``words``. Out: the vectors, through ``load`` (see :class:`Dot`), and
    for each token a pass on ``o``, without its ``noise``, once vectors and key are there; ``key`` is that of the oldest
    pass whose ``key_taken`` has not come. ``open_en`` makes the factors of ``open_slot`` 1.0, what they have lost
    ``open_lost`` and, unless ``open_stored``, its rows count as 0, which they do until a pass that writes; it must not
    come while a token of that slot is in the block. ``factors`` reads and writes factors as they are; ``stored``: the
    rows of its slot count; with its ``reads`` ``was_lost`` a cycle later. A commit is a pass without vectors and key.

    A token that is rotated takes ``interval`` cycles, with or without a bonus, if nothing waits; one with a decay per
    lane at most ``lane_cycles`` more, and one of two halves, which come after each other, less than twice as many.
    Reset forgets tokens, factors and rows.
    """

    i: stream.Interface
    words: Any
    open_en: Signal
    open_slot: Signal
    open_stored: Signal
    open_lost: Signal
    was_lost: Signal
    factors: Any
    stored: Signal
    load: Any
    load_ready: Signal
    o: stream.Interface
    key: Any
    key_taken: Signal

    def __init__(self, geometry: Geometry, *, slots: int) -> None:
        self.geometry = g = geometry
        self.slots = slots
        self.decays, self.lost, self.mix = Decays(g, slots=slots), Lost(slots=slots), Mix(g)
        self.rotate, self.weigh = Rotate(g), Weigh(g)
        self.writer = Writer(vector_geometry(g))
        super().__init__({
            "i": In(stream.Signature(token_layout(g, slots))),
            "words": Out(WordRead(g)),
            "open_en": In(1),
            "open_slot": In(range(slots)),
            "open_stored": In(1),
            "open_lost": In(LOST_BITS),
            "was_lost": Out(LOST_BITS),
            "factors": In(FactorAccess(g, slots=slots)),
            "stored": Out(1),
            "load": Out(QueryLoad(vector_geometry(g))),
            "load_ready": In(1),
            "o": Out(stream.Signature(pass_layout(g, slots))),
            "key": Out(key_layout(g)),
            "key_taken": In(1),
        })

    @property
    def interval(self) -> int:
        """Cycles from one rotated token to the next: token, decay, jobs, q and k, their rotation, k once more."""
        words = self.geometry.vector_words
        return 1 + (self.decays.latency + 1) + 1 + 2 * words + (self.rotate.latency + words + 2) + words

    @property
    def lane_cycles(self) -> int:
        """Most cycles that decays per lane add."""
        return 2 * self.geometry.vector_words - 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        for name in ("decays", "lost", "mix", "rotate", "weigh", "writer"):
            m.submodules[name] = getattr(self, name)
        token: Any = Signal(token_layout(g, self.slots), reset_less=True)
        config = token.config
        issued = Signal(range(3 * g.vector_words + 1))
        half, following = Signal(), Signal()  # the second half of a token's vectors; it comes next
        decays: Any = self.decays
        factors = Mux(config.lane_decay, 2 * g.vector_words, 1)
        reads, replays, push = Signal(), Signal(), Signal()
        done_turning, done_jobs = Signal(), Signal()
        ahead, room = Signal(range(AHEAD + 1)), Signal()
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                m.d.sync += [issued.eq(0), half.eq(0)]
                with m.If(self.i.valid):
                    m.d.sync += token.eq(self.i.payload)
                    m.next = "DECAYS"
                with m.If(self.i.valid & self.i.payload.commit):
                    m.next = "LOST"
            with m.State("LOST"):
                # what the factor has lost is read
                m.next = "COMMIT"
            with m.State("COMMIT"), m.If(room):
                m.d.comb += push.eq(1)
                m.next = "IDLE"
            with m.State("DECAYS"):
                m.d.comb += [self.words.section.eq(Section.DECAYS), reads.eq(issued != factors)]
                m.d.sync += issued.eq(issued + reads)
                with m.If(decays.done):
                    m.d.sync += issued.eq(0)
                    m.next = "JOBS"
            with m.State("JOBS"), m.If(done_jobs):
                m.next = "VECTORS"
            with m.State("VECTORS"):
                for number, section in enumerate((Section.Q, Section.K, Section.B)):
                    with m.If(issued >= number * g.vector_words):
                        m.d.comb += self.words.section.eq(section)
                end = issued == Mux(config.bonus, 3 * g.vector_words - 1, 2 * g.vector_words - 1)
                m.d.comb += reads.eq(1)
                m.d.sync += issued.eq(Mux(end, 0, issued + 1))
                with m.If(end):
                    m.next = "TURN"
            with m.State("TURN"), m.If(done_turning & (ahead != AHEAD) & room):
                m.d.comb += push.eq(half == config.halves)
                m.next = "REPLAY"
            with m.State("REPLAY"):
                m.d.comb += replays.eq(1)
                m.d.sync += issued.eq(issued + 1)
                with m.If(issued == g.vector_words - 1):
                    m.next = "IDLE"
                    with m.If(half != config.halves):
                        m.d.comb += following.eq(1)
                        m.d.sync += [issued.eq(0), half.eq(1)]
                        m.next = "JOBS"
        of_decays = self.words.section == Section.DECAYS
        m.d.comb += [
            self.words.bay.eq(token.bay),
            self.words.word.eq(Mux(of_decays, issued, Cat(issued[:exact_log2(g.vector_words)], half))),
        ]
        m.d.sync += ahead.eq(ahead + (push & ~token.commit) - self.key_taken)

        m.d.comb += [
            decays.begins.eq(self.i.valid & self.i.ready & ~self.i.payload.commit), decays.slot.eq(token.slot),
            decays.decay.eq(token.decay),
            decays.lane_decay.eq(config.lane_decay), decays.decay_first.eq(config.decay_first),
            decays.reads.eq(reads & of_decays), decays.number.eq(issued), decays.word.eq(self.words.data),
            decays.open_en.eq(self.open_en), decays.open_slot.eq(self.open_slot),
        ]
        wiring.connect(m, wiring.flipped(self.factors), decays.access)
        begins = decays.begins | following
        self._jobs(m, done_jobs, begins, half, half == config.halves)
        self._vectors(m, token, reads & ~of_decays, issued, replays, done_turning, begins, half)
        self._passes(m, token, push, room)
        return m

    def _jobs(self, m: Module, done: Signal, begins: Value, half: Signal, last: Value) -> None:
        """Promises and jobs of the three vectors of a ``half``; the key's row is told which it is, and whether the
        ``last``.
        """
        writer: Any = self.writer
        promised, sent = (Signal(range(VECTORS + 1), name=n, init=VECTORS) for n in ("promised", "sent"))
        job = writer.job.payload
        m.d.comb += [
            writer.take.eq((promised != VECTORS) & (writer.space != 0)),
            writer.job.valid.eq(sent != promised),
            job.kind.eq(Mux(sent == VECTORS - 1, Kind.KEY, Kind.QUERY)),
            job.lane.eq(Cat(sent[0], half)),
            job.row.eq(Cat(half, last)), job.following.eq(Cat(half, last)),
            job.wide.eq(1),
            done.eq(sent == VECTORS),
        ]
        m.d.sync += [promised.eq(promised + writer.take), sent.eq(sent + (writer.job.valid & writer.job.ready))]
        with m.If(begins):
            m.d.sync += [promised.eq(0), sent.eq(0)]

    def _vectors(self, m: Module, token: Any, reads: Value, issued: Signal, replays: Signal, done: Signal,
                 begins: Value, half: Signal) -> None:
        """Words of the vectors: product of q and b, rotation, weighing, writer; k once more from a memory."""
        g, mix, rotate, weigh, writer = self.geometry, self.mix, self.rotate, self.weigh, self.writer
        config, width = token.config, formats.VECTOR_BITS
        fetched = Signal()
        section = Signal(Section, reset_less=True)
        m.d.sync += [fetched.eq(reads), section.eq(self.words.section)]
        word = [self.words.data.word_select(p, width).as_signed() for p in range(g.word)]
        bonus = section == Section.B
        m.d.comb += [
            mix.query.eq(fetched & (section == Section.Q)), mix.continues.eq(half),
            mix.valid.eq(fetched & Mux(config.bonus, bonus, section == Section.K)),
            rotate.i_valid.eq(fetched & ~bonus & config.rotate),
            *(a.eq(b) for a, b in zip(mix.i, word, strict=True)),
            *(rotate.i_data[p].eq(w) for p, w in enumerate(word)),
        ]
        # turned words: W of q, W of k; k waits in a memory for its second time
        turned = Signal(range(2 * g.vector_words + 1))
        valid, again = Signal(), Signal(reset_less=True)
        held = Signal(width * g.word, reset_less=True)
        straight = fetched & ~bonus & ~config.rotate
        m.d.sync += [valid.eq(rotate.o_valid | straight | replays), again.eq(replays)]
        memory: Memory = Memory(shape=len(held), depth=g.vector_words, init=[])
        m.submodules.keys = memory
        write, read = memory.write_port(), memory.read_port(domain="comb")
        m.d.comb += read.addr.eq(issued)
        with m.If(replays):
            m.d.sync += held.eq(read.data)
        with m.Else():
            m.d.sync += held.eq(Mux(config.rotate, Cat(rotate.o_forward[p] for p in range(g.word)), Cat(*word)))
        place = Signal(exact_log2(g.vector_words))
        is_key = Signal()
        m.d.comb += [
            is_key.eq(turned >= g.vector_words),
            write.en.eq(valid & ~again & is_key), write.addr.eq(place), write.data.eq(held),
        ]
        with m.If(valid):
            m.d.sync += place.eq(place + 1)
            with m.If(~again):
                m.d.sync += turned.eq(turned + 1)
        with m.If(begins):
            m.d.sync += turned.eq(0)
        # the product of q and b comes mix.latency cycles after the last word was read
        settle = Signal(range(mix.latency + 1))
        with m.If(reads):
            m.d.sync += settle.eq(mix.latency)
        with m.Elif(settle != 0):
            m.d.sync += settle.eq(settle - 1)
        m.d.comb += done.eq((turned == 2 * g.vector_words) & (settle == 0))
        m.d.comb += self.decays.place.eq(place)
        weighed = Signal()
        m.d.sync += weighed.eq(valid)
        for p in range(g.word):
            kinds: Any = self.decays.weights[p]
            i, weight = Signal.like(weigh.i[p], name=f"i_{p}", reset_less=True), Signal.like(
                weigh.weight[p], name=f"weight_{p}", reset_less=True)
            m.d.sync += [
                i.eq(held.word_select(p, width)),
                weight.eq(Mux(again, Cat(Const(0, INVERSE_SHIFT), kinds.inverse), Mux(is_key, kinds.k, kinds.q))),
            ]
            m.d.comb += [weigh.i[p].eq(i), weigh.weight[p].eq(weight), writer.i_data[p].eq(weigh.o[p])]
        m.d.comb += [weigh.valid.eq(weighed), writer.i_valid.eq(weigh.o_valid)]

    def _passes(self, m: Module, token: Any, push: Signal, room: Signal) -> None:
        """Queues of passes, of their keys' arrival, of falls and keys; the vectors go straight to the read-out."""
        g, writer, config = self.geometry, self.writer, token.config
        layout = pass_layout(g, self.slots)
        wiring.connect(m, writer.query, wiring.flipped(self.load))
        m.d.comb += writer.query_ready.eq(self.load_ready)
        stored = Signal(self.slots)
        entry: Any = data.View(layout, Signal(layout.size, name="entry"))
        frozen = self.decays.one & (token.beta == 0)
        doubles = exact_log2(g.head_dim) % 2
        lost, octaves = self.lost, Mux(config.lane_decay, 0, self.decays.octaves)
        logs, writes = config.interval > 1, token.commit | ~frozen
        # more octaves than these leave nothing of a row
        least = (1 << OCTAVE_BITS) - 1
        m.d.comb += [
            lost.slot.eq(Mux(self.factors.reads, self.factors.slot, token.slot)),
            lost.octaves.eq(Mux(token.commit, 0, octaves)),
            lost.adds.eq(push & logs & ~token.commit), lost.clears.eq(push & token.commit),
            lost.open_en.eq(self.open_en), lost.open_slot.eq(self.open_slot),
            lost.open_lost.eq(self.open_lost), self.was_lost.eq(lost.before),
        ]
        m.d.comb += [
            entry.slot.eq(token.slot), entry.config.eq(config), entry.bay.eq(token.bay),
            entry.stored.eq(stored.bit_select(token.slot, 1)), entry.entries.eq(token.entries),
            entry.head.mode.eq(config.mode), entry.head.halved.eq(config.rotate & doubles),
            entry.head.write.eq(writes), entry.head.beta.eq(token.beta), entry.head.mix.eq(self.mix.mix),
            entry.head.octaves.eq(Mux(lost.lost > least, least, lost.lost)),
            entry.head.log.eq(logs & ~token.commit), entry.head.commit.eq(token.commit),
            entry.head.lost[0].eq(Mux(config.decay_first, lost.lost, lost.before)), entry.head.lost[1].eq(lost.lost),
        ]
        with m.If(push & writes & ~entry.head.log):
            m.d.sync += stored.bit_select(token.slot, 1).eq(1)
        with m.If(self.open_en):
            m.d.sync += stored.bit_select(self.open_slot, 1).eq(self.open_stored)
        m.d.comb += self.stored.eq(stored.bit_select(self.factors.slot, 1))
        falls = Cat(*(Mux(config.lane_decay, fall, 0) for fall in self.decays.falls))
        row = data.View(row_layout(writer.geometry), writer.write.data)
        low = Signal(formats.CODE_BITS * g.head_dim, reset_less=True)
        second, arrives = Signal(), Signal()
        upper, last = writer.write.row[:2]
        m.d.comb += arrives.eq(writer.write.key_en & second)
        with m.If(writer.write.key_en):
            m.d.sync += [second.eq(~second), low.eq(Cat(row.codes[j] for j in range(g.head_dim)))]
        codes = Cat(*((row.codes[j].shift_left(formats.CODE_BITS)
                       + low.word_select(j, formats.CODE_BITS).as_signed())[:2 * formats.CODE_BITS]
                      for j in range(g.head_dim)))
        key = Cat(codes, row.scales)
        queues = {}
        passes: Any = data.View(layout, Signal(layout.size, name="passes"))
        taken = self.o.valid & self.o.ready
        for name, width, pushes, value, pops in (
            ("passes", layout.size, push, entry.as_value(), taken),
            ("falls", len(falls), push & ~token.commit, falls, self.key_taken),
            ("arrived", 1, arrives & last, Const(1, 1), taken & ~passes.head.commit),
            # each key takes a place in both, so that both are let go at once
            ("first_keys", len(key), arrives & ~upper, key, self.key_taken),
            ("last_keys", len(key), arrives & last, key, self.key_taken),
        ):
            m.submodules[f"{name}_queue"] = queue = queues[name] = SyncFIFO(width=width, depth=AHEAD)
            m.d.comb += [queue.w_en.eq(pushes), queue.w_data.eq(value), queue.r_en.eq(pops)]
        m.d.comb += [
            room.eq(queues["passes"].w_rdy), passes.as_value().eq(queues["passes"].r_data),
            self.o.valid.eq(queues["passes"].r_rdy & (queues["arrived"].r_rdy | passes.head.commit)),
            self.o.payload.eq(passes),
            Cat(self.key.codes[0], self.key.scales[0]).eq(queues["first_keys"].r_data),
            Cat(self.key.codes[1], self.key.scales[1]).eq(queues["last_keys"].r_data),
            Value.cast(self.key.falls).eq(queues["falls"].r_data),
        ]
