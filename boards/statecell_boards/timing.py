"""Static timing of a placed ECP5 netlist, with the delays that nextpnr expects of wires that are not routed yet.

Times in ns at speed grade 6. A node is a net that a cell drives; an arc goes from a node through a cell to a node.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from statecell_boards.netlist import MULTIPLIER, Bit, Netlist

Times = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
COMB = "TRELLIS_COMB"
WIRE_TILE = 0.079
"""Delay of a wire for each tile of its way beyond BENDS, and twice that within; measured on routed designs."""
WIRE_BASE, BENDS = 6, 5
"""A wire's delay in tiles before it has gone anywhere; tiles of each direction that cost twice."""
GRADE = {6: 1.0, 7: 0.82, 8: 0.63}
"""Delays of the speed grades as shares of those of grade 6, as nextpnr has them."""
CLOCK_TO_Q, LUT, MUX = 0.525, 0.236, 0.4
CARRY_START, CARRY, CARRY_SUM = 0.45, 0.071, 0.44
RAM_OUT, RAM_REGISTERED, RAM_SETUP = 5.73, 0.5, 0.2
MULTIPLY, MULTIPLIER_OUT = 3.93, 0.74
Place = tuple[int, int, str]
"""Column and row of a tile, and nextpnr's name of the place in it."""
_PLACE = re.compile(r"X(\d+)/Y(\d+)/(.*)")
_BEHIND = ("FCI", "FXA", "FXB", "F1")
"""Pins that a fixed wire inside the tile feeds."""


def wire(dx: Any, dy: Any) -> Any:
    """Delay of a wire over distances in tiles, arrays or numbers."""
    dx, dy = np.abs(dx), np.abs(dy)
    return WIRE_TILE * (WIRE_BASE + dx + dy + np.minimum(dx, BENDS) + np.minimum(dy, BENDS))


def parse_place(name: str) -> Place:
    """A place by nextpnr's name of it."""
    found = _PLACE.match(name)
    return (int(found[1]), int(found[2]), found[3]) if found else (0, 0, "")


def place_of(cell: Netlist) -> Place:
    """Where a cell was placed; (0, 0, "") if it was not."""
    return parse_place(cell["attributes"].get("NEXTPNR_BEL", ""))


def registered(cell: Netlist, register: str) -> bool:
    """A multiplier's registers, "INPUTA" or "OUTPUT", are in use."""
    return bool(cell["parameters"].get(f"REG_{register}_CLK", "NONE") != "NONE")


def launch(cell: Netlist, port: str) -> float | None:
    """When an output has its level after the clock; None if its inputs decide, -inf if nothing waits for it."""
    match cell["type"]:
        case "TRELLIS_FF":
            return CLOCK_TO_Q
        case "DP16KD":
            mode = cell["parameters"].get("REGMODE_B" if port.startswith("DOB") else "REGMODE_A")
            return RAM_REGISTERED if mode == "OUTREG" else RAM_OUT
        case "MULT18X18D":
            if registered(cell, "OUTPUT"):
                return MULTIPLIER_OUT
            return None
        case "TRELLIS_COMB":
            return None
    return -np.inf


def through(cell: Netlist, port: str, out: str) -> float | None:
    """Time from an input of a cell to an output, None where no signal goes that way."""
    if cell["type"] == MULTIPLIER:
        return None if port.startswith(("CLK", "CE", "RST")) else MULTIPLY
    if out in ("F", "FCO") and port not in ("A", "B", "C", "D", "FCI"):
        return None
    if out == "FCO":
        return CARRY if port == "FCI" else CARRY_START
    if out == "F":
        return CARRY_SUM if port == "FCI" else LUT
    return None if port == "FCI" or port in ("WAD0", "WAD1", "WAD2", "WAD3", "WD", "WCK", "WRE") else MUX


def setup(cell: Netlist, port: str) -> float | None:
    """Time before the clock at which an input must have its level, None if no clock looks at it."""
    if port.startswith("CLK") or port == "WCK":
        return None
    match cell["type"]:
        case "TRELLIS_FF":
            return 0.0
        case "DP16KD" | "TRELLIS_RAMW":  # distributed RAM: what it writes, and where
            return RAM_SETUP
        case "MULT18X18D":
            return RAM_SETUP if registered(cell, "INPUTA") else None
        case "TRELLIS_COMB":
            return RAM_SETUP if cell["parameters"].get("MODE") == "DPRAM" and port not in ("A", "B", "C", "D") else None
    return None


