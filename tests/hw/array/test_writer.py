from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from statecell.model import quantise, rows
from statecell.spec import formats
from statecell.spec.geometry import Geometry, config
from statecell_hw.array.quantise import Mode
from statecell_hw.array.writer import Writer
from statecell_hw.layouts import Kind
from tests.hw.array.vectors import corner_vectors, pack_words, random_vectors, signed_words
from tests.hw.streams import simulate


@dataclass(frozen=True)
class Job:
    """A vector and what is to be done with it."""

    vector: Tensor
    kind: Kind
    place: dict[str, int]
    wide: bool = False
    zero_point: bool = False

    @property
    def mode(self) -> Mode:
        if self.kind is Kind.QUERY:
            return Mode.QUERY
        return Mode.WIDE if self.wide else Mode.NARROW


@dataclass(frozen=True)
class Event:
    """What left in one cycle: a row of ``kind`` or a query, with its place."""

    cycle: int
    kind: Kind
    place: tuple[int, int]
    content: tuple[int, ...]
    done: bool


def make_jobs(g: Geometry, vectors: list[Tensor], rng: random.Random, modes: list[Mode]) -> list[Job]:
    """One job for each vector, its mode drawn from ``modes``."""
    out = []
    for vector in vectors:
        mode = rng.choice(modes)
        kind = Kind.QUERY if mode is Mode.QUERY else rng.choice([Kind.KEY, Kind.VALUE])
        place = {"tile": rng.randrange(g.tiles), "lane": rng.randrange(g.lanes),
                 "row": rng.randrange(g.rows), "following": rng.randrange(g.rows)}
        out.append(Job(vector, kind, place, mode is Mode.WIDE, rng.random() < 0.6))
    return out


def expected_events(g: Geometry, job: Job) -> list[tuple[Kind, tuple[int, int], tuple[int, ...], bool]]:
    """Kind, place, content and done of what the job must give, from the model."""
    if job.kind is Kind.QUERY:
        q = quantise.queries(job.vector, g)
        content = (*q.codes.tolist(), int(q.sign < 0), int(q.mantissa) - 8, int(q.exponent))
        return [(job.kind, (job.place["tile"], job.place["lane"]), content, True)]
    if job.wide:
        stored = quantise.wide_rows(job.vector[None], g)
    else:
        stored = quantise.narrow_rows(job.vector[None], g, zero_point=job.zero_point and g.zero_point)
    raw = rows.pack(stored, g)
    planes = [int.from_bytes(raw[at:at + g.row_bytes], "little") for at in range(0, len(raw), g.row_bytes)]
    names = ["row", "following"][:len(planes)]
    return [(job.kind, (job.place["tile"], job.place[name]), (plane,), name == names[-1])
            for name, plane in zip(names, planes, strict=True)]


