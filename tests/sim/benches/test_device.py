from __future__ import annotations

from pathlib import Path

import pytest

from statecell.spec.geometry import config
from statecell_hw.top import StateCell
from statecell_sim.benches.device import BACK_PRESSURE, BUILD_HASH, CONFIG, IDLE
from statecell_sim.runner import run_bench
from tests.sim.benches.designs import emit, run_mutant

CASE = "/idle=0.0/back_pressure=0.0"


@pytest.fixture(scope="module")
def design() -> str:
    return emit(StateCell(config(CONFIG), build_hash=BUILD_HASH))


def test_device_equals_the_model_under_every_pair_of_stalls(design: str) -> None:
    assert run_bench(design, "statecell_sim.benches.device").tests == 2 * len(IDLE) * len(BACK_PRESSURE) + 1


def test_another_lookahead_is_found(design: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = "from statecell.spec import formats\nformats.LOOKAHEAD = 1"
    run_mutant(design, "device", "random_commands_equal_the_model", CASE, change, tmp_path, monkeypatch, "ATTEND")
