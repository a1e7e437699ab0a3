from __future__ import annotations

from pathlib import Path

import pytest

from statecell.spec.geometry import config
from statecell_hw.array.rotate import Rotate
from statecell_sim.benches.rotate import CONFIG, IDLE
from statecell_sim.runner import run_bench
from tests.sim.benches.designs import emit, run_mutant

DESIGN = emit(Rotate(config(CONFIG)))


def test_rotate_equals_the_model_under_every_pair_of_stalls() -> None:
    assert run_bench(DESIGN, "statecell_sim.benches.rotate").tests == len(IDLE)


def test_another_rounding_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = "from statecell.model import rotate\nrotate.VECTOR_MAX -= 1"
    test, case = "transforms_equal_the_model", "/idle=0.4"
    run_mutant(DESIGN, "rotate", test, case, change, tmp_path, monkeypatch, "rounded word")
