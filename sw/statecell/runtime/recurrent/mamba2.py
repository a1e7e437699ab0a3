"""Dispatchers in front of transformers' two functions of Mamba-2 (Dao and Gu 2024): of a sequence, and of one token.

S <- exp(dt A) S + B (dt x), y = C.S + D x is a gated rule of queries C, keys B, values dt x and log decays dt A, beside
a skip that is added here. Shapes: x [B, T, H, P], dt [B, T, H], a and d [H], b and c [B, T, G, N].
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent import gating
from statecell.runtime.recurrent.layer import StateHandle

_REFUSED = ("z", "seq_idx", "cu_seqlens")
_LIMITS = (0.0, float("inf"))
Rule = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def gated_rule(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Rule:
    """(query, key, value, log of the decay, beta), float32, behind the freeze gates of the layer that is being run."""
    g, beta = gating.gated(dt * a, torch.ones_like(dt))
    return c.float(), b.float(), x.float() * dt[..., None], g, beta


def time_steps(dt: Tensor, dt_bias: Tensor | None = None, dt_softplus: bool = False,
               dt_limit: tuple[float, float] = _LIMITS, **_: Any) -> Tensor:
    """The steps dt >= 0, float32, of what the model projected, by transformers' names; it limits those of sequences."""
    raw = dt.float() if dt_bias is None else dt.float() + dt_bias.float()
    return (functional.softplus(raw) if dt_softplus else raw).clamp(*dt_limit)


def of_sequence(original: Callable) -> Callable:
    """The mamba2_chunk_scan of transformers."""

    @functools.wraps(original)
    def scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, chunk_size: int, **named: Any) -> Any:
        handle = named.get("initial_states")
        if _is_transformers_own(handle, named):
            return original(x, dt, a, b, c, chunk_size, **named)

        def on_host(x: Tensor, dt: Tensor, a: Tensor) -> Any:
            return original(x, dt, a, b, c, chunk_size, initial_states=handle, return_final_states=True)

        out, state = _run(handle, on_host, x, time_steps(dt, **named), a, b, c, named.get("D"))
        return (out, state) if named.get("return_final_states") else out

    return scan


def of_token(original: Callable) -> Callable:
    """Its mamba2_selective_state_update, whose arguments have no T, but P and N where they are the same for all."""

    @functools.wraps(original)
    def update(handle: Any, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, D: Tensor | None = None,
               dt_bias: Tensor | None = None, dt_softplus: bool = False, **named: Any) -> Tensor:
        if _is_transformers_own(handle, named):
            out: Tensor = original(handle, x, dt, a, b, c, D, dt_bias=dt_bias, dt_softplus=dt_softplus, **named)
            return out

        def on_host(x: Tensor, dt: Tensor, heads: Tensor) -> Any:
            steps = dt[:, 0, :, None].expand_as(x[:, 0])
            return original(handle, x[:, 0], steps, heads[:, None, None].expand_as(a), b, c)[:, None], handle

        steps = time_steps(dt[..., 0], None if dt_bias is None else dt_bias[:, 0], dt_softplus)
        found, _ = _run(handle, on_host, x[:, None], steps[:, None], a[:, 0, 0], b[:, None], c[:, None],
                        None if D is None else D[:, 0])
        return found[:, 0].to(x.dtype)

    return update


def _is_transformers_own(handle: Any, named: dict[str, Any]) -> bool:
    """Whether the state is a tensor (or None) and all gates are open. Raises UnsupportedError for what is unknown."""
    if not isinstance(handle, StateHandle):
        known = gating.passing()
        return known is None or bool((known.gates == 1).all())
    if asked := [name for name in _REFUSED if named.get(name) is not None]:
        raise UnsupportedError(f"layer {handle.layer.index} gives its recurrence {asked[0]}, which the engine does not "
                               "compute; detach the engine for this model")
    return False


def _run(handle: Any, on_host: Callable, x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor,
         d: Tensor | None) -> tuple[Tensor, Any]:
    """(outputs [B, T, H, P], state): a handle's from the engine, a tensor's from ``on_host`` of other x, dt and a."""
    query, key, value, g, beta = gated_rule(x, dt, a, b, c)
    if isinstance(handle, StateHandle):
        out, state = handle.layer.rule(query, key, value, g, beta), handle
    else:
        steps = -g  # with a = -1; a frozen token has neither decay nor value
        out, state = on_host(torch.where(g < 0, beta / steps, 0)[..., None] * value, steps, -torch.ones_like(a))
    return (out if d is None else out + d[:, None] * x), state