@dataclass
class Timing:
    """Timing graph of a module; `x` and `y` are the cells' tiles and may be changed between calls of `run`.

    Members
    -------
    names: the cells; number: their places in it.
    nodes: nets to nodes; driver: the cell of each node.
    source, target, cell, delay, wired: arcs, by level of the target. ``wired`` is 1 where a wire comes before the cell.
    end, end_cell, end_setup, end_wired: nodes whose levels a clock takes, and the cells that do.
    period, ends: of the last `run`: the clock's, and when each end has its level, with setup.
    arrival, required: of each node at its driver, after `run`.
    """

    names: list[str]
    number: dict[str, int]
    x: Times
    y: Times
    nodes: dict[Bit, int]
    driver: Indices
    start: Times
    source: Indices
    target: Indices
    cell: Indices
    delay: Times
    wired: Times
    levels: list[slice]
    end: Indices
    end_cell: Indices
    end_setup: Times
    end_wired: Times
    period: float = 0.0
    ends: Times = field(default_factory=lambda: np.zeros(0))
    arrival: Times = field(default_factory=lambda: np.zeros(0))
    required: Times = field(default_factory=lambda: np.zeros(0))

    def _arc_wires(self) -> Times:
        """Delay of the wire in front of each arc."""
        by = self.driver[self.source]
        return np.asarray(self.wired * wire(self.x[by] - self.x[self.cell], self.y[by] - self.y[self.cell]))

    def _end_times(self) -> Times:
        """When each end has its level, with setup."""
        by = self.driver[self.end]
        wires = self.end_wired * wire(self.x[by] - self.x[self.end_cell], self.y[by] - self.y[self.end_cell])
        return np.asarray(self.arrival[self.end] + wires + self.end_setup)

    def run(self, period: float) -> Times:
        """Works out the times for a clock of ``period``; returns `ends`."""
        self.period = period
        self.arrival = self.start.copy()
        delays = self._arc_wires() + self.delay
        for level in self.levels:
            np.maximum.at(self.arrival, self.target[level], self.arrival[self.source[level]] + delays[level])
        self.ends = self._end_times()
        self.required = np.full(len(self.driver), np.inf)
        np.minimum.at(self.required, self.end, period - (self.ends - self.arrival[self.end]))
        for level in reversed(self.levels):
            np.minimum.at(self.required, self.source[level], self.required[self.target[level]] - delays[level])
        return self.ends


def graph(module: Netlist) -> Timing:
    """The timing graph of a placed module. Constants, ports and the clock are not in it."""
    cells = module["cells"]
    names = list(cells)
    number = {name: place for place, name in enumerate(names)}
    places = [place_of(cell) for cell in cells.values()]
    constants = {bit for name, net in module["netnames"].items() if "PACKER_" in name for bit in net["bits"]}
    nodes: dict[Bit, int] = {}
    driver: list[int] = []
    start: list[float] = []
    out_port: list[str] = []
    for name, cell in cells.items():
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] != "output":
                continue
            for bit in bits:
                time = launch(cell, port)
                if isinstance(bit, int) and bit not in constants and time != -np.inf:
                    nodes[bit] = len(driver)
                    driver.append(number[name])
                    start.append(0.0 if time is None else time)
                    out_port.append(port)
    arcs: list[tuple[int, int, int, float, float]] = []
    ends: list[tuple[int, int, float, float]] = []
    for name, cell in cells.items():
        outs = [(port, nodes[bit]) for port, bits in cell["connections"].items()
                if cell["port_directions"][port] == "output" for bit in bits
                if bit in nodes and launch(cell, port) is None]
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "output":
                continue
            for bit in bits:
                if bit not in nodes:
                    continue
                node = nodes[bit]
                wired = float(not (port in _BEHIND or (port == "DI" and out_port[node] in ("F", "OFX"))))
                if (before := setup(cell, port)) is not None:
                    ends.append((node, number[name], before, wired))
                if cell["type"] in (COMB, MULTIPLIER):
                    for out, target in outs:
                        if (delay := through(cell, port, out)) is not None:
                            arcs.append((node, target, number[name], delay, wired))
    arcs, levels = _by_level(arcs, len(driver))
    columns = list(zip(*arcs, strict=True)) if arcs else [()] * 5
    end_columns = list(zip(*ends, strict=True)) if ends else [()] * 4
    return Timing(
        names=names, number=number,
        x=np.array([float(place[0]) for place in places]), y=np.array([float(place[1]) for place in places]),
        nodes=nodes, driver=np.array(driver, dtype=np.int64), start=np.array(start, dtype=np.float64),
        source=np.array(columns[0], dtype=np.int64), target=np.array(columns[1], dtype=np.int64),
        cell=np.array(columns[2], dtype=np.int64), delay=np.array(columns[3], dtype=np.float64),
        wired=np.array(columns[4], dtype=np.float64), levels=levels,
        end=np.array(end_columns[0], dtype=np.int64), end_cell=np.array(end_columns[1], dtype=np.int64),
        end_setup=np.array(end_columns[2], dtype=np.float64), end_wired=np.array(end_columns[3], dtype=np.float64),
    )


def _by_level(arcs: list[tuple[int, int, int, float, float]], nodes: int
              ) -> tuple[list[tuple[int, int, int, float, float]], list[slice]]:
    """The arcs in an order in which each comes behind all into its source, and the slices of one level each."""
    into = [0] * nodes
    out: list[list[int]] = [[] for _ in range(nodes)]
    for place, arc in enumerate(arcs):
        into[arc[1]] += 1
        out[arc[0]].append(place)
    level = [0] * nodes
    ready = [node for node in range(nodes) if not into[node]]
    while ready:
        node = ready.pop()
        for place in out[node]:
            target = arcs[place][1]
            level[target] = max(level[target], level[node] + 1)
            into[target] -= 1
            if not into[target]:
                ready.append(target)
    order = sorted(range(len(arcs)), key=lambda place: level[arcs[place][1]])
    slices, begin = [], 0
    for place in range(1, len(order) + 1):
        if place == len(order) or level[arcs[order[place]][1]] != level[arcs[order[begin]][1]]:
            slices.append(slice(begin, place))
            begin = place
    return [arcs[place] for place in order], slices
