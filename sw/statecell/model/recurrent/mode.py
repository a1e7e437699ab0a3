"""How a head's state is stored and written back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from statecell.spec import formats
from statecell.spec.geometry import Geometry


class RecurrentError(ValueError):
    """A recurrent step or mode that cannot be computed; the message says what was wrong and what to give instead."""


class Storage(StrEnum):
    """Planes of a state row."""

    INT4 = "int4"
    """One plane of 4-bit codes."""
    INT8 = "int8"
    """Two nibble planes, both read."""
    RESIDUAL = "residual"
    """Two nibble planes; the read-out sees the high one, the low one is error feedback for the next write-back."""


class Scales(StrEnum):
    """Where the scale of a written row comes from."""

    FRESH = "fresh"
    """From the largest magnitude, at each write-back."""
    HELD = "held"
    """Kept until a value overflows or the row has shrunk."""
    SUPPLIED = "supplied"
    """Given by the host for each row and write-back."""


class Rounding(StrEnum):
    """Rounding of the codes."""

    NEAREST = "nearest"
    STOCHASTIC = "stochastic"


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The recurrence of a head.

    delta: the delta rule, d = beta (v - k.S); otherwise d = beta v.
    decay_first: the read-out sees the decayed state, o = q.(g S) + (q.b) d; otherwise o = q.S + (q.b) d (RWKV).
    """

    delta: bool = False
    decay_first: bool = True


@dataclass(frozen=True, kw_only=True)
class Mode:
    """Storage of a head's state; refused combinations raise RecurrentError.

    interval: tokens from one write-back to the next, 1 to LOG_MAX; more than 1 keeps them in the log.
    rotate: Hadamard rotation of the key axis (k and q); needs one decay per head.
    """

    storage: Storage = Storage.INT4
    scales: Scales = Scales.HELD
    rounding: Rounding = Rounding.NEAREST
    interval: int = 1
    rotate: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.interval <= formats.LOG_MAX:
            raise RecurrentError(
                f"the write-back interval is {self.interval}; it must be 1 to {formats.LOG_MAX} tokens")

    @property
    def planes(self) -> int:
        """Planes of a row, 1 or 2."""
        return 1 if self.storage == Storage.INT4 else 2

    def bits_per_element(self, geometry: Geometry) -> float:
        """Stored bits of one state element, scales included, without the log."""
        return self.planes * (formats.CODE_BITS + geometry.groups * formats.SCALE_BITS / geometry.head_dim)

    def log_bits_per_element(self, geometry: Geometry, rows: int) -> float:
        """Bits of the log (two-plane rows of k and d) for one element of a state of head_dim x rows."""
        if self.interval == 1:
            return 0.0
        wide = 2 * (formats.CODE_BITS + geometry.groups * formats.SCALE_BITS / geometry.head_dim)
        return self.interval * wide * (geometry.head_dim + rows) / (geometry.head_dim * rows)
