"""Status of slots: noise registers, counts and energies, which change as a pass lands."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.array.multiply import tree
from statecell_hw.recurrent.energy import ENERGY_BITS, Energy
from statecell_hw.recurrent.operands import ENTRIES, LOST_BITS, state_row

COUNT_BITS = 32
LANDED = data.StructLayout({
    "noise": formats.LFSR_BITS, "skipped": COUNT_BITS, "rescaled": COUNT_BITS, "energy": ENERGY_BITS,
})
"""Noise register, tokens that wrote nothing, groups of rows that took a new scale where it is held, energy of the rows.
"""
STATUS = data.StructLayout({"logged": range(ENTRIES), "lost": LOST_BITS, "stored": 1, **LANDED.members})
"""What a slot's tokens change: tokens in the log, octaves that the factor has lost since the rows were written, whether
the rows hold a state, and LANDED."""


class SlotStatus(wiring.Component):
    """LANDED of each slot.

    Rows of a pass over ``landing``, which stands from the cycle before its end, are written with ``write_valid``,
    ``write_row`` and ``renewed``; ``written`` comes with the last of them, or in its place, and with ``noise``, the
    slot's next register, if that is written. ``logged`` says that a token has gone to the log, with ``skips`` that it
    has not been logged. Either is ``landed``. ``looks`` is looked up a cycle before ``noise_now``, ``shown_slot`` a
    cycle before ``shown``; the energy of a pass is there ``settling`` cycles after it has landed. ``open_en`` sets
    those of ``open_slot`` to ``opened``. Reset keeps them.
    """

    write_valid: Signal
    write_row: Any
    renewed: list[Signal]
    written: Signal
    noise: Signal
    logged: Signal
    skips: Signal
    landed: Signal
    landing: Signal
    looks: Signal
    noise_now: Signal
    open_en: Signal
    open_slot: Signal
    opened: Any
    shown_slot: Signal
    shown: Any

    def __init__(self, geometry: Geometry, *, slots: int) -> None:
        self.geometry = g = geometry
        self.slots = slots
        self.energy = Energy(g)
        super().__init__({
            "write_valid": In(1),
            "write_row": In(state_row(g)),
            "renewed": In(1).array(g.groups),
            "written": In(1),
            "noise": In(formats.LFSR_BITS),
            "logged": In(1),
            "skips": In(1),
            "landed": Out(1),
            "landing": In(range(slots)),
            "looks": In(range(slots)),
            "noise_now": Out(formats.LFSR_BITS),
            "open_en": In(1),
            "open_slot": In(range(slots)),
            "opened": In(LANDED),
            "shown_slot": In(range(slots)),
            "shown": Out(LANDED),
        })

    @property
    def settling(self) -> int:
        """Cycles from the landing of a pass to its energy."""
        return self.energy.latency

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        m.submodules.energy = energy = self.energy
        counts = data.StructLayout({name: LANDED.members[name] for name in ("skipped", "rescaled")})
        noises: Memory = Memory(shape=formats.LFSR_BITS, depth=self.slots, init=[])
        kept: Memory = Memory(shape=counts, depth=self.slots, init=[])
        energies: Memory = Memory(shape=ENERGY_BITS, depth=self.slots, init=[])
        m.submodules.noises, m.submodules.counts, m.submodules.energies = noises, kept, energies
        writes = [memory.write_port() for memory in (noises, kept, energies)]
        noise_now, noise_shown = noises.read_port(), noises.read_port()
        counts_now, counts_shown, energy_shown = kept.read_port(), kept.read_port(), energies.read_port()
        skips = Signal()
        renewed = Signal(COUNT_BITS)
        rows = Mux(self.write_valid, tree(list(self.renewed)), 0)
        m.d.sync += renewed.eq(Mux(self.landed, 0, renewed + rows))
        m.d.comb += [
            self.landed.eq(self.written | self.logged), skips.eq(Mux(self.logged, self.skips, ~self.write_valid)),
            noise_now.addr.eq(self.looks), self.noise_now.eq(noise_now.data), counts_now.addr.eq(self.landing),
            *(port.addr.eq(self.shown_slot) for port in (noise_shown, counts_shown, energy_shown)),
            self.shown.noise.eq(noise_shown.data), self.shown.skipped.eq(counts_shown.data.skipped),
            self.shown.rescaled.eq(counts_shown.data.rescaled), self.shown.energy.eq(energy_shown.data),
            energy.valid.eq(self.write_valid), energy.last.eq(self.landed),
            *(a.eq(b) for a, b in zip(energy.high, self.write_row.high, strict=True)),
            *(a.eq(b) for a, b in zip(energy.scales, self.write_row.scales, strict=True)),
        ]
        # the energy is known some cycles after the last row, before the next head's
        lands = Signal(range(self.slots), reset_less=True)
        with m.If(self.landed):
            m.d.sync += lands.eq(self.landing)
        noise, count, power = writes
        m.d.comb += [
            noise.en.eq((self.written & ~skips) | self.open_en), count.en.eq(self.landed | self.open_en),
            power.en.eq(energy.o_valid | self.open_en),
        ]
        with m.If(self.open_en):
            m.d.comb += [port.addr.eq(self.open_slot) for port in writes]
            m.d.comb += [
                noise.data.eq(self.opened.noise), power.data.eq(self.opened.energy),
                count.data.skipped.eq(self.opened.skipped), count.data.rescaled.eq(self.opened.rescaled),
            ]
        with m.Else():
            m.d.comb += [
                noise.addr.eq(self.landing), noise.data.eq(self.noise), count.addr.eq(self.landing),
                count.data.skipped.eq(counts_now.data.skipped + skips),
                count.data.rescaled.eq(counts_now.data.rescaled + renewed + rows),
                power.addr.eq(lands), power.data.eq(energy.energy),
            ]
        return m
