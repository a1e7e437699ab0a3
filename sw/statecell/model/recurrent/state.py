"""The stored state of a batch of heads: what the array, the log and the slot registers hold between two tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model import quantise
from statecell.model.recurrent.mode import Mode, RecurrentError, Rule, Storage
from statecell.model.rows import Rows
from statecell.spec import formats
from statecell.spec.geometry import Geometry

ONE_FACTOR = 1 << (formats.FACTOR_BITS - 1)
"""A factor of 1.0."""
ONE_DECAY = 1 << formats.DECAY_FRACTION
"""A decay or log weight of 1.0."""


@dataclass
class Log:
    """Tokens that wait for the write-back, int64. Entry i of head h is in use while i < length[h].

    keys [H, C, d] 16-bit keys as the array's 8-bit rows give them back; values [H, C, R] likewise, in RECUR_FRACTION;
    weights [H, C, 1 or d]: product of the decays since the entry's token; length [H].
    """

    keys: Tensor
    values: Tensor
    weights: Tensor
    length: Tensor

    @staticmethod
    def empty(heads: int, entries: int, dim: int, channels: int, width: int) -> Log:
        """A log without tokens; ``width`` is the last axis of the weights."""
        return Log(torch.zeros(heads, entries, dim, dtype=torch.int64),
                   torch.zeros(heads, entries, channels, dtype=torch.int64),
                   torch.full((heads, entries, width), ONE_DECAY, dtype=torch.int64),
                   torch.zeros(heads, dtype=torch.int64))

    @property
    def used(self) -> Tensor:
        """Entries in use, bool [H, C]."""
        return torch.arange(self.keys.shape[1]) < self.length[:, None]


@dataclass
class State:
    """State of H heads of R value channels; a row is one channel's column of d codes. All int64.

    codes [H, R, groups, group]: 8-bit codes of two-plane rows, 4-bit codes of one-plane rows.
    scales [H, R, groups]: scale bytes. An element is code * scale (/ 16 with two planes) * factor, in 2^shift value LSBs.
    factor [H, 1 or d]: FACTOR_BITS, 1.0 to 2.0 after a write-back; one per lane where the decay is.
    feedback [H]: alpha of Storage.RESIDUAL in sixteenths. shift [H]: state shift. noise [H]: LFSR.
    skipped, rescaled [H]: tokens whose write was skipped (frozen), and groups of rows that took a new held scale.
    """

    mode: Mode
    rule: Rule
    geometry: Geometry
    codes: Tensor
    scales: Tensor
    factor: Tensor
    feedback: Tensor
    shift: Tensor
    noise: Tensor
    log: Log | None
    skipped: Tensor
    rescaled: Tensor

    @property
    def heads(self) -> int:
        """Heads in the batch."""
        return self.codes.shape[0]

    @property
    def channels(self) -> int:
        """Value channels, the rows of a head."""
        return self.codes.shape[1]

    @property
    def rotation_gain(self) -> int:
        """log2 of x.y over (Rx).(Ry): 0, or -1 where the rotation is not orthonormal."""
        if not self.mode.rotate:
            return 0
        return 2 * self.geometry.rotate_shift - (self.geometry.head_dim.bit_length() - 1)

    def rows(self) -> Rows:
        """Raw rows as the array holds them, [H, R or 2R, d]; two-plane rows low plane first."""
        if self.mode.planes == 2:
            return quantise.planes(self.codes, self.scales[..., None])
        return Rows(self.codes.flatten(-2), self.scales, torch.full_like(self.scales, 8))

    def values(self) -> Tensor:
        """Elements in value LSBs, float64 [H, R, d], on the (rotated) key axis and without the log."""
        rows = self.rows().dequantise()
        if self.mode.planes == 2:
            rows = rows[:, 0::2] + rows[:, 1::2]
        factor = self.factor.double() / ONE_FACTOR
        return rows * factor[:, None] * 2.0 ** self.shift.double()[:, None, None]

    def energy(self) -> Tensor:
        """Squared norm of the stored rows, int64 [H] below 2^57, in 2^-12 LSB^2 (shift and factor not applied).

        Sum over rows and groups of (sum of high-plane code^2) (8 + m)^2 << 2 e.
        """
        code = self.codes if self.mode.planes == 1 else (self.codes + 8) >> formats.CODE_BITS
        magnitude = self.scales & 127
        square = (code * code).sum(-1) * (8 + (magnitude & 7)) ** 2 << 2 * (magnitude >> 3)
        return square.sum((-1, -2))


def new_state(mode: Mode, rule: Rule, geometry: Geometry, *, heads: int, channels: int, lane_decay: bool = False,
              feedback: Tensor | int = 13, shift: Tensor | int = 0, seed: Tensor | int = 1) -> State:
    """An empty state. feedback (sixteenths), shift and seed (not 0): one for all heads, or [H]."""
    if lane_decay and mode.rotate:
        raise RecurrentError("a decay per lane cannot be rotated; use a mode with rotate=False")
    limits = {"feedback": (0, 1 << formats.FEEDBACK_FRACTION), "shift": (0, formats.STATE_SHIFT_MAX),
              "seed": (1, (1 << formats.LFSR_BITS) - 1)}
    spread = {}
    for name, value in (("feedback", feedback), ("shift", shift), ("seed", seed)):
        low, high = limits[name]
        tensor = torch.as_tensor(value, dtype=torch.int64).expand(heads).clone()
        if bool(((tensor < low) | (tensor > high)).any()):
            raise RecurrentError(f"{name} is {tensor.tolist()}; each must be {low} to {high}")
        spread[name] = tensor
    if mode.storage != Storage.RESIDUAL:
        spread["feedback"].fill_(1 << formats.FEEDBACK_FRACTION)
    d, width = geometry.head_dim, geometry.head_dim if lane_decay else 1
    zeros = {n: torch.zeros(heads, dtype=torch.int64) for n in ("skipped", "rescaled")}
    log = Log.empty(heads, mode.interval, d, channels, width) if mode.interval > 1 else None
    return State(
        mode=mode, rule=rule, geometry=geometry,
        codes=torch.zeros(heads, channels, geometry.groups, geometry.group, dtype=torch.int64),
        scales=torch.zeros(heads, channels, geometry.groups, dtype=torch.int64),
        factor=torch.full((heads, width), ONE_FACTOR, dtype=torch.int64),
        feedback=spread["feedback"], shift=spread["shift"], noise=spread["seed"], log=log,
        skipped=zeros["skipped"], rescaled=zeros["rescaled"],
    )
