from __future__ import annotations

import time
from pathlib import Path

from transformers import AutoTokenizer

from statecell.store.byte_tokenizer import byte_signs, byte_tokenizer, save_byte_tokenizer

TEXT = "Zoë's 'tis\n\n\t — don't  \U0001f600 #"


def test_ids_are_bytes(tmp_path: Path) -> None:
    save_byte_tokenizer(tmp_path)
    for tokenizer in (byte_tokenizer(), AutoTokenizer.from_pretrained(tmp_path)):
        assert tokenizer(TEXT)["input_ids"] == list(TEXT.encode())
        assert tokenizer.decode(list(TEXT.encode())) == TEXT
        assert tokenizer("a<|end|>b<|pad|>")["input_ids"] == [97, 256, 98, 257]
        assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (256, 257)
        turns = [{"role": "user", "content": "One."}, {"role": "assistant", "content": "Two."}]
        assert tokenizer.apply_chat_template(turns, tokenize=False) == "One.\n\nTwo.\n\n"


def test_every_byte_has_a_sign_of_its_own() -> None:
    assert sorted(byte_signs()) == list(range(256)) and len(set(byte_signs().values())) == 256


def test_time_grows_with_the_length_alone() -> None:
    tokenizer, long = byte_tokenizer(), "a" * 200_000
    started = time.monotonic()
    assert len(tokenizer(long)["input_ids"]) == len(long)
    assert time.monotonic() - started < 30  # as one word it would take minutes
