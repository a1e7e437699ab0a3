from __future__ import annotations

import math

import pytest

from statecell_boards.timing import CLOCK_TO_Q, LUT, RAM_OUT, RAM_SETUP, graph, wire
from tests.boards.placed import comb, module, register


def test_a_wire_costs_a_base_and_more_for_its_first_tiles() -> None:
    assert wire(0, 0) == pytest.approx(0.079 * 6)
    assert wire(3, 0) == pytest.approx(0.079 * (6 + 6)) == wire(0, -3)
    assert wire(20, 1) == pytest.approx(0.079 * (6 + 25 + 2))


def test_a_path_through_a_table() -> None:
    top = module({
        "a": register((2, 2), "A.FF0", out=10, data=(11, "M")),
        "table": comb((30, 2), "A.K0", out=12, ins=[10]),
        "b": register((30, 42), "A.FF0", out=11, data=(12, "M")),
    })
    timing = graph(top)
    ends = timing.run(10.0)
    late = CLOCK_TO_Q + wire(28, 0) + LUT + wire(0, 40)
    assert sorted(ends) == pytest.approx(sorted([late, CLOCK_TO_Q + wire(28, 40)]))
    node = timing.nodes[12]
    assert timing.arrival[node] == pytest.approx(late - wire(0, 40))
    assert timing.required[node] == pytest.approx(10.0 - wire(0, 40))


def test_a_register_behind_its_own_table_costs_no_wire() -> None:
    top = module({
        "a": register((2, 2), "A.FF0", out=10, data=(12, "DI")),
        "table": comb((2, 2), "A.K0", out=12, ins=[10]),
    })
    assert graph(top).run(10.0).tolist() == pytest.approx([CLOCK_TO_Q + wire(0, 0) + LUT])


def test_block_ram_is_slow_without_its_register() -> None:
    ram = {"type": "DP16KD", "parameters": {}, "attributes": {"NEXTPNR_BEL": "X4/Y22/EBR0", "BEL_STRENGTH": "110"},
           "port_directions": {"DOB0": "output", "ADA0": "input"}, "connections": {"DOB0": [20], "ADA0": [10]}}
    top = module({"ram": ram, "a": register((4, 22), "A.FF0", out=10, data=(20, "M"))})
    assert sorted(graph(top).run(10.0)) == pytest.approx(
        sorted([RAM_OUT + wire(0, 0), CLOCK_TO_Q + wire(0, 0) + RAM_SETUP]))


def test_what_distributed_ram_writes_comes_in_time() -> None:
    write = {"type": "TRELLIS_RAMW", "parameters": {}, "attributes": {"NEXTPNR_BEL": "X9/Y2/SLICEC.RAMW"},
             "port_directions": {"D1": "input", "WDO0": "output"}, "connections": {"D1": [10], "WDO0": [30]}}
    top = module({"a": register((2, 2), "A.FF0", out=10, data=(99, "M")), "write": write})
    assert graph(top).run(10.0).tolist() == pytest.approx([CLOCK_TO_Q + wire(7, 0) + RAM_SETUP])


def test_constants_and_the_clock_are_not_timed() -> None:
    top = module({"a": register((2, 2), "A.FF0", out=10, data=(99, "M"))})
    top["netnames"]["$PACKER_VCC_NET"] = {"bits": [99]}
    timing = graph(top)
    assert len(timing.run(10.0)) == 0 and math.isinf(timing.required[timing.nodes[10]])
