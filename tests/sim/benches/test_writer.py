from __future__ import annotations

from pathlib import Path

import pytest

from statecell.spec.geometry import config
from statecell_hw.array.writer import Writer
from statecell_sim.benches.writer import BACK_PRESSURE, CONFIG, IDLE
from statecell_sim.runner import run_bench
from tests.sim.benches.designs import emit, run_mutant

DESIGN = emit(Writer(config(CONFIG)))
CASE = "/idle=0.0/back_pressure=0.0"


def test_writer_equals_the_model_under_every_pair_of_stalls() -> None:
    assert run_bench(DESIGN, "statecell_sim.benches.writer").tests == len(IDLE) * len(BACK_PRESSURE)


def test_a_search_that_ends_early_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = "from statecell.spec import formats\nformats.CANDIDATES -= 1"
    run_mutant(DESIGN, "writer", "rows_and_queries_equal_the_model", CASE, change, tmp_path, monkeypatch, "output ")
