"""Moves registers into multipliers: a step on ECP5 netlists between Yosys and nextpnr.

A MULT18X18D has registers for its operands and for its product, which Yosys leaves out. Its columns lie far from most
of the array, so that a wire to a multiplier, the product, and the wire back are too much for one cycle; between
registers of its own each wire has a cycle.
"""

from __future__ import annotations

from statecell_boards.netlist import MULTIPLIER, REGISTER, Bit, Netlist, drivers, inputs, outside

OPERANDS = {operand: tuple(f"{operand}{i}" for i in range(18)) for operand in "AB"}
PRODUCT = tuple(f"P{i}" for i in range(36))


def absorb_registers(netlist: Netlist) -> int:
    """Multipliers take over the registers around them, in every module; returns how many multipliers did.

    Both operands must come from registers that take another register's value in every cycle, and the product must go
    to such registers alone; the multiplier then has all three registers, none with an enable. A register with other
    loads stays for those. ``netlist`` is what Yosys's `write_json` gives after `synth_ecp5`, enables left out; it is
    changed in place.
    """
    return sum(_absorb_module(module) for module in netlist["modules"].values())


def _absorb_module(module: Netlist) -> int:
    cells: Netlist = module["cells"]
    makers, ports = drivers(module), outside(module)
    loads: dict[Bit, list[tuple[str, str]]] = {}
    for bit, name, port, _ in inputs(module):
        loads.setdefault(bit, []).append((name, port))

    def register_of(bit: Bit) -> Netlist | None:
        """The register that makes this bit, if it takes its input in every cycle."""
        cell = cells.get(makers.get(bit, ""))
        return cell if cell is not None and _free(cell) else None

    absorbed = 0
    for name, cell in list(cells.items()):
        if cell["type"] != MULTIPLIER or cell["parameters"]:
            continue
        pins = cell["connections"]
        operands = {pin: pins[pin][0] for group in OPERANDS.values() for pin in group if pin in pins}
        before = {bit: register_of(bit) for bit in operands.values() if isinstance(bit, int)}
        used = [pin for pin in PRODUCT if pin in pins and loads.get(pins[pin][0])]
        after = {pin: loads[pins[pin][0]] for pin in used}
        clocks = {str(r["connections"]["CLK"]) for r in before.values() if r is not None}
        if (
            None in before.values() or len(clocks) != 1
            or any(cells.get(makers.get(r["connections"]["DI"][0], ""), {}).get("type") != REGISTER
                   for r in before.values() if r is not None)
            or any(len(to) != 1 or to[0][1] != "DI" or not _free(cells[to[0][0]]) for to in after.values())
            or ports & {pins[pin][0] for pin in used}
        ):
            continue
        clock = next(r for r in before.values() if r is not None)["connections"]["CLK"]
        for pin, bit in operands.items():
            register = before.get(bit)
            if register is not None:
                pins[pin] = list(register["connections"]["DI"])
                loads[bit].remove((name, pin))
                loads.setdefault(pins[pin][0], []).append((name, pin))
        for bit in before:
            if not loads[bit] and bit not in ports:
                del cells[makers[bit]]
        for pin in used:
            register_name = after[pin][0][0]
            pins[pin] = list(cells.pop(register_name)["connections"]["Q"])
            makers[pins[pin][0]] = name
        _set_registers(cell, clock)
        absorbed += 1
    return absorbed


def _free(cell: Netlist) -> bool:
    """Whether a cell is a register without enable and reset that starts at 0."""
    pins = cell["connections"]
    return (
        cell["type"] == REGISTER and "CE" not in pins and pins.get("LSR", ["0"]) == ["0"]
        and cell["parameters"].get("REGSET", "RESET") == "RESET" and cell["parameters"].get("CLKMUX", "CLK") == "CLK"
    )


def _set_registers(cell: Netlist, clock: list[Bit]) -> None:
    for port, bits in (("CLK0", clock), ("CE0", ["1"]), ("RST0", ["0"])):
        cell["connections"][port], cell["port_directions"][port] = list(bits), "input"
    for place in ("INPUTA", "INPUTB", "OUTPUT"):
        cell["parameters"] |= {
            f"REG_{place}_CLK": "CLK0", f"REG_{place}_CE": "CE0", f"REG_{place}_RST": "RST0",
        }
