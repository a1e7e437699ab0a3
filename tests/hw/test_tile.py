from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from statecell.model.quantise import Queries
from statecell.model.rows import Rows
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.multiply import Multiplier
from statecell_hw.tile import Tile
from tests.hw.rows import Expected, expected_pass, random_queries, random_rows, row_words, visible_rows
from tests.hw.streams import receive, simulate

MAX_CYCLES = 30_000


@dataclass(frozen=True)
class Pass:
    slot: int
    first: int
    end: int
    start: list[int]
    stop: list[int]
    active: list[bool]
    lanes: int
    shift: int
    query: Queries
    answer: Expected


class Scene:
    """Slots full of random tokens behind a shuffled page table, and passes over them with the model's answers."""

    def __init__(self, g: Geometry, seed: int) -> None:
        self.g = g
        self.rng = random.Random(seed)
        self.torch_rng = torch.Generator().manual_seed(seed)
        pages = list(range(g.pages))
        self.rng.shuffle(pages)
        self.slots = [0, g.tile_slots - 1]
        used = min(g.pages_per_slot, g.pages // len(self.slots))
        self.table = {s: pages[i * used:(i + 1) * used] for i, s in enumerate(self.slots)}
        self.bounds: dict[int, list[int]] = {}
        self.keys: dict[int, Rows] = {}
        self.values: dict[int, Rows] = {}
        for slot in self.table:
            planes: list[int] = []
            while sum(planes) < used * g.page_rows - 1:
                planes.append(self.rng.choice((1, 1, 1, 2)))
            self.bounds[slot] = [sum(planes[:i]) for i in range(len(planes) + 1)]
            self.keys[slot] = random_rows(g, planes, self.torch_rng)
            self.values[slot] = random_rows(g, planes, self.torch_rng, (0, 15))

    def near(self, slot: int, row: int) -> int:
        """The last token boundary at or before ``row``."""
        return max(b for b in self.bounds[slot] if b <= row)

    def make(self, slot: int, first: int, end: int, shift: int, *, start: list[int] | None = None,
             stop: list[int] | None = None, lanes: int | None = None, query: Queries | None = None) -> Pass:
        g = self.g
        lanes = lanes or g.lanes
        start, stop = start or [first] * g.lanes, stop or [end] * g.lanes
        query = query or random_queries(g, g.lanes, self.torch_rng)
        keys, values = self.keys[slot].take(slice(first, end)), self.values[slot].take(slice(first, end))
        visible = visible_rows(first, end, torch.tensor(start), torch.tensor(stop))[:lanes]
        used = Queries(*(getattr(query, n)[:lanes] for n in ("codes", "sign", "mantissa", "exponent")))
        answer = expected_pass(g, used, keys, values, visible, shift)
        return Pass(slot, first, end, start, stop, [i < lanes for i in range(g.lanes)], lanes, shift, query, answer)

    def row(self, slot: int, logical: int) -> int:
        return self.table[slot][logical // self.g.page_rows] * self.g.page_rows + logical % self.g.page_rows


def as_payload(p: Pass) -> dict[str, Any]:
    return {
        "slot": p.slot, "first": p.first, "end": p.end, "start": p.start, "end_": p.stop, "lanes": p.lanes,
        "active": sum(a << i for i, a in enumerate(p.active)), "shift": p.shift,
    }


async def fill(ctx: Any, dut: Tile, scene: Scene) -> None:
    g = scene.g
    for slot, pages in scene.table.items():
        for i, page in enumerate(pages):
            ctx.set(dut.table_write.index, slot * g.pages_per_slot + i)
            ctx.set(dut.table_write.page, page)
            ctx.set(dut.table_write.en, 1)
            await ctx.tick()
        ctx.set(dut.table_write.en, 0)
        for port, rows in (("key_en", scene.keys[slot]), ("value_en", scene.values[slot])):
            ctx.set(getattr(dut.write, port), 1)
            for logical, word in enumerate(row_words(rows, g)):
                ctx.set(dut.write.row, scene.row(slot, logical))
                ctx.set(dut.write.data, word)
                await ctx.tick()
            ctx.set(getattr(dut.write, port), 0)


async def load(ctx: Any, dut: Tile, p: Pass, rng: random.Random, pause: float) -> None:
    for lane in range(p.lanes):
        while rng.random() < pause:
            await ctx.tick()
        ctx.set(dut.query.lane, lane)
        ctx.set(dut.query.codes, p.query.codes[lane].tolist())
        ctx.set(dut.query.sign, int(p.query.sign[lane] < 0))
        ctx.set(dut.query.mantissa, int(p.query.mantissa[lane]) - 8)
        ctx.set(dut.query.exponent, int(p.query.exponent[lane]))
        while not ctx.get(dut.query_ready):
            await ctx.tick()
        ctx.set(dut.query.valid, 1 << lane)
        await ctx.tick()
        ctx.set(dut.query.valid, 0)


async def receive_pass(ctx: Any, dut: Tile, p: Pass, rng: random.Random, stall: float) -> None:
    """Take the words of a pass and compare them."""
    g = dut.geometry
    for lane in range(p.lanes):
        got: list[int] = []
        while len(got) < g.head_dim:
            word = await receive(ctx, dut.o, rng, stall)
            got += [word.data[i] for i in range(g.word)]
        assert got == p.answer.output[lane].tolist(), f"rows {p.first} to {p.end - 1}, shift {p.shift}, lane {lane}"


@dataclass
class Times:
    """Cycles at which passes were accepted, and output words taken."""

    accepted: list[int]
    words: list[int]


def play(scene: Scene, passes: list[Pass], *, seed: int, pause: float, stall: float,
         dut: Tile | None = None) -> Times:
    """Run the passes and compare every word."""
    g = scene.g
    dut = dut or Tile(g)
    times = Times([], [])
    ready = False
    strobes = {"key": 0, "value": 0}

    async def commands(ctx: Any) -> None:
        nonlocal ready
        await fill(ctx, dut, scene)
        ready = True
        for p in passes:
            ctx.set(dut.pass_.payload, as_payload(p))
            ctx.set(dut.pass_.valid, 1)  # waits for its queries
            await ctx.tick().until(dut.pass_.ready)
            ctx.set(dut.pass_.valid, 0)

    async def queries(ctx: Any) -> None:
        while not ready:
            await ctx.tick()
        rng = random.Random(seed)
        for p in passes:
            await load(ctx, dut, p, rng, pause)

    async def outputs(ctx: Any) -> None:
        rng = random.Random(seed + 1)
        for p in passes:
            await receive_pass(ctx, dut, p, rng, stall)
        for _ in range(3 * g.vector_words):
            await ctx.tick()
            assert not ctx.get(dut.o.valid)
        assert not ctx.get(dut.busy)

    cycle = 0

    async def watch(ctx: Any) -> None:
        nonlocal cycle
        while len(times.words) < sum(p.lanes for p in passes) * g.vector_words:
            values = await ctx.tick().sample(
                dut.pass_.valid, dut.pass_.ready, dut.o.valid, dut.o.ready, dut.key_row, dut.value_row)
            pass_valid, pass_ready, word_valid, word_ready, key, value = values[-6:]
            strobes["key"] += key
            strobes["value"] += value
            if pass_valid and pass_ready:
                times.accepted.append(cycle)
            if word_valid and word_ready:
                times.words.append(cycle)
            cycle += 1

    simulate(dut, commands, queries, outputs, watch, max_cycles=MAX_CYCLES)
    rows = sum(p.end - p.first for p in passes)
    assert strobes == {"key": rows, "value": rows}
    return times


def varied(scene: Scene) -> list[Pass]:
    """One row, page edges, everything, limits per lane, unused lanes, equal scores, and all sizes of score."""
    g = scene.g
    slot, other = scene.slots
    bounds = scene.bounds[slot]
    full = bounds[-1]
    passes = [scene.make(slot, 0, bounds[1], 20), scene.make(other, 0, scene.bounds[other][-1], 12)]
    for edge in (g.page_rows, 2 * g.page_rows):
        end = scene.near(slot, edge)
        passes += [scene.make(slot, 0, end, 18), scene.make(slot, end, full, 17, lanes=1)]
    for shift in (5, 8, 9, 10, 11, 11, 12, 12, 13, 16, 63):  # from scores that saturate to scores that are all equal
        passes.append(scene.make(slot, 0, full, shift))
    for _ in range(4):
        tokens = [sorted(scene.rng.sample(range(len(bounds)), 2)) for _ in range(g.lanes)]
        start, stop = [bounds[a] for a, _ in tokens], [bounds[b] for _, b in tokens]
        lanes = scene.rng.randint(1, g.lanes)
        first, end = min(start[:lanes]), max(stop[:lanes])
        passes.append(scene.make(slot, first, end, scene.rng.randint(9, 19), start=start, stop=stop, lanes=lanes))
    passes += [scene.make(other, scene.bounds[other][2], scene.bounds[other][3], 12) for _ in range(3)]
    scene.rng.shuffle(passes)
    return passes


@pytest.mark.parametrize(
    ("name", "multiplier"), [("tiny", "gated"), ("tiny", "mixed"), ("tiny2", "native"), ("narrow", "native")]
)
def test_every_word_of_every_pass_is_the_models(name: str, multiplier: Multiplier) -> None:
    scene = Scene(config(name), seed=11)
    passes = varied(scene)
    assert sum(p.answer.drops for p in passes) >= 3 and sum(p.answer.steps > 0 for p in passes) >= 3
    play(scene, passes, seed=5, pause=0.3, stall=0.2, dut=Tile(scene.g, multiplier=multiplier))


def test_64_elements_wide() -> None:
    g = replace(config("bench64"), rows=64, slots=2, pages_per_slot=2)
    scene = Scene(g, seed=12)
    slot = scene.slots[0]
    full = scene.bounds[slot][-1]
    play(scene, [scene.make(slot, 0, full, shift) for shift in (14, 18)], seed=1, pause=0, stall=0)


def test_no_row_is_lost_behind_a_reader_that_hardly_reads() -> None:
    scene = Scene(config("tiny"), seed=13)
    slot = scene.slots[0]
    bounds = scene.bounds[slot]
    passes = [scene.make(slot, bounds[i], bounds[i + scene.rng.randint(1, 4)], 12) for i in range(8)]
    play(scene, passes, seed=2, pause=0, stall=0.9)


def test_latency_and_interval() -> None:
    # enough rows that a pass has drained when the next but one begins
    scene = Scene(replace(config("tiny"), rows=128, pages_per_slot=16), seed=14)
    g, slot = scene.g, scene.slots[0]
    full = scene.bounds[slot][-1]
    passes = [scene.make(slot, 0, full, 14) for _ in range(4)]
    dut = Tile(g)
    times = play(scene, passes, seed=3, pause=0, stall=0, dut=dut)
    assert {b - a for a, b in pairwise(times.accepted)} == {full + dut.gap}
    words = g.lanes * g.vector_words
    for number, accepted in enumerate(times.accepted):
        first = accepted + 1 + (full - 1) + dut.output_latency
        assert times.words[number * words:(number + 1) * words] == list(range(first, first + words))


def test_drop_frees_the_shadows_but_not_those_of_an_accepted_pass() -> None:
    scene = Scene(config("tiny"), seed=16)
    slot = scene.slots[0]
    full = scene.bounds[slot][-1]
    lost, first, second = (scene.make(slot, 0, full, 13) for _ in range(3))
    dut = Tile(scene.g)

    async def bench(ctx: Any) -> None:
        async def drop() -> None:
            ctx.set(dut.drop, 1)
            await ctx.tick()
            ctx.set(dut.drop, 0)

        await fill(ctx, dut, scene)
        await load(ctx, dut, lost, scene.rng, 0)
        await drop()
        await load(ctx, dut, first, scene.rng, 0)
        for p in (first, second):
            ctx.set(dut.pass_.payload, as_payload(p))
            ctx.set(dut.pass_.valid, 1)
            await ctx.tick().until(dut.pass_.ready)
            ctx.set(dut.pass_.valid, 0)
            await drop()
            if p is first:
                await load(ctx, dut, second, scene.rng, 0)

    async def outputs(ctx: Any) -> None:
        for p in (first, second):
            await receive_pass(ctx, dut, p, scene.rng, 0)

    simulate(dut, bench, outputs, max_cycles=MAX_CYCLES)


def test_raw_read_returns_rows_as_written() -> None:
    scene = Scene(config("tiny2"), seed=15)
    dut = Tile(scene.g)

    async def bench(ctx: Any) -> None:
        await fill(ctx, dut, scene)
        for slot in scene.slots:
            keys, values = row_words(scene.keys[slot], scene.g), row_words(scene.values[slot], scene.g)
            for logical in range(0, len(keys), 3):
                ctx.set(dut.raw_read.row, scene.row(slot, logical))
                ctx.set(dut.raw_read.en, 1)
                await ctx.tick()
                ctx.set(dut.raw_read.en, 0)
                await ctx.tick().repeat(dut.raw_latency - 1)
                assert ctx.get(dut.raw_read.key_data) == keys[logical]
                assert ctx.get(dut.raw_read.value_data) == values[logical]
                assert not ctx.get(dut.key_row) and not ctx.get(dut.value_row) and not ctx.get(dut.busy)

    simulate(dut, bench, max_cycles=MAX_CYCLES)
