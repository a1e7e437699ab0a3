"""The glue over exact attention gives SmolLM2 the tokens that sdpa gives it, with the calibration that is shipped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from statecell.runtime.attention import attach, attachment_of, detach
from statecell.store.models import is_fetched, load_model
from tests.runtime.exact_engine import ExactEngine

NAME = "smollm2-135m"
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not is_fetched(NAME), reason=f"needs the model: statecell models fetch {NAME}"),
]
PROMPT = "Sir Walter Elliot, of Kellynch Hall, in Somersetshire, was a man who, for his own amusement,"
QUESTION = " What did he read?"


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load_model(NAME)


@pytest.fixture
def model(loaded: Any) -> Any:
    yield loaded.model
    if attachment_of(loaded.model) is not None:
        detach(loaded.model)


def greedy(model: Any, ids: torch.Tensor, **options: Any) -> Any:
    return model.generate(ids, do_sample=False, max_new_tokens=16, eos_token_id=None, **options)


def test_two_turns(model: Any, loaded: Any) -> None:
    first, second = (loaded.tokenizer(text, return_tensors="pt").input_ids for text in (PROMPT, QUESTION))

    def talk(cache: Any) -> Any:
        history = torch.cat([greedy(model, first, cache=cache), second], dim=1)
        return greedy(model, history, cache=cache)

    expected = talk(DynamicCache())
    attachment = attach(model, ExactEngine(64))
    assert attachment.calibration is not None
    assert attachment.calibration.text == "emma"
    assert torch.equal(talk(attachment.new_cache()), expected)
    assert attachment.tally.elements == 30 * 3 * 2 * 64 * (expected.shape[1] - 1)
    assert attachment.tally.saturated == 0


def test_left_padded_batch(model: Any, loaded: Any) -> None:
    tokenizer = loaded.tokenizer
    tokenizer.padding_side = "left"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch = tokenizer([PROMPT, "The sea"], return_tensors="pt", padding=True)
    expected = greedy(model, batch.input_ids, attention_mask=batch.attention_mask)
    attach(model, ExactEngine(64))
    assert torch.equal(greedy(model, batch.input_ids, attention_mask=batch.attention_mask), expected)
