"""The stored state of a batch of heads: what the array, the log and the slot registers hold between two tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model import quantise, rotate
from statecell.model.recurrent.mode import Mode, RecurrentError, Rounding, Rule, Scales, Storage
from statecell.model.rows import Rows
from statecell.spec import formats
from statecell.spec.geometry import Geometry

ONE_FACTOR = 1 << (formats.FACTOR_BITS - 1)
"""A factor of 1.0."""
ONE_DECAY = 1 << formats.DECAY_FRACTION
"""A decay or log weight of 1.0."""
DEFAULT_FEEDBACK = 13
"""Error feedback in sixteenths, where nothing else is asked for."""


@dataclass(frozen=True)
class Modes:
    """The modes of H heads, and what the arithmetic asks of them as tensors [H]: bool, ``interval`` int64."""

    each: tuple[Mode, ...]
    wide: Tensor
    blind: Tensor
    fresh: Tensor
    supplied: Tensor
    stochastic: Tensor
    rotate: Tensor
    interval: Tensor

    @staticmethod
    def of(modes: Sequence[Mode]) -> Modes:
        """wide: two planes; blind: the read-out sees the high plane only."""
        flags = [[m.planes == 2 for m in modes], [m.storage == Storage.RESIDUAL for m in modes],
                 [m.scales == Scales.FRESH for m in modes], [m.scales == Scales.SUPPLIED for m in modes],
                 [m.rounding == Rounding.STOCHASTIC for m in modes], [m.rotate for m in modes]]
        wide, blind, fresh, supplied, stochastic, rotate = (torch.tensor(f) for f in flags)
        interval = torch.tensor([m.interval for m in modes])
        return Modes(tuple(modes), wide, blind, fresh, supplied, stochastic, rotate, interval)


@dataclass
class Log:
    """Tokens that wait for the write-back, as the array's 8-bit rows. Entry i of head h is in use while i < length[h].

    keys int32 [H, C, groups, group] and key_scales [H, C, groups]: k, divided by the factor at its token where the head
    has one; values int32 [H, C, value groups, group] and value_scales [H, C, value groups]: d in value LSBs, the last
    group filled up with 0. lost [H, C]: octaves that the head's factor had lost by then. weights [H, C, d], with a
    decay per lane: product of the decays since the entry's token, else None. length [H]. int64 but the codes.
    """

    keys: Tensor
    key_scales: Tensor
    values: Tensor
    value_scales: Tensor
    lost: Tensor
    weights: Tensor | None
    length: Tensor

    @staticmethod
    def empty(heads: int, entries: int, geometry: Geometry, channels: int, width: int, lane_decay: bool) -> Log:
        """A log without tokens, for keys of ``width`` lanes."""
        groups, of_values = width // geometry.group, -(-channels // geometry.group)
        return Log(torch.zeros(heads, entries, groups, geometry.group, dtype=torch.int32),
                   torch.zeros(heads, entries, groups, dtype=torch.int64),
                   torch.zeros(heads, entries, of_values, geometry.group, dtype=torch.int32),
                   torch.zeros(heads, entries, of_values, dtype=torch.int64),
                   torch.zeros(heads, entries, dtype=torch.int64),
                   torch.full((heads, entries, width), ONE_DECAY) if lane_decay else None,
                   torch.zeros(heads, dtype=torch.int64))

    def clear(self, heads: Tensor) -> None:
        """Forget the tokens of ``heads``, bool [H]."""
        which = heads[:, None, None]
        self.keys, self.values = (x.masked_fill(which[..., None], 0) for x in (self.keys, self.values))
        self.key_scales, self.value_scales = (x.masked_fill(which, 0) for x in (self.key_scales, self.value_scales))
        self.lost = self.lost.masked_fill(heads[:, None], 0)
        if self.weights is not None:
            self.weights = self.weights.masked_fill(which, ONE_DECAY)
        self.length = self.length.masked_fill(heads, 0)

    @property
    def used(self) -> Tensor:
        """Entries in use, bool [H, C]."""
        return torch.arange(self.keys.shape[1]) < self.length[:, None]


@dataclass
class State:
    """State of H heads of R value channels; a row is one channel's column of d codes. All int64 but the codes.

    halves: 1, or 2 for keys of 2 d lanes: a channel's row is then two rows of the array, one for each half of the
    lanes; halves are rotated and quantised each on its own, and ``groups`` are those of all. codes int32 [H, R, groups,
    group]: 8-bit codes, 16 high + low; the low plane of one-plane heads is 0 and not stored. scales [H, R, groups]:
    scale bytes. An element is code / 16 * scale * factor / 2^lost, in 2^shift value LSBs. factor [H, 1 or width]:
    FACTOR_BITS, 1.0 to 2.0; one per lane where the decay is, which falls until the next write-back. lost [H]: octaves
    by which the one factor has been brought back since the last write-back, 0 with one per lane. feedback [H]: alpha of
    Storage.RESIDUAL in sixteenths. shift [H]: state shift. noise [H]: LFSR. log: None if every head writes back at each
    token. skipped, rescaled [H]: tokens whose write was skipped because they were frozen, and groups of rows that took
    a new scale where it is held.
    """

    modes: Modes
    rule: Rule
    geometry: Geometry
    halves: int
    codes: Tensor
    scales: Tensor
    factor: Tensor
    lost: Tensor
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
    def width(self) -> int:
        """Lanes of a key."""
        return self.halves * self.geometry.head_dim

    def turned(self, x: Tensor) -> Tensor:
        """Vectors int64 [H, width], each half rotated where the head is."""
        halves = rotate.forward(x.unflatten(-1, (self.halves, -1)), self.geometry).flatten(-2)
        return torch.where(self.modes.rotate[:, None], halves, x)

    @property
    def rotation_gain(self) -> Tensor:
        """log2 of x.y over (Rx).(Ry), int64 [H]: -1 where the head is rotated by a matrix not orthonormal, else 0."""
        dim = self.geometry.head_dim.bit_length() - 1
        return (2 * self.geometry.rotate_shift - dim) * self.modes.rotate.to(torch.int64)

    @property
    def high(self) -> Tensor:
        """The high plane's 4-bit codes."""
        return (self.codes + 8) >> formats.CODE_BITS

    def rows(self, head: int) -> Rows:
        """Raw rows of one head as the array holds them, [halves R, d], a channel's halves after each other, or twice as
        many with two planes, low plane first.
        """
        codes, high, scales = (x[head].long().reshape(-1, self.geometry.groups, *x.shape[3:])
                               for x in (self.codes, self.high, self.scales))
        if self.modes.each[head].planes == 2:
            return quantise.planes(codes, scales[..., None])
        return Rows(high.flatten(-2), scales, torch.full_like(scales, 8))

    def values(self) -> Tensor:
        """Elements in value LSBs, float64 [H, R, width], on the (rotated) key axis and without the log."""
        octaves = (self.shift - self.lost).double()[:, None, None]
        return _elements(self.codes, self.scales) * 2.0**octaves * (self.factor.double() / ONE_FACTOR)[:, None]

    def logged(self) -> Tensor:
        """What the tokens in the log add to `values`, in the same units."""
        log = self.log
        if log is None:
            return torch.zeros_like(self.values())
        if log.weights is not None:
            weight = log.weights.double() / ONE_DECAY
        else:  # the key was divided by the factor at its token
            weight = (self.factor.double() / ONE_FACTOR * 2.0 ** (log.lost - self.lost[:, None]).double())[..., None]
        keys = _elements(log.keys, log.key_scales) * weight * log.used[..., None] / (1 << formats.KEY_FRACTION)
        values = _elements(log.values, log.value_scales)[..., :self.channels]
        return torch.einsum("her,hed->hrd", values, keys)

    def unrotated_values(self) -> Tensor:
        """`values` and `logged` on the key axis as it was before the rotation."""
        stored, geometry = self.values() + self.logged(), self.geometry
        back = (stored.unflatten(-1, (self.halves, -1)) @ rotate.hadamard(geometry.head_dim)).flatten(-2)
        back = back * (2.0**geometry.rotate_shift / geometry.head_dim)
        return torch.where(self.modes.rotate[:, None, None], back, stored)

    def energy(self) -> Tensor:
        """Squared norm of the stored rows, int64 [H] below 2^57: the sum of `row_energy`."""
        return self.row_energy().sum(-1)

    def row_energy(self) -> Tensor:
        """Squared norm of each stored row, int64 [H, R], in 2^-12 LSB^2 (shift and factor not applied).

        Sum over groups of (sum of high-plane code^2) (8 + m)^2 << 2 e.
        """
        magnitude = self.scales & 127
        square = (self.high.long() ** 2).sum(-1) * (8 + (magnitude & 7)) ** 2
        return (square << 2 * (magnitude >> formats.SCALE_MANTISSA)).sum(-1)


