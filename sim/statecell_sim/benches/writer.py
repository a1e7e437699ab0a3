"""Bench of the row writer: rows and queries under gaps, late jobs and tiles that do not take queries."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import cocotb
import torch
from cocotb.triggers import FallingEdge, RisingEdge
from torch import Tensor

from statecell.model import quantise, rows
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.writer import Writer
from statecell_hw.layouts import Kind, job_layout
from statecell_sim.benches.pulses import Strobe, bits, constant, pulse_when, read
from statecell_sim.benches.stream import StreamSource, start
from statecell_sim.benches.vectors import corners, random_vector, words_of

CONFIG = "tiny"
IDLE = (0.0, 0.2)
BACK_PRESSURE = (0.0, 0.8)
VECTORS = 50
WATCHDOG = 3_000
ROW = ("key_en", "value_en", "row", "data")
QUERY = ("lane", "codes", "sign", "mantissa", "exponent")


@dataclass(frozen=True)
class Job:
    """A vector, and the fields of its job."""

    vector: Tensor
    kind: Kind
    wide: bool
    lane: int
    row: int
    following: int

    def payload(self, g: Geometry) -> int:
        """The job as a word of the job stream."""
        fields: dict[int | str, Any] = {
            "kind": self.kind, "tile": 0, "lane": self.lane, "row": self.row, "following": self.following,
            "wide": self.wide, "zero_point": 0,
        }  # fmt: skip
        return constant(job_layout(g), fields)

    def events(self, g: Geometry) -> list[tuple[str, tuple[int, ...], int, int]]:
        """All that must leave: port, its members, done and the kind of what is done."""
        if self.kind is Kind.QUERY:
            q = quantise.queries(self.vector, g)
            (codes,) = words_of(q.codes.tolist(), g.query_bits, g.head_dim)
            members = (self.lane, codes, int(q.sign < 0), int(q.mantissa) - 8, int(q.exponent))
            return [("query", members, 1, self.kind.value)]
        store = quantise.wide_rows if self.wide else quantise.narrow_rows
        raw = rows.pack(store(self.vector[None], g), g)
        planes = [int.from_bytes(raw[at:at + g.row_bytes], "little") for at in range(0, len(raw), g.row_bytes)]
        value = int(self.kind is Kind.VALUE)
        places = (self.row, self.following)[: len(planes)]
        events: list[tuple[str, tuple[int, ...], int, int]] = [
            ("write", (1 - value, value, *at), 0, 0) for at in zip(places, planes, strict=True)
        ]
        events[-1] = (*events[-1][:2], 1, self.kind.value)
        return events


def clipped(rng: random.Random, dim: int) -> Tensor:
    """Multiples of a scale, and one element just above what the second scale above it holds: the fourth candidate."""
    mantissa, unit = 12, 1 << rng.randint(0, 7)
    values = [mantissa * rng.randint(-7, 7) for _ in range(dim)]
    values[rng.randrange(dim)] = rng.choice([-1, 1]) * (8 * (mantissa + 2) + 1)
    return torch.tensor(values) * unit


def jobs(g: Geometry, rng: random.Random) -> list[Job]:
    """Corners, random vectors and such that use every step of the scale search, each with a random job."""
    vectors = corners(g.head_dim) + [random_vector(rng, g.head_dim) for _ in range(VECTORS)]
    vectors += [clipped(rng, g.head_dim) for _ in range(VECTORS // 3)]
    rng.shuffle(vectors)
    kinds = [Kind.KEY, Kind.VALUE, Kind.QUERY, Kind.QUERY]
    return [Job(v, rng.choice(kinds), rng.random() < 0.3, rng.randrange(g.lanes), rng.randrange(g.rows),
                rng.randrange(g.rows)) for v in vectors]


@cocotb.test(timeout_time=1, timeout_unit="ms")
@cocotb.parametrize(idle=IDLE, back_pressure=BACK_PRESSURE)
async def rows_and_queries_equal_the_model(dut: Any, idle: float, back_pressure: float) -> None:
    """Everything that leaves, in order, with its place and its done pulse; a query only when its tile is ready."""
    g = config(CONFIG)
    seed = cocotb.RANDOM_SEED
    rng = random.Random(seed)
    todo = jobs(g, rng)
    dut.take.value = dut.query_ready.value = 0
    await start(dut)
    job_source = StreamSource(dut, "job", idle=idle, seed=seed, watchdog=WATCHDOG)
    words = Strobe(dut, dut.i_valid, dut.i_data, idle=idle, seed=seed)
    accepted = 0

    async def promise() -> None:
        nonlocal accepted
        for job in todo:
            await pulse_when(
                dut.clk, dut.take, lambda: bits(dut.space) > 0 and rng.random() >= idle, watchdog=WATCHDOG
            )
            await job_source.send([job.payload(g)])
            accepted += 1

    async def feed() -> None:
        for at, job in enumerate(todo):
            while accepted <= at:
                await RisingEdge(dut.clk)
            await words.send(words_of(job.vector.tolist(), formats.VECTOR_BITS, g.word))

    senders = [cocotb.start_soon(promise()), cocotb.start_soon(feed())]
    due = [event for job in todo for event in job.events(g)]
    for number, expected in enumerate(due):
        got = await next_event(dut, rng, back_pressure)
        assert got == expected, f"output {number} is {got} instead of {expected}"
    for sender in senders:
        await sender
    for _ in range(2 * g.vector_words):
        await RisingEdge(dut.clk)
    assert (bits(dut.space), bits(dut.idle)) == (Writer.BUFFERS, 1)


async def next_event(dut: Any, rng: random.Random, back_pressure: float) -> tuple[str, tuple[int, ...], int, int]:
    """What leaves next: port, its members, done and the kind of what is done. Once raised, query_ready stays until the
    query has left, which must not come before the cycle after.
    """
    for _ in range(WATCHDOG):
        await FallingEdge(dut.clk)
        before = bits(dut.query_ready)
        dut.query_ready.value = before or rng.random() >= back_pressure
        await RisingEdge(dut.clk)
        query, row = bool(bits(dut.query__valid)), bits(dut.write__key_en) | bits(dut.write__value_en)
        assert query + row <= 1 and (before or not query)
        assert query or row or not bits(dut.done)
        if query:
            dut.query_ready.value = 0
        if query or row:
            port, names = ("query", QUERY) if query else ("write", ROW)
            done = bits(dut.done)
            return port, read(dut, port, *names), done, bits(dut.done_kind) if done else 0
    raise AssertionError(f"nothing left in {WATCHDOG} cycles")
