from __future__ import annotations

from pathlib import Path

import pytest

from statecell.spec.geometry import config
from statecell_hw.attention.pack import BlockPack
from statecell_sim.benches.pack import BACK_PRESSURE, CONFIG, IDLE
from statecell_sim.runner import run_bench
from tests.sim.benches.designs import emit, run_mutant

DESIGN = emit(BlockPack(config(CONFIG)))
CASE = "/idle=0.0/back_pressure=0.0"


def test_pack_equals_the_model_under_every_pair_of_stalls() -> None:
    assert run_bench(DESIGN, "statecell_sim.benches.pack").tests == len(IDLE) * len(BACK_PRESSURE)


def test_another_saturation_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = "from statecell.spec import formats\nformats.VECTOR_MAX -= 1"
    run_mutant(DESIGN, "pack", "packed_vectors_equal_the_model", CASE, change, tmp_path, monkeypatch, "word ")
