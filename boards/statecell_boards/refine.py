"""Moves the cells of late paths: a step on a placed ECP5 netlist between nextpnr's placer and its router.

nextpnr's placers weigh a path's time against the length of all wires, and what is left over of a design of 50,000 cells
are a few hundred paths with a cell at the wrong end of the chip. Here each look-up table or register on such a path is
tried at every tile of the chip, and goes to the free place where the worst path through it is shortest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from statecell_boards.netlist import MULTIPLIER, Netlist
from statecell_boards.sites import Sites, Unit
from statecell_boards.timing import GRADE, Times, graph, place_of, wire

ROUNDS = 40
MARGIN = 0.3
"""Share of the period by which paths shall be shorter than it: where many wires meet they come out longer."""
CHAIN = 4
"""Most units of a path that move together."""
GAIN = 0.05
"""Least improvement, in ns, for which a cell moves."""


@dataclass(frozen=True)
class Refinement:
    """Worst time and number of paths' ends later than the clock, before and after, times in ns; and cells moved."""

    before: tuple[float, int]
    after: tuple[float, int]
    moved: int

    def __str__(self) -> str:
        def line(worst: float, late: int) -> str:
            return f"{late} estimated to be late, worst {worst:.2f} ns"

        return f"{line(*self.before)}; now {line(*self.after)}; {self.moved} cells moved"


def refine(netlist: Netlist, clock_hz: float, grade: int = 6, *, multipliers: Iterable[str] = (),
           progress: Callable[[str], None] = lambda line: None) -> Refinement:
    """Moves cells of the top module of ``netlist``, as nextpnr's ``--write`` gives it after placement, in place.

    ``grade``: speed grade of the FPGA; ``multipliers``: nextpnr's names of its multipliers, if those may move, too;
    ``progress`` is told a line a round.
    """
    module = max(netlist["modules"].values(), key=lambda module: len(module["cells"]))
    return _Refiner(module, 1e9 / clock_hz, GRADE[grade], multipliers).run(progress)


