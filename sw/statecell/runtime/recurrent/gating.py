"""Freeze gates in a forward pass: a frozen token leaves a layer's states and its convolution's inputs as they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN

_LEAST = 2.0**-24
"""Least decay, as in `units`: its logarithm is finite."""


@dataclass
class Passing:
    """One recurrent layer's part of a forward pass: ``embedding`` of its tokens [B, T, E] and ``gates`` [B, T, H].

    A token whose gates are all 0 is frozen. ``inputs`` [B, C, K]: what the convolution keeps, where a token was.
    """

    embedding: Tensor
    gates: Tensor
    inputs: Tensor | None = None

    @property
    def live(self) -> Tensor:
        """Tokens that are not frozen, bool [B, T]."""
        return (self.gates > 0).any(-1)


_whole: ContextVar[tuple[Tensor, Tensor] | None] = ContextVar("statecell_whole", default=None)
_passing: ContextVar[Passing | None] = ContextVar("statecell_passing", default=None)
_open: ContextVar[bool] = ContextVar("statecell_open", default=False)


def begin(embedding: Tensor, gates: Tensor) -> None:
    """Note the embeddings [B, T, E] and the gates [B, T, layers, H] of the forward pass that this thread begins."""
    _whole.set((embedding, gates))


def enter(layer: int) -> None:
    """Note that the thread enters a recurrent layer (counted among these)."""
    whole = _whole.get()
    assert whole is not None, "a pass begins before its layers"
    _passing.set(Passing(whole[0], whole[1][:, :, layer]))


def leave() -> Passing | None:
    """Note that it leaves the layer, and return what was known of it."""
    layer = passing()
    _passing.set(None)
    return layer


def passing() -> Passing | None:
    """The layer that this thread is in; None outside of guarded layers."""
    return None if _open.get() else _passing.get()


def gates() -> Tensor:
    """The gates [B, T, layers, H] of the thread's last forward pass of a guarded model."""
    whole = _whole.get()
    assert whole is not None, "a guarded model has been called"
    return whole[1]


@contextmanager
def all_open() -> Iterator[None]:
    """No gate is looked at while the block runs."""
    token = _open.set(True)
    try:
        yield
    finally:
        _open.reset(token)


def gated(g: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """(log decay, beta) [B, T, H] behind the gates f of the layer that the thread is in: 1 - f (1 - decay) and f beta.

    With f = 1 and f = 0 exact: as they were, and decay 1 with beta 0.
    """
    layer = passing()
    if layer is None:
        return g, beta
    f = layer.gates.to(g.dtype)
    soft = torch.log((1 + f * torch.expm1(g)).clamp(min=_LEAST))
    exact = torch.where(f == 1, g, soft)  # which would be without the gate's gradient
    return soft + (exact - soft).detach(), layer.gates.to(beta.dtype) * beta


def convolution(original: Callable) -> Callable:
    """The causal_conv1d_fn of transformers, whose taps pass over frozen tokens."""

    @functools.wraps(original)
    def convolve(inputs: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None,
                 **named: Any) -> Tensor:
        layer = passing()
        if layer is None or bool(layer.live.all()):
            out: Tensor = original(inputs, weight, bias, activation=activation, **named)
            return out
        seen, layer.inputs = _windows(inputs, layer.live, weight.shape[-1])
        summed = (seen.to(weight.dtype) * weight[:, None]).sum(-1)
        if bias is not None:
            summed = summed + bias[:, None]
        return (summed if activation is None else ACT2FN[activation](summed)).to(inputs.dtype)

    return convolve


def single(original: Callable) -> Callable:
    """Its causal_conv1d_update, which writes into the inputs it keeps, but not for a frozen token."""

    @functools.wraps(original)
    def convolve(inputs: Tensor, kept: Tensor, *rest: Any, **named: Any) -> Tensor:
        layer = passing()
        if layer is None or bool(layer.live.all()):
            out: Tensor = original(inputs, kept, *rest, **named)
            return out
        before = kept.clone()
        out = original(inputs, kept, *rest, **named)
        kept.copy_(torch.where(layer.live[:, :, None], kept, before))
        return out

    return convolve


def _windows(inputs: Tensor, live: Tensor, taps: int) -> tuple[Tensor, Tensor]:
    """(what each token's taps see, [B, C, N, taps]; the last ``taps`` live inputs, [B, C, taps]); zeros where none are.

    ``inputs`` [B, C, N] begin with those of earlier tokens, which are live; ``live`` [B, T] are the last T.
    """
    batch, channels, count = inputs.shape
    alive = torch.cat([live.new_ones(batch, count - live.shape[1]), live], 1) if count > live.shape[1] else live
    order = torch.argsort((~alive).int(), dim=1, stable=True)  # live tokens first
    rank = torch.cumsum(alive, 1)
    back = torch.arange(taps - 1, 0, -1)
    before = (rank - alive.long())[..., None] - back  # rank of the live token so many places before
    last = rank[:, -1:] - torch.arange(taps, 0, -1)
    padded = torch.nn.functional.pad(inputs, (1, 0))  # index 0 is none

    def picked(ranks: Tensor) -> Tensor:
        at = torch.where(ranks >= 0, order.gather(1, ranks.clamp(min=0).flatten(1)).view_as(ranks) + 1, 0)
        found: Tensor = padded.gather(2, at.flatten(1)[:, None].expand(-1, channels, -1))
        return torch.unflatten(found, 2, ranks.shape[1:])

    return torch.cat([picked(before), inputs[..., None]], -1), picked(last)
