"""Full-range states for the gateware of the recurrent step, and what the integer model makes of a token."""

from __future__ import annotations

import torch
from torch import Tensor

from statecell.model import quantise
from statecell.model.recurrent import factor, log
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, Rule
from statecell.model.recurrent.readout import queries
from statecell.model.recurrent.state import State, new_state
from statecell.model.recurrent.writeback import Update
from statecell.spec import formats
from statecell.spec.geometry import Geometry


def random_state(modes: list[Mode], rule: Rule, g: Geometry, generator: torch.Generator, *, channels: int,
                 lane_decay: bool, halves: int = 1) -> State:
    """Full-range codes and scales (some rows 0 or saturated), any shift and feedback, factors from 1.0 to 2.0."""
    heads = len(modes)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator)

    state = new_state(modes, rule, g, channels=channels, halves=halves, lane_decay=lane_decay,
                      feedback=integers(0, 16, heads), shift=integers(0, formats.STATE_SHIFT_MAX, heads),
                      seed=integers(1, 2**32 - 1, heads))
    size = tuple(state.codes.shape)
    codes = integers(formats.WIDE_MIN, formats.WIDE_MAX, *size)
    kind = integers(0, 9, heads, channels, 1, 1)
    codes = torch.where(kind == 0, 0, torch.where(kind == 1, formats.WIDE_MIN, codes))
    codes = torch.where(kind == 2, formats.WIDE_MAX, torch.where(kind == 3, codes >> 5, codes))
    narrow = (codes + 8 >> formats.CODE_BITS).clamp(formats.CODE_MIN, formats.CODE_MAX) << formats.CODE_BITS
    state.codes = torch.where(state.modes.wide[:, None, None, None], codes, narrow).to(torch.int32)
    around = integers(0, 14, heads, 1, 1)
    exponent = (around + integers(-2, 2, *state.scales.shape)).clamp(0, 14)
    state.scales = (exponent << 3) + integers(0, 7, *exponent.shape) + 128 * integers(0, 1, *exponent.shape)
    state.factor = integers(1 << 23, (1 << 24) - 1, *state.factor.shape)
    return state


class Operands:
    """What the vector side hands to the rows, for one token of all heads: ``query`` (q and k times half the factor, as
    `readout.queries` has them), ``codes`` [H, groups, group] and ``scales`` [H, groups] of the key, ``mix``,
    ``octaves`` [H, 1 or d], ``lost`` [H, 2], the octaves that the rows lie below the factors of q and of k, and the
    ``frozen`` heads.
    """

    def __init__(self, state: State, token: Token) -> None:
        after = factor.decayed(state.factor, token.decay)
        whole, self.octaves = factor.normalised(after)
        lost = torch.zeros_like(state.lost)
        if after.shape[1] == 1:
            after, lost = whole, self.octaves[:, 0]
        q, k = state.turned(token.q), state.turned(token.k)
        first = state.rule.decay_first
        self.query = queries(state, torch.stack(
            [factor.times_half(q, after if first else state.factor), factor.times_half(k, after)], 1))
        self.lost = torch.stack([state.lost + (lost if first else 0), state.lost + lost], 1)
        codes, scales = quantise.wide_codes(factor.divided(k, whole), state.geometry)
        self.codes, self.scales = codes, scales.squeeze(-1)
        self.mix = log.mix(token.q, token.b)
        self.frozen = factor.kept(token.decay, token.beta)


def random_update(state: State, generator: torch.Generator) -> Update:
    """Updated rows of any size in any working scale, a third of them raised, some 0 or at the limits of codes."""
    shape = state.scales.shape
    size = 2.0 ** torch.randint(0, 14, (*shape, 1), generator=generator)
    lanes = (torch.randn(*shape, state.geometry.group, generator=generator) * size).round().clamp(-8192, 8191)
    lanes = torch.where(torch.randint(0, 12, (*shape, 1), generator=generator) == 0, 0, lanes)
    limits = torch.tensor([7 * 256 + 128, 7 * 256 + 127, -8 * 256 - 128, -8 * 256 - 129, 119 * 16 + 8, 119 * 16 + 7,
                           -128 * 16 - 8, -128 * 16 - 9, 511, 512, -512, 8191, -8192])
    edge = limits[torch.randint(0, len(limits), shape, generator=generator)]
    narrow = lanes.clamp(-300, 300)
    narrow[..., 3] = edge
    lanes = torch.where(torch.rand(*shape, 1, generator=generator) < 0.3, narrow, lanes)
    raised = torch.randint(-6, 4, shape, generator=generator).clamp(min=0)
    exponent = torch.randint(0, 15, shape, generator=generator) + raised
    mantissa = torch.randint(0, 8, shape, generator=generator)
    turned = torch.randint(0, 2, shape, generator=generator) == 1
    return Update(lanes.to(torch.int32), mantissa, exponent, raised, turned)
