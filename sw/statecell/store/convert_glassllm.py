"""glassllm's numpy weights and tokenizer as a Hugging Face Llama model with the same logits and token numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from statecell.store.quiet import quiet_transformers

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

_SPACE = "▁"
_SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>")
_CHUNK = r"\n|▁*[^▁\n]+|▁+"  # merges never cross a chunk


def convert_glassllm(files: Sequence[Path], target: Path) -> None:
    """Write the model of `files` (weights `.npz`, tokenizer `.json`) into the folder `target`.

    Logits equal the original's to float32 rounding; token numbers equal it exactly, except that the four special
    tokens' names are recognised where they stand in a text (the original spells them as characters).
    """
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    weights, tokens = files
    with np.load(weights) as data:
        original = json.loads(str(data["__config__"]))
        arrays = {name: data[name].astype(np.float32) for name in data.files if name != "__config__"}
    head_dim = original["d_model"] // original["n_heads"]
    config = LlamaConfig(
        vocab_size=original["vocab_size"],
        hidden_size=original["d_model"],
        intermediate_size=arrays["blocks.0.ffn.W1"].shape[1],
        num_hidden_layers=original["n_layers"],
        num_attention_heads=original["n_heads"],
        num_key_value_heads=original["n_kv_heads"],
        head_dim=head_dim,
        max_position_embeddings=original["max_len"],
        rms_norm_eps=original["eps"],
        rope_parameters={"rope_type": "default", "rope_theta": original["rope_base"]},
        tie_word_embeddings=True,
        pad_token_id=_SPECIALS.index("<pad>"),
        bos_token_id=_SPECIALS.index("<bos>"),
        eos_token_id=_SPECIALS.index("<eos>"),
    )
    model = LlamaForCausalLM(config)
    model.load_state_dict(_state(arrays, original["n_layers"], head_dim), strict=False)
    model.tie_weights()
    with quiet_transformers():
        model.eval().save_pretrained(target)
    PreTrainedTokenizerFast(
        tokenizer_object=_tokenizer(json.loads(tokens.read_text(encoding="utf-8"))),
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    ).save_pretrained(target)


def _state(arrays: Mapping[str, NDArray[np.float32]], layers: int, head_dim: int) -> dict[str, torch.Tensor]:
    """The state dictionary of LlamaForCausalLM. glassllm multiplies x @ W, so every matrix is transposed."""
    import torch

    # glassllm rotates neighbouring lanes (2i, 2i+1), Llama rotates lanes i and i + head_dim / 2.
    lanes = np.concatenate([np.arange(0, head_dim, 2), np.arange(1, head_dim, 2)])

    def split_halves(matrix: NDArray[np.float32]) -> NDArray[np.float32]:
        heads = matrix.T.reshape(-1, head_dim, matrix.shape[0])
        return heads[:, lanes].reshape(-1, matrix.shape[0])

    state = {"model.embed_tokens.weight": arrays["E"], "model.norm.weight": arrays["norm_f.gamma"]}
    for layer in range(layers):
        old, new = f"blocks.{layer}.", f"model.layers.{layer}."
        state |= {
            new + "input_layernorm.weight": arrays[old + "norm1.gamma"],
            new + "self_attn.q_proj.weight": split_halves(arrays[old + "attn.W_Q"]),
            new + "self_attn.k_proj.weight": split_halves(arrays[old + "attn.W_K"]),
            new + "self_attn.v_proj.weight": arrays[old + "attn.W_V"].T,
            new + "self_attn.o_proj.weight": arrays[old + "attn.W_O"].T,
            new + "post_attention_layernorm.weight": arrays[old + "norm2.gamma"],
            new + "mlp.gate_proj.weight": arrays[old + "ffn.W1"].T,
            new + "mlp.up_proj.weight": arrays[old + "ffn.W3"].T,
            new + "mlp.down_proj.weight": arrays[old + "ffn.W2"].T,
        }
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in state.items()}


def _tokenizer(data: Mapping[str, Any]) -> Tokenizer:
    """Character byte-pair encoding over NFC text in which the space is written as a visible mark."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    merges = [(left, right) for left, right in data["merges"]]
    vocabulary = [*_SPECIALS, *data["alphabet"], *(left + right for left, right in merges)]
    # A later duplicate wins, as in the original.
    numbers = {token: number for number, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=numbers, merges=merges, unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", _SPACE)])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_CHUNK), behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.Fuse()])
    return tokenizer
