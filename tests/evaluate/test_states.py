"""Perplexity of stored states: exact where nothing is stored, and in the known order where something is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from statecell.evaluate import states as module
from statecell.evaluate.naive_states import NaiveStates
from statecell.evaluate.perplexity import EvaluationError
from statecell.evaluate.states import StatePerplexity, losses, pieces, state_perplexity
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent.calibration import known_states
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.support import model_geometry
from statecell.store.models import load_model
from tests.hybrid_folder import make_hybrid_folder
from tests.small_folder import make_folder
from tests.train.small import text

TOKENS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("states")
    (path / "text.txt").write_bytes(bytes(text().tolist()))
    return make_hybrid_folder(path / "small")


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[str, StatePerplexity]:
    names = ["fp32", "int8", "int4", "default", "naive-int4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STATECELL_CACHE", str(folder.parent / "cache"))
        patch.setattr(module, "EDGES", (0, 64, 256, 512))
        counts: list[tuple[int, int]] = []
        results = state_perplexity(str(folder), str(folder.parent / "text.txt"), states=names, tokens=TOKENS, streams=3,
                                   progress=lambda done, total: counts.append((done, total)))
    assert counts[-1] == (5 * 3 * TOKENS, 5 * 3 * TOKENS)
    return {row.state: row for row in results}


def test_the_reference_is_the_plain_model(rows: dict[str, StatePerplexity], folder: Path) -> None:
    model: Any = load_model(folder).model
    ids = pieces(text().tolist(), 3, TOKENS)
    with torch.inference_mode():
        logits = model(ids, use_cache=False).logits[:, :-1]
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    assert rows["fp32"].ppl_reference == pytest.approx(float(nats.exp()), rel=1e-4)
    assert rows["fp32"].loss_added == 0 and rows["fp32"].bits_per_element == 32


def test_bits_and_positions(rows: dict[str, StatePerplexity]) -> None:
    bits = [rows[name].bits_per_element for name in ("int8", "int4", "default", "naive-int4")]
    assert bits == [8.5, 4.25, 5.3125, 4.25]
    assert rows["int4"].log_bits_per_element == 0 and rows["default"].log_bits_per_element > 0
    row = rows["int4"]
    assert set(row.added_by_position) == {"0-64", "64-256", "256-512"}
    assert row.ppl / row.ppl_reference == pytest.approx(2 ** (row.bits_per_byte - row.bits_per_byte_reference))
    assert row.relative == pytest.approx(row.bits_per_byte / row.bits_per_byte_reference - 1)
    shares = [(64 - 1) / (TOKENS - 1), (256 - 64) / (TOKENS - 1), (TOKENS - 256) / (TOKENS - 1)]
    parts = sum(share * added for share, added in zip(shares, row.added_by_position.values(), strict=True))
    assert parts == pytest.approx(row.loss_added)


def test_the_order_of_the_formats(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the mean change of a token's bits: that of their mean has no sign that a random model could be held to."""
    monkeypatch.setenv("STATECELL_CACHE", str(folder.parent / "cache"))
    loaded = load_model(folder)
    shape, ids = model_geometry(loaded.model).states, pieces(text().tolist(), 3, TOKENS)
    assert shape is not None
    calibration = known_states(loaded.model)
    exact = losses(loaded.model, ids, DynamicCache(config=loaded.model.config))
    changed = []
    for name in ("int8", "default", "int4", "naive-int4"):
        with module.stored(loaded.model, shape, [name], 3, calibration) as cache:
            changed.append(float((losses(loaded.model, ids, cache) - exact).abs().mean()))
    assert changed == sorted(changed) and 0 < 3 * changed[0] < changed[1] < 0.6 * changed[2]


def test_exact_states_add_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 24 bits a column the naive engine is exact: what the rows above show is the storage, not the path to it."""
    monkeypatch.setattr(module, "NAIVE", {"naive-int4": 24})
    (row,) = state_perplexity(str(folder), str(folder.parent / "text.txt"), states=["naive-int4"], tokens=64, streams=1)
    assert abs(row.loss_added) < 2e-3


def test_engines_are_freed(folder: Path) -> None:
    loaded = load_model(folder)
    shape = model_geometry(loaded.model).states
    assert shape is not None
    for name, kind in (("int4", ModelStates), ("naive-int4", NaiveStates)):
        with module.stored(loaded.model, shape, [name], 1, None) as cache:
            losses(loaded.model, pieces(text().tolist(), 1, 20), cache)
            engine: Any = cache.store.engine
            assert isinstance(engine, kind) and len(engine._states) == 2
        assert not engine._states


def test_refusals(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="state format 'int3' is not known"):
        state_perplexity(str(folder), "persuasion", states=["int3"])
    with pytest.raises(UnsupportedError, match="has no recurrent states"):
        state_perplexity(str(make_folder(tmp_path / "llama")), "persuasion")
    with pytest.raises(EvaluationError, match="has only 2200 tokens and 5000 are wanted"):
        state_perplexity(str(folder), str(folder.parent / "text.txt"), tokens=5000)
    with pytest.raises(EvaluationError, match="at least one stream"):
        state_perplexity(str(folder), "persuasion", streams=0)
