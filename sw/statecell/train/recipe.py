"""Everything that decides what a training run computes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from statecell.errors import StatecellError
from statecell.store.texts import TEXTS
from statecell.train.shape import MEMORY

HELD_OUT = "persuasion"


class TrainError(StatecellError):
    """A recipe, checkpoint or folder that no training can go on with."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A pre-training run. The same recipe on the same machine gives the same weights, bit for bit.

    A step is one segment of ``segment`` tokens in each of ``batch`` streams. Streams keep their state for a window of
    ``short`` segments in the first half of the steps and ``long`` in the second, then start elsewhere in the texts. The
    learning rates rise over ``warmup`` steps, stay, and fall to 0 linearly over the last ``decay`` part of the steps.
    ``rate`` is Muon's for matrices (Jordan et al. 2024), ``rate_other`` AdamW's for everything else.
    """

    texts: tuple[str, ...] = tuple(name for name in TEXTS if name != HELD_OUT)
    seed: int = 0
    steps: int = 1600
    batch: int = 4
    segment: int = 512
    short: int = 2
    long: int = 8
    warmup: int = 50
    decay: float = 0.4
    rate: float = 0.006
    rate_other: float = 0.003
    weight_decay: float = 0.05
    hidden: int = 256
    intermediate: int = 512
    kv_heads: int = 4
    memory: tuple[tuple[float, ...], ...] = MEMORY
    half: bool = True
    """Products in bfloat16 (weights, states and sums stay float32)."""
    junk: float = 0.0
    """Share of the streams with runs of padding and of '#' in them, which the model learns to pass over."""

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise TrainError(f"steps is {self.steps}: give 0 or more.")
        for name in ("batch", "segment", "short", "long", "hidden", "intermediate", "kv_heads"):
            if getattr(self, name) < 1:
                raise TrainError(f"{name} is {getattr(self, name)}: give at least 1.")
        if not 0 <= self.seed < 1 << 31:
            raise TrainError(f"The seed is {self.seed}: give 0 to 2^31 - 1.")
        if not 0 <= self.junk <= 1:
            raise TrainError(f"The share of streams with junk is {self.junk}: give 0 to 1.")
        if HELD_OUT in self.texts:
            raise TrainError(f"The text {HELD_OUT} is held out for evaluation: train on others.")

    def factor(self, step: int) -> float:
        """Part of the full learning rate at a step."""
        rising = (step + 1) / self.warmup if self.warmup else 1.0
        falling = (self.steps - step) / max(1.0, self.decay * self.steps)
        return max(0.0, min(1.0, rising, falling))

    def segments(self, step: int) -> int:
        """Segments of the window that begins at a step."""
        return min(self.short if step < self.steps // 2 else self.long, self.steps - step)

    def as_dict(self) -> dict[str, Any]:
        """The recipe as plain values."""
        return asdict(self)
