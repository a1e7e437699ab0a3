"""Opening of a recurrent slot: the block with its mode, checked and unpacked."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import exact_log2

from statecell.spec import formats, frame
from statecell.spec.commands import STATE_FIELDS, STATE_MODE_BITS, StateFlag
from statecell.spec.geometry import Geometry
from statecell_hw.recurrent.operands import CHANNEL_STEP, ENTRIES, HALVES, channel_limit, slot_layout
from statecell_hw.recurrent.pipeline import MIN_ROWS
from statecell_hw.recurrent.tokens import WORD_BITS

BLOCK_BITS = 8
"""Blocks of a token's payload or of its outputs."""
FULL_FEEDBACK = 1 << formats.FEEDBACK_FRACTION


class Opening(wiring.Component):
    """Takes the words of the block that `i` brings after `start`; always ready. The rest follows from the words:

    bad: a field is outside its range, or flags do not go together, or the state reaches beyond the banks.
    config, noise: what the recurrent unit keeps of the slot.
    rows: rows that the state and its log take in each bank. interval: tokens from one write-back to the next. blocks,
    outputs, snapshot: blocks of a token's payload, of its outputs, and of what STATE answers.
    """

    start: Signal
    i: stream.Interface
    bad: Signal
    config: Any
    noise: Signal
    rows: Signal
    interval: Signal
    blocks: Signal
    outputs: Signal
    snapshot: Signal

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = g = geometry
        super().__init__({
            "start": In(1),
            "i": In(stream.Signature(8 * g.link_bytes)),
            "bad": Out(1),
            "config": Out(slot_layout(g)),
            "noise": Out(formats.LFSR_BITS),
            "rows": Out(range(max(HALVES * channel_limit(g), channel_limit(g) + 2 * formats.LOG_MAX) + 1)),
            "interval": Out(range(ENTRIES)),
            "blocks": Out(BLOCK_BITS),
            "outputs": Out(BLOCK_BITS),
            "snapshot": Out(BLOCK_BITS),
        })

    def elaborate(self, platform: object) -> Module:
        """Logic of the block."""
        m = Module()
        g = self.geometry
        layout = data.StructLayout(STATE_MODE_BITS)
        assert layout.size == 8 * frame.BLOCK
        bits = 8 * g.link_bytes
        block = Signal(layout.size, reset_less=True)
        index = Signal(range(max(2, layout.size // bits)))
        mode: Any = data.View(layout, block)
        m.d.comb += self.i.ready.eq(1)
        with m.If(self.start):
            m.d.sync += index.eq(0)
        with m.Elif(self.i.valid):
            m.d.sync += [index.eq(index + 1), block.word_select(index if layout.size > bits else 0, bits).eq(
                self.i.payload)]

        def flag(which: StateFlag) -> Value:
            return Value.cast(mode.flags[int(which).bit_length() - 1])

        wide, residual, lanes = flag(StateFlag.WIDE), flag(StateFlag.RESIDUAL), flag(StateFlag.LANE_DECAY)
        supplied, bonus, halves = flag(StateFlag.SUPPLIED), flag(StateFlag.BONUS), flag(StateFlag.HALVES)
        channels = mode.channels[:len(self.rows)]
        config: Any = self.config
        known = sum(int(f) for f in StateFlag)
        logs, short = mode.interval > 1, mode.interval == 0
        first = mode.first_page.shift_left(exact_log2(g.page_rows))
        m.d.comb += [
            config.mode.delta.eq(flag(StateFlag.DELTA)), config.mode.wide.eq(wide), config.mode.blind.eq(residual),
            config.mode.fresh.eq(flag(StateFlag.FRESH)), config.mode.supplied.eq(supplied),
            config.mode.stochastic.eq(flag(StateFlag.STOCHASTIC)), config.mode.feedback.eq(mode.feedback),
            config.mode.shift.eq(mode.shift), config.rotate.eq(flag(StateFlag.ROTATE)), config.lane_decay.eq(lanes),
            config.decay_first.eq(flag(StateFlag.DECAY_FIRST)), config.bonus.eq(bonus), config.halves.eq(halves),
            config.base.eq(first),
            config.channels.eq(mode.channels), self.noise.eq(mode.seed),
            config.interval.eq(mode.interval), self.interval.eq(mode.interval),
            self.rows.eq((Mux(wide, channels, channels >> 1) << halves)
                         + Mux(logs, mode.interval[:len(self.interval)] << 1, 0)),
            self.bad.eq(Cat(
                (mode.flags & ~known & 0xFFFF).any(), residual & ~wide, flag(StateFlag.FRESH) & supplied,
                flag(StateFlag.ROTATE) & lanes, mode.feedback > FULL_FEEDBACK,
                ~residual & (mode.feedback != FULL_FEEDBACK), mode.shift > formats.STATE_SHIFT_MAX,
                mode.channels < MIN_ROWS, mode.channels > channel_limit(g), mode.channels % CHANNEL_STEP != 0,
                short | (mode.interval > formats.LOG_MAX),
                # a log is built for one decay a head, as many channels as lanes, and scales that the rows bring
                logs & (lanes | supplied | (mode.channels != g.head_dim)), halves & (lanes | supplied | logs),
                mode.seed == 0, first + self.rows > g.rows,
            ).any()),
        ]
        vector = g.head_dim * formats.VECTOR_BITS // 8 // frame.BLOCK
        values = channels >> exact_log2(frame.BLOCK * 8 // formats.VECTOR_BITS)
        per_block = exact_log2(frame.BLOCK // g.groups)
        scales = (channels + ((1 << per_block) - 1)) >> per_block
        longs = g.head_dim * WORD_BITS // 8 // frame.BLOCK  # blocks of a number a lane
        m.d.comb += [
            self.blocks.eq(
                1 + (Mux(bonus, 3 * vector, 2 * vector) << halves) + Mux(lanes, longs, 0) + values
                + Mux(supplied, scales, 0)
            ),
            self.snapshot.eq(
                1 + len(STATE_FIELDS) * 8 // frame.BLOCK + Mux(lanes, longs, 1) + Mux(logs, self.interval, 0)),
            self.outputs.eq(channels >> exact_log2(frame.BLOCK * 8 // WORD_BITS)),
        ]
        return m
