"""Write-back: tokens added to the rows, a scale for each row, rounding. Formulas: docs/numerics.md, 8.4 and 8.5."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statecell.model import quantise
from statecell.model.normalise import log2
from statecell.model.recurrent import factor, log, noise
from statecell.model.recurrent.bits import scaled
from statecell.model.recurrent.state import State
from statecell.spec import formats

_TOP_EXPONENT = formats.SCALE_MAGNITUDE_MAX >> formats.SCALE_MANTISSA
_RATIOS = torch.tensor([[round(2**12 * (8 + m) / (8 + n)) for n in range(8)] for m in range(8)])
"""Ratios of mantissas, worked out here and not read from the tables of the hardware."""


@dataclass(frozen=True)
class Update:
    """Rows with the tokens added, before a new scale is chosen.

    ``lanes`` int32 [H, R, groups, group] in UPDATE_FRACTION; ``mantissa`` (0..7) and ``exponent`` of the working scale
    and ``raised``, the octaves it lies above the stored one, [H, R, groups]; ``turned``: the scale is negative.
    """

    lanes: Tensor
    mantissa: Tensor
    exponent: Tensor
    raised: Tensor
    turned: Tensor


@dataclass(frozen=True)
class Gains:
    """What E tokens add: sum over them of codes times product times 2^power.

    codes [H, E, groups, group]: key codes. product int64 [H, E, R, groups], below 2^50: value times key mantissa times
    the reciprocal of the row's. power [H, E, R or 1, groups]. size [H, R, groups]: the products' magnitudes times their
    powers add up to less than 2^size, but for what they lose below 1.
    """

    codes: Tensor
    product: Tensor
    power: Tensor
    size: Tensor


def write_back(state: State, gains: Gains, moved: Tensor, *, supplied: Tensor | None = None,
               fresh: bool = False) -> None:
    """Add tokens to the rows of the heads in ``moved`` (bool [H]), normalise the factor and store.

    supplied: scale bytes int64 [H, R, groups] of the heads with Scales.SUPPLIED. fresh: new scales whatever the mode.
    """
    after, octaves = factor.normalised(state.factor)
    update = add(state, gains, octaves + state.lost[:, None])
    scales, renewed = choose(state, update, supplied, fresh)
    rows = state.channels * state.halves
    words, register = None, noise.after(state.noise, rows)
    if bool(state.modes.stochastic.any()):
        words, register = noise.advance(state.noise, rows)
    stored = requantise(state, update, scales, words)
    here = moved[:, None, None]
    state.codes = stored if bool(moved.all()) else torch.where(here[..., None], stored, state.codes)
    state.scales = torch.where(here, scales, state.scales)
    state.factor = torch.where(moved[:, None], after, state.factor)
    state.lost = state.lost.masked_fill(moved, 0)
    state.noise = torch.where(moved, register, state.noise)
    state.rescaled = state.rescaled + (renewed & here).sum((-1, -2))


def of_token(state: State, k: Tensor, d: Tensor) -> Gains:
    """One token: k int64 [H, width] of 16 bits, d int64 [H, R] in RECUR_FRACTION."""
    codes, scales = quantise.wide_codes(factor.divided(k, factor.normalised(state.factor)[0]), state.geometry)
    signed, exponent = _signed(scales.squeeze(-1))
    product = d[..., None] * signed[:, None] * _reciprocals(state)
    total = product.abs() >> (_TOP_EXPONENT - exponent)[:, None]
    size = torch.where(total == 0, 0, log2(total) + 1) + _TOP_EXPONENT
    return Gains(codes[:, None], product[:, None], exponent[:, None, None], size)


def of_log(state: State) -> Gains:
    """The tokens of the log; formulas in docs/numerics.md, 8.6."""
    log_ = state.log
    assert log_ is not None
    codes, scales, below = log.folded(state)
    signed, exponent = _signed(scales)
    of_value, value_exponent = _signed(log_.value_scales)
    group = state.geometry.group
    values = (log_.values * of_value[..., None]).flatten(-2)[..., : state.channels]
    value_exponent = value_exponent.repeat_interleave(group, -1)[..., : state.channels]
    product = values[..., None] * signed[:, :, None]
    power = value_exponent[..., None] + (exponent - below.clamp(max=formats.LOST_MAX)[..., None])[:, :, None]
    total = torch.floor(scaled(product.abs(), power)).sum(1)  # exact: 15 + 28 bits, 7 for the sum
    bits = torch.frexp(total).exponent.to(torch.int64)
    top = torch.floor(total * 2.0 ** (_TOP_BITS - bits)).to(torch.int64)
    reciprocal = _reciprocals(state)
    size = torch.where(total == 0, 0, bits - _TOP_BITS + log2(top * reciprocal.abs()) + 1) - _VALUE_FRACTION
    return Gains(codes, product * reciprocal[:, None], power - _VALUE_FRACTION, size)


_TOP_BITS = 16
"""Leading bits of a sum of magnitudes that meet the reciprocal of the row's mantissa."""
_VALUE_FRACTION = formats.SCALE_BIAS + formats.CODE_BITS - formats.RECUR_FRACTION
"""Octaves from a logged d's code times mantissa to RECUR_FRACTION, at exponent 0."""


