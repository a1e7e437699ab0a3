from __future__ import annotations

from typing import Any

from statecell_boards.enables import free_enables
from statecell_hw.array.arithmetic import UNREAD


def register(output: int, **more: list[int]) -> dict[str, Any]:
    pins = {"CLK": [2], "DI": [3], "LSR": ["0"], **more}
    return {
        "type": "TRELLIS_FF", "parameters": {"CEMUX": "CE" if "CE" in more else "1 "},
        "port_directions": dict.fromkeys(pins, "input") | {"Q": "output"}, "connections": pins | {"Q": [output]},
    }


def netlist() -> dict[str, Any]:
    """Registers 10 (of a pipeline), 11 (of another signal) and 12 (of a pipeline, without an enable)."""
    return {"modules": {"top": {
        "cells": {"a": register(10, CE=[4]), "b": register(11, CE=[4]), "c": register(12)},
        "netnames": {
            "part_0": {"bits": [10], "attributes": {UNREAD: "00000000000000000000000000000001"}},
            "same": {"bits": [10, 11], "attributes": {}},
            "part_1": {"bits": [12], "attributes": {UNREAD: "00000000000000000000000000000001"}},
        },
    }}}  # fmt: skip


def test_only_a_pipelines_registers_lose_their_enable() -> None:
    design, before = netlist(), netlist()
    assert free_enables(design) == 1
    cells, old = design["modules"]["top"]["cells"], before["modules"]["top"]["cells"]
    assert "CE" not in cells["a"]["connections"] and "CE" not in cells["a"]["port_directions"]
    assert cells["a"]["parameters"]["CEMUX"] == "1 " and cells["a"]["connections"]["DI"] == [3]
    assert cells["b"] == old["b"] and cells["c"] == old["c"]
