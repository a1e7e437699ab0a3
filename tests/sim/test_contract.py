"""The stream contract accepts a good queue and refuses each way of breaking it, at random and formally."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from amaranth.hdl import ClockDomain, DomainRenamer, Elaboratable, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from statecell_sim.contract import PAUSES, ContractViolation, check
from statecell_sim.formal import prove

SEED = 20_240
WIDTH = 4
DEPTH = 8


class Stage(wiring.Component):
    """A component with one input and one output stream of WIDTH bits."""

    i: stream.Interface
    o: stream.Interface

    def __init__(self) -> None:
        super().__init__({"i": In(stream.Signature(WIDTH)), "o": Out(stream.Signature(WIDTH))})


class Queue(Stage):
    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.queue = queue = SyncFIFOBuffered(width=WIDTH, depth=4)
        wiring.connect(m, wiring.flipped(self.i), queue.w_stream)
        wiring.connect(m, queue.r_stream, wiring.flipped(self.o))
        return m


class Skid(Stage):
    """A register with a skid register behind it; each subclass breaks one line of it."""

    def skid_when(self, full: Signal) -> Any:
        return self.i.valid & self.i.ready & full & ~(self.o.valid & self.o.ready)

    def valid(self, full: Signal, waited: Signal) -> Any:
        return full

    def payload(self, word: Signal, waited: Signal) -> Any:
        return word

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        full, word, spare_full, spare, waited = Signal(), Signal(WIDTH), Signal(), Signal(WIDTH), Signal()
        m.d.comb += [
            self.i.ready.eq(~spare_full),
            self.o.valid.eq(self.valid(full, waited)),
            self.o.payload.eq(self.payload(word, waited)),
        ]
        m.d.sync += waited.eq(self.o.valid & ~self.o.ready)
        with m.If(~full | (self.o.valid & self.o.ready)):
            m.d.sync += [
                full.eq(spare_full | self.i.valid),
                word.eq(Mux(spare_full, spare, self.i.payload)),
                spare_full.eq(0),
            ]
        with m.If(self.skid_when(full)):
            m.d.sync += [spare_full.eq(1), spare.eq(self.i.payload)]
        return m


class Drops(Skid):
    """Under back-pressure the word that should go to the skid register is lost."""

    def skid_when(self, full: Signal) -> Any:
        return 0


class Withdraws(Skid):
    """Valid falls for a cycle after a word was not taken."""

    def valid(self, full: Signal, waited: Signal) -> Any:
        return full & ~waited


class Waits(Skid):
    """Valid waits for ready."""

    def valid(self, full: Signal, waited: Signal) -> Any:
        return full & self.o.ready


class Peeks(Skid):
    """The payload depends on ready."""

    def payload(self, word: Signal, waited: Signal) -> Any:
        return word ^ self.o.ready


class Changes(Skid):
    """The payload changes after a cycle of waiting."""

    def payload(self, word: Signal, waited: Signal) -> Any:
        return word ^ waited


class Doubles(Stage):
    """A certain word comes out twice."""

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        full, word, again = Signal(), Signal(WIDTH), Signal()
        m.d.comb += [self.i.ready.eq(~full), self.o.valid.eq(full), self.o.payload.eq(word)]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [full.eq(1), word.eq(self.i.payload), again.eq(self.i.payload == 5)]
        with m.Elif(self.o.ready & again):
            m.d.sync += again.eq(0)
        with m.Elif(self.o.ready):
            m.d.sync += full.eq(0)
        return m


class Looks(Stage):
    """The payload comes out of a memory, from an address that depends on ready."""

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        table: Memory = Memory(shape=WIDTH, depth=2, init=[3, 5])
        m.submodules.table = table
        read = table.read_port(domain="comb")
        m.d.comb += [
            self.i.ready.eq(self.o.ready),
            self.o.valid.eq(self.i.valid),
            read.addr.eq(self.o.ready),
            self.o.payload.eq(read.data),
        ]
        return m


class Tires(Skid):
    """Valid falls when a word has waited for longer than a bounded proof looks."""

    def valid(self, full: Signal, waited: Signal) -> Any:
        return full & (self.age != 2 * DEPTH)

    def elaborate(self, platform: Any) -> Module:
        self.age = Signal(range(2 * DEPTH + 1))
        m = super().elaborate(platform)
        m.d.sync += self.age.eq(Mux(self.o.valid & ~self.o.ready, self.age + 1, 0))
        return m


class Nested(Stage):
    """Words through a block inside; each subclass breaks a rule outside of it."""

    def __init__(self, inner: Stage) -> None:
        self.inner = inner
        super().__init__()

    def valid(self) -> Any:
        return self.inner.o.valid

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.submodules.inner = inner = self.inner
        wiring.connect(m, wiring.flipped(self.i), inner.i)
        self.waited = Signal()
        m.d.sync += self.waited.eq(self.o.valid & ~self.o.ready)
        m.d.comb += [
            self.o.valid.eq(self.valid()),
            self.o.payload.eq(inner.o.payload),
            inner.o.ready.eq(self.o.ready),
        ]
        return m


class Dislikes(Nested):
    """A certain word that waited is withdrawn."""

    def valid(self) -> Any:
        return self.inner.o.valid & ~(self.waited & (self.inner.o.payload == 5))


class Unclocked(Stage):
    """A queue in a domain whose clock nobody drives: nothing ever moves, so every assertion holds."""

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        domain: Any = ClockDomain("stopped")
        m.domains.stopped = domain
        m.d.comb += [domain.clk.eq(0), domain.rst.eq(0)]
        inner = Queue()
        m.submodules.inner = DomainRenamer("stopped")(inner)
        wiring.connect(m, wiring.flipped(self.i), inner.i)
        wiring.connect(m, inner.o, wiring.flipped(self.o))
        return m


MUTANTS: list[tuple[type[Stage], str]] = [
    (Drops, "rule 4"),
    (Withdraws, "rule 2"),
    (Waits, "rule 3"),
    (Peeks, "rule 3"),
    (Changes, "rule 1"),
    (Doubles, "rule 4"),
]


def words() -> list[int]:
    rng = random.Random(SEED)
    return [rng.randrange(1 << WIDTH) for _ in range(200)]


def same(inputs: Sequence[int]) -> Sequence[int]:
    return inputs


@pytest.mark.parametrize("good", [Queue, Skid])
def test_good_component_passes_the_whole_matrix_at_full_throughput(good: Callable[[], Stage]) -> None:
    runs = check(good, same, words(), interval=1, seed=SEED)
    assert len(runs) == len(PAUSES) ** 2
    assert all(len(run.taken) == len(run.given) == 200 for run in runs)
    assert runs[0].interval == 1
    assert runs[-1].interval > 1.5, "the stalls of the matrix did not take place"


@pytest.mark.parametrize(("mutant", "rule"), MUTANTS)
def test_random_stalls_find_the_mutant(mutant: type[Stage], rule: str) -> None:
    with pytest.raises(ContractViolation, match=rule):
        check(mutant, same, words(), interval=1, seed=SEED)


def test_wrong_interval_is_refused() -> None:
    with pytest.raises(ContractViolation, match="rule 5"):
        check(Queue, same, words(), interval=2, seed=SEED)


def test_stuck_component_ends_at_the_watchdog() -> None:
    with pytest.raises(ContractViolation, match="0 of 200 words"):
        check(Unclocked, same, words(), interval=1, seed=SEED, max_cycles=500)


@pytest.mark.parametrize("good", [Queue, Skid])
def test_good_component_is_proved(good: Callable[[], Stage]) -> None:
    prove(good, DEPTH, transfer=lambda word: word)


@pytest.mark.parametrize(("mutant", "rule"), MUTANTS)
def test_proof_of_the_mutant_fails(mutant: type[Stage], rule: str) -> None:
    with pytest.raises(ContractViolation, match=rule):
        prove(mutant, DEPTH, transfer=lambda word: word)


def test_component_without_a_clock_is_not_proved() -> None:
    with pytest.raises(ContractViolation, match="lets 2 words out"):
        prove(Unclocked, DEPTH, transfer=lambda word: word)


@pytest.mark.parametrize("good", [Queue, Skid])
def test_good_component_is_proved_for_every_state(good: Callable[[], Stage]) -> None:
    prove(good, DEPTH, always=True)


@pytest.mark.parametrize(("mutant", "rule"), [m for m in MUTANTS if m[1] != "rule 4"])
def test_proof_for_every_state_of_the_mutant_fails(mutant: type[Stage], rule: str) -> None:
    with pytest.raises(ContractViolation, match=rule):
        prove(mutant, DEPTH, always=True)


def test_proof_for_every_state_sees_what_lies_beyond_its_depth() -> None:
    prove(Tires, DEPTH)
    with pytest.raises(ContractViolation, match="rule 2"):
        prove(Tires, DEPTH, always=True)


def test_memory_is_no_hiding_place_for_ready() -> None:
    with pytest.raises(ContractViolation, match="rule 3"):
        prove(Looks, DEPTH)


@pytest.mark.parametrize("always", [False, True])
def test_proof_without_a_block_is_about_the_rest(always: bool) -> None:
    prove(lambda: Nested(Withdraws()), DEPTH, keep=[], always=always)
    with pytest.raises(ContractViolation, match="rule 2"):
        prove(lambda: Nested(Withdraws()), DEPTH, keep=["inner"], always=always)
    with pytest.raises(ContractViolation, match="rule 2"):
        prove(lambda: Dislikes(Queue()), DEPTH, keep=[], always=always)