class _Refiner:
    def __init__(self, module: Netlist, period: float, grade: float, multipliers: Iterable[str]) -> None:
        self.period, self.grade = period / grade, grade  # all times here are those of the slowest grade
        self.sites = Sites(module["cells"], multipliers)
        self.timing = t = graph(module)
        self.tile_x, self.tile_y = np.array(self.sites.tiles, dtype=np.float64).reshape(-1, 2).T
        self.loads: dict[int, list[tuple[int, int]]] = {}  # of a node: cell and arc, or cell and -1 - end
        self.arcs: dict[int, list[int]] = {}  # of a cell, like the two that follow
        self.ends: dict[int, list[int]] = {}
        self.nodes: dict[int, list[int]] = {}
        for arc, (node, cell) in enumerate(zip(t.source.tolist(), t.cell.tolist(), strict=True)):
            self.loads.setdefault(node, []).append((cell, arc))
            self.arcs.setdefault(cell, []).append(arc)
        for end, (node, cell) in enumerate(zip(t.end.tolist(), t.end_cell.tolist(), strict=True)):
            self.loads.setdefault(node, []).append((cell, -1 - end))
            self.ends.setdefault(cell, []).append(end)
        for node, cell in enumerate(t.driver.tolist()):
            self.nodes.setdefault(cell, []).append(node)

    def run(self, progress: Callable[[str], None]) -> Refinement:
        t = self.timing
        ends = t.run(self.period)
        before = self._late(ends)
        moved: set[str] = set()
        goal = self.period * (1 - MARGIN)
        for number in range(ROUNDS):
            ends = t.run(goal)
            worst, late = self._late(ends)
            progress(f"round {number}: worst {worst:.2f} ns, {late} late, {(ends > goal).sum()} beyond the aim")
            changed = self._round(goal, ends)
            moved |= changed
            if not changed:
                break
        ends = t.run(self.period)
        return Refinement(before, self._late(ends), len(moved))

    def _late(self, ends: Times) -> tuple[float, int]:
        """Worst of the ends' times, and how many are later than the clock."""
        return float(ends.max()) * self.grade, int((ends > self.period).sum())

    def _round(self, goal: float, ends: Times) -> set[str]:
        """Tries every unit on a late path once; returns the cells that moved."""
        t = self.timing
        slack = t.required - t.arrival
        late: dict[Unit, float] = {}
        for node in np.flatnonzero(slack < 0).tolist():
            unit = self.sites.units.get(t.names[int(t.driver[node])])
            if unit:
                late[unit] = min(late.get(unit, 0.0), float(slack[node]))
        for end in np.flatnonzero(ends > goal).tolist():
            unit = self.sites.units.get(t.names[int(t.end_cell[end])])
            if unit:
                late[unit] = min(late.get(unit, 0.0), goal - float(ends[end]))
        moved: set[str] = set()
        for unit, _ in sorted(late.items(), key=lambda item: item[1]):
            for chain in self._chains(unit):
                if self._move(chain):
                    moved.update(*chain)
                    t.run(goal)
                    break
        return moved

    def _chains(self, unit: Unit) -> Iterator[list[Unit]]:
        """The unit alone, then with one unit more each time down the worst path: what lies side by side in a wrong
        place cannot leave it one by one.
        """
        t = self.timing
        chain = [unit]
        while len(chain) <= CHAIN:
            yield chain
            loads = [(self._left(load) - t.arrival[node], cell) for name in chain[-1]
                     for node in self.nodes.get(t.number[name], ()) for cell, load in self.loads.get(node, ())
                     if self.sites.units.get(t.names[cell]) not in chain]
            after = self.sites.units.get(t.names[min(loads)[1]]) if loads else None
            if after is None or self._multiplies(after):
                return
            chain = [*chain, after]

    def _left(self, load: int) -> float:
        """When a node must have its level at a load, an arc or -1 - an end, at the end of its wire."""
        t = self.timing
        if load < 0:
            return t.period - float(t.end_setup[-1 - load])
        return float(t.required[t.target[load]] - t.delay[load])

    def _multiplies(self, unit: Unit) -> bool:
        return bool(self.sites.cells[unit[0]]["type"] == MULTIPLIER)

    def _slack_at(self, own: set[int], x: Times, y: Times) -> tuple[Times, Times]:
        """Worst slack of the paths through some cells, 0 if none is late, and the length of their wires in tiles, with
        all cells at one place, for each of some places.
        """
        t = self.timing
        arrival: dict[int, Times] = {}
        worst = np.full(len(x), np.inf)
        length = np.zeros(len(x))

        def into(node: int, wired: float) -> Times:
            """Arrival of a node at the unit's tile."""
            driver = int(t.driver[node])
            if driver in own:
                return np.asarray(arrival[node] + wired * wire(0, 0))
            if not wired:
                return np.full(len(x), t.arrival[node])
            far_x, far_y = np.abs(x - t.x[driver]), np.abs(y - t.y[driver])
            nonlocal length
            length = length + far_x + far_y
            return np.asarray(t.arrival[node] + wire(far_x, far_y))

        for node in (node for cell in own for node in self.nodes.get(cell, ())):
            arrival[node] = np.full(len(x), t.start[node])
        for arc in sorted(arc for cell in own for arc in self.arcs.get(cell, ())):
            target = int(t.target[arc])
            arrival[target] = np.maximum(arrival[target], into(int(t.source[arc]), t.wired[arc]) + t.delay[arc])
        for cell in own:
            for end in self.ends.get(cell, ()):
                worst = np.minimum(worst, self._left(-1 - end) - into(int(t.end[end]), t.end_wired[end]))
            for node in self.nodes.get(cell, ()):
                for load, arc in self.loads.get(node, ()):
                    if load in own:
                        continue
                    far_x, far_y = np.abs(x - t.x[load]), np.abs(y - t.y[load])
                    wired = t.wired[arc] if arc >= 0 else t.end_wired[-1 - arc]
                    length += far_x + far_y
                    worst = np.minimum(worst, self._left(arc) - arrival[node] - wired * wire(far_x, far_y))
        return np.minimum(worst, 0.0), length

    def _move(self, chain: list[Unit]) -> bool:
        """Brings units to the best place that has room for them; returns whether that is another than their own."""
        t, sites = self.timing, self.sites
        if self._multiplies(chain[0]):
            return self._swap(chain[0][0])
        own = {t.number[name] for unit in chain for name in unit}
        for place in self._better(own, self.tile_x, self.tile_y):
            if sites.move(chain, sites.tiles[place]):
                self._note(own)
                return True
        return False

    def _swap(self, name: str) -> bool:
        """Brings a multiplier to the best site that is free or whose owner is not late at the multiplier's."""
        t, sites = self.timing, self.sites
        cell = t.number[name]
        places = list(sites.multipliers)
        x, y = np.array([place[:2] for place in places], dtype=np.float64).T
        now = self._slack_now({cell})
        for place in self._better({cell}, x, y):
            other = sites.multipliers[places[place]]
            if other is not None:
                there = self._slack_at({t.number[other]}, t.x[cell : cell + 1], t.y[cell : cell + 1])[0][0]
                if there < min(0.0, now + GAIN):
                    continue
            sites.swap(name, places[place])
            self._note({cell} if other is None else {cell, t.number[other]})
            return True
        return False

    def _better(self, own: set[int], x: Times, y: Times) -> list[int]:
        """Which places are better for some cells than theirs, the best first."""
        slack, length = self._slack_at(own, x, y)
        good = np.flatnonzero(slack > self._slack_now(own) + GAIN)
        best: list[int] = good[np.lexsort((length[good], -np.round(slack[good] / GAIN)))].tolist()
        return best

    def _note(self, own: set[int]) -> None:
        """Tells `timing` where cells are."""
        t = self.timing
        for cell in own:
            t.x[cell], t.y[cell] = place_of(self.sites.cells[t.names[cell]])[:2]

    def _slack_now(self, own: set[int]) -> float:
        """Worst slack of the paths through some cells where they are, 0 if none is late."""
        t = self.timing
        slack = [0.0]
        for cell in own:
            slack += [float(t.required[node] - t.arrival[node]) for node in self.nodes.get(cell, ())]
            slack += [float(t.period - t.ends[end]) for end in self.ends.get(cell, ())]
        return min(slack)
