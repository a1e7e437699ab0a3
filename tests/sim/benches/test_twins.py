from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import statecell_hw
from statecell_sim.runner import BenchFailure, run_bench
from tests.sim.benches import twin

BENCHES = {
    "top": "device", "tile": "tile", "array.rotate": "rotate", "array.writer": "writer", "attention.pack": "pack",
}  # fmt: skip
IN_WRITER = {"array.jobs", "array.quantise", "array.query", "array.search"}  # its bench goes through all its stages


def run(case: twin.Twin, spoil: tuple[str, str] | None = None) -> int:
    """Record a twin test and run it again in cocotb, on Verilog in which `spoil` is exchanged if given."""
    design = twin.record(case)
    if spoil:
        assert spoil[0] in design
        design = design.replace(*spoil)
    environment = {twin.INDEX: str(twin.TWINS.index(case))}
    return run_bench(design, twin.__name__, top=twin.TOP, env=environment, waves_name=case.block).tests


@pytest.mark.parametrize("case", twin.TWINS, ids=lambda case: f"{case.block}-{case.test}")
def test_verilator_agrees_with_amaranths_simulator(case: twin.Twin) -> None:
    assert run(case) == 1


def test_a_wrong_design_is_found() -> None:
    (framer,) = [case for case in twin.TWINS if case.block == "link.framer"]
    with pytest.raises(BenchFailure, match="test_framer.py"):
        run(framer, spoil=(" ^ ", " | "))


def test_every_block_has_a_bench() -> None:
    root = Path(statecell_hw.__file__).parent
    blocks = {
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in root.rglob("*.py")
        if "(wiring.Component)" in path.read_text()
    }
    assert blocks == {case.block for case in twin.TWINS} | set(BENCHES) | IN_WRITER
    folder = Path(importlib.import_module("statecell_sim.benches").__path__[0])
    assert all((folder / f"{bench}.py").is_file() for bench in BENCHES.values())
