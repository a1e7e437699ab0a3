"""Arbiter of the shared rotation: vectors from the link to the row writer, results of passes to the block packer."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Elaboratable, Module, Mux, Signal, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.writer import Writer
from statecell_hw.attention.pack import BlockPack
from statecell_hw.control.ingest import vector_word_layout
from statecell_hw.layouts import job_layout, output_layout

BUFFERS = 2
"""Vectors that the input buffer holds."""
FLYING = 4
"""Vectors inside the rotation at a time: one entering, one leaving, and slack."""


class Vectors(wiring.Component):
    """Feeds whole vectors into the rotation and says where each goes.

    Results have priority, at vector boundaries only; each vector takes a credit of its destination first, so that the
    rotation never waits; a credit that comes back counts a cycle later. Input vectors wait in a buffer of two until
    they are complete, unless `quiet` says that no result can come meanwhile: then they pass through as they arrive, in
    one cycle. Thus a link that stops inside a vector holds up nobody's results. A vector has two words at least.

    Members
    -------
    i: input vectors with their jobs.
    results: result vectors.
    quiet: no pass is under way or waiting; counts a cycle later.
    rotate_valid, rotate_data: words into the rotation.
    rotated, rotated_last: a word (the last of its vector) leaves the rotation.
    to_pack: it belongs to a result vector.
    job: job of a vector that begins, for the row writer.
    writer_space, writer_take, pack_space, pack_take: credits, in vectors.
    writer_done: the row writer has written a vector.
    idle: no vector is in the buffer, in the rotation or in the row writer.
    """

    i: stream.Interface
    results: stream.Interface
    quiet: Signal
    rotate_valid: Signal
    rotate_data: data.View
    rotated: Signal
    rotated_last: Signal
    to_pack: Signal
    job: stream.Interface
    writer_space: Signal
    writer_take: Signal
    writer_done: Signal
    pack_space: Signal
    pack_take: Signal
    idle: Signal

    def __init__(self, g: Geometry) -> None:
        self.g = g
        super().__init__(
            {
                "i": In(stream.Signature(vector_word_layout(g))),
                "results": In(stream.Signature(output_layout(g))),
                "quiet": In(1),
                "rotate_valid": Out(1),
                "rotate_data": Out(data.ArrayLayout(signed(formats.OUTPUT_BITS), g.word)),
                "rotated": In(1),
                "rotated_last": In(1),
                "to_pack": Out(1),
                "job": Out(stream.Signature(job_layout(g))),
                "writer_space": In(range(Writer.BUFFERS + 1)),
                "writer_take": Out(1),
                "writer_done": In(1),
                "pack_space": In(range(BlockPack.BUFFERS + 1)),
                "pack_take": Out(1),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        g = self.g
        words = g.vector_words
        m.submodules.buffer = buffer = SyncFIFO(width=8 * g.link_bytes, depth=BUFFERS * words)
        m.submodules.jobs = jobs = SyncFIFO(width=job_layout(g).size, depth=BUFFERS + 1)
        m.submodules.tags = tags = SyncFIFO(width=1, depth=FLYING)

        # Input side: words to the buffer, the job beside the first one.
        entering = Signal(range(words))
        whole = Signal(range(BUFFERS + 1))
        take_in, take_out, entered, left = Signal(), Signal(), Signal(), Signal()
        # Flags of the queues, known a cycle ahead. Places that become free in between count a cycle later.
        room = Signal(init=1)
        some, several = Signal(), Signal()  # words in the buffer: one at least, two at least
        take_job = take_in & self.i.payload.first
        m.d.comb += [
            self.i.ready.eq(room),
            take_in.eq(self.i.valid & room),
            buffer.w_en.eq(take_in),
            buffer.w_data.eq(self.i.payload.data),
            jobs.w_en.eq(take_job),
            jobs.w_data.eq(self.i.payload.job),
            entered.eq(take_in & (entering == words - 1)),
        ]
        with m.If(take_in):
            m.d.sync += entering.eq(Mux(entered, 0, entering + 1))
        # a vector is complete, or need not be; `quiet` a cycle late: none begins in the cycle in which its ATTEND ends
        prompt = Signal()
        level = buffer.r_level
        m.d.sync += [
            room.eq(
                (level != buffer.depth) & ~((level == buffer.depth - 1) & take_in)
                & (jobs.r_level != jobs.depth) & ~((jobs.r_level == jobs.depth - 1) & take_job)
            ),
            some.eq(take_in | several | (some & ~take_out)),
            several.eq((level > 2) | ((level == 2) & (take_in | ~take_out)) | ((level == 1) & take_in & ~take_out)),
            whole.eq(whole + entered - left),
            prompt.eq(self.quiet | entered | (whole > 1) | ((whole == 1) & ~left)),
        ]

        # Rotation side: at a boundary choose a source, then stay with it for a vector.
        index = Signal(range(words))
        boundary = Signal(init=1)
        chosen, source, feed, last = Signal(), Signal(), Signal(), Signal()
        result_ready, input_ready, begins, continues = Signal(), Signal(), Signal(), Signal()
        offered = Signal()  # a job that was not taken stays: no result goes first then
        unwritten = Signal(range(3 * Writer.BUFFERS + 1))
        # Credits and a tag to take at a boundary: none are taken in the cycle before one, vectors being two words long
        # at least, so that these may be a cycle old.
        may_pack, may_write = Signal(), Signal()
        sample = self.results.payload.data
        m.d.comb += [
            result_ready.eq(self.results.valid & may_pack & ~offered),
            input_ready.eq(some & may_write & (prompt | offered)),
            source.eq(Mux(boundary, result_ready, chosen)),
            begins.eq(result_ready | (input_ready & self.job.ready)),
            continues.eq(Mux(chosen, self.results.valid, some)),
            feed.eq(Mux(boundary, begins, continues)),
            self.rotate_valid.eq(feed),
            self.results.ready.eq(Mux(boundary, may_pack & ~offered, chosen)),
            take_out.eq(Mux(boundary, ~result_ready & input_ready & self.job.ready, ~chosen & some)),
            buffer.r_en.eq(take_out),
            last.eq(index == words - 1),
            left.eq(take_out & last),
            jobs.r_en.eq(take_out & boundary),
            self.job.payload.as_value().eq(jobs.r_data),
            self.job.valid.eq(boundary & ~result_ready & input_ready),
            self.writer_take.eq(feed & boundary & ~source),
            self.pack_take.eq(feed & boundary & source),
            tags.w_en.eq(feed & boundary),
            tags.w_data.eq(source),
            tags.r_en.eq(self.rotated & self.rotated_last),
            self.to_pack.eq(tags.r_data),
            self.idle.eq(~some & (tags.r_level == 0) & boundary & (entering == 0) & (unwritten == 0)),
        ]
        with m.If(feed):  # idle words are all zero, which costs a simulator nothing
            for lane in range(g.word):
                word = buffer.r_data.word_select(lane, formats.VECTOR_BITS).as_signed()
                m.d.comb += self.rotate_data[lane].eq(Mux(source, sample[lane], word))
        m.d.sync += [
            offered.eq(self.job.valid & ~self.job.ready),
            may_pack.eq((self.pack_space != 0) & tags.w_rdy),
            may_write.eq((self.writer_space != 0) & tags.w_rdy),
        ]
        # A writer's buffer is free again before its last row is written, so credits do not tell when all is done.
        m.d.sync += unwritten.eq(unwritten + self.writer_take - self.writer_done)
        with m.If(feed):
            m.d.sync += [index.eq(Mux(last, 0, index + 1)), boundary.eq(last)]
            with m.If(boundary):
                m.d.sync += chosen.eq(source)
        return m
