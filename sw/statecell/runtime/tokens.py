"""Which rows each token of a slot takes: one, or two where it is stored in 8 bits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class TokenMap:
    """Row boundaries of the tokens of one slot, grown as tokens are appended."""

    def __init__(self) -> None:
        self._rows = np.zeros(64, np.int64)
        self._tokens = 0

    def __len__(self) -> int:
        return self._tokens

    @property
    def rows(self) -> int:
        """Rows that the tokens take."""
        return int(self._rows[self._tokens])

    def append(self, tokens: int, *, wide: bool) -> None:
        """Add tokens of one row each, or of two where ``wide``."""
        total = self._tokens + tokens
        if total >= len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros(max(total + 1, len(self._rows)), np.int64)])
        planes = 2 if wide else 1
        self._rows[self._tokens + 1:total + 1] = self.rows + planes * np.arange(1, tokens + 1)
        self._tokens = total

    def truncate(self, tokens: int) -> None:
        """Keep the first ``tokens`` tokens."""
        if not 0 <= tokens <= self._tokens:
            raise ValueError(f"cannot keep {tokens} tokens of a slot that holds {self._tokens}")
        self._tokens = tokens

    def row(self, token: NDArray[np.int64]) -> NDArray[np.int64]:
        """First row of each token; the token after the last gives the number of rows. Raises IndexError beyond."""
        if token.size and (token.min() < 0 or token.max() > self._tokens):
            raise IndexError(f"a token range reaches {int(token.max())}, the slot holds {self._tokens} tokens")
        return self._rows[token]
