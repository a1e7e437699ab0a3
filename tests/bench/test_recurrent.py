from __future__ import annotations

from typing import Any

import pytest

from statecell import device
from statecell.bench import recurrent
from statecell.bench.attention import BenchError
from statecell.bench.recurrent import bench_recurrent, config_for
from statecell.model.recurrent.families import FAMILIES
from statecell.model.recurrent.mode import RecurrentError, Storage

DEVICE = "sim:recur32"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_equals_the_model_and_moves_each_row_once(family: str) -> None:
    storage = Storage.INT8 if family in ("gdn", "rwkv") else Storage.INT4
    found = bench_recurrent(DEVICE, heads=4, dk=32, dv=32, family=family, storage=storage, tokens=3)
    assert found.equal and found.reads_per_row == found.writes_per_row == 1.0
    assert found.row_cycles == 128 <= found.cycles_per_token < 700


@pytest.mark.parametrize(("family", "storage"), [
    ("gdn", Storage.INT4), ("deltanet", Storage.INT8), ("mamba2", Storage.RESIDUAL), ("linear", Storage.INT4)])
def test_keys_of_two_halves_equal_the_model_and_move_each_row_once(family: str, storage: Storage) -> None:
    found = bench_recurrent(DEVICE, heads=4, dk=64, dv=32, family=family, storage=storage, tokens=3)
    assert found.equal and found.reads_per_row == found.writes_per_row == 1.0
    assert found.row_cycles == 256 <= found.cycles_per_token < 700


@pytest.mark.parametrize("storage", [Storage.INT4, Storage.INT8])
def test_a_log_is_committed_once_an_interval(storage: Storage) -> None:
    found = bench_recurrent(DEVICE, heads=6, dk=32, dv=32, storage=storage, interval=5)
    assert found.equal and found.tokens == 10 and found.interval == 5
    # a token reads its rows and on the average two logged rows for each of two tokens; a commit the log and the rows
    assert found.writes_per_row < 0.5 and found.cycles_per_token < 1500


def test_what_the_device_does_not_have_is_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"heads": 19}, "give 1 to 18"), ({"dk": 128}, "32 lanes, not 128"),
        ({"dv": 12}, "a multiple of 8 from 16 to 64"), ({"tokens": 1}, "at least 2"),
        ({"dk": 64, "interval": 4}, "take two rows"), ({"dk": 64, "family": "gla"}, "take two rows"),
        ({"interval": 4, "tokens": 6}, "a multiple of the 4"), ({"interval": 4, "family": "gla"}, "a decay per lane"),
    ]
    for arguments, message in cases:
        with pytest.raises(BenchError, match=message):
            bench_recurrent(DEVICE, **({"heads": 2, "dk": 32, "dv": 32} | arguments))
    with pytest.raises(BenchError, match="give 1 to 0"):
        bench_recurrent("sim:tiny", heads=2, dk=32, dv=32)
    with pytest.raises(RecurrentError, match="choose one of"):
        bench_recurrent(DEVICE, heads=2, dk=32, dv=32, family="lstm")
    assert config_for(128, 32) == "recur128" and config_for(32, 8) == "recur32"
    with pytest.raises(BenchError, match="No configuration holds 999 heads"):
        config_for(64, 999)


def test_an_output_that_differs_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = device.outputs
    monkeypatch.setattr(recurrent, "outputs", lambda answer: right(answer) ^ 1)
    with pytest.raises(BenchError, match="differs from the integer model"):
        bench_recurrent(DEVICE, heads=2, dk=32, dv=32, tokens=2)