def _signed(scales: Tensor) -> tuple[Tensor, Tensor]:
    """(signed mantissa, exponent) of scale bytes."""
    magnitude = scales & 127
    return (torch.where(scales >= 128, -1, 1) * (8 + (magnitude & 7)), magnitude >> formats.SCALE_MANTISSA)


def _reciprocals(state: State) -> Tensor:
    """Signed reciprocals of the rows' mantissas, int64 [H, R, groups]."""
    reciprocal = quantise.RECIPROCALS[state.scales & 7]
    return torch.where(state.scales >= 128, -reciprocal, reciprocal)


def add(state: State, gains: Gains, octaves: Tensor) -> Update:
    """Rows plus ``gains``.

    octaves [H, 1 or d]: halvings of the factor, taken from the rows' exponents (one factor a head) or codes (lanes).
    """
    magnitude = state.scales & 127
    mantissa, exponent = magnitude & 7, magnitude >> formats.SCALE_MANTISSA
    down = torch.zeros_like(exponent)
    if octaves.shape[-1] == 1:
        exponent = exponent - octaves[:, None]
        down = (-exponent).clamp(min=0)
        exponent = exponent.clamp(min=0)
    place = exponent + state.shift[:, None, None] + _alignment()
    raised = (gains.size - place - (formats.GAIN_BITS - 2)).clamp(min=0)
    right = ((place + raised)[:, None] - gains.power).clamp(max=formats.LOST_MAX)
    gain = torch.floor(scaled(gains.product, -right) + 0.5)  # exact: 45 bits
    product = torch.einsum("hegl,herg->hrgl", gains.codes.double(), gain).to(torch.int32)  # 8 + 13 bits, 7 for the sum
    lanes = state.codes << (formats.UPDATE_FRACTION - formats.CODE_BITS)
    if bool(state.modes.blind.any()):
        high = state.high
        low = state.codes - (high << formats.CODE_BITS)
        lanes = (high << formats.UPDATE_FRACTION) + low * state.feedback.to(torch.int32)[:, None, None, None]
    fall = (raised + down)[..., None]
    if octaves.shape[-1] > 1:
        fall = fall + octaves.unflatten(-1, gains.codes.shape[-2:])[:, None]
    if bool(fall.any()):
        lanes = lanes >> fall.clamp(max=formats.UPDATE_BITS).to(torch.int32)
    lanes = lanes + (product >> formats.GAIN_FRACTION)  # floor: the code is rounded once, and only then without bias
    return Update(lanes, mantissa, exponent + raised, raised, state.scales >= 128)


def _alignment() -> int:
    """Right shift of a gain at exponents 0 and shift 0: what the formats' fraction bits add up to."""
    # fractions of key code and key, of value and reciprocal, less the row scale's, the lane's and the gain's
    key = formats.SCALE_BIAS + formats.CODE_BITS + formats.KEY_FRACTION
    row = formats.RECUR_FRACTION + formats.RECIPROCAL_BITS - formats.SCALE_BIAS
    return key + row - formats.UPDATE_FRACTION - formats.GAIN_FRACTION


