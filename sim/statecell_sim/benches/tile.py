"""Bench of a tile: passes over stored rows under late queries, late descriptors and back-pressure."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import cocotb
import torch
from cocotb.triggers import RisingEdge
from torch import Tensor

from statecell.model import integer, quantise, rotate
from statecell.model.accumulate import accumulate
from statecell.model.normalise import normalise
from statecell.model.quantise import Queries
from statecell.model.rows import Rows, pack
from statecell.model.score import scores
from statecell.model.softmax import weights
from statecell.spec.formats import OUTPUT_BITS
from statecell.spec.geometry import Geometry, config
from statecell_hw.layouts import pass_layout
from statecell_sim.benches.conversation import shift_of
from statecell_sim.benches.pulses import bits, constant, pulse_when, write
from statecell_sim.benches.stream import StreamSink, StreamSource, start
from statecell_sim.benches.vectors import corners, random_vector, words_of

CONFIG = "tiny"
IDLE = (0.0, 0.3)
BACK_PRESSURE = (0.0, 0.5)
PASSES = 24
WATCHDOG = 3_000


@dataclass(frozen=True)
class Pass:
    """A pass with the words that it must give."""

    payload: int
    query: Queries
    lanes: int
    rows: int
    words: list[int]


class Scene:
    """Two slots that fill the tile, of tokens stored narrow and wide, behind a shuffled page table."""

    def __init__(self, g: Geometry, seed: int) -> None:
        self.g = g
        self.rng = random.Random(seed)
        pages = self.rng.sample(range(g.pages), g.pages)
        used = g.pages // 2
        self.slots = {0: pages[:used], g.tile_slots - 1: pages[used:]}
        self.tokens: dict[int, list[int]] = {}
        self.vectors: dict[int, Tensor] = {}
        self.keys: dict[int, Rows] = {}
        self.values: dict[int, Rows] = {}
        for slot in self.slots:
            self.tokens[slot] = [0]
            parts: list[tuple[Rows, Rows, Tensor]] = []
            while (room := used * g.page_rows - self.tokens[slot][-1]) > 0:
                wide = room > 1 and self.rng.random() < 0.2
                x = torch.stack([random_vector(self.rng, g.head_dim) for _ in range(2)])
                parts.append((integer.store(x[:1], g, wide=wide), integer.store(x[1:], g, wide=wide), x[:1]))
                self.tokens[slot].append(self.tokens[slot][-1] + 1 + wide)
            self.keys[slot] = Rows.concatenate([p[0] for p in parts])
            self.values[slot] = Rows.concatenate([p[1] for p in parts])
            self.vectors[slot] = torch.cat([p[2] for p in parts])

    def make(self, slot: int, q: Tensor, ranges: list[tuple[int, int]], below: int) -> Pass:
        """A pass of the queries q [lanes, d] over ranges of rows."""
        g, lanes = self.g, len(q)
        start, end = (torch.tensor(x) for x in zip(*ranges, strict=True))
        first, stop = int(start.min()), int(end.max())
        shift = shift_of(q, self.vectors[slot], below)
        seen = slice(first, stop)
        keys, values = self.keys[slot].take(seen), self.values[slot].take(seen)
        query = quantise.queries(rotate.forward(q, g), g)
        position = torch.arange(first, stop)
        visible = (position >= start[:, None]) & (position < end[:, None])
        weight = weights(scores(query, keys, torch.tensor(shift), g), visible, values)
        out = normalise(*accumulate(weight, values, g))
        spare = [0] * (g.lanes - lanes)
        descriptor: dict[int | str, Any] = {
            "slot": slot, "first": first, "end": stop, "start": start.tolist() + spare, "end_": end.tolist() + spare,
            "active": (1 << lanes) - 1, "lanes": lanes, "shift": shift,
        }
        payload = constant(pass_layout(g), descriptor)
        return Pass(payload, query, lanes, stop - first, words_of(out.flatten().tolist(), OUTPUT_BITS, g.word))

    def passes(self) -> list[Pass]:
        """One row, all rows, page edges, corner queries, ranges that differ, unused lanes; all sizes of score."""
        g, rng = self.g, self.rng
        out = []
        for number in range(PASSES):
            slot = rng.choice(list(self.slots))
            tokens = self.tokens[slot]
            lanes = rng.randint(1, g.lanes)
            edge = max(t for t in tokens if t <= g.page_rows * rng.randint(1, len(self.slots[slot])))
            ranges = [
                [(0, tokens[-1])], [(0, edge)], [(0, tokens[1])],
                [(a, b) for a, b in (sorted(rng.sample(tokens, 2)) for _ in range(g.lanes))],
            ][number % 4]
            q = torch.stack([rng.choice([*corners(g.head_dim), random_vector(rng, g.head_dim)]) for _ in range(lanes)])
            out.append(self.make(slot, q, (ranges * g.lanes)[:lanes], rng.randint(0, 11)))
        return out


async def fill(dut: Any, scene: Scene) -> None:
    """Write page table and rows."""
    g = scene.g
    for slot, pages in scene.slots.items():
        for at, page in enumerate(pages):
            write(dut, "table_write", en=1, index=slot * g.pages_per_slot + at, page=page)
            await RisingEdge(dut.clk)
        write(dut, "table_write", en=0)
        for port, bank in (("key_en", scene.keys[slot]), ("value_en", scene.values[slot])):
            raw = pack(bank, g)
            for row in range(len(bank)):
                data = int.from_bytes(raw[row * g.row_bytes:][:g.row_bytes], "little")
                place = pages[row // g.page_rows] * g.page_rows + row % g.page_rows
                write(dut, "write", **{port: 1}, row=place, data=data)
                await RisingEdge(dut.clk)
            write(dut, "write", **{port: 0})


async def load(dut: Any, g: Geometry, query: Queries, rng: random.Random, idle: float) -> None:
    """Load the queries of a pass, each when its shadow registers are free."""
    for lane in range(len(query.codes)):
        (codes,) = words_of(query.codes[lane].tolist(), g.query_bits, g.head_dim)
        write(dut, "query", lane=lane, codes=codes, sign=int(query.sign[lane] < 0),
              mantissa=int(query.mantissa[lane]) - 8, exponent=int(query.exponent[lane]))
        await pulse_when(dut.clk, dut.query__valid, lambda: bits(dut.query_ready) == 1 and rng.random() >= idle,
                         watchdog=WATCHDOG, value=1 << lane)


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(idle=IDLE, back_pressure=BACK_PRESSURE)
async def passes_equal_the_model(dut: Any, idle: float, back_pressure: float) -> None:
    """Every output word of every pass, in order; every row read once from each bank."""
    g = config(CONFIG)
    seed = cocotb.RANDOM_SEED
    scene = Scene(g, seed)
    passes = scene.passes()
    rng = random.Random(seed)
    for name in ("drop", "query__valid", "table_write__en", "write__key_en", "write__value_en", "raw_read__en"):
        getattr(dut, name).value = 0
    dut.pass___valid.value = 0
    await start(dut)
    await fill(dut, scene)
    descriptors = StreamSource(dut, "pass_", idle=idle, seed=seed, watchdog=WATCHDOG)
    sink = StreamSink(dut, back_pressure=back_pressure, seed=seed, watchdog=WATCHDOG)
    read = [0, 0]

    async def queries() -> None:
        for p in passes:
            await load(dut, g, p.query, rng, idle)

    async def count() -> None:
        while True:
            await RisingEdge(dut.clk)
            read[0] += bits(dut.key_row)
            read[1] += bits(dut.value_row)

    counter = cocotb.start_soon(count())
    senders = [cocotb.start_soon(descriptors.send([p.payload for p in passes])), cocotb.start_soon(queries())]
    for number, p in enumerate(passes):
        for at, due in enumerate(p.words):
            word = await sink.receive()
            assert word == due, f"pass {number} of {p.rows} rows, word {at}: {word:#x} instead of {due:#x}"
    for sender in senders:
        await sender
    for _ in range(3 * g.vector_words):
        assert await sink.poll() is None, "more words came out than were due"
    assert bits(dut.busy) == 0
    counter.cancel()
    assert read == [sum(p.rows for p in passes)] * 2
