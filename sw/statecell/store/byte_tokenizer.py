"""A tokenizer whose ids are the bytes of UTF-8 text."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from transformers import PreTrainedTokenizerFast

END, PAD = "<|end|>", "<|pad|>"
_TURNS = "{% for m in messages %}{{ m['content'] + '\n\n' }}{% endfor %}"
"""A conversation as paragraphs: such a model goes on with a text, it was not taught to answer."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 to 255 are bytes, 256 ends a text, 257 pads."""
    tokenizer = Tokenizer(BPE(vocab={sign: byte for byte, sign in byte_signs().items()}, merges=[]))
    # Pieces of one sign each: a whole text as one word would take quadratic time.
    tokenizer.pre_tokenizer = Sequence([ByteLevel(add_prefix_space=False, use_regex=False), Split("", "isolated")])
    tokenizer.decoder = ByteDecoder()
    tokenizer.add_special_tokens([AddedToken(END, special=True), AddedToken(PAD, special=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
    fast.chat_template = _TURNS
    return fast


def save_byte_tokenizer(folder: Path) -> None:
    """Write its files into a folder."""
    byte_tokenizer().save_pretrained(folder)


def byte_signs() -> dict[int, str]:
    """The printable sign that stands for each byte in tokenizer files (the table of GPT-2's byte-level BPE)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}
