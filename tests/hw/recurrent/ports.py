"""Values of the operand ports."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from statecell.model.quantise import Queries
from statecell.model.recurrent.state import State
from statecell.spec import formats
from statecell_hw.recurrent.readout import VECTORS
from tests.hw.recurrent.states import Operands


def scale_fields(byte: int) -> dict[str, int]:
    """A scale byte as the layout SCALE has it."""
    return {"mantissa": byte & 7, "exponent": byte >> 3 & 15, "sign": byte >> 7}


def scale_list(scales: Tensor) -> list[dict[str, int]]:
    return [scale_fields(byte) for byte in scales.tolist()]


def mode_fields(state: State, head: int) -> dict[str, int]:
    """A head's mode as the layout MODE has it."""
    modes = state.modes
    return {
        "delta": int(state.rule.delta), "wide": int(modes.wide[head]), "blind": int(modes.blind[head]),
        "fresh": int(modes.fresh[head]), "supplied": int(modes.supplied[head]),
        "stochastic": int(modes.stochastic[head]), "feedback": int(state.feedback[head]),
        "shift": int(state.shift[head]),
    }


def head_fields(state: State, operands: Operands, beta: Tensor, head: int) -> dict[str, Any]:
    """A head's token as the layout HEAD has it."""
    scalar = state.factor.shape[1] == 1
    return {
        "mode": mode_fields(state, head), "halved": int(state.rotation_gain[head] < 0),
        "write": int(not operands.frozen[head]), "beta": int(beta[head]), "mix": int(operands.mix[head]),
        "octaves": int(operands.octaves[head, 0]) if scalar else 0, "noise": int(state.noise[head]),
        "log": int(state.modes.interval[head] > 1), "commit": 0, "lost": operands.lost[head].tolist(),
    }


def key_fields(state: State, operands: Operands, head: int) -> dict[str, Any]:
    """A head's key as key_layout has it; one half takes the places of both."""
    d = state.geometry.head_dim
    falls = operands.octaves[head].clamp(max=formats.UPDATE_BITS).tolist()
    codes = operands.codes[head].reshape(state.halves, d).tolist()
    scales = [scale_list(half) for half in operands.scales[head].reshape(state.halves, -1)]
    return {
        "codes": [codes[0], codes[-1]], "scales": [scales[0], scales[-1]],
        "falls": falls if len(falls) == d else [0] * d,
    }


def row_fields(state: State, head: int, channel: int) -> dict[str, Any]:
    """A row, half of a channel where there are two of it, as state_row has it."""
    channel, half = divmod(channel, state.halves)
    of_half = slice(half * state.geometry.groups, (half + 1) * state.geometry.groups)
    high = state.high[head, channel, of_half].flatten()
    low = state.codes[head, channel, of_half].flatten() - (high << formats.CODE_BITS)
    return {"high": high.tolist(), "low": low.tolist(), "scales": scale_list(state.scales[head, channel, of_half])}


def set_load(ctx: Any, load: Any, lane: int, query: Queries, head: int) -> None:
    """Offer a head's q or k, or its second half, to a lane of the dot unit."""
    half, vector = divmod(lane, VECTORS)
    ctx.set(load.valid, 1 << lane)
    ctx.set(load.lane, lane)
    ctx.set(load.codes, query.codes[head, vector, half].tolist())
    ctx.set(load.sign, int(query.sign[head, vector, half] < 0))
    ctx.set(load.mantissa, int(query.mantissa[head, vector, half]) - 8)
    ctx.set(load.exponent, int(query.exponent[head, vector, half]))