def run(dut: Writer, jobs: list[Job], *, pause: float, stall: float, delay: int,
        seed: int) -> tuple[list[int], list[Event]]:
    """Cycles in which the vectors' last words went in, and what came out.

    ``pause``: probability that a word waits; ``stall``: that query_ready, which a query clears, stays low for a cycle
    more; ``delay``: cycles from the promise of a vector to its first word at the earliest, as the rotation has.
    """
    g = dut.geometry
    rng = random.Random(seed)
    ended: list[int] = []
    events: list[Event] = []
    promised: list[int] = []
    accepted = now = 0
    total = sum(2 if job.wide else 1 for job in jobs)

    async def monitor(ctx: Any) -> None:
        nonlocal now
        query, write = dut.query, dut.write
        ready = before = False
        while len(events) < total:
            ready, before = ready or rng.random() >= stall, ready
            ctx.set(dut.query_ready, ready)
            (_, _, valid, tile, lane, codes, sign, mantissa, exponent, key, value, write_tile, row, data, done,
             kind) = await ctx.tick().sample(
                query.valid, dut.query_tile, query.lane, query.codes.as_value(), query.sign, query.mantissa,
                query.exponent, write.key_en, write.value_en, dut.write_tile, write.row, write.data, dut.done,
                dut.done_kind)
            assert bool(valid) + key + value <= 1
            assert done <= bool(valid) + key + value
            if valid:
                assert before and valid == 1 << lane
                ready = stall == 0
                content = (*signed_words(codes, g.query_bits, g.head_dim), sign, mantissa, exponent)
                events.append(Event(now, Kind.QUERY, (tile, lane), content, bool(done)))
            if key or value:
                events.append(Event(now, Kind.KEY if key else Kind.VALUE, (write_tile, row), (data,), bool(done)))
            if done:
                assert kind == events[-1].kind
            now += 1

    async def promise(ctx: Any) -> None:
        while len(promised) < len(jobs):
            go = ctx.get(dut.space) > 0 and rng.random() >= pause / 4
            ctx.set(dut.take, go)
            await ctx.tick()
            if go:
                promised.append(now)
                for _ in range(g.vector_words - 1 if not pause else 0):
                    ctx.set(dut.take, 0)
                    await ctx.tick()
        ctx.set(dut.take, 0)

    async def give_jobs(ctx: Any) -> None:
        nonlocal accepted
        for at, job in enumerate(jobs):
            while len(promised) <= at or rng.random() < pause:
                await ctx.tick()
            ctx.set(dut.job.payload, {"kind": job.kind, "wide": job.wide, "zero_point": job.zero_point, **job.place})
            ctx.set(dut.job.valid, 1)
            await ctx.tick().until(dut.job.ready)
            ctx.set(dut.job.valid, 0)
            accepted += 1

    async def feed(ctx: Any) -> None:
        for at, job in enumerate(jobs):
            while accepted <= at or now < promised[at] + delay:
                await ctx.tick()
            for word in pack_words(job.vector, formats.VECTOR_BITS, g.word):
                while rng.random() < pause:
                    await ctx.tick()
                ctx.set(dut.i_valid, 1)
                ctx.set(dut.i_data.as_value(), word)
                begun = now
                await ctx.tick()
                ctx.set(dut.i_valid, 0)
                ctx.set(dut.i_data.as_value(), rng.getrandbits(g.word * formats.VECTOR_BITS))
            ended.append(begun)

    simulate(dut, monitor, promise, give_jobs, feed, max_cycles=400 + 40 * g.vector_words * len(jobs))
    return ended, events


def check(g: Geometry, jobs: list[Job], events: list[Event]) -> None:
    expected = [e for job in jobs for e in expected_events(g, job)]
    for at, (event, wanted) in enumerate(zip(events, expected, strict=True)):
        assert (event.kind, event.place, event.content, event.done) == wanted, f"event {at}"


SMALL_GROUPS = {
    "groups": Geometry(name="groups", head_dim=32, rows=64, lanes=4, slots=4, pages_per_slot=8, page_rows=4, group=8,
                       zero_point=True, query_bits=8),
    "pairs": Geometry(name="pairs", head_dim=32, rows=64, lanes=4, slots=4, pages_per_slot=8, page_rows=4, group=16,
                      link_bytes=4, query_bits=9),
}
"""Several groups a row: one word a group, and words of two elements."""
ALL = [Mode.NARROW, Mode.NARROW, Mode.WIDE, Mode.QUERY, Mode.QUERY]


@pytest.mark.parametrize(("name", "pause", "stall", "seed"), [
    ("tiny", 0.0, 0.0, 1), ("tiny", 0.2, 0.5, 2), ("tiny2", 0.0, 0.0, 3), ("tiny2", 0.2, 0.7, 4),
    ("glassllm", 0.0, 0.3, 5), ("narrow", 0.0, 0.5, 6), ("bench64", 0.0, 0.3, 7), ("groups", 0.0, 0.4, 8),
    ("pairs", 0.1, 0.2, 9),
])
def test_writer_equals_the_model(name: str, pause: float, stall: float, seed: int) -> None:
    g = SMALL_GROUPS[name] if name in SMALL_GROUPS else config(name)
    rng = random.Random(seed)
    vectors = corner_vectors(g.head_dim) + random_vectors(g, 13, seed)
    rng.shuffle(vectors)
    jobs = make_jobs(g, vectors[:3 * g.word], rng, ALL)
    dut = Writer(g)
    _, events = run(dut, jobs, pause=pause, stall=stall, delay=rng.randrange(1, 3 * g.vector_words), seed=seed)
    check(g, jobs, events)


