"""The device: link, control, the shared vector path and the tiles."""

from __future__ import annotations

from functools import reduce
from operator import add, and_
from typing import Any

from amaranth.hdl import Cat, Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.commands import COUNTER_FIELDS, Status
from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.array.multiply import Multiplier
from statecell_hw.array.rotate import Rotate
from statecell_hw.array.writer import Writer
from statecell_hw.attention.pack import BlockPack
from statecell_hw.control.bounds import Bounds
from statecell_hw.control.command import Command
from statecell_hw.control.counters import Counters
from statecell_hw.control.cursor import Cursor
from statecell_hw.control.drain import Drain
from statecell_hw.control.ingest import Ingest
from statecell_hw.control.mapper import Mapper
from statecell_hw.control.passes import PassQueue
from statecell_hw.control.rawrows import RowReader, RowWriter
from statecell_hw.control.responder import Responder, device_info
from statecell_hw.control.slots import SlotTable
from statecell_hw.control.vectors import Vectors
from statecell_hw.layouts import output_layout
from statecell_hw.link.deframer import Deframer, word_layout
from statecell_hw.link.framer import Framer
from statecell_hw.link.port import LINK_PORT
from statecell_hw.recurrent.opening import Opening
from statecell_hw.recurrent.snapshot import Snapshot
from statecell_hw.recurrent.unit import RecurrentUnit
from statecell_hw.stage import Stage
from statecell_hw.tile import Tile


