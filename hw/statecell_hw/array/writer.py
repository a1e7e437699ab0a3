"""Row writer: quantises rotated vectors and turns them into rows of the banks or into queries."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.jobs import JobQueue
from statecell_hw.array.quantise import Mode, Quantiser
from statecell_hw.array.query import QueryCollector, query_tag
from statecell_hw.array.scale import CODE_BITS, ScaleFinder
from statecell_hw.array.search import ScaleSearch, first_of_group, last_of_group, word_tag
from statecell_hw.layouts import Kind, QueryLoad, RowWrite, job_layout

ENTRY = 1
"""Cycles from the ports to the scale finder."""

ISSUE = 1
"""Cycles from the choice of a word to the quantiser."""


class Writer(wiring.Component):
    """Rotated vectors in, rows and query codes out.

    In: words of P elements within +-VECTOR_MAX, W words a vector, one in each cycle with ``i_valid``, any gaps, no
    back-pressure. ``job`` takes one descriptor per vector, in the order of the vectors; it must be taken before the
    vector's first word comes (``job.ready`` is high whenever a promised vector lacks its job). ``BUFFERS`` vectors are
    held: ``space`` is how many are free of those not promised; the sender pulses ``take`` for each vector that it will
    send, while ``space`` is not 0, and never sends without.

    Out, in the order of the jobs: ``write`` with ``write_tile``, one row a cycle; ``query`` with ``query_tile``, whose
    ``valid`` is raised only when ``query_ready`` is high and was so the cycle before (it may depend on ``query_tile``
    and on ``query.lane``, and once high must stay so until the query has left); until then the writer waits, but rows
    already past the quantiser still leave. ``done`` with ``done_kind`` comes with the last row of a
    vector or with its query, one job a cycle. ``idle``: no vector is promised and everything has left.

    Latency and interval: ``query_latency``, ``row_latency``, ``interval``. Reset forgets all vectors and jobs.
    """

    BUFFERS = 4
    """A buffer is bound from its promise, before the rotation, to the last word quantised: about 3 W + 10 cycles. Four
    keep the full rate of queries from W = 16 up; with fewer words a query now and then waits a cycle."""

    i_valid: Signal
    i_data: data.View
    job: stream.Interface
    take: Signal
    space: Signal
    idle: Signal
    write: Any
    write_tile: Signal
    query: Any
    query_tile: Signal
    query_ready: Signal
    done: Signal
    done_kind: Any

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.finder = ScaleFinder(geometry)
        self.quantiser = Quantiser(geometry, data.StructLayout({
            **word_tag(geometry).members, **query_tag(geometry).members
        }))
        self.search = ScaleSearch(geometry)
        self.collector = QueryCollector(geometry)
        self.jobs = JobQueue(job_layout(geometry), depth=self.BUFFERS)
        super().__init__({
            "i_valid": In(1),
            "i_data": In(data.ArrayLayout(signed(formats.VECTOR_BITS), geometry.word)),
            "job": In(stream.Signature(job_layout(geometry))),
            "take": In(1),
            "space": Out(range(self.BUFFERS + 1)),
            "idle": Out(1),
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
        return ENTRY + self.finder.latency + self.interval(Mode.QUERY) - 1 + self._to_query

    @property
    def row_latency(self) -> int:
        """Cycles from the last word of a narrow row's vector in to its write, if nothing waits before it."""
        return ENTRY + self.finder.latency + 1 + self.interval(Mode.NARROW) - 1 + self._to_row

    @property
    def wide_latency(self) -> int:
        """Cycles from the last word of a wide row's vector in to the write of its high plane, likewise."""
        words = self.geometry.vector_words
        later = ISSUE + self.quantiser.latency + self.search.wide_latency + 1
        return ENTRY + self.finder.latency + 1 + words - 1 + later

    def interval(self, mode: Mode) -> int:
        """Cycles from one vector to the next, both of the same mode."""
        words = self.geometry.vector_words
        if mode is Mode.NARROW:
            return formats.CANDIDATES * words
        return words + self._to_row - 1 if mode is Mode.WIDE else words

    @property
    def _to_row(self) -> int:
        """Cycles from the issue of a narrow row's last word to its write."""
        return ISSUE + self.quantiser.latency + self.search.latency

    @property
    def _to_query(self) -> int:
        """Cycles from the issue of a query's last word to ``query.valid``."""
        return ISSUE + self.quantiser.latency + self.collector.latency

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        words = g.vector_words
        m.submodules.finder = finder = self.finder
        m.submodules.quantiser = quantiser = self.quantiser
        m.submodules.search = self.search
        m.submodules.collector = collector = self.collector
        m.submodules.jobs = jobs = self.jobs
        wiring.connect(m, wiring.flipped(self.job), jobs.i)
        group_word_bits = exact_log2(g.group // g.word)
        group_bits = exact_log2(g.groups)
        job = jobs.issuing

        # load: a register behind the rotation's rounding, then store the words, find the scales
        i_valid = Signal()
        i_data: Any = Signal(self.i_data.shape(), reset_less=True)
        word_in = Signal(range(words))
        place = Signal(range(self.BUFFERS * words), reset_less=True)
        whole = jobs.loading.kind == Kind.QUERY
        last_in = word_in == words - 1
        m.d.comb += [jobs.loaded.eq(self.i_valid & last_in), finder.i_valid.eq(i_valid), finder.i_data.eq(i_data)]
        m.d.sync += i_valid.eq(self.i_valid)
        with m.If(self.i_valid):
            m.d.sync += [
                i_data.eq(self.i_data),
                place.eq(Cat(word_in, jobs.loading_index)),
                word_in.eq(Mux(last_in, 0, word_in + 1)),
                finder.i_first.eq(Mux(whole, word_in == 0, first_of_group(g, word_in))),
                finder.i_last.eq(last_in | (~whole & last_of_group(g, word_in))),
                finder.i_zero_point.eq(jobs.loading.zero_point & ~jobs.loading.wide & ~whole),
            ]

        # results of the scale finder, one for each group or one for a query
        word, step = Signal(range(words)), Signal(range(formats.CANDIDATES))
        result_group = Signal(max(1, group_bits))  # a counter of one state would have no bits
        scales: Any = Memory(
            shape=data.StructLayout({"code": CODE_BITS, "turned": 1, "low": formats.VECTOR_BITS - 1}),
            depth=self.BUFFERS << group_bits, init=[],
        )
        m.submodules.scales = scales
        keep, scale = scales.write_port(), scales.read_port(domain="comb")
        m.d.comb += [
            keep.en.eq(finder.o_valid),
            keep.addr.eq(Cat(result_group[:group_bits], jobs.scaling_index)),
            keep.data.code.eq(finder.o_code), keep.data.turned.eq(finder.o_turned), keep.data.low.eq(finder.o_low),
            scale.addr.eq(Cat(Mux(job.kind == Kind.QUERY, 0, word[group_word_bits:])[:group_bits], jobs.issuing_index)),
        ]
        completes = Signal()
        m.d.comb += completes.eq(
            finder.o_valid & ((jobs.scaling.kind == Kind.QUERY) | (result_group == g.groups - 1))
        )
        m.d.comb += jobs.scaled.eq(completes)
        with m.If(finder.o_valid):
            m.d.sync += result_group.eq(Mux(completes, 0, result_group + 1))

        # issue: a query starts in the cycle that finds its scale, rows a cycle later
        promised = Signal(range(self.BUFFERS + 1))
        go, row_goes, starts, fresh, release, issued = (Signal() for _ in range(6))
        settle = Signal(range(self._to_row))
        settled, query_clear = Signal(init=1), Signal(init=1)
        is_query, narrow = job.kind == Kind.QUERY, (job.kind != Kind.QUERY) & ~job.wide
        # vectors whose scales are known, one bit each from the lowest up: the first is the one to issue
        scaled = Signal(self.BUFFERS)
        # how far that is; begun, all its words may be issued, so that only its first one waits for anything
        begun, at_last = Signal(), Signal()
        advance = ~collector.stall
        query_limit = words + self._to_query - 2
        m.d.comb += [
            self.space.eq(self.BUFFERS - promised),
            self.idle.eq(
                (promised == 0) & jobs.empty & ~issued & ~quantiser.busy & settled & ~collector.busy
            ),
            fresh.eq(~scaled[0] & is_query & completes),
            # the query's result must come after that of the row before it, and a wide row uses the narrow one's
            # registers
            starts.eq((scaled[0] | (is_query & completes)) & (narrow | Mux(is_query, query_clear, settled))),
            go.eq(advance & (begun | starts)),
            row_goes.eq(advance & ~is_query & (begun | (scaled[0] & (narrow | settled)))),  # go, of a row
            release.eq(advance & at_last),
            jobs.issued.eq(release),
        ]
        with m.If(completes & ~release):
            m.d.sync += scaled.eq(Cat(1, scaled))
        with m.Elif(release & ~completes):
            m.d.sync += scaled.eq(scaled >> 1)
        m.d.sync += promised.eq(promised + self.take - release)
        with m.If(go):
            m.d.sync += word.eq(word + 1)
            m.d.sync += [
                begun.eq(~at_last),
                at_last.eq((word == words - 2) & (~narrow | (step == formats.CANDIDATES - 1))),
            ]
        with m.If(row_goes & narrow & (word == words - 1)):
            m.d.sync += step.eq(step + 1)
        with m.If(row_goes):
            m.d.sync += [
                settle.eq(self._to_row - 1), settled.eq(0), query_clear.eq(self._to_row - 1 <= query_limit),
            ]
        with m.Elif(advance & ~settled):
            m.d.sync += [
                settle.eq(settle - 1), settled.eq(settle == 1), query_clear.eq(settle <= query_limit + 1),
            ]

        # a register between the choice of word and scale and the quantiser, which takes the candidate's code
        start, code = Signal(CODE_BITS, reset_less=True), Signal(CODE_BITS)
        tag: Any = Signal(quantiser.tag_shape, reset_less=True)
        with m.If(advance):
            m.d.sync += issued.eq(begun | starts)
        with m.If(go):
            m.d.sync += [
                start.eq(Mux(fresh, finder.o_code, scale.data.code)),
                quantiser.i_low.eq(scale.data.low),
                quantiser.i_mode.eq(Mux(is_query, Mode.QUERY, Mux(job.wide, Mode.WIDE, Mode.NARROW))),
                tag.word.eq(word), tag.step.eq(step),
                tag.turned.eq(Mux(fresh, finder.o_turned, scale.data.turned)),
                tag.zero_point.eq(job.zero_point & int(g.zero_point)),
                tag.value.eq(job.kind == Kind.VALUE),
                tag.tile.eq(job.tile), tag.row.eq(job.row), tag.following.eq(job.following), tag.lane.eq(job.lane),
            ]
        m.d.comb += [
            code.eq(Mux(start < tag.step, 0, start - tag.step)),
            quantiser.enable.eq(advance),
            quantiser.i_valid.eq(issued),
            quantiser.i_code.eq(code),
            quantiser.i_turned.eq(tag.turned),
            quantiser.i_tag.eq(tag),
            quantiser.i_tag.code.eq(code),
            quantiser.i_tag.octave.eq(code[formats.SCALE_MANTISSA:] == start[formats.SCALE_MANTISSA:]),
        ]
        for p in range(g.word):
            memory: Any = Memory(
                shape=signed(formats.VECTOR_BITS), depth=self.BUFFERS * words, init=[]
            )
            m.submodules[f"words_{p}"] = memory
            value = Signal(signed(formats.VECTOR_BITS), name=f"value_{p}", reset_less=True)
            write, read = memory.write_port(), memory.read_port(domain="comb")
            m.d.comb += [
                write.en.eq(i_valid), write.addr.eq(place), write.data.eq(i_data[p]),
                read.addr.eq(Cat(word, jobs.issuing_index)), quantiser.i_data[p].eq(value),
            ]
            with m.If(go):
                m.d.sync += value.eq(read.data)
        self._connect_outputs(m)
        return m

    def _connect_outputs(self, m: Module) -> None:
        """Quantised words to the collector and to the search; queries and rows to the ports."""
        quantiser, search, collector = self.quantiser, self.search, self.collector
        tag = quantiser.o_tag
        is_query = quantiser.o_mode.as_value()[-1]  # which QUERY alone has: it enables the codes of the word's place
        leaves = quantiser.o_valid & quantiser.enable
        wiring.connect(m, collector.query, wiring.flipped(self.query))
        m.d.comb += [
            collector.i_valid.eq(leaves & is_query),
            *(collector.i_tag[name].eq(tag[name]) for name in query_tag(self.geometry).members),
            *(a.eq(b) for a, b in zip(collector.i_codes, quantiser.o_query, strict=True)),
            collector.ready.eq(self.query_ready),
            self.query_tile.eq(collector.tile),
            search.i_valid.eq(leaves & ~is_query),
            search.i_wide.eq(quantiser.o_mode == Mode.WIDE),
            search.i_zero.eq(quantiser.o_zero),
            *(search.i_tag[name].eq(tag[name]) for name in word_tag(self.geometry).members),
            *(a.eq(b) for a, b in zip(search.i_near, quantiser.o_near, strict=True)),
            *(a.eq(b) for a, b in zip(search.i_fraction, quantiser.o_fraction, strict=True)),
            self.write.key_en.eq(search.o_valid & ~search.o_place.value),
            self.write.value_en.eq(search.o_valid & search.o_place.value),
            self.write.row.eq(search.o_place.row),
            self.write.data.eq(search.o_data),
            self.write_tile.eq(search.o_place.tile),
            self.done.eq(self.query.valid.any() | search.o_done),
            self.done_kind.eq(Mux(self.query.valid.any(), Kind.QUERY, Mux(search.o_place.value, Kind.VALUE, Kind.KEY))),
        ]