def choose(state: State, update: Update, supplied: Tensor | None, fresh: bool) -> tuple[Tensor, Tensor]:
    """(scale bytes to store, groups of rows that took a new scale where it is held), both [H, R, groups]."""
    modes = state.modes
    wide, renew = modes.wide[:, None, None], (modes.fresh | fresh)[:, None, None]
    high = update.lanes.amax(-1).clamp(min=0).to(torch.int64)
    low = -update.lanes.amin(-1).clamp(max=0).to(torch.int64)
    largest = torch.maximum(high, low)
    # the least scale for largest * (8 + m), which counts 2^(exponent - SCALE_BIAS - UPDATE_FRACTION) each
    places = update.exponent - formats.SCALE_BIAS - formats.UPDATE_FRACTION
    code = quantise.least_scale(largest * (8 + update.mantissa)) + (places << formats.SCALE_MANTISSA)
    code = code - torch.where(wide | renew, 0, formats.HELD_CLIP)
    new = code.clamp(0, formats.SCALE_MAGNITUDE_MAX) + 128 * ((high >= low) ^ update.turned).to(torch.int64)
    unit = torch.where(wide, 1 << (formats.UPDATE_FRACTION - formats.CODE_BITS), 1 << formats.UPDATE_FRACTION)
    top = torch.where(wide, formats.WIDE_MAX, formats.CODE_MAX) * unit + unit // 2
    bottom = torch.where(wide, -formats.WIDE_MIN, -formats.CODE_MIN) * unit + unit // 2
    fits = (high < top) & (low <= bottom) & (update.raised == 0)
    small = (largest < formats.HELD_SHRINK << formats.UPDATE_FRACTION) & (update.exponent > 0)
    keep = fits & (~small | (largest == 0)) & ~renew
    held = (update.exponent << formats.SCALE_MANTISSA) + update.mantissa + 128 * update.turned.to(torch.int64)
    chosen = torch.where(keep, held, new)
    given = modes.supplied[:, None, None] & (not fresh)
    if supplied is not None:
        chosen = torch.where(given, supplied, chosen)
    return chosen, ~keep & ~renew & ~given


def requantise(state: State, update: Update, scales: Tensor, words: Tensor | None) -> Tensor:
    """Codes of the updated lanes at ``scales``; int32 [H, R, groups, group].

    words: noise registers int64 [H, halves R], which stochastic rounding needs.
    """
    modes = state.modes
    ratio = _RATIOS[update.mantissa, scales & 7]
    ratio = torch.where((scales >= 128) ^ update.turned, -ratio, ratio).to(torch.int32)
    one_plane = torch.where(modes.wide, 0, formats.CODE_BITS).to(torch.int32)[:, None, None, None]
    apart = ((scales & 127) >> formats.SCALE_MANTISSA) - update.exponent
    nearest = formats.RATIO_FRACTION + formats.UPDATE_FRACTION - formats.CODE_BITS
    # lanes * ratio has 27 bits: a right shift of 30 leaves nothing of it
    right = (nearest + apart.clamp(1 - nearest, 30)).to(torch.int32)[..., None] + one_plane
    right = right.clamp(max=30)
    bias = 1 << (right - 1)
    if words is not None:
        random = noise.lanes(words, state.geometry.head_dim).reshape(update.lanes.shape)
        spread = (random << right >> formats.NOISE_BITS).to(torch.int32)
        bias = torch.where(modes.stochastic[:, None, None, None], spread, bias)
    low = torch.where(modes.wide, formats.WIDE_MIN, formats.CODE_MIN).to(torch.int32)[:, None, None, None]
    high = torch.where(modes.wide, formats.WIDE_MAX, formats.CODE_MAX).to(torch.int32)[:, None, None, None]
    codes = (update.lanes * ratio[..., None] + bias) >> right
    return torch.clamp(codes, low, high) << one_plane
