"""A random two-layer model with head_dim 32, its tokenizer and chat template, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [
    *("the", "sea", "was", "grey", "and", "quiet", "a", "ship", "lay", "in", "harbour", "wind"),
    *("from", "west", "came", "at", "night", "it", "rained"),
]
SPECIALS = ["<pad>", "<unk>", "<s>", "</s>", "<user>", "<model>"]
TEMPLATE = (
    "{% for m in messages %}{{ '<user> ' if m['role'] == 'user' else '<model> ' }}"
    "{{ m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<model> ' }}{% endif %}"
)


def make_folder(folder: Path, *, context: int = 64, template: str | None = TEMPLATE) -> Path:
    """Write the model into `folder`; its weights are the same every time."""
    vocabulary = {word: number for number, word in enumerate([*SPECIALS, *WORDS])}
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<user>", "<model>"],
        model_max_length=context,  # as real models have it: longer texts must not be warned about
    )
    fast.chat_template = template
    fast.save_pretrained(folder)
    return folder
