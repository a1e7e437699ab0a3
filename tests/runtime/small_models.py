"""Small random models, and sdpa's answer to compare with."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

HEAD_DIM = 16
PAD = 0
_SHAPE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # large enough that attention decides which token wins
    "pad_token_id": PAD,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CONFIGS: dict[str, Any] = {
    "llama": lambda: LlamaConfig(**_SHAPE),
    "qwen2": lambda: Qwen2Config(**_SHAPE),
    "qwen3": lambda: Qwen3Config(**_SHAPE),
    "mistral-sliding": lambda: MistralConfig(**_SHAPE, sliding_window=5),
    "gemma": lambda: GemmaConfig(**_SHAPE),
    "gemma3-mixed": lambda: Gemma3TextConfig(
        **_SHAPE,
        sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    "gpt-neox": lambda: GPTNeoXConfig(
        **{**_SHAPE, "hidden_size": 96, "head_dim": None},
        rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5},
    ),
}


def small_model(name: str = "llama", config: Any = None) -> Any:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config or CONFIGS[name]())  # sdpa, where there is attention
    # An end-of-sequence token would end the comparison early.
    model.generation_config.eos_token_id = None
    return model.eval()


def prompt(length: int, batch: int = 1, seed: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, 96, (batch, length), generator=generator)
