"""The contract that every stream component keeps, checked with random stalls in Amaranth's own simulator.

The rules, for each output stream:

1. A payload does not change while `valid` is high and `ready` is low.
2. `valid` is not withdrawn before the word is taken.
3. `valid` and the payload do not depend combinationally on `ready` of the same stream.
4. No word is lost, doubled, reordered or changed: what comes out is what the software model says.
5. Without stalls the stated interval is kept.

`formal.prove` checks rules 1 to 4 for all inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from amaranth.hdl import ClockDomain, Const, Module, Value
from amaranth.lib import wiring
from amaranth.sim import Simulator

PAUSES = (0.0, 0.3, 0.8)  # probability of a pause on one side; the matrix takes every pair
SETTLE = 64  # cycles without a pause in which nothing more may come out at the end


class ContractViolation(AssertionError):
    """A stream component broke the contract."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Cycles of one run: `taken` and `given` hold the cycle in which each input and output word moved."""

    idle: float
    back_pressure: float
    taken: tuple[int, ...]
    given: tuple[int, ...]

    @property
    def latency(self) -> int:
        """Cycles from the first word in to the first word out."""
        return self.given[0] - self.taken[0]

    @property
    def interval(self) -> Fraction:
        """Cycles per input word, between the first and the last."""
        return Fraction(self.taken[-1] - self.taken[0], max(len(self.taken) - 1, 1))


def check(
    factory: Callable[[], wiring.Component],
    model: Callable[[Sequence[Any]], Sequence[Any]],
    inputs: Sequence[Any],
    *,
    interval: Fraction | float | None,
    seed: int,
    source: str = "i",
    sink: str = "o",
    max_cycles: int = 100_000,
) -> list[Run]:
    """Run a component over the matrix of idle and back-pressure probabilities; returns the runs, the free one first.

    `factory` makes a fresh component with an input stream named `source` and an output stream named `sink`; `inputs`
    are payloads that the input's shape accepts, and `model` turns them into the payloads expected. `interval` is the
    stated number of cycles per input word without stalls; a smaller measured one is a violation too, since then the
    statement is wrong. None is for a component that states none. `max_cycles` bounds each run.

    Raises ContractViolation with the rule, the probabilities, the seed and the cycle.
    """
    runs = []
    for idle in PAUSES:
        for back_pressure in PAUSES:
            component = factory()
            bench = _Bench(component, source, sink, idle, back_pressure, seed, max_cycles)
            runs.append(bench.run(inputs, model(inputs)))
    free = runs[0]
    if interval is not None and len(inputs) > 1 and free.interval != Fraction(interval):
        raise ContractViolation(
            f"rule 5: the interval is stated as {interval} cycles a word; without stalls it is {float(free.interval)}"
        )
    return runs


def _bits(shape: Any, value: Any) -> int:
    """The bit pattern of a payload."""
    constant = shape.const(value) if hasattr(shape, "const") else Const(value, shape)
    cast = Const.cast(constant)
    return int(cast.value) % (1 << len(cast))


class _Bench:
    """One component, driven and observed cycle by cycle from a single process: no race between its two sides."""

    def __init__(
        self,
        component: wiring.Component,
        source: str,
        sink: str,
        idle: float,
        back_pressure: float,
        seed: int,
        max_cycles: int,
    ) -> None:
        self.component = component
        self.source = getattr(component, source)
        self.sink = getattr(component, sink)
        self.idle = idle
        self.back_pressure = back_pressure
        self.seed = seed
        self.max_cycles = max_cycles
        self.cycle = 0

    def run(self, inputs: Sequence[Any], expected: Sequence[Any]) -> Run:
        """Feed all inputs and compare every output."""
        words = [_bits(self.source.payload.shape(), value) for value in inputs]
        wanted = [_bits(self.sink.payload.shape(), value) for value in expected]
        taken: list[int] = []
        given: list[int] = []
        top = Module()
        top.domains.sync = ClockDomain("sync")  # a component without registers has no clock of its own
        top.submodules.component = self.component
        simulator: Any = Simulator(top)
        simulator.add_clock(1e-6)

        async def bench(ctx: Any) -> None:
            await self._drive(ctx, words, wanted, taken, given)

        simulator.add_testbench(bench)
        simulator.run()
        return Run(idle=self.idle, back_pressure=self.back_pressure, taken=tuple(taken), given=tuple(given))

    async def _drive(self, ctx: Any, words: list[int], wanted: list[int], taken: list[int], given: list[int]) -> None:
        rng = random.Random(f"{self.seed} {self.idle} {self.back_pressure}")
        source, sink = self.source, self.sink
        payload_in = Value.cast(source.payload)
        offered = False
        waiting: int | None = None
        settled = 0
        while settled < SETTLE:
            if self.cycle >= self.max_cycles:
                raise self._violation(4, f"{len(given)} of {len(wanted)} words came out in {self.max_cycles} cycles")
            if not offered and len(taken) < len(words) and rng.random() >= self.idle:
                offered = True
                ctx.set(payload_in, words[len(taken)])
            ctx.set(source.valid, offered)
            present, payload = self._probe(ctx, rng.random() >= self.back_pressure)
            accept = bool(ctx.get(sink.ready))
            if waiting is not None and not present:
                raise self._violation(2, "valid was withdrawn from a word that had not been taken")
            if waiting is not None and payload != waiting:
                raise self._violation(1, f"the payload changed from {waiting:#x} to {payload:#x} while it waited")
            waiting = payload if present and not accept else None
            if offered and ctx.get(source.ready):
                taken.append(self.cycle)
                offered = False
            if present and accept:
                self._compare(payload, wanted, len(given))
                given.append(self.cycle)
            settled = settled + 1 if len(taken) == len(words) and len(given) == len(wanted) else 0
            await ctx.tick()
            self.cycle += 1

    def _probe(self, ctx: Any, accept: bool) -> tuple[bool, int]:
        """Read the output under both values of ready, leave ready at `accept`."""
        seen = []
        for ready in (not accept, accept):
            ctx.set(self.sink.ready, ready)
            present = bool(ctx.get(self.sink.valid))
            seen.append((present, int(ctx.get(Value.cast(self.sink.payload))) if present else 0))
        if seen[0] != seen[1]:
            raise self._violation(3, "valid or the payload changes when ready changes within a cycle")
        return seen[1]

    def _compare(self, payload: int, wanted: list[int], index: int) -> None:
        if index >= len(wanted):
            raise self._violation(4, f"word {index} ({payload:#x}) came out, but only {len(wanted)} are expected")
        if payload != wanted[index]:
            raise self._violation(4, f"word {index} is {payload:#x}, expected {wanted[index]:#x}")

    def _violation(self, rule: int, text: str) -> ContractViolation:
        return ContractViolation(
            f"rule {rule}: {text} (cycle {self.cycle}, idle {self.idle}, back-pressure {self.back_pressure}, "
            f"seed {self.seed})"
        )
