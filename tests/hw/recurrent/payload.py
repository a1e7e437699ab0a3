"""Payloads of tokens as the device takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from statecell.model.recurrent.integer import Token
from statecell.model.recurrent.state import State
from statecell.spec import frame
from tests.hw.recurrent.ports import mode_fields


def slot_fields(state: State, head: int, base: int, *, bonus: bool = True) -> dict[str, Any]:
    """A head's slot as slot_layout has it."""
    return {
        "mode": mode_fields(state, head), "rotate": int(state.modes.rotate[head]),
        "lane_decay": int(state.factor.shape[1] > 1), "decay_first": int(state.rule.decay_first), "bonus": int(bonus),
        "halves": state.halves - 1, "base": base, "channels": state.channels,
        "interval": int(state.modes.interval[head]),
    }


def token_payload(state: State, token: Token, head: int, scales: torch.Tensor, *, bonus: bool = True) -> bytes:
    """Payload of one head's token."""
    def part(values: torch.Tensor, kind: str) -> bytes:
        return frame.pad(values.numpy().astype(kind).tobytes())

    lanes = state.factor.shape[1] > 1
    scalars = np.array([int(token.beta[head]), 0 if lanes else int(token.decay[head, 0]), 0, 0], "<u4").tobytes()
    body = scalars + (part(token.decay[head], "<u4") if lanes else b"")
    body += part(token.q[head], "<i2") + part(token.k[head], "<i2")
    if bonus:
        body += part(token.b[head], "<i2")
    body += part(token.v[head], "<i2")
    if bool(state.modes.supplied[head]):
        body += part(scales[head].flatten(), "u1")
    return body


def payload_words(body: bytes, link_bytes: int) -> list[int]:
    """Link words of a payload."""
    return [int.from_bytes(body[i:i + link_bytes], "little") for i in range(0, len(body), link_bytes)]


def signed_outputs(words: list[int], link_bytes: int) -> list[int]:
    """Outputs of a token from the link words."""
    data = b"".join(word.to_bytes(link_bytes, "little") for word in words)
    return [int(x) for x in np.frombuffer(data, "<i4")]
