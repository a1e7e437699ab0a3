from __future__ import annotations

from pathlib import Path

import pytest
import torch

from statecell.train.corpus import IGNORED, JUNK, Corpus, targets_of, text_bytes
from statecell.train.recipe import TrainError
from tests.train.small import text


def test_windows_depend_on_seed_and_step_alone() -> None:
    corpus = Corpus([text(), text()[:100]])
    assert corpus.tokens == len(text()) + 100
    first = corpus.window(3, 64, 5, 7)
    assert first.shape == (3, 65) and torch.equal(first, corpus.window(3, 64, 5, 7))
    assert not torch.equal(first, corpus.window(3, 64, 5, 8)) and not torch.equal(first, corpus.window(3, 64, 6, 7))
    whole = bytes(text().tolist())
    assert all(bytes(row.tolist()) in whole for row in first)
    with pytest.raises(TrainError, match="No text has the 4001 bytes"):
        corpus.window(1, 4000, 0, 0)


def test_junk_is_inserted_and_has_no_loss() -> None:
    corpus = Corpus([text()])
    rows = corpus.window(8, 1024, 0, 0, junk=0.5)
    littered = torch.isin(rows, torch.tensor(JUNK)).any(1)
    assert 0 < int(littered.sum()) < 8
    for row in rows:
        targets = targets_of(row)
        assert torch.equal(targets == IGNORED, torch.isin(row, torch.tensor(JUNK)))
        assert bytes(row[targets != IGNORED].tolist()) in bytes(text().tolist())


def test_text_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Zoë", encoding="utf-8")
    assert text_bytes(str(path)).tolist() == list("Zoë".encode())
