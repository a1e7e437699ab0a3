"""Recurrent unit: tokens in, outputs out, rows of the banks read and written back."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import Multiplier, tree
from statecell_hw.array.search import MIDDLE
from statecell_hw.layouts import row_layout
from statecell_hw.link.deframer import word_layout
from statecell_hw.recurrent.decays import FactorAccess
from statecell_hw.recurrent.delay import DelayLine
from statecell_hw.recurrent.energy import ENERGY_BITS, Energy
from statecell_hw.recurrent.logger import Logger
from statecell_hw.recurrent.operands import ENTRIES, LOST_BITS, slot_layout
from statecell_hw.recurrent.outputs import Outputs
from statecell_hw.recurrent.path import RecurrentPath
from statecell_hw.recurrent.prepare import Prepare
from statecell_hw.recurrent.tokens import TokenBuffer
from statecell_hw.recurrent.walk import FLAGS, Walk

COUNT_BITS = 32
ENTRY = 1
"""Cycles from a bank's row to the path: choice of bank and plane."""
AGE_LATENCY = 1
"""Cycles from the issue of a logged key's row to its age."""

STATUS = data.StructLayout({
    "stored": 1, "noise": formats.LFSR_BITS, "skipped": COUNT_BITS, "rescaled": COUNT_BITS, "energy": ENERGY_BITS,
})
"""What a slot's tokens change: whether the rows hold a state, noise register, tokens that wrote nothing, groups of rows
that took a new scale where it is held, energy of the rows."""


class BankAccess(wiring.Signature):
    """Both banks' ports: ``row`` is read where ``read_en`` is high, a fixed time before ``key`` and ``value`` show it;
    they hold until the next read. ``write_key`` and ``write_value`` go to ``write_row``.
    """

    def __init__(self, geometry: Geometry) -> None:
        rows, bits = range(geometry.rows), geometry.row_bits
        super().__init__({
            "read_en": Out(1), "row": Out(rows), "key": In(bits), "value": In(bits),
            "write_key_en": Out(1), "write_value_en": Out(1), "write_row": Out(rows),
            "write_key": Out(bits), "write_value": Out(bits),
        })