TIES = [
    (False, {3: -94, 5: -28, 15: -86, 29: 77, 30: 20}),
    (False, {5: 3, 7: 6, 9: 1, 11: -8, 13: 6, 14: 13, 15: -6, 23: -18, 24: -19}),
    (True, {4: 10, 10: -5, 17: -2, 18: 8, 19: -8, 23: 7, 26: 8, 28: -7}),
    (True, {0: -82, 3: -160, 9: -172, 10: 162, 17: -124, 18: -75}),
]
"""(zero_point, elements that are not 0) of groups whose least error two scales share."""
SPANS = [(True, {0: 15}), (True, {3: -30, 9: 30}), (True, {1: 7, 2: -8}), (True, {4: 26885, 5: -26885})]
"""Groups whose span is 15 times a scale exactly, or nearly so."""


def test_ties_and_exact_spans() -> None:
    g = config("tiny2")
    cases = [*TIES, *SPANS]
    place = {"tile": 0, "lane": 0, "row": 1, "following": 2}
    vectors = [torch.tensor([elements.get(j, 0) for j in range(g.head_dim)]) for _, elements in cases]
    jobs = [Job(v, Kind.KEY, place, zero_point=zero_point) for v, (zero_point, _) in zip(vectors, cases, strict=True)]
    _, events = run(Writer(g), jobs, pause=0.0, stall=0.0, delay=1, seed=11)
    check(g, jobs, events)


@pytest.mark.parametrize(("name", "mode"), [
    *((name, mode) for name in ("tiny", "tiny2") for mode in Mode), ("bench64", Mode.QUERY), ("narrow", Mode.QUERY),
])
def test_latency_and_interval(name: str, mode: Mode) -> None:
    g = config(name)
    jobs = make_jobs(g, random_vectors(g, 5, seed=9), random.Random(9), [mode])
    dut = Writer(g)
    # the rotation's delay: the credits suffice for the full rate of queries where W >= 16
    ended, events = run(dut, jobs, pause=0.0, stall=0.0, delay=g.vector_words + 3, seed=9)
    check(g, jobs, events)
    latency = {Mode.QUERY: dut.query_latency, Mode.NARROW: dut.row_latency, Mode.WIDE: dut.wide_latency}[mode]
    finished = [event.cycle for event in events if event.done]
    assert finished[0] - ended[0] == latency
    if mode is Mode.QUERY and g.vector_words >= 16:
        assert [cycle - end for cycle, end in zip(finished, ended, strict=True)] == [latency] * len(jobs)
    if mode is not Mode.QUERY or g.vector_words >= 16:
        intervals = [b - a for a, b in pairwise(finished)]
        assert intervals == [dut.interval(mode)] * (len(jobs) - 1)


def test_idle_and_space() -> None:
    g = config("tiny")
    jobs = make_jobs(g, random_vectors(g, 3, seed=10), random.Random(10), [Mode.NARROW])
    dut = Writer(g)
    seen: list[tuple[int, int, int]] = []

    async def bench(ctx: Any) -> None:
        assert (ctx.get(dut.idle), ctx.get(dut.space)) == (1, dut.BUFFERS)
        for left in range(dut.BUFFERS - 1, -1, -1):
            ctx.set(dut.take, 1)
            await ctx.tick()
            assert (ctx.get(dut.idle), ctx.get(dut.space)) == (0, left)
        ctx.set(dut.take, 0)
        ctx.set(dut.job.valid, 1)
        for job in [*jobs, jobs[0]]:
            assert ctx.get(dut.job.ready)
            ctx.set(dut.job.payload, {"kind": job.kind, **job.place})
            await ctx.tick()
        assert not ctx.get(dut.job.ready)
        ctx.set(dut.job.valid, 0)
        ctx.set(dut.i_valid, 1)
        await ctx.tick().repeat(dut.BUFFERS * g.vector_words)
        ctx.set(dut.i_valid, 0)
        while not seen or not seen[-1][0]:
            _, _, idle, done, space = await ctx.tick().sample(dut.idle, dut.done, dut.space)
            seen.append((idle, done, space))

    simulate(dut, bench, max_cycles=1000)
    assert sum(done for _, done, _ in seen) == dut.BUFFERS
    assert seen[-1] == (1, 1, dut.BUFFERS)  # idle comes with the last row, not before
