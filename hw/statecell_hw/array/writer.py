"""Row writer: quantises rotated vectors and turns them into rows of the banks or into queries."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.quantise import Mode, Quantiser
from statecell_hw.array.scale import CODE_BITS, ScaleFinder
from statecell_hw.array.search import ScaleSearch, word_tag
from statecell_hw.layouts import QueryLoad, RowWrite


class Kind(enum.Enum, shape=2):
    """What becomes of a vector: a row of the key bank, a row of the value bank, or a query."""

    KEY = 0
    VALUE = 1
    QUERY = 2


def job_layout(geometry: Geometry) -> data.StructLayout:
    """What the writer does with a vector. ``lane`` is of queries; ``row`` (physical, in the tile; the low plane's if
    ``wide``, the high plane goes to the next), ``wide`` and ``zero_point`` (ignored for wide rows and where the geometry
    has none) are of rows."""
    return data.StructLayout({
        "kind": Kind,
        "tile": range(geometry.tiles),
        "lane": range(geometry.lanes),
        "row": range(geometry.rows),
        "wide": 1,
        "zero_point": 1,
    })


class Writer(wiring.Component):
    """Rotated vectors in, rows and query codes out.

    In: words of P elements within +-VECTOR_MAX, W words a vector, one in each cycle with ``i_valid``, any gaps, no
    back-pressure. ``job`` takes one descriptor per vector, in the order of the vectors; it must be taken before the
    vector's first word comes (``job.ready`` is high whenever a promised vector lacks its job). ``BUFFERS`` vectors are
    held: ``space`` is how many are free of those not promised; the sender pulses ``take`` for each vector that it will
    send, while ``space`` is not 0, and never sends without.

    Out, in the order of the jobs: ``write`` with ``write_tile``, one row a cycle; ``query`` with ``query_tile``, whose
    ``valid`` is raised only while ``query_ready`` is high (it may depend on ``query_tile``); until then the writer
    waits, but rows already past the quantiser still leave. ``done`` with ``done_kind`` comes with the last row of a
    vector or with its query, one job a cycle.

    Latency and interval: ``query_latency``, ``row_latency``, ``interval``. Reset forgets all vectors and jobs.
    """

    BUFFERS = 4
    """A buffer is bound from its promise, before the rotation, to the last word quantised: about 3 W cycles."""

    i_valid: Signal
    i_data: data.View
    job: stream.Interface
    take: Signal
    space: Signal
    write: wiring.PureInterface
    write_tile: Signal
    query: wiring.PureInterface
    query_tile: Signal
    query_ready: Signal
    done: Signal
    done_kind: enum.EnumView[Kind]

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.finder = ScaleFinder(geometry)
        self.quantiser = Quantiser(geometry, data.StructLayout({
            **word_tag(geometry).members, "lane": range(geometry.lanes), "last": 1,
        }))
        self.search = ScaleSearch(geometry)
        super().__init__({
            "i_valid": In(1),
            "i_data": In(data.ArrayLayout(signed(formats.VECTOR_BITS), geometry.word)),
            "job": In(stream.Signature(job_layout(geometry))),
            "take": In(1),
            "space": Out(range(self.BUFFERS + 1), init=self.BUFFERS),
            "write": Out(RowWrite(geometry)),
            "write_tile": Out(range(geometry.tiles)),
            "query": Out(QueryLoad(geometry)),
            "query_tile": Out(range(geometry.tiles)),
            "query_ready": In(1),
            "done": Out(1),
            "done_kind": Out(Kind),
        })

    @property
    def query_latency(self) -> int:
        """Cycles from the last word of a query in to ``query.valid``, if nothing waits before it."""
        return self.finder.latency + self.interval(Mode.QUERY) - 1 + self._to_query

    @property
    def row_latency(self) -> int:
        """Cycles from the last word of a narrow row's vector in to its write, if nothing waits before it."""
        return self.finder.latency + 1 + self.interval(Mode.NARROW) - 1 + self._to_row

    @property
    def wide_latency(self) -> int:
        """Cycles from the last word of a wide row's vector in to the write of its high plane, likewise."""
        words = self.geometry.vector_words
        return self.finder.latency + 1 + words - 1 + self.quantiser.latency + self.search.wide_latency + 1

    def interval(self, mode: Mode) -> int:
        """Cycles from one vector to the next, both of the same mode."""
        words = self.geometry.vector_words
        if mode is Mode.NARROW:
            return formats.CANDIDATES * words
        return words + self._to_row - 1 if mode is Mode.WIDE else words

    @property
    def _to_row(self) -> int:
        """Cycles from the issue of a narrow row's last word to its write."""
        return self.quantiser.latency + self.search.latency

    @property
    def _to_query(self) -> int:
        """Cycles from the issue of a query's last word to ``query.valid``."""
        return self.quantiser.latency + 1

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        words = g.vector_words
        m.submodules.finder = finder = self.finder
        m.submodules.quantiser = quantiser = self.quantiser
        m.submodules.search = search = self.search
        group_word_bits = exact_log2(g.group // g.word)
        group_bits = exact_log2(g.groups)

        # jobs, one for each buffer
        jobs = [Signal(job_layout(g), name=f"job_{b}", reset_less=True) for b in range(self.BUFFERS)]
        pending = Signal(range(self.BUFFERS + 1))
        job_in, load, result, current = (Signal(range(self.BUFFERS), name=n)
                                         for n in ("job_in", "load", "result", "current"))
        release = Signal()
        accepted = self.job.valid & self.job.ready
        m.d.comb += self.job.ready.eq(pending != self.BUFFERS)
        m.d.sync += [
            pending.eq(pending + accepted - release),
            self.space.eq(self.space + release - self.take),
        ]
        with m.If(accepted):
            m.d.sync += job_in.eq(job_in + 1)
            with m.Switch(job_in):
                for b, slot in enumerate(jobs):
                    with m.Case(b):
                        m.d.sync += [slot[name].eq(self.job.payload[name]) for name, _ in job_layout(g)]
        load_job, result_job, job = (self._select(m, jobs, index, name) for index, name in (
            (load, "load_job"), (result, "result_job"), (current, "current_job")))

        # load: store the words, find the scales
        word_in = Signal(range(words))
        whole = load_job.kind == Kind.QUERY
        last_in = word_in == words - 1
        m.d.comb += [
            finder.i_valid.eq(self.i_valid),
            finder.i_data.eq(self.i_data),
            finder.i_first.eq(Mux(whole, word_in == 0, word_in[:group_word_bits] == 0)),
            finder.i_last.eq(last_in | (~whole & word_in[:group_word_bits].all())),
            finder.i_zero_point.eq(load_job.zero_point & ~load_job.wide & ~whole),
        ]
        with m.If(self.i_valid):
            m.d.sync += word_in.eq(Mux(last_in, 0, word_in + 1))
            with m.If(last_in):
                m.d.sync += load.eq(load + 1)

        # results of the scale finder, one for each group or one for a query
        word, step = Signal(range(words)), Signal(range(formats.CANDIDATES))
        result_group = Signal(range(g.groups))
        full = Signal(self.BUFFERS)
        m.submodules.scales = scales = Memory(
            shape=data.StructLayout({"code": CODE_BITS, "turned": 1, "low": formats.VECTOR_BITS - 1}),
            depth=self.BUFFERS << group_bits, init=[],
        )
        keep, scale = scales.write_port(), scales.read_port(domain="comb")
        m.d.comb += [
            keep.en.eq(finder.o_valid),
            keep.addr.eq(Cat(result_group, result)),
            keep.data.code.eq(finder.o_code), keep.data.turned.eq(finder.o_turned), keep.data.low.eq(finder.o_low),
            scale.addr.eq(Cat(Mux(job.kind == Kind.QUERY, 0, word[group_word_bits:])[:group_bits], current)),
        ]
        completes = finder.o_valid & ((result_job.kind == Kind.QUERY) | (result_group == g.groups - 1))
        with m.If(finder.o_valid):
            m.d.sync += result_group.eq(Mux(completes, 0, result_group + 1))
        with m.If(completes):
            m.d.sync += [result.eq(result + 1), full.bit_select(result, 1).eq(1)]

        # issue: a query starts in the cycle that finds its scale, rows a cycle later
        query_pending = Signal()
        advance, go, ready, clear, fresh = Signal(), Signal(), Signal(), Signal(), Signal()
        settle = Signal(range(self._to_row))
        is_query, narrow = job.kind == Kind.QUERY, (job.kind != Kind.QUERY) & ~job.wide
        begun = (word != 0) | (step != 0)
        stored = full.bit_select(current, 1)
        # the query's result must come after that of the row before it, and a wide row uses the narrow one's registers
        query_clear = settle <= words + self._to_query - 2
        m.d.comb += [
            advance.eq(~query_pending | self.query_ready),
            fresh.eq(~stored & is_query & completes & (result == current)),
            ready.eq(stored | fresh),
            clear.eq(begun | narrow | Mux(is_query, query_clear, settle == 0)),
            go.eq(advance & ready & clear),
            release.eq(go & (word == words - 1) & (~narrow | (step == formats.CANDIDATES - 1))),
        ]
        with m.If(go):
            m.d.sync += word.eq(word + 1)
            with m.If(narrow & (word == words - 1)):
                m.d.sync += step.eq(step + 1)
        with m.If(release):
            m.d.sync += [current.eq(current + 1), full.bit_select(current, 1).eq(0)]
        with m.If(go & ~is_query):
            m.d.sync += settle.eq(self._to_row - 1)
        with m.Elif(advance & (settle != 0)):
            m.d.sync += settle.eq(settle - 1)

        start = Mux(fresh, finder.o_code, scale.data.code)
        code = Signal(CODE_BITS)
        tag = quantiser.i_tag
        m.d.comb += [
            code.eq(Mux(start < step, 0, start - step)),
            quantiser.enable.eq(advance),
            quantiser.i_valid.eq(ready & clear),
            quantiser.i_code.eq(code),
            quantiser.i_turned.eq(Mux(fresh, finder.o_turned, scale.data.turned)),
            quantiser.i_low.eq(scale.data.low),
            quantiser.i_mode.eq(Mux(is_query, Mode.QUERY, Mux(job.wide, Mode.WIDE, Mode.NARROW))),
            tag.word.eq(word), tag.step.eq(step), tag.code.eq(code), tag.turned.eq(quantiser.i_turned),
            tag.octave.eq(code[formats.SCALE_MANTISSA:] == start[formats.SCALE_MANTISSA:]),
            tag.zero_point.eq(job.zero_point & int(g.zero_point)),
            tag.value.eq(job.kind == Kind.VALUE),
            tag.tile.eq(job.tile), tag.row.eq(job.row), tag.lane.eq(job.lane), tag.last.eq(word == words - 1),
        ]
        for p in range(g.word):
            m.submodules[f"words_{p}"] = memory = Memory(
                shape=signed(formats.VECTOR_BITS), depth=self.BUFFERS * words, init=[]
            )
            write, read = memory.write_port(), memory.read_port(domain="comb")
            m.d.comb += [
                write.en.eq(self.i_valid), write.addr.eq(Cat(word_in, load)), write.data.eq(self.i_data[p]),
                read.addr.eq(Cat(word, current)), quantiser.i_data[p].eq(read.data),
            ]
        self._emit(m, quantiser, search, query_pending, advance)
        return m

    def _select(self, m: Module, jobs: list[data.View], index: Signal, name: str) -> data.View:
        """The job at ``index``."""
        job = Signal(job_layout(self.geometry), name=name)
        with m.Switch(index):
            for b, slot in enumerate(jobs):
                with m.Case(b):
                    m.d.comb += job.eq(slot)
        return job

    def _emit(self, m: Module, quantiser: Quantiser, search: ScaleSearch, pending: Signal, advance: Signal) -> None:
        """Quantised words to the query registers and to the search; queries and rows to the ports."""
        g = self.geometry
        tag = quantiser.o_tag
        is_query = quantiser.o_mode == Mode.QUERY
        query_word = Signal()
        m.d.comb += query_word.eq(quantiser.o_valid & is_query & advance)
        codes = [Signal(signed(g.query_bits), name=f"code_{j}", reset_less=True) for j in range(g.head_dim)]
        with m.If(query_word):
            with m.Switch(tag.word):
                for j in range(g.vector_words):
                    with m.Case(j):
                        m.d.sync += [codes[j * g.word + p].eq(quantiser.o_query[p]) for p in range(g.word)]
        held = Signal(quantiser.tag_shape, reset_less=True)
        with m.If(query_word & tag.last):
            m.d.sync += [pending.eq(1), held.eq(tag)]
        with m.Elif(self.query_ready):
            m.d.sync += pending.eq(0)
        m.d.comb += [
            self.query.valid.eq(pending & self.query_ready),
            self.query_tile.eq(held.tile),
            self.query.lane.eq(held.lane),
            self.query.sign.eq(held.turned),
            self.query.mantissa.eq(held.code[:formats.SCALE_MANTISSA]),
            self.query.exponent.eq(held.code[formats.SCALE_MANTISSA:]),
            *(self.query.codes[j].eq(code) for j, code in enumerate(codes)),
        ]
        m.d.comb += [
            search.i_valid.eq(quantiser.o_valid & ~is_query & advance),
            search.i_wide.eq(quantiser.o_mode == Mode.WIDE),
            search.i_zero.eq(quantiser.o_zero),
            *(search.i_tag[name].eq(tag[name]) for name in word_tag(g).members),
            *(a.eq(b) for a, b in zip(search.i_near, quantiser.o_near, strict=True)),
            *(a.eq(b) for a, b in zip(search.i_fraction, quantiser.o_fraction, strict=True)),
            self.write.key_en.eq(search.o_valid & ~search.o_place.value),
            self.write.value_en.eq(search.o_valid & search.o_place.value),
            self.write.row.eq(search.o_place.row),
            self.write.data.eq(search.o_data),
            self.write_tile.eq(search.o_place.tile),
            self.done.eq(self.query.valid | search.o_done),
            self.done_kind.eq(Mux(self.query.valid, Kind.QUERY, Mux(search.o_place.value, Kind.VALUE, Kind.KEY))),
        ]
