"""Where the cells of a placed ECP5 netlist are, which of them a step may move, and where there is room for them.

A tile has four slices; a slice has two lanes of a look-up table (K) with a register (FF) behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from statecell_boards.netlist import REGISTER, Bit, Netlist
from statecell_boards.timing import COMB, Place, parse_place, place_of

LOCKED = 5
"""BEL_STRENGTH from which on a place was given and is not changed."""
SLICES = "ABCD"

Unit = tuple[str, ...]
"""Cells that fixed wires tie together and that move as one."""


def control(cell: Netlist) -> tuple[Any, ...]:
    """What all registers of a tile share."""
    wires, settings = cell["connections"], cell["parameters"]
    return (tuple(wires.get("CLK", ())), tuple(wires.get("LSR", ())),
            *(settings.get(name) for name in ("CLKMUX", "LSRMUX", "SRMODE")))


def enable(cell: Netlist) -> tuple[Any, ...]:
    """What both registers of a slice share."""
    return tuple(cell["connections"].get("CE", ())), cell["parameters"].get("CEMUX")


def _free_of_chains(cell: Netlist, tied: set[Bit]) -> bool:
    """A register, or a table that is neither carry cell nor memory nor in a tree of more than two tables; ``tied`` are
    the nets between tables of one tile.
    """
    wires = cell["connections"]
    return cell["type"] == REGISTER or (
        cell["type"] == COMB and "MODE" not in cell["parameters"] and not (wires.get("FXA") or wires.get("FXB"))
        and tied.isdisjoint(wires.get("OFX", ()))
    )


class Sites:
    """Places of a module's cells.

    ``cells``: of the module. ``multipliers``: the sites of multipliers that were given, and who is there. ``units``: of
    each cell that may be moved the cells that move with it: a register, a table with the register behind it, the two
    tables of a multiplexer, or a multiplier.
    """

    def __init__(self, cells: dict[str, Netlist], multipliers: Iterable[str]) -> None:
        self.cells = cells
        self._tiles: dict[tuple[int, int], dict[str, str]] = {}  # cells of each tile by their place in it
        self.multipliers: dict[Place, str | None] = {parse_place(name): None for name in multipliers}
        for name, cell in cells.items():
            x, y, place = place_of(cell)
            if place.startswith("SLICE"):
                self._tiles.setdefault((x, y), {})[place.removeprefix("SLICE")] = name
            elif (x, y, place) in self.multipliers:
                self.multipliers[x, y, place] = name
        self.tiles = list(self._tiles)
        tied = {bit for cell in cells.values() for port in ("FXA", "FXB") for bit in cell["connections"].get(port, ())}
        self.units: dict[str, Unit] = {}
        for tile in self._tiles.values():
            for unit in self._tied_cells(tile):
                if all(_free_of_chains(cells[name], tied) and self._unlocked(name) for name in unit):
                    self.units |= dict.fromkeys(unit, unit)
        self.units |= {name: (name,) for name in self.multipliers.values() if name is not None}

    def _tied_cells(self, tile: dict[str, str]) -> list[Unit]:
        """The cells of a tile in groups that a fixed wire ties together."""
        groups: list[Unit] = []
        for letter in SLICES:
            lanes = [tuple(tile[spot] for kind in ("K", "FF") if (spot := f"{letter}.{kind}{lane}") in tile)
                     for lane in (0, 1)]
            first = self.cells.get(tile.get(f"{letter}.K0", ""))
            if first is not None and first["connections"].get("F1"):
                groups.append(lanes[0] + lanes[1])
                continue
            for lane in lanes:
                pair = len(lane) == 2 and self.cells[lane[1]]["connections"].get("DI")
                groups += [lane] if pair else [(name,) for name in lane]
        return groups

    def _unlocked(self, name: str) -> bool:
        return int(self.cells[name]["attributes"]["BEL_STRENGTH"], 2) < LOCKED

    def _room(self, tile: tuple[int, int], unit: Unit) -> dict[str, str] | None:
        """Free places in a tile for the cells of a unit, None if it has none."""
        cells, there = self.cells, self._tiles[tile]
        if any(cells[name]["parameters"].get("MODE") in ("DPRAM", "RAMW_BLOCK") for name in there.values()):
            return None
        registers = [cells[name] for name in unit if cells[name]["type"] == REGISTER]
        others = [cells[name] for name in there.values() if cells[name]["type"] == REGISTER]
        if registers and others and control(others[0]) != control(registers[0]):
            return None
        own = [(name, place_of(cells[name])[2].removeprefix("SLICE")) for name in unit]
        wide = len({place[-1] for _, place in own}) > 1
        for letter in SLICES:
            enabled = [cells[there[spot]] for lane in (0, 1) if (spot := f"{letter}.FF{lane}") in there]
            if registers and any(enable(other) != enable(registers[0]) for other in enabled):
                continue
            for lane in ("",) if wide else ("0", "1"):
                spots = {name: f"{letter}.{place[2:-1]}{lane or place[-1]}" for name, place in own}
                if there.keys().isdisjoint(spots.values()) and self._pins_free(there, spots, letter):
                    return spots
        return None

    def _pins_free(self, tile: dict[str, str], spots: dict[str, str], letter: str) -> bool:
        """A lane's pin M feeds its register or its multiplexer, not both."""
        after = {**tile, **{spot: name for name, spot in spots.items()}}
        return all(sum(bool(self.cells[after[spot]]["connections"].get("M"))
                       for kind in ("K", "FF") if (spot := f"{letter}.{kind}{lane}") in after) < 2 for lane in (0, 1))

    def move(self, units: Iterable[Unit], tile: tuple[int, int]) -> bool:
        """Brings units to places in a tile if it has room for them all; returns whether it has."""
        before: list[tuple[Unit, list[Place]]] = []
        for unit in units:
            places = [place_of(self.cells[name]) for name in unit]
            if places[0][:2] == tile:
                continue
            spots = self._room(tile, unit)
            if spots is None:
                for moved, old in reversed(before):
                    self._bring(moved, old)
                return False
            before.append((unit, places))
            self._bring(unit, [(*tile, f"SLICE{spots[name]}") for name in unit])
        return True

    def _bring(self, unit: Unit, places: list[Place]) -> None:
        for name in unit:
            x, y, place = place_of(self.cells[name])
            del self._tiles[x, y][place.removeprefix("SLICE")]
        for name, (x, y, place) in zip(unit, places, strict=True):
            self._tiles[x, y][place.removeprefix("SLICE")] = name
            self._put(name, (x, y, place))

    def swap(self, name: str, site: Place) -> None:
        """Brings a multiplier to a site, and who is there to its own."""
        own, other = place_of(self.cells[name]), self.multipliers[site]
        self.multipliers[own], self.multipliers[site] = other, name
        self._put(name, site)
        if other is not None:
            self._put(other, own)

    def _put(self, name: str, place: Place) -> None:
        x, y, within = place
        self.cells[name]["attributes"]["NEXTPNR_BEL"] = f"X{x}/Y{y}/{within}"
