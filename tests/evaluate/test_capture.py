"""The captured tokens, run through the reference, give what the model's own recurrence gives."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from statecell.evaluate.capture import captured
from statecell.model.recurrent import reference
from statecell.model.recurrent.mode import Rule

IDS = [(7 * i * i + 3) % 18 for i in range(70)]


def hybrid() -> Any:
    """Three Gated DeltaNet layers of 2 value heads over 1 key head, and one softmax layer; random."""
    torch.manual_seed(5)
    return Qwen3NextForCausalLM(Qwen3NextConfig(
        vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=32,
        linear_value_head_dim=16, max_position_embeddings=512, mlp_only_layers=[0, 1, 2, 3], pad_token_id=0,
    )).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return hybrid()


def test_reference_gives_the_models_outputs(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[type(model).__module__]
    original: Any = module.torch_chunk_gated_delta_rule
    outputs = []

    def recording(*arguments: Any, **named: Any) -> Any:
        found = original(*arguments, **named)
        outputs.append(found[0][0])
        return found

    monkeypatch.setattr(module, "torch_chunk_gated_delta_rule", recording)
    tokens = captured(model, IDS, channels=16)
    assert module.torch_chunk_gated_delta_rule is recording, "the model's function is put back"
    assert tokens.k.shape == (70, 6, 32) and tokens.v.shape == (70, 6, 16)
    o, _ = reference.run(tokens, Rule(delta=True))
    theirs = torch.cat(outputs, 1).double()
    assert float((o - theirs).norm() / theirs.norm()) < 1e-5
    assert torch.equal(captured(model, IDS, channels=3).v, tokens.v[..., :3])


def test_the_function_is_put_back_after_an_error(model: Any) -> None:
    module: Any = sys.modules[type(model).__module__]
    before = module.torch_chunk_gated_delta_rule
    with pytest.raises(IndexError):
        captured(model, [10**6], channels=1)
    assert module.torch_chunk_gated_delta_rule is before
