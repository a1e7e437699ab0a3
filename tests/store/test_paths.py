from __future__ import annotations

from pathlib import Path

import pytest

from statecell.store import paths
from statecell.store.errors import StoreError


def test_the_environment_moves_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path / "here"))
    assert paths.models_folder() == tmp_path / "here" / "models"
    monkeypatch.delenv("STATECELL_CACHE")
    assert "statecell" in str(paths.cache_root())
    assert tmp_path not in paths.cache_root().parents


def test_a_whole_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "models" / "m"
    with paths.whole_folder(target) as work:
        (work / "file").write_text("x")
        assert not target.exists()
    assert (target / "file").read_text() == "x"
    assert [entry.name for entry in target.parent.iterdir()] == ["m"]


def test_an_interrupted_folder_leaves_nothing_and_keeps_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "m"
    with pytest.raises(KeyboardInterrupt), paths.whole_folder(target) as work:
        (work / "file").write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    with paths.whole_folder(target) as work:
        (work / "file").write_text("old")
    with pytest.raises(ValueError, match="stop"), paths.whole_folder(target) as work:
        (work / "file").write_text("new")
        raise ValueError("stop")
    assert (target / "file").read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


def test_an_older_folder_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "m"
    for text in ("old", "new"):
        with paths.whole_folder(target) as work:
            (work / text).write_text(text)
    assert [entry.name for entry in target.iterdir()] == ["new"]


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    target = tmp_path / "file" / "m"
    with pytest.raises(StoreError, match="cannot be written.*STATECELL_CACHE"), paths.whole_folder(target):
        pass


def test_folder_bytes(tmp_path: Path) -> None:
    assert paths.folder_bytes(tmp_path / "missing") == 0
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_bytes(bytes(10))
    (tmp_path / "y").write_bytes(bytes(5))
    assert paths.folder_bytes(tmp_path) == 15
