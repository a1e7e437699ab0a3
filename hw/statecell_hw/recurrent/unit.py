"""Recurrent unit: tokens in, outputs out, rows of the banks read and written back."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier
from statecell_hw.link.deframer import word_layout
from statecell_hw.recurrent import ages
from statecell_hw.recurrent.ages import AgeAccess, Ages
from statecell_hw.recurrent.bankrows import ENTRY, BankAccess, BankRows
from statecell_hw.recurrent.decays import FactorAccess
from statecell_hw.recurrent.delay import delayed
from statecell_hw.recurrent.logger import Logger
from statecell_hw.recurrent.operands import ENTRIES, slot_layout
from statecell_hw.recurrent.outputs import Outputs
from statecell_hw.recurrent.path import RecurrentPath
from statecell_hw.recurrent.pipeline import late
from statecell_hw.recurrent.prepare import Prepare
from statecell_hw.recurrent.status import LANDED, STATUS, SlotStatus
from statecell_hw.recurrent.tokens import TokenBuffer
from statecell_hw.recurrent.walk import Walk, stages


class RecurrentUnit(wiring.Component):
    """Recurrent slots over the rows of two banks; docs/numerics.md, section 8.

    ``open_en`` makes ``open_slot`` a slot with ``open_config``, factors of 1.0 and ``open_status``; ``factors`` and
    ``ages`` read and write factors, and what they had lost at logged tokens, as they are; all only while ``idle``.
    ``token`` takes the slot of a token, with the number of ``entries`` in its log, or with ``commit`` that of a log
    that goes to the rows, ``i`` its payload (see :class:`TokenBuffer`); when it is ``complete``, and not ``bad``,
    ``accept`` makes it a token; ``drop`` forgets it at any time. ``frozen``: the token that is complete changes nothing
    and is not logged. ``o``: for each accepted token the outputs of its channels, sign-extended to OUTPUT_BITS,
    ``last`` with the last word; any time may pass before they are taken.

    With two planes a channel's row lies at base + channel, high plane in the key bank, low one in the value bank, its
    scale marked as in a wide row; with one plane the rows of even channels lie in the key bank and those of odd ones in
    the value bank, at base + channel / 2. With halves a channel has the rows of two such. The log of a slot follows its
    rows: keys, then values, in two planes. ``banks`` reads ``read_latency`` cycles after ``read_en``.

    A row is read once a token, one channel a cycle, and written if there is no log; with one its rows are read as well.
    A commit reads the log, and for each channel the row and the keys. The next head's rows follow without a bubble
    (after ``gap`` cycles) if its token is there. ``status_slot`` is looked up a cycle before ``status``, and the slot
    on ``token`` a cycle before its ``config``. Reset forgets all.
    """

    open_en: Signal
    open_slot: Signal
    open_config: Any
    open_status: Any
    factors: Any
    ages: Any
    config: Any
    token: stream.Interface
    entries: Signal
    commit: Signal
    i: stream.Interface
    complete: Signal
    bad: Signal
    frozen: Signal
    accept: Signal
    drop: Signal
    o: stream.Interface
    banks: Any
    status_slot: Signal
    status: Any
    idle: Signal

    def __init__(
        self, geometry: Geometry, *, slots: int, read_latency: int, multiplier: Multiplier = "native"
    ) -> None:
        self.geometry = g = geometry
        self.slots = slots
        self.read_latency = read_latency
        self.tokens = TokenBuffer(g, slots=slots)
        self.prepare = Prepare(g, slots=slots)
        self.path = RecurrentPath(g, multiplier=multiplier)
        self.walk = Walk(g, slots=slots, gap=self.path.gap)
        self.outputs, self.logger, self.bankrows = Outputs(g), Logger(g), BankRows(g)
        self.slot_status, self.logged_ages = SlotStatus(g, slots=slots), Ages(slots=slots)
        super().__init__({
            "open_en": In(1),
            "open_slot": In(range(slots)),
            "open_config": In(slot_layout(g)),
            "open_status": In(STATUS),
            "factors": In(FactorAccess(g, slots=slots)),
            "ages": In(AgeAccess(slots=slots)),
            "config": Out(slot_layout(g)),
            "token": In(stream.Signature(range(slots))),
            "entries": In(range(ENTRIES)),
            "commit": In(1),
            "i": In(stream.Signature(8 * g.link_bytes)),
            "complete": Out(1),
            "bad": Out(1),
            "frozen": Out(1),
            "accept": In(1),
            "drop": In(1),
            "o": Out(stream.Signature(word_layout(g))),
            "banks": Out(BankAccess(g)),
            "status_slot": In(range(slots)),
            "status": Out(STATUS),
            "idle": Out(1),
        })

    @property
    def gap(self) -> int:
        """Idle cycles between the rows of two heads."""
        return self.path.gap

    @property
    def _row_time(self) -> int:
        """Cycles from a channel's issue to its row in the path."""
        return self.read_latency + ENTRY

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        for name in ("tokens", "prepare", "path", "walk", "outputs", "logger", "bankrows", "slot_status",
                     "logged_ages"):
            m.submodules[name] = getattr(self, name)
        tokens, prepare, walk = self.tokens, self.prepare, self.walk
        self._slots(m)
        wiring.connect(m, wiring.flipped(self.factors), prepare.factors)
        wiring.connect(m, tokens.o, prepare.i)
        wiring.connect(m, prepare.words, tokens.words)
        wiring.connect(m, prepare.o, walk.i)
        wiring.connect(m, prepare.load, self.path.load)
        wiring.connect(m, wiring.flipped(self.i), tokens.i)
        m.d.comb += [
            self.complete.eq(tokens.complete), self.bad.eq(tokens.bad), self.frozen.eq(tokens.frozen),
            tokens.accept.eq(self.accept), tokens.drop.eq(self.drop),
            tokens.release.eq(walk.flags.last), tokens.channels.bay.eq(walk.current.bay),
            tokens.channels.channel.eq(walk.channel),
            prepare.open_en.eq(self.open_en), prepare.open_slot.eq(self.open_slot),
            prepare.open_stored.eq(self.open_status.stored), prepare.open_lost.eq(self.open_status.lost),
            self.status.stored.eq(prepare.stored), self.status.lost.eq(prepare.was_lost),
            self.status.logged.eq(self.entries),
            prepare.load_ready.eq(self.path.load_ready), prepare.key_taken.eq(self.path.key_taken | self.logger.taken),
            self.path.key.eq(prepare.key), self.logger.key.eq(prepare.key),
        ]
        self._rows(m)
        self._outputs(m)
        self._write(m)
        self._status(m)
        return m

    def _slots(self, m: Module) -> None:
        """Configurations by slot: read while the slot of a token waits."""
        memory: Memory = Memory(shape=slot_layout(self.geometry), depth=self.slots, init=[])
        m.submodules.slots = memory
        write, read = memory.write_port(), memory.read_port()
        head = self.tokens.head
        known = Signal()
        m.d.comb += [
            write.en.eq(self.open_en), write.addr.eq(self.open_slot), write.data.eq(self.open_config),
            read.addr.eq(self.token.payload), self.config.eq(read.data),
            head.valid.eq(self.token.valid & known), head.payload.slot.eq(self.token.payload),
            head.payload.config.eq(read.data), head.payload.entries.eq(self.entries),
            head.payload.commit.eq(self.commit), self.token.ready.eq(head.ready & known),
        ]
        m.d.sync += known.eq(self.token.valid & ~self.token.ready)
        pending = Signal(range(8))
        m.d.sync += pending.eq(pending + (self.token.valid & self.token.ready) - self.drop
                               - self.walk.flags.last)
        # the last energy comes after the last row
        settling = Signal(range(self.slot_status.settling + 1))
        with m.If(self.slot_status.landed):
            m.d.sync += settling.eq(self.slot_status.settling)
        with m.Elif(settling != 0):
            m.d.sync += settling.eq(settling - 1)
        m.d.comb += self.idle.eq((pending == 0) & ~self.walk.busy & ~self.o.valid & (settling == 0))

    def _rows(self, m: Module) -> None:
        """Rows of the banks, with their values, to the path."""
        walk, path, banks = self.walk, self.path, self.banks
        m.d.comb += [banks.read_en.eq(walk.fetch), banks.row.eq(walk.address)]
        # rows of the log are there whenever they are read
        stored = walk.current.stored | walk.flags.key | walk.flags.load | walk.flags.value
        flags = stages(m, walk.flags, self.read_latency)[-1]
        brought = self._later(m, Cat(stored, walk.swept), 0, "stored")
        stored, swept = brought[0], brought[1:]
        channels = self.tokens.channels
        of_channel = self._later(m, Cat(channels.v, *(scale.as_value() for scale in channels.scales)),
                                 self.tokens.channel_latency, "channel")
        # tokens are prepared ahead of the rows, ages not
        logged, current = self.logged_ages, walk.current
        wiring.connect(m, wiring.flipped(self.ages), logged.access)
        m.d.comb += [
            logged.logs.eq(walk.flags.first & current.head.log), logged.lost.eq(current.head.lost[1]),
            logged.entries.eq(current.entries), logged.slot.eq(current.slot), logged.index.eq(walk.flags.index),
        ]
        age = self._later(m, logged.age, ages.LATENCY, "age")
        entered = Signal(len(of_channel), reset_less=True)
        m.d.sync += [path.flags.eq(flags), path.swept.eq(swept), path.age.eq(age), entered.eq(of_channel)]
        rows = self.bankrows
        m.d.comb += [
            rows.key.eq(banks.key), rows.value.eq(banks.value), rows.valid.eq(flags.row), rows.second.eq(flags.second),
            rows.wide.eq(flags.wide), rows.stored.eq(stored), path.row.eq(rows.row),
            Cat(path.v, *(scale.as_value() for scale in path.supplied)).eq(entered),
            path.head.eq(walk.current.head),
            path.head.noise.eq(walk.noise_now),
        ]

    def _later(self, m: Module, value: Value, start: int, name: str) -> Value:
        """What is known ``start`` cycles after a row's issue, when the banks show the row."""
        for time in range(start, self.read_latency):
            held = Signal(len(value), name=f"{name}_{time}", reset_less=True)
            m.d.sync += held.eq(value)
            value = held
        return value

    def _outputs(self, m: Module) -> None:
        """Outputs to words, whose places are promised before a pass begins."""
        walk, path, outputs = self.walk, self.path, self.outputs
        wiring.connect(m, outputs.o, wiring.flipped(self.o))
        m.d.comb += [
            outputs.channels.eq(walk.i.payload.config.channels), walk.allowed.eq(outputs.allowed),
            outputs.begins.eq(walk.i.valid & walk.i.ready & ~walk.i.payload.head.commit),
            outputs.valid.eq(path.o_valid), outputs.value.eq(path.o), outputs.ends.eq(path.o_last),
        ]

    def _write(self, m: Module) -> None:
        """Rows back to where they were read."""
        walk, path, banks = self.walk, self.path, self.banks
        logger, current = self.logger, walk.current
        m.d.comb += [
            logger.begins.eq(walk.flags.first & walk.flags.log), logger.place.logged.eq(current.head.write),
            logger.place.key.eq(walk.log_row + current.entries),
            logger.place.value.eq(walk.log_row + current.entries + current.config.interval),
            logger.valid.eq(path.d_valid), logger.d.eq(path.d),
        ]
        place = late(m, walk.flags.halves, Cat(walk.home, walk.odd, walk.current.config.mode.wide), "late_place")
        place = delayed(m, place, self._row_time + path.latency, "place")
        # no row of a state is written while a token with a log is under way
        logs, rows = logger.write_en, self.bankrows
        m.d.comb += [
            rows.write_en.eq(path.write_valid | logs), rows.write_odd.eq(place[-2]),
            rows.write_wide.eq(place[-1] | logs),
            rows.write.as_value().eq(Mux(logs, logger.write_row.as_value(), path.write_row.as_value())),
            banks.write_row.eq(Mux(logs, logger.row, place[:-2])),
            banks.write_key_en.eq(rows.write_key_en), banks.write_value_en.eq(rows.write_value_en),
            banks.write_key.eq(rows.write_key), banks.write_value.eq(rows.write_value),
        ]

    def _status(self, m: Module) -> None:
        """Registers of the slots, changed as a pass lands."""
        path, walk, logger, status = self.path, self.walk, self.logger, self.slot_status
        m.d.comb += [
            status.write_valid.eq(path.write_valid), status.write_row.eq(path.write_row),
            *(a.eq(b) for a, b in zip(status.renewed, path.renewed, strict=True)),
            status.written.eq(path.written), status.noise.eq(path.noise),
            status.logged.eq(logger.landed), status.skips.eq(logger.skips),
            walk.landed.eq(status.landed), status.landing.eq(walk.landing), status.looks.eq(walk.looks),
            walk.noise.eq(status.noise_now), status.open_en.eq(self.open_en), status.open_slot.eq(self.open_slot),
            status.shown_slot.eq(self.status_slot),
        ]
        for name in LANDED.members:
            m.d.comb += [status.opened[name].eq(self.open_status[name]), self.status[name].eq(status.shown[name])]
