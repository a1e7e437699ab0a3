"""What the transformers glue asks of whoever keeps recurrent states: a device, or the integer model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, Rule
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent.scales import ScaleSource
from statecell.spec.geometry import Geometry


@dataclass(frozen=True, kw_only=True)
class StateShape:
    """What the heads of a group have in common: their recurrence, value channels R, one decay a head or one a lane, and
    ``halves``, 1, or 2 where keys have twice the lanes of a row.
    """

    rule: Rule
    channels: int
    lane_decay: bool = False
    halves: int = 1


@dataclass(frozen=True, kw_only=True)
class StateCounters:
    """Totals over all groups: tokens taken (one a head), rows read, rows written (low planes and logs too), write-backs
    of a log, tokens whose write was skipped because they were frozen, groups of rows that took a new scale where it is
    held, and recalibrations of a head.
    """

    tokens: int = 0
    rows_read: int = 0
    rows_written: int = 0
    commits: int = 0
    skipped: int = 0
    rescaled: int = 0
    recalibrations: int = 0


def halves_of(dim: int, lanes: int) -> int:
    """Rows of ``lanes`` lanes for keys of ``dim``, 1 or 2. Raises UnsupportedError for keys that no two rows hold."""
    if dim > 2 * lanes:
        raise UnsupportedError(f"the model's recurrent states have keys of {dim} lanes, the engine's rows have {lanes} "
                               f"and hold keys of at most {2 * lanes}; open a device configuration with a head_dim of "
                               f"at least {-(-dim // 2)}")
    return -(-dim // lanes)


def log_rows(channels: int, dim: int) -> int:
    """Rows of one token in a log, both planes: its key and its values."""
    return 2 * (1 + -(-channels // dim))


def commit_rows(entries: int, channels: int, dim: int) -> int:
    """Rows that a write-back of so many logged tokens reads: the log, and for each channel its row and all keys."""
    return entries * log_rows(channels, dim) + 2 * channels * (1 + entries)


def recalibration_rows(logged: int | None, rows: int, channels: int, dim: int) -> tuple[int, int]:
    """(rows read, rows written) by a recalibration of a head of so many ``rows``; ``logged`` None: it has no log.

    Where there is nothing to write back, a token that adds nothing is taken first.
    """
    if logged is None:
        return rows, rows
    if logged:
        return commit_rows(logged, channels, dim), rows
    return rows + commit_rows(1, channels, dim), rows + log_rows(channels, dim)


def seed_of(head: int) -> int:
    """Noise seed of a group's head."""
    return 1 + 7919 * head


class StateEngine(Protocol):
    """Groups of heads with their states. A group is what one layer of one batch keeps, and takes tokens in step.

    Every method may raise the engine's own named errors.
    """

    @property
    def geometry(self) -> Geometry:
        """Of the array that holds the state rows; ``head_dim`` is their lanes d."""

    def check_modes(self, modes: Sequence[Mode], shape: StateShape) -> None:
        """Raise UnsupportedError where heads of this shape cannot be kept in one of these modes."""

    def open_states(self, modes: Sequence[Mode], shape: StateShape, shift: Sequence[int],
                    feedback: Sequence[int] | None = None) -> int:
        """Open a group of empty states, one a mode, each with its state shift (`model.recurrent.host.Units`).

        feedback: strength of each head's error feedback in sixteenths; None is the format's own.
        """

    def free_states(self, groups: Sequence[int]) -> None:
        """Give groups back."""

    def step(self, group: int, tokens: Token, scales: ScaleSource | None = None) -> Tensor:
        """Take tokens (tensors [T, H, ...]) one after the other; the read-outs o, int64 [T, H, R].

        scales: asked at every token for the scale bytes of heads whose mode has them supplied.
        A head whose log is full after a token is written back before the next one (COMMIT). Raises RecurrentError for
        tokens that do not fit, before the first of them has changed anything.
        """

    def recalibrate(self, group: int) -> None:
        """Add the logs of a group's heads to their rows, and give every row the scale that fits what it holds then."""

    def snapshot(self, group: int) -> Any:
        """Codes, scales, residual planes, factors, noise and log as they are now; valid as long as the group."""

    def restore(self, group: int, snapshot: Any) -> None:
        """Back to a snapshot of this group, which stays valid."""

    def counters(self) -> StateCounters:
        """Totals so far. A restore takes nothing back: what was done was done."""
