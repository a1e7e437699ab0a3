"""Netlists on the synthesiser's cell models: a block passes its own bench, a changed look-up table does not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from statecell.spec import formats
from statecell.spec.geometry import config
from statecell_boards.registry import board
from statecell_hw.attention.pack import BlockPack
from statecell_hw.device import device_of
from statecell_sim import postsynthesis_command as command
from statecell_sim.benches.conversation import Conversation
from statecell_sim.benches.pack import CONFIG
from statecell_sim.errors import SimulatorError
from statecell_sim.postsynthesis import (
    FAMILIES,
    build,
    cells,
    check,
    family_of,
    hold,
    mutate,
    netlist_of,
    netlist_verilog,
)
from statecell_sim.runner import BenchFailure, run_bench
from statecell_sim.simulator import library_of

CASE = "packed_vectors_equal_the_model/idle=0.0/back_pressure=0.0"
MUTANTS = range(8)
"""Seeds of a bit to turn over: the bench does not reach every bit, but it must find one of these."""


def passes(verilog: str) -> None:
    assert run_bench(verilog, "statecell_sim.benches.pack", testcases=[CASE]).tests == 1


def found(netlist: Any, family: Any, seed: int) -> bool:
    """Whether the bench finds the mutant of this seed."""
    mutant = copy.deepcopy(netlist)
    assert mutate(mutant, family, seed).startswith("bit ") and mutant != netlist
    try:
        passes(netlist_verilog(mutant, family))
    except BenchFailure:
        return True
    return False


@pytest.mark.parametrize("name", FAMILIES)
def test_a_netlist_passes_the_bench_of_its_block(name: str) -> None:
    family = FAMILIES[name]
    netlist = netlist_of(BlockPack(config(CONFIG)), family)
    assert cells(netlist)[family.table[0]] > 100
    passes(netlist_verilog(netlist, family))
    assert any(found(netlist, family, seed) for seed in MUTANTS)


def test_the_small_device_as_in_its_bitstream_answers_random_commands() -> None:
    """With its single-port RAM blocks, block RAM and multipliers."""
    chosen = board("icebreaker")
    family, g = family_of(chosen.flow, chosen), chosen.geometry
    netlist = netlist_of(device_of(g), family, chosen)
    assert {"SB_SPRAM256KA", "SB_RAM40_4K", "SB_MAC16"} <= set(cells(netlist))
    library = build(netlist_verilog(netlist, family), g)
    talk = Conversation(g, 5)
    talk.wander(6)
    assert hold(library, talk, max_cycles=3_000_000) == len(talk.frames)


def test_a_bitstream_of_cells_without_a_model_is_refused() -> None:
    with pytest.raises(SimulatorError, match="no simulation model of all cells of the ULX3S 85F: leave --board out"):
        family_of("ecp5", board("ulx3s_85f"))


def test_the_traffic_tells_devices_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateware itself passes; one whose softmax looks fewer rows ahead than the model's would not."""
    g = config("tiny")
    assert check(library_of("tiny"), g, commands=80, seed=1) > 4 * 80
    monkeypatch.setattr(formats, "LOOKAHEAD", 1)
    with pytest.raises(SimulatorError, match=r"differs from the model: command \d+, ATTEND"):
        check(library_of("tiny"), g, commands=80, seed=1)


def test_a_mutant_differs_in_one_bit() -> None:
    def netlist() -> dict[str, Any]:
        parameters = {"INIT": "0" * 16}
        return {"modules": {"top": {"cells": {"a": {"type": "LUT4", "parameters": parameters}, "b": {"type": "FF"}}}}}

    changed = netlist()
    assert mutate(changed, FAMILIES["ecp5"], 3).endswith(" of a")
    assert changed["modules"]["top"]["cells"]["a"]["parameters"]["INIT"].count("1") == 1


def test_an_unknown_family_is_explained() -> None:
    with pytest.raises(SimulatorError, match="no cell models of the family 'gowin': choose one of ecp5, ice40"):
        family_of("gowin")


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "device_of", lambda *_, **__: None)
    monkeypatch.setattr(command, "netlist_of", lambda *_: {"modules": {"top": {"cells": {"a": {"type": "LUT4"}}}}})
    monkeypatch.setattr(command, "netlist_verilog", lambda *_: "module statecell; endmodule")
    monkeypatch.setattr(command, "build", lambda *_: Path("library"))
    monkeypatch.setattr(command, "check", lambda *_, **__: 7)
    made = json.loads(CliRunner().invoke(command.app, ["--json"]).stdout)
    assert (made["family"], made["config"], made["cells"], made["responses"]) == ("ecp5", "tiny", {"LUT4": 1}, 7)
    made = json.loads(CliRunner().invoke(command.app, ["--board", "icebreaker", "--json"]).stdout)
    assert (made["family"], made["board"], made["config"]) == ("ice40", "icebreaker", "icebreaker")
    assert "Example: statecell postsynthesis" in CliRunner().invoke(command.app, ["--help"]).stdout

    def differs(*_: object, **__: object) -> int:
        raise SimulatorError("The netlist differs from the model.")

    monkeypatch.setattr(command, "check", differs)
    monkeypatch.setattr(command, "mutate", lambda *_: "bit 3 of a")
    result = CliRunner().invoke(command.app, ["--mutant", "1"])
    assert str(result.exception) == "The netlist differs from the model. (mutant: bit 3 of a)"
