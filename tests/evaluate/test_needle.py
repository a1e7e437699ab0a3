from __future__ import annotations

from pathlib import Path

import pytest

from statecell.evaluate.needle import needle
from statecell.runtime.errors import UnsupportedError
from tests.hybrid_folder import make_hybrid_folder
from tests.small_folder import make_folder
from tests.train.small import text


def test_needles(tmp_path: Path) -> None:
    folder, source = make_hybrid_folder(tmp_path / "small"), tmp_path / "text.txt"
    source.write_bytes(bytes(text().tolist()))
    states = ["fp32", "int4", "softmax"]
    rows = needle(str(folder), str(source), states=states, distances=[16, 64], words=2)
    assert [(row.distance, row.state) for row in rows] == [(n, state) for n in (16, 64) for state in states]
    assert all(row.found == 0 and row.bits > 1 for row in rows)  # a random model knows no word
    assert len({row.bits for row in rows}) == 6 and all(row.bits != row.bits_untold for row in rows)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="has no recurrent states"):
        needle(str(make_folder(tmp_path / "llama")), "persuasion")
    with pytest.raises(UnsupportedError, match="'int3' is not known"):
        needle("hybrid-tiny", "persuasion", states=["int3"])
