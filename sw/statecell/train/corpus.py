"""The training texts as bytes, and windows of them that depend on nothing but seed and step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from statecell.store.texts import load_text
from statecell.train.recipe import TrainError
from statecell.train.shape import PAD


def text_bytes(name_or_path: str) -> Tensor:
    """The UTF-8 bytes of a text as token ids, int64 [N]."""
    return torch.frombuffer(bytearray(load_text(name_or_path).encode()), dtype=torch.uint8).long()


JUNK = (ord("#"), PAD)
"""Tokens that say nothing: a sign that the texts do not hold, and padding."""
IGNORED = -100
"""A target that has no loss."""
_JUNK_EVERY = 512
_JUNK_LENGTHS = (4, 129)


class Corpus:
    """Several texts, one after the other; a window never reaches from one into the next."""

    def __init__(self, texts: Sequence[Tensor]) -> None:
        self._texts = list(texts)

    @property
    def tokens(self) -> int:
        """Bytes in all."""
        return sum(len(text) for text in self._texts)

    def window(self, batch: int, tokens: int, seed: int, step: int, junk: float = 0.0) -> Tensor:
        """``batch`` random pieces of ``tokens`` + 1 bytes, int64 [batch, tokens + 1], texts drawn by their length.

        Into a share ``junk`` of them runs of `JUNK` tokens are inserted, one in every _JUNK_EVERY tokens or so; what no
        longer fits is cut off. Raises TrainError where no text is long enough.
        """
        # torch's generator looks at 32 bits of its seed; the odd factor spreads the seeds far apart
        generator = torch.Generator().manual_seed((seed * 2654435761 + step) % (1 << 32))
        rooms = torch.tensor([max(0, len(text) - tokens) for text in self._texts], dtype=torch.float64)
        if not bool(rooms.any()):
            raise TrainError(f"No text has the {tokens + 1} bytes of a window: give longer texts or shorter segments.")
        rows = []
        for which in torch.multinomial(rooms, batch, replacement=True, generator=generator).tolist():
            start = int(torch.randint(int(rooms[which]), (), generator=generator))
            row = self._texts[which][start:start + tokens + 1]
            if junk and float(torch.rand((), generator=generator)) < junk:
                row = _littered(row, generator)
            rows.append(row)
        return torch.stack(rows)


def _littered(row: Tensor, generator: torch.Generator) -> Tensor:
    """A row with runs of junk, as long as before."""
    parts = []
    for part in row.split(_JUNK_EVERY):
        at, length, which = (int(torch.randint(low, high, (), generator=generator)) for low, high in
                             ((0, len(part) + 1), _JUNK_LENGTHS, (0, len(JUNK))))
        parts += [part[:at], torch.full((length,), JUNK[which]), part[at:]]
    return torch.cat(parts)[:len(row)]


def targets_of(row: Tensor) -> Tensor:
    """What is to be predicted: the tokens, with IGNORED in the place of junk."""
    return torch.where(torch.isin(row, torch.tensor(JUNK)), IGNORED, row)
