"""Shape and first weights of hybrid-tiny, in transformers' own Qwen3.5 text class."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

BYTES = 256
END, PAD = 256, 257
VOCABULARY = 260
"""Bytes, end of text, padding, two spare."""
HEAD_DIM = 64
MEMORY = ((4, 64), (16, 256), (64, 2048))
"""Tokens after which each Gated DeltaNet head has forgotten 1 - 1/e, at the start of training; one tuple a layer."""


def hybrid_config(*, hidden: int = 256, intermediate: int = 512, memory: Sequence[Sequence[float]] = MEMORY,
                  kv_heads: int = 4, context: int = 32768) -> Qwen3_5TextConfig:
    """Gated DeltaNet layers, one for each entry of ``memory``, then one softmax layer.

    The softmax layer has no position encoding (a rotary part of width 0): the recurrent layers know the order, and
    nothing in it wears out beyond the lengths seen in training.
    """
    heads = len(memory[0])
    return Qwen3_5TextConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=len(memory) + 1,
        layer_types=["linear_attention"] * len(memory) + ["full_attention"], num_attention_heads=kv_heads,
        num_key_value_heads=kv_heads, head_dim=HEAD_DIM, linear_num_key_heads=heads, linear_num_value_heads=heads,
        linear_key_head_dim=HEAD_DIM, linear_value_head_dim=HEAD_DIM, max_position_embeddings=context,
        tie_word_embeddings=True, eos_token_id=END, pad_token_id=PAD,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.0},
    )


def new_model(config: Qwen3_5TextConfig, memory: Sequence[Sequence[float]], seed: int) -> Qwen3_5ForCausalLM:
    """A model with random weights of ``seed`` whose heads forget as ``memory`` says (tokens, one tuple a layer)."""
    torch.manual_seed(seed)
    model = Qwen3_5ForCausalLM(config)
    with torch.no_grad():
        for layer, tokens in zip(model.model.layers, memory, strict=False):
            for head, time in enumerate(tokens):
                # the decay is exp(-A softplus(a + bias)); a starts near 0, A at 1
                layer.linear_attn.A_log[head] = 0.0
                layer.linear_attn.dt_bias[head] = math.log(math.expm1(1 / time))
    return model
