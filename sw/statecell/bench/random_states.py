"""Random recurrent states and tokens, and what the commands of a device call them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statecell.device import StateToken
from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.mode import Mode, Rounding, Rule, Scales, Storage
from statecell.model.recurrent.state import ONE_DECAY, State, new_state
from statecell.runtime.recurrent.device_states import state_mode
from statecell.runtime.recurrent.engine import StateShape
from statecell.snapshot import state_pages
from statecell.spec import formats
from statecell.spec.commands import StateFlag, StateMode
from statecell.spec.geometry import Geometry


def every_mode(rotated: bool) -> list[Mode]:
    """Each storage with each source of scales and each rounding, written back at every token."""
    return [Mode(storage=storage, scales=scales, rounding=rounding, rotate=rotated)
            for storage, scales, rounding in product(Storage, Scales, Rounding)]


def random_heads(modes: Sequence[Mode], rule: Rule, g: Geometry, generator: torch.Generator, *, channels: int,
                 lane_decay: bool, halves: int = 1) -> State:
    """Empty states, one a mode, with any error feedback and noise and a shift of 0 to 3."""
    count = len(modes)
    return new_state(modes, rule, g, channels=channels, halves=halves, lane_decay=lane_decay,
                     feedback=torch.randint(0, 17, (count,), generator=generator),
                     shift=torch.randint(0, 4, (count,), generator=generator),
                     seed=torch.randint(1, 1 << 32, (count,), generator=generator))


def random_token(state: State, generator: torch.Generator, *, frozen: float = 0.15) -> Token:
    """Keys and values of many sizes, saturated and zero ones, decays from 2^-24 to 1, beta up to its largest; some
    tokens frozen, if the share ``frozen`` is not 0.
    """
    h, r, d = state.heads, state.channels, state.width

    def vector(width: int) -> Tensor:
        size = 2.0 ** torch.randint(0, 16, (h, 1), generator=generator)
        value = (torch.randn(h, width, generator=generator) * size).round()
        kind = torch.randint(0, 12, (h, 1), generator=generator)
        value = torch.where(kind == 0, 0, torch.where(kind == 1, value.sign() * formats.VECTOR_MAX, value))
        return value.clamp(-formats.VECTOR_MAX, formats.VECTOR_MAX).to(torch.int64)

    k = vector(d)
    b = torch.where(torch.rand(h, 1, generator=generator) < 0.5, k, vector(d))
    power = torch.randint(0, 4, (h, 1), generator=generator)
    lost = torch.rand(h, state.factor.shape[1], generator=generator, dtype=torch.float64)
    decay = 1 - lost ** torch.tensor([0.05, 1.0, 30.0, 300.0], dtype=torch.float64)[power]
    decay = (decay * ONE_DECAY).round().long().clamp(min=1)
    beta = torch.randint(0, 1 << formats.BETA_BITS, (h,), generator=generator)
    beta = torch.where(torch.rand(h, generator=generator) < 0.1, 0, beta)
    still = torch.rand(h, generator=generator) < frozen
    return Token(vector(d), k, b, vector(r), torch.where(still[:, None], ONE_DECAY, decay),
                 torch.where(still, 0, beta))


def random_scales(state: State, generator: torch.Generator) -> Tensor:
    """Scale bytes as the host may supply them, near those of the rows."""
    near = (state.scales & 127) + torch.randint(-12, 13, state.scales.shape, generator=generator)
    return near.clamp(0, formats.SCALE_MAGNITUDE_MAX) + 128 * torch.randint(0, 2, near.shape, generator=generator)


def head_mode(state: State, head: int, first_page: int = 0, *, bonus: bool) -> StateMode:
    """A head of the model as OPEN has it; ``bonus``: its tokens bring b."""
    shape = StateShape(rule=state.rule, channels=state.channels, lane_decay=state.factor.shape[1] > 1,
                       halves=state.halves)
    mode = state_mode(state.modes.each[head], shape, int(state.shift[head]), int(state.noise[head]),
                      int(state.feedback[head]))
    flags = mode.flags | StateFlag.BONUS if bonus else mode.flags & ~StateFlag.BONUS
    return replace(mode, flags=flags, first_page=first_page)


def pages(state: State, head: int) -> int:
    """Pages that a head takes, its log included."""
    return len(state_pages(head_mode(state, head, bonus=False), state.geometry.page_rows))


def head_modes(state: State, heads: Sequence[int], *, bonus: bool) -> list[StateMode]:
    """`head_mode` of these heads, their pages one after the other."""
    begins = accumulate((pages(state, head) for head in heads), initial=0)
    return [head_mode(state, head, page, bonus=bonus) for head, page in zip(heads, begins, strict=False)]


def head_tokens(state: State, token: Token, scales: Tensor | None = None, *, bonus: bool) -> list[StateToken]:
    """A token as RECUR has it, of each head; ``scales`` for the heads whose scales are supplied."""
    q, k, b, v = (x.numpy().astype(np.int16) for x in (token.q, token.k, token.b, token.v))
    decay, beta = token.decay.numpy(), token.beta.tolist()
    given: Any = None if scales is None else scales.numpy().astype(np.uint8)
    return [StateToken(q=q[head], k=k[head], v=v[head], b=b[head] if bonus else None, beta=beta[head],
                       decay=decay[head] if decay.shape[1] > 1 else int(decay[head, 0]),
                       scales=given[head] if given is not None and bool(state.modes.supplied[head]) else None)
            for head in range(state.heads)]