class StateCell(wiring.Component):
    """The whole device between two streams of link words.

    Frames and commands: docs/protocol.md. Every frame in gives one frame out, in order. Back-pressure on `o` holds up
    `i` in the end and loses nothing; a pause on `i`, even inside a frame, holds up no response. Reset closes all slots
    and forgets all passes; rows stay in the banks, out of reach.

    Parameters: `build_hash`, 64 bits that INFO shows; `multiplier`, how the tiles multiply; `serial`, the buffers of a
    serial link in front of the device, which INFO shows.

    Members
    -------
    i, o: link words in and out.
    link: LINK_PORT.
    """

    i: stream.Interface
    o: stream.Interface
    link: Any

    def __init__(
        self, g: Geometry, *, build_hash: int = 0, multiplier: Multiplier = "native", serial: SerialLink | None = None
    ) -> None:
        self.g = g
        signature = stream.Signature(word_layout(g))
        self.deframer, self.framer = Deframer(g), Framer(g)
        self.command, self.slots, self.counters = Command(g), SlotTable(g), Counters(g)
        self.mapper, self.bounds, self.ingest, self.cursor = Mapper(g), Bounds(g), Ingest(g), Cursor(g)
        self.vectors, self.passes, self.drain = Vectors(g), PassQueue(g), Drain(g)
        self.responder = Responder(g, info=device_info(g, build_hash, serial))
        # registers on the ways from the tiles to the rotation and from the responder to the framer
        self.result, self.answer = Stage(output_layout(g)), Stage(word_layout(g))
        self.rotate, self.writer, self.pack = Rotate(g), Writer(g), BlockPack(g)
        self.tiles = [Tile(g, multiplier=multiplier) for _ in range(g.tiles)]
        if g.states:
            self.opening, self.snapshot = Opening(g), Snapshot(g, slots=g.states)
            self.recurrent = RecurrentUnit(
                g, slots=g.states, read_latency=self.tiles[0].raw_latency, multiplier=multiplier)
        self.row_reader, self.row_writer = RowReader(g, read_latency=self.tiles[0].raw_latency), RowWriter(g)
        super().__init__({"i": In(signature), "o": Out(signature), "link": Out(LINK_PORT)})

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        for name, block in vars(self).items():
            if isinstance(block, wiring.Component):
                m.submodules[name] = block
        for number, tile in enumerate(self.tiles):
            m.submodules[f"tile_{number}"] = tile
        self._connect_link(m)
        self._connect_payload(m)
        self._connect_vectors(m)
        self._connect_tiles(m)
        self._connect_idle(m)
        self._connect_counters(m)
        if self.g.states:
            self._connect_recurrent(m)
        return m

    def _connect_link(self, m: Module) -> None:
        """Frames, commands, slots and responses."""
        command, slots = self.command, self.slots
        wiring.connect(m, wiring.flipped(self.i), self.deframer.i)
        wiring.connect(m, self.deframer.header, command.header)
        wiring.connect(m, self.deframer.verdict, command.verdict)
        wiring.connect(m, command.completion, self.responder.i)
        wiring.connect(m, self.pack.o, self.responder.vectors)
        wiring.connect(m, self.row_reader.o, self.responder.rows)
        wiring.connect(m, self.responder.o, self.answer.i)
        wiring.connect(m, self.answer.o, self.framer.i)
        wiring.connect(m, self.framer.o, wiring.flipped(self.o))
        m.d.comb += [
            slots.read_slot.eq(command.read_slot),
            command.read_entry.eq(slots.entry),
            slots.write_en.eq(command.write_en),
            slots.write_slot.eq(command.read_slot),
            slots.write_entry.eq(command.write_entry),
            slots.clear.eq(command.clear_slots),
            command.slots_ready.eq(slots.ready),
            self.counters.capture.eq(command.capture),
            self.counters.clear.eq(command.clear_counters),
            self.counters.index.eq(self.responder.counter_index),
            self.responder.counter_word.eq(self.counters.word),
        ]
        verdict = self.deframer.verdict
        ended = verdict.valid & verdict.ready
        m.d.comb += [
            self.link.accepted.eq(ended & (verdict.payload == Status.OK)),
            self.link.rejected.eq(ended & (verdict.payload != Status.OK)),
            self.link.connect.eq(command.connect),
            self.link.token.eq(command.request.first),
            self.link.divisor.eq(command.request.count),
            command.session.eq(self.link.session),
        ]

    def _connect_payload(self, m: Module) -> None:
        """The payload of a command to the unit that handles it."""
        command, payload = self.command, self.deframer.payload
        mapper, bounds, ingest, row_writer, cursor = self.mapper, self.bounds, self.ingest, self.row_writer, self.cursor
        for unit, selected in (
            (mapper, command.mapping),
            (bounds, command.attending & ~bounds.full),
            (ingest, command.appending | (command.attending & bounds.full)),
            (row_writer, command.writing),
        ):
            m.d.comb += [unit.i.payload.eq(payload.payload), unit.start.eq(command.begin)]
            with m.If(selected):
                m.d.comb += [unit.i.valid.eq(payload.valid), payload.ready.eq(unit.i.ready)]
        with m.If(~(command.mapping | command.attending | command.appending | command.writing)):
            m.d.comb += payload.ready.eq(1)
        if self.g.states:
            # these take every word that comes
            port = command.recurrent
            of_mode = port.restoring & self.snapshot.of_mode
            for stream_in, selected in ((self.opening.i, port.opening | of_mode), (self.snapshot.i, port.restoring),
                                        (self.recurrent.i, port.recurring)):
                m.d.comb += [
                    stream_in.payload.eq(payload.payload),
                    stream_in.valid.eq(payload.valid & payload.ready & selected),
                ]
        request, entry = command.request, command.entry
        wide, zero_point = Signal(), Signal()
        m.d.comb += [
            Cat(wide, zero_point).eq(request.flags),
            mapper.slot.eq(command.tile_slot),
            mapper.pages.eq(entry.pages),
            mapper.count.eq(request.count),
            bounds.count.eq(request.count),
            bounds.rows.eq(entry.rows),
            ingest.attend.eq(command.attending),
            ingest.tile.eq(command.tile),
            ingest.wide.eq(wide),
            ingest.zero_point.eq(zero_point),
            ingest.flush.eq(command.ended),
            ingest.cursor_valid.eq(cursor.valid),
            ingest.cursor_row.eq(cursor.row),
            ingest.cursor_following.eq(cursor.following),
            row_writer.cursor_valid.eq(cursor.valid),
            row_writer.cursor_row.eq(cursor.row),
            self.row_reader.cursor_valid.eq(cursor.valid),
            self.row_reader.start.eq(command.reading),
            self.row_reader.count.eq(request.count),
            command.read_busy.eq(self.row_reader.busy | (self.snapshot.busy if self.g.states else 0)),
            cursor.start.eq(command.begin),
            cursor.slot.eq(command.tile_slot),
            # Only READ_ROWS reads the cursor below the slot's rows, and only it never takes payload.
            cursor.position.eq(Mux(command.reads, request.first, entry.rows)),
            cursor.step.eq(ingest.cursor_step | row_writer.cursor_step | self.row_reader.cursor_step),
            cursor.by_two.eq(wide & command.appending),
            command.settled.eq(~(mapper.busy | ingest.open | row_writer.busy)),
        ]
        with m.If(command.attending & bounds.bad):
            m.d.comb += command.faulty.eq(Status.BAD_RANGE)
        with m.Elif(command.mapping & mapper.bad):
            m.d.comb += command.faulty.eq(Status.BAD_PAGE)

    def _connect_vectors(self, m: Module) -> None:
        """Vectors through the rotation, to the row writer or to the block packer."""
        vectors, rotate, writer, pack = self.vectors, self.rotate, self.writer, self.pack
        wiring.connect(m, self.ingest.o, vectors.i)
        m.d.comb += vectors.quiet.eq(self.passes.idle & ~self.result.o.valid)
        wiring.connect(m, self.drain.o, self.result.i)
        wiring.connect(m, self.result.o, vectors.results)
        wiring.connect(m, vectors.job, writer.job)
        m.d.comb += [
            rotate.i_valid.eq(vectors.rotate_valid),
            rotate.i_data.eq(vectors.rotate_data),
            vectors.rotated.eq(rotate.o_valid),
            vectors.rotated_last.eq(rotate.o_last),
            vectors.writer_space.eq(writer.space),
            writer.take.eq(vectors.writer_take),
            writer.i_valid.eq(rotate.o_valid & ~vectors.to_pack),
            writer.i_data.eq(rotate.o_forward),
            vectors.writer_done.eq(writer.done),
            writer.query_ready.eq(Cat(tile.query_ready for tile in self.tiles).bit_select(writer.query_tile, 1)),
            vectors.pack_space.eq(pack.space),
            pack.take.eq(vectors.pack_take),
            pack.i_valid.eq(rotate.o_valid & vectors.to_pack),
            pack.i_data.eq(rotate.o_data),
        ]

    def _connect_tiles(self, m: Module) -> None:
        """Rows, queries and passes to their tiles, results back."""
        command, passes, bounds, raw = self.command, self.passes, self.bounds, self.row_writer.write
        writer: Any = self.writer
        attend, descriptor = passes.i.payload, passes.i.payload.pass_
        m.d.comb += [
            passes.i.valid.eq(command.attend_valid),
            command.attend_ready.eq(passes.i.ready),
            command.attend_sent.eq(self.ingest.vectors),
            attend.tile.eq(command.tile),
            attend.good.eq(command.attend_good),
            attend.sent.eq(self.ingest.vectors),
            descriptor.slot.eq(command.tile_slot),
            descriptor.first.eq(bounds.first),
            descriptor.end.eq(bounds.end),
            descriptor.lanes.eq(command.request.count),
            descriptor.shift.eq(command.request.shift),
            passes.arrived.eq(writer.query.valid.any()),
        ]
        for lane in range(self.g.lanes):
            m.d.comb += [
                descriptor.start[lane].eq(bounds.starts[lane]),
                descriptor.end_[lane].eq(bounds.ends[lane]),
                descriptor.active[lane].eq(lane < command.request.count),
            ]
        wiring.connect(m, passes.order, self.drain.order)
        tiles: list[Any] = list(self.tiles)
        for number, tile in enumerate(tiles):
            mine = command.tile == number
            storing = writer.write_tile == number
            m.d.comb += [
                tile.table_write.index.eq(self.mapper.table.index),
                tile.table_write.page.eq(self.mapper.table.page),
                tile.table_write.en.eq(self.mapper.table.en & mine),
                tile.table_read.index.eq(self.cursor.table.index),
                tile.write.row.eq(writer.write.row),
                tile.write.data.eq(writer.write.data),
                tile.write.key_en.eq(writer.write.key_en & storing),
                tile.write.value_en.eq(writer.write.value_en & storing),
                tile.raw_read.row.eq(self.cursor.row),
                tile.raw_read.en.eq(self.row_reader.read_en & mine),
                tile.query.valid.eq(Mux(writer.query_tile == number, writer.query.valid, 0)),
                tile.query.lane.eq(writer.query.lane),
                tile.query.sign.eq(writer.query.sign),
                tile.query.mantissa.eq(writer.query.mantissa),
                tile.query.exponent.eq(writer.query.exponent),
                *(a.eq(b) for a, b in zip(tile.query.codes, writer.query.codes, strict=True)),
                tile.drop.eq(passes.drop & (passes.tile == number)),
                tile.pass_.payload.eq(passes.start.payload),
                tile.pass_.valid.eq(passes.start.valid & (passes.tile == number)),
            ]
            with m.If(self.row_writer.busy):
                m.d.comb += [
                    tile.write.row.eq(raw.row),
                    tile.write.data.eq(raw.data),
                    tile.write.key_en.eq(raw.key_en & mine),
                    tile.write.value_en.eq(raw.value_en & mine),
                ]
            with m.If(mine):
                m.d.comb += [
                    self.cursor.table.page.eq(tile.table_read.page),
                    self.row_reader.key.eq(tile.raw_read.key_data),
                    self.row_reader.value.eq(tile.raw_read.value_data),
                ]
            with m.If(passes.tile == number):
                m.d.comb += passes.start.ready.eq(tile.pass_.ready)
            wiring.connect(m, tile.o, self.drain.tiles[number])

    def _connect_idle(self, m: Module) -> None:
        """Nothing is under way but the command in hand, and everything before it is answered.

        A cycle late, which a command that has just read its header does not notice.
        """
        answering = ~(self.responder.idle & self.framer.idle) | self.answer.o.valid
        quiet: list[Any] = [self.vectors.idle, self.passes.idle, ~answering, ~self.result.o.valid]
        m.d.comb += self.link.answering.eq(answering)
        m.d.sync += self.command.idle.eq(reduce(and_, quiet + [~tile.busy for tile in self.tiles]))

    def _connect_counters(self, m: Module) -> None:
        """Events of the device, by counter."""
        tiles: list[Any] = list(self.tiles)
        passes = self.passes
        events: dict[str, Any] = {
            "cycles": 1,
            "key_rows": reduce(add, (tile.key_row for tile in tiles)),
            "value_rows": reduce(add, (tile.value_row for tile in tiles)),
            "rows_written": reduce(add, (tile.write.key_en + tile.write.value_en for tile in tiles)),
            "link_in": self.i.valid & self.i.ready,
            "link_out": self.o.valid & self.o.ready,
            "stalls": passes.start.valid & ~passes.start.ready,
            "passes": passes.start.valid & passes.start.ready,
        }
        if self.g.states:
            banks = self.recurrent.banks
            events["rows_written"] = events["rows_written"] + banks.write_key_en + banks.write_value_en
        for name, event in zip(COUNTER_FIELDS, self.counters.events, strict=True):
            m.d.comb += event.eq(events[name])

    def _connect_recurrent(self, m: Module) -> None:
        """Recurrent states: tokens to the unit, its banks, outputs and registers."""
        command, unit, opening, snapshot = self.command, self.recurrent, self.opening, self.snapshot
        port, tile = command.recurrent, self.tiles[0]
        wiring.connect(m, unit.banks, tile.recurrent)
        wiring.connect(m, snapshot.factors, unit.factors)
        wiring.connect(m, snapshot.ages, unit.ages)
        wiring.connect(m, snapshot.o, self.responder.state)
        # a cycle late, as for the barriers
        m.d.sync += port.quiet.eq(
            self.vectors.idle & self.passes.idle & ~self.result.o.valid & ~tile.busy & self.writer.idle)
        m.d.comb += [
            opening.start.eq(command.begin), snapshot.start.eq(command.begin),
            port.rows.eq(opening.rows), port.blocks.eq(opening.blocks), port.outputs.eq(opening.outputs),
            port.snapshot.eq(opening.snapshot), port.logged.eq(snapshot.registers.logged),
            port.interval.eq(opening.interval), port.frozen.eq(unit.frozen),
            unit.entries.eq(command.entry.logged), unit.commit.eq(port.commit),
            unit.open_en.eq(port.open_en | port.restore), unit.open_slot.eq(command.request.slot),
            # a state that is restored stays where it is
            unit.open_config.eq(Mux(port.restoring, unit.config.as_value(), opening.config.as_value())),
            snapshot.slot.eq(command.request.slot), snapshot.given.eq(opening.config), snapshot.held.eq(unit.config),
            snapshot.current.eq(unit.status), snapshot.save.eq(port.save), snapshot.restore.eq(port.restore),
            unit.token.valid.eq(port.token), unit.token.payload.eq(command.request.slot),
            port.token_ready.eq(unit.token.ready), port.idle.eq(unit.idle),
            unit.accept.eq(port.accept), unit.drop.eq(port.drop),
            unit.status_slot.eq(command.request.slot),
            self.responder.outputs.valid.eq(unit.o.valid), self.responder.outputs.payload.eq(unit.o.payload.data),
            unit.o.ready.eq(self.responder.outputs.ready),
        ]
        with m.If(port.restoring):
            m.d.comb += unit.open_status.eq(snapshot.registers)
        m.d.comb += unit.open_status.noise.eq(opening.noise)
        with m.If((port.opening | port.restoring) & opening.bad | port.restoring & snapshot.bad
                  | port.recurring & unit.bad):
            m.d.comb += command.faulty.eq(Status.BAD_VALUE)
        with m.Elif(port.restoring & snapshot.differs):
            m.d.comb += command.faulty.eq(Status.WRONG_KIND)
        verdict = self.deframer.verdict
        with m.If(port.recurring & ~unit.complete & (verdict.payload == Status.OK)):
            m.d.comb += command.settled.eq(0)