def _elements(codes: Tensor, scales: Tensor) -> Tensor:
    """Codes [..., groups, group] in 2^-CODE_BITS of their scales, scale bytes [..., groups]: float64 [..., lanes]."""
    magnitude = scales & 127
    mantissa = torch.where(scales >= 128, -1, 1) * (8 + (magnitude & 7))
    power = (magnitude >> formats.SCALE_MANTISSA) - formats.SCALE_BIAS - formats.CODE_BITS
    return (codes.double() * (mantissa.double() * 2.0 ** power.double())[..., None]).flatten(-2)


def new_state(modes: Sequence[Mode], rule: Rule, geometry: Geometry, *, channels: int, halves: int = 1,
              lane_decay: bool = False, feedback: Tensor | int = DEFAULT_FEEDBACK, shift: Tensor | int = 0,
              seed: Tensor | int = 1) -> State:
    """An empty state with one mode a head, for keys of ``halves`` x head_dim lanes. feedback (sixteenths), shift and
    seed (not 0): one for all heads, or [H].
    """
    heads, width, groups = len(modes), halves * geometry.head_dim, halves * geometry.groups
    if lane_decay and any(mode.rotate for mode in modes):
        raise RecurrentError("a decay per lane cannot be rotated; use modes with rotate=False")
    limits = {"feedback": (0, 1 << formats.FEEDBACK_FRACTION), "shift": (0, formats.STATE_SHIFT_MAX),
              "seed": (1, (1 << formats.LFSR_BITS) - 1)}
    spread = {}
    for name, value in (("feedback", feedback), ("shift", shift), ("seed", seed)):
        low, high = limits[name]
        tensor = torch.as_tensor(value, dtype=torch.int64).expand(heads).clone()
        if bool(((tensor < low) | (tensor > high)).any()):
            raise RecurrentError(f"{name} is {tensor.tolist()}; each must be {low} to {high}")
        spread[name] = tensor
    known = Modes.of(modes)
    longest = max(mode.interval for mode in modes)
    return State(
        modes=known, rule=rule, geometry=geometry, halves=halves,
        codes=torch.zeros(heads, channels, groups, geometry.group, dtype=torch.int32),
        scales=torch.zeros(heads, channels, groups, dtype=torch.int64),
        factor=torch.full((heads, width if lane_decay else 1), ONE_FACTOR, dtype=torch.int64),
        lost=torch.zeros(heads, dtype=torch.int64),
        feedback=torch.where(known.blind, spread["feedback"], 1 << formats.FEEDBACK_FRACTION),
        shift=spread["shift"], noise=spread["seed"],
        log=Log.empty(heads, longest, geometry, channels, width, lane_decay) if longest > 1 else None,
        skipped=torch.zeros(heads, dtype=torch.int64), rescaled=torch.zeros(heads, dtype=torch.int64),
    )
