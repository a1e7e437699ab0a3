"""The converted model computes what glassllm's numpy code computes."""

from __future__ import annotations

import json
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pytest
import torch

from statecell.store.convert_glassllm import convert_glassllm
from statecell.store.models import load_model

glassllm_model = pytest.importorskip("glassllm.model")
glassllm_tokenizer = pytest.importorskip("glassllm.tokenizer")

TEXTS = [
    "Alice was beginning to get very tired of sitting by her sister on the bank.",
    "  “Café”\n\n  Zürich costs €5 \t and\n   a ▁ mark  ",
    "",
    "\n",
    "decomposed: e\u0301",
]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("glassllm")
    weights = files("glassllm") / "weights"
    with as_file(weights / "en.npz") as arrays, as_file(weights / "en.tokenizer.json") as tokens:
        convert_glassllm([arrays, tokens], folder)
    return folder


def test_token_numbers_are_the_same(converted: Path) -> None:
    with as_file(files("glassllm") / "weights" / "en.tokenizer.json") as path:
        original = glassllm_tokenizer.Tokenizer.load(path)
    tokenizer = load_model(converted).tokenizer
    for text in TEXTS:
        numbers = tokenizer(text)["input_ids"]
        assert numbers == original.encode(text)
        known = [number for number in numbers if number != original.unk_id]
        assert tokenizer.decode(known) == original.decode(known)


def test_logits_are_the_same(converted: Path) -> None:
    with as_file(files("glassllm") / "weights" / "en.npz") as path:
        original = glassllm_model.GlassLM.load(path)
    model = load_model(converted).model
    ids = np.random.default_rng(3).integers(4, 1024, (2, 128))
    expected = original.forward(ids).data
    with torch.no_grad():
        logits = model(torch.from_numpy(ids)).logits.numpy()
    assert np.abs(expected).max() > 5
    assert np.abs(logits - expected).max() < 1e-4


def test_the_configuration_is_the_originals(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 32)
    assert (config["max_position_embeddings"], config["tie_word_embeddings"]) == (128, True)
