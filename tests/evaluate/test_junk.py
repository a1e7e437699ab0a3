from __future__ import annotations

from pathlib import Path

import pytest
import torch

from statecell.evaluate.junk import inserted, junk_cost
from statecell.runtime.errors import UnsupportedError
from tests.hybrid_folder import make_hybrid_folder
from tests.small_folder import make_folder
from tests.train.small import text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("junk")
    (path / "text.txt").write_bytes(bytes(text().tolist()))
    return make_hybrid_folder(path / "small")


def test_runs_are_inserted_and_the_rest_stays() -> None:
    ids = torch.arange(12).reshape(2, 6)
    assert inserted(ids, 99, 2, 4).tolist() == [[0, 1, 2, 3, 99, 99, 4, 5], [6, 7, 8, 9, 99, 99, 10, 11]]


def test_cost_of_junk(folder: Path) -> None:
    source = str(folder.parent / "text.txt")
    rows = junk_cost(
        str(folder), source, states=["fp32", "int4"], runs=[1, 40], prompt=60, gap=10, follow=30, streams=2)
    assert [(row.state, row.junk, row.run) for row in rows] == [
        (state, junk, run) for state in ("fp32", "int4") for junk in ("#", "padding") for run in (1, 40)]
    assert len({row.ppl for row in rows}) == 8 and len({row.ppl_plain for row in rows}) == 2
    assert all(row.increase == pytest.approx(row.ppl / row.ppl_plain - 1) and row.increase != 0 for row in rows)


def test_refusals(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="has no recurrent states"):
        junk_cost(str(make_folder(tmp_path / "llama")), "persuasion")
    with pytest.raises(UnsupportedError, match="'int3' is not known"):
        junk_cost(str(folder), "persuasion", states=["int3"])
