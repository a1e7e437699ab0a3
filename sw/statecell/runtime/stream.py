"""Text of generated tokens, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_INCOMPLETE = "\ufffd"


class TextStream:
    """Decodes a growing list of tokens and calls `on_text` with what is new and complete.

    A character that spans several tokens is held back until its last token; special tokens yield no text.
    """

    def __init__(self, tokenizer: Any, on_text: Callable[[str], None] | None) -> None:
        self._tokenizer = tokenizer
        self._on_text = on_text
        self._tokens: list[int] = []
        self._shown = 0
        self.text = ""

    def put(self, token: int) -> None:
        """Add one token."""
        self._tokens.append(token)
        self.text = self._tokenizer.decode(self._tokens, skip_special_tokens=True)
        if not self.text.endswith(_INCOMPLETE):
            self._show()

    def end(self) -> None:
        """Hand out what was held back."""
        self._show()

    def _show(self) -> None:
        if self._on_text is not None and len(self.text) > self._shown:
            self._on_text(self.text[self._shown :])
        self._shown = len(self.text)
