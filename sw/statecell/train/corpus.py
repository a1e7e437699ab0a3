"""The training texts as bytes, and windows of them that depend on nothing but seed and step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from statecell.store.texts import load_text
from statecell.train.recipe import TrainError


def text_bytes(name_or_path: str) -> Tensor:
    """The UTF-8 bytes of a text as token ids, int64 [N]."""
    return torch.frombuffer(bytearray(load_text(name_or_path).encode()), dtype=torch.uint8).long()


class Corpus:
    """Several texts, one after the other; a window never reaches from one into the next."""

    def __init__(self, texts: Sequence[Tensor]) -> None:
        self._texts = list(texts)

    @property
    def tokens(self) -> int:
        """Bytes in all."""
        return sum(len(text) for text in self._texts)

    def window(self, batch: int, tokens: int, seed: int, step: int) -> Tensor:
        """``batch`` random pieces of ``tokens`` + 1 bytes, int64 [batch, tokens + 1], texts drawn by their length.

        Raises TrainError where a text is shorter than that.
        """
        generator = torch.Generator().manual_seed((seed << 32) + step)
        rooms = torch.tensor([max(0, len(text) - tokens) for text in self._texts], dtype=torch.float64)
        if not bool(rooms.any()):
            raise TrainError(f"No text has the {tokens + 1} bytes of a window: give longer texts or shorter segments.")
        rows = []
        for which in torch.multinomial(rooms, batch, replacement=True, generator=generator).tolist():
            start = int(torch.randint(int(rooms[which]), (), generator=generator))
            rows.append(self._texts[which][start:start + tokens + 1])
        return torch.stack(rows)