class RecurrentUnit(wiring.Component):
    """Recurrent slots over the rows of two banks; docs/numerics.md, section 8.

    ``open_en`` makes ``open_slot`` a slot with ``open_config``, factors of 1.0 and ``open_status``; ``factors`` reads
    and writes factors as they are; both only while ``idle``. ``token`` takes the slot of a token, with the number of
    ``entries`` in its log, or with ``commit`` that of a log that goes to the rows, ``i`` its payload (see
    :class:`TokenBuffer`); when it is ``complete``, and not ``bad``, ``accept`` makes it a token; ``drop`` forgets it at
    any time. ``frozen``: the token that is complete changes nothing and is not logged. ``o``: for each accepted token
    the outputs of its channels, sign-extended to OUTPUT_BITS, ``last`` with the last word; any time may pass before
    they are taken.

    With two planes a channel's row lies at base + channel, high plane in the key bank, low one in the value bank, its
    scale marked as in a wide row; with one plane the rows of even channels lie in the key bank and those of odd ones in
    the value bank, at base + channel / 2. The log of a slot follows its rows: keys, then values, in two planes.
    ``banks`` reads ``read_latency`` cycles after ``read_en``.

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
        self.outputs, self.energy, self.logger = Outputs(g), Energy(g), Logger(g)
        super().__init__({
            "open_en": In(1),
            "open_slot": In(range(slots)),
            "open_config": In(slot_layout(g)),
            "open_status": In(STATUS),
            "factors": In(FactorAccess(g, slots=slots)),
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
        for name in ("tokens", "prepare", "path", "walk", "outputs", "energy", "logger"):
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
            prepare.open_stored.eq(self.open_status.stored), self.status.stored.eq(prepare.stored),
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
        settling = Signal(range(self.energy.latency + 1))
        with m.If(self.path.written | self.logger.landed):
            m.d.sync += settling.eq(self.energy.latency)
        with m.Elif(settling != 0):
            m.d.sync += settling.eq(settling - 1)
        m.d.comb += self.idle.eq((pending == 0) & ~self.walk.busy & ~self.o.valid & (settling == 0))

    def _rows(self, m: Module) -> None:
        """Rows of the banks, with their values, to the path."""
        g, walk, path, banks = self.geometry, self.walk, self.path, self.banks
        m.d.comb += [banks.read_en.eq(walk.fetch), banks.row.eq(walk.address)]
        # rows of the log are there whenever they are read
        stored = walk.current.stored | walk.flags.key | walk.flags.load | walk.flags.value
        brought: Value = Cat(walk.flags.as_value(), stored, walk.swept)
        for time in range(self.read_latency):
            held = Signal(len(brought), name=f"flags_{time}")
            m.d.sync += held.eq(brought)
            brought = held
        flags: Any = FLAGS(brought[:FLAGS.size])
        stored, swept = brought[FLAGS.size], brought[FLAGS.size + 1:]
        channels = self.tokens.channels
        of_channel = self._later(m, Cat(channels.v, *(scale.as_value() for scale in channels.scales)),
                                 self.tokens.channel_latency, "channel")
        # octaves that the factor had lost at each logged token; tokens are prepared ahead of the rows, ages not
        ages: Memory = Memory(shape=LOST_BITS, depth=self.slots * formats.LOG_MAX, init=[])
        m.submodules.ages = ages
        logs, known = ages.write_port(), ages.read_port()
        current = walk.current
        m.d.comb += [
            logs.en.eq(walk.flags.first & current.head.log), logs.data.eq(current.head.lost[1]),
            logs.addr.eq(Cat(current.entries[:-1], current.slot)), known.addr.eq(Cat(walk.flags.index, current.slot)),
        ]
        age = self._later(m, known.data, AGE_LATENCY, "age")
        key, value = (data.View(row_layout(g), raw) for raw in (banks.key, banks.value))
        second, wide = flags.second, flags.wide
        row: Any = Signal(path.row.shape(), name="entry_row", reset_less=True)
        with m.If(flags.row):
            for j in range(g.head_dim):
                high = Mux(second, value.codes[j], key.codes[j])
                m.d.sync += [row.high[j].eq(Mux(stored, high, 0)), row.low[j].eq(Mux(stored & wide, value.codes[j], 0))]
            for i in range(g.groups):
                scale = Mux(second, Value.cast(value.scales[i]), Value.cast(key.scales[i]))
                m.d.sync += Value.cast(row.scales[i]).eq(Mux(stored, scale, 0))
        entered = Signal(len(of_channel), reset_less=True)
        m.d.sync += [path.flags.eq(flags), path.swept.eq(swept), path.age.eq(age), entered.eq(of_channel)]
        m.d.comb += [
            path.row.eq(row),
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
        g, walk, path, banks = self.geometry, self.walk, self.path, self.banks
        logger, current = self.logger, walk.current
        m.d.comb += [
            logger.begins.eq(walk.flags.first & walk.flags.log), logger.place.logged.eq(current.head.write),
            logger.place.key.eq(walk.log_row + current.entries),
            logger.place.value.eq(walk.log_row + current.entries + current.config.interval),
            logger.valid.eq(path.d_valid), logger.d.eq(path.d),
        ]
        place = Cat(walk.home, walk.channel[0], walk.current.config.mode.wide)
        m.submodules.place_line = line = DelayLine(len(place), self._row_time + path.latency)
        m.d.comb += line.i.eq(place)
        # no row of a state is written while a token with a log is under way
        writes, logs = path.write_valid | logger.write_en, logger.write_en
        address = Mux(logs, logger.row, line.o[:-2])
        odd, wide = line.o[-2], line.o[-1] | logs
        one, low = (data.View(row_layout(g), raw) for raw in (banks.write_key, banks.write_value))
        row: Any = Signal(path.write_row.shape())
        m.d.comb += [
            row.as_value().eq(Mux(logs, logger.write_row.as_value(), path.write_row.as_value())),
            banks.write_row.eq(address),
            banks.write_key_en.eq(writes & (wide | ~odd)),
            banks.write_value_en.eq(writes & (wide | odd)),
        ]
        for j in range(g.head_dim):
            m.d.comb += [one.codes[j].eq(row.high[j]), low.codes[j].eq(Mux(wide, row.low[j], row.high[j]))]
        for i in range(g.groups):
            m.d.comb += [
                Value.cast(one.scales[i]).eq(Value.cast(row.scales[i])),
                low.scales[i].sign.eq(row.scales[i].sign), low.scales[i].mantissa.eq(row.scales[i].mantissa),
                low.scales[i].exponent.eq(Mux(wide, formats.LOW_PLANE, row.scales[i].exponent)),
            ]
            if g.zero_point:
                m.d.comb += [one.zeros[i].eq(MIDDLE), low.zeros[i].eq(MIDDLE)]

    def _status(self, m: Module) -> None:
        """Noise registers and counts by slot, changed as a pass lands; energies."""
        path, walk, energy = self.path, self.walk, self.energy
        counts = data.StructLayout({name: STATUS[name].shape for name in ("skipped", "rescaled")})
        noises: Memory = Memory(shape=formats.LFSR_BITS, depth=self.slots, init=[])
        kept: Memory = Memory(shape=counts, depth=self.slots, init=[])
        energies: Memory = Memory(shape=ENERGY_BITS, depth=self.slots, init=[])
        m.submodules.noises, m.submodules.counts, m.submodules.energies = noises, kept, energies
        writes = [memory.write_port() for memory in (noises, kept, energies)]
        noise_now, noise_shown = noises.read_port(), noises.read_port()
        counts_now, counts_shown, energy_shown = kept.read_port(), kept.read_port(), energies.read_port()
        logger = self.logger
        landed = path.written | logger.landed
        skips = Signal()
        renewed = Signal(COUNT_BITS)
        rows = Mux(path.write_valid, tree(list(path.renewed)), 0)
        m.d.sync += renewed.eq(Mux(landed, 0, renewed + rows))
        m.d.comb += [
            walk.landed.eq(landed), skips.eq(Mux(logger.landed, logger.skips, ~path.write_valid)),
            noise_now.addr.eq(walk.looks), walk.noise.eq(noise_now.data), counts_now.addr.eq(walk.landing),
            noise_shown.addr.eq(self.status_slot), counts_shown.addr.eq(self.status_slot),
            energy_shown.addr.eq(self.status_slot),
            self.status.noise.eq(noise_shown.data), self.status.skipped.eq(counts_shown.data.skipped),
            self.status.rescaled.eq(counts_shown.data.rescaled), self.status.energy.eq(energy_shown.data),
            energy.valid.eq(path.write_valid), energy.last.eq(landed),
            *(a.eq(b) for a, b in zip(energy.high, path.write_row.high, strict=True)),
            *(a.eq(b) for a, b in zip(energy.scales, path.write_row.scales, strict=True)),
        ]
        # the energy is known some cycles after the last row, before the next head's
        lands = Signal(range(self.slots), reset_less=True)
        with m.If(landed):
            m.d.sync += lands.eq(walk.landing)
        noise, count, power = writes
        m.d.comb += [
            noise.en.eq((path.written & ~skips) | self.open_en), count.en.eq(landed | self.open_en),
            power.en.eq(energy.o_valid | self.open_en),
        ]
        with m.If(self.open_en):
            m.d.comb += [port.addr.eq(self.open_slot) for port in writes]
            m.d.comb += [
                noise.data.eq(self.open_status.noise), power.data.eq(self.open_status.energy),
                count.data.skipped.eq(self.open_status.skipped), count.data.rescaled.eq(self.open_status.rescaled),
            ]
        with m.Else():
            m.d.comb += [
                noise.addr.eq(walk.landing), noise.data.eq(path.noise), count.addr.eq(walk.landing),
                count.data.skipped.eq(counts_now.data.skipped + skips),
                count.data.rescaled.eq(counts_now.data.rescaled + renewed + rows),
                power.addr.eq(lands), power.data.eq(energy.energy),
            ]
