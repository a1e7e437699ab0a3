"""Folds gates into carry cells: a step on ECP5 netlists between Yosys and nextpnr.

Yosys gives a two-operand adder the two inputs of each carry cell's look-up table that the sum needs and leaves the
other two unused, so that `a + (gate ? b : 0)` costs a look-up table a bit beside the carry cell. A CCU2C bit computes

    propagate = INIT(A, B, C, D), sum = propagate ^ carry in, carry out = propagate ? carry in : INIT[3:0](A, B)

where INIT[3:0] is the table at C = D = 0. For a sum of x and y propagate is x ^ y, and where that is 0 both operands
equal x, so the lower table has to be x: x may be any function of A and B, and y any function of all inputs that is 0
at C = D = 0. With an input to spare D is tied to 1, which keeps the lower table free, and y may be any function.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from statecell_boards.netlist import TABLE, Bit, Netlist, drivers, inputs, outside

LUT_INPUTS = ("A", "B", "C", "D")


@dataclass(frozen=True)
class _Operand:
    """An operand of one bit of a sum: its value over its signals, the first lowest, and the gate that makes it."""

    signals: tuple[Bit, ...]
    table: int
    gate: str | None = None

    def value(self, levels: dict[Bit, int]) -> int:
        return self.table >> sum(levels[bit] << place for place, bit in enumerate(self.signals)) & 1

    def inverted(self) -> _Operand:
        return _Operand(self.signals, self.table ^ (1 << (1 << len(self.signals))) - 1, self.gate)


def fold_gates(netlist: Netlist) -> int:
    """Folds look-up tables that drive nothing but one carry cell into it, in every module; returns how many.

    ``netlist`` is what Yosys's `write_json` gives after `synth_ecp5`; it is changed in place.
    """
    return sum(_fold_module(module) for module in netlist["modules"].values())


def _fold_module(module: Netlist) -> int:
    cells: Netlist = module["cells"]
    uses = Counter(bit for bit, *_ in inputs(module))
    uses.update(outside(module))
    gates = {bit: name for bit, name in drivers(module).items() if cells[name]["type"] == TABLE}
    folded = 0
    for cell in list(cells.values()):
        if cell["type"] == "CCU2C":
            for half in "01":
                inverted = _sum(cell, half)
                if inverted is None:
                    continue
                operands: list[list[_Operand]] = []
                for pin, turned in inverted.items():
                    bit = cell["connections"][f"{pin}{half}"][0]
                    gate = gates.get(bit)
                    forms = [_plain(bit)]
                    if gate is not None and uses[bit] == 1:
                        forms.insert(0, _gate(gate, cells[gate]))
                    operands.append([form.inverted() if turned else form for form in forms])
                for gate in _fold(cell, half, operands):
                    del gates[cells.pop(gate)["connections"]["Z"][0]]
                    folded += 1
    return folded


def _fold(carry: Netlist, half: str, operands: list[list[_Operand]]) -> list[str]:
    """The gates that went into one bit of ``carry``, as many as can."""
    choices = [(a, b) for a in operands[0] for b in operands[1] if a.gate or b.gate]
    for a, b in sorted(choices, key=lambda pair: (pair[0].gate is None) + (pair[1].gate is None)):
        for x, y in ((a, b), (b, a)):
            for pins in _places(x, y):
                table = _table(x, y, pins)
                if table is not None:
                    carry["parameters"][f"INIT{half}"] = f"{table:016b}"
                    for pin, bit in zip(LUT_INPUTS, pins, strict=True):
                        carry["connections"][f"{pin}{half}"] = [bit]
                    return [operand.gate for operand in (a, b) if operand.gate]
    return []


def _places(x: _Operand, y: _Operand) -> Iterator[tuple[Bit, ...]]:
    """Signals of the four inputs, those of x in A and B; unused ones are tied, D to 1."""
    others = [bit for bit in y.signals if bit not in x.signals]
    if len(x.signals) > 2 or len(x.signals) + len(others) > 4:
        return
    for order in permutations(others):
        pins: list[Bit] = [*x.signals, *order]
        if len(pins) < 4:
            pins += ["0"] * (3 - len(pins)) + ["1"]
        yield tuple(pins)


def _table(x: _Operand, y: _Operand, pins: tuple[Bit, ...]) -> int | None:
    """INIT of a bit that adds x and y; None if it cannot be."""
    spare = pins[3] == "1"
    table = 0
    for index in range(16):
        levels: dict[Bit, int] = {bit: index >> place & 1 for place, bit in enumerate(pins)}
        own, other = x.value(levels), y.value(levels)
        if index < 4:  # C = D = 0: the table that makes the carry
            if other and not spare:
                return None
            other = 0
        table |= (own ^ other) << index
    return table


def _sum(carry: Netlist, half: str) -> dict[str, bool] | None:
    """Whether A and B enter the sum inverted; None if the bit is not a sum of A and B as Yosys makes it."""
    init = int(carry["parameters"][f"INIT{half}"], 2)
    pins = carry["connections"]
    c, d = (pins[f"{pin}{half}"][0] for pin in "CD")
    if c not in ("0", "1") or d not in ("0", "1"):
        return None
    upper = init >> (4 * (int(c) + 2 * int(d))) & 15
    if init & 15 != 0b1010:  # carry out is A
        return None
    if upper == 0b0110:
        return {"A": False, "B": False}
    if upper == 0b1001:
        return {"A": False, "B": True}
    return None


def _plain(bit: Bit) -> _Operand:
    return _Operand((bit,), 0b10) if isinstance(bit, int) else _Operand((), int(bit == "1"))


def _gate(name: str, gate: Netlist) -> _Operand:
    """What a look-up table makes of the signals that it really has."""
    init = int(gate["parameters"]["INIT"], 2)
    pins = [gate["connections"].get(pin, ["0"])[0] for pin in LUT_INPUTS]
    signals = tuple(dict.fromkeys(bit for bit in pins if isinstance(bit, int)))
    table = 0
    for assignment in range(1 << len(signals)):
        levels = {bit: assignment >> place & 1 for place, bit in enumerate(signals)}
        index = sum((levels[bit] if isinstance(bit, int) else int(bit == "1")) << place
                    for place, bit in enumerate(pins))
        table |= (init >> index & 1) << assignment
    return _Operand(signals, table, name)
