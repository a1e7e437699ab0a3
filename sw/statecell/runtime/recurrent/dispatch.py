"""Dispatchers in front of transformers' gated delta rules: a state handle goes to the engine, a tensor does not.

The modeling modules look their functions up by name at every call, so the models' code stays as it is. The freeze gates
of a guarded model (`guards`) are folded in here, in front of either.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent import gating
from statecell.runtime.recurrent.layer import StateHandle

FUNCTIONS = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule")
_CONVOLUTIONS = ("causal_conv1d_fn", "causal_conv1d_update")
_users: dict[ModuleType, int] = {}
_originals: dict[ModuleType, dict[str, Any]] = {}


def rules_of(model: Any) -> ModuleType | None:
    """The modeling module of a model whose recurrent layers are Gated DeltaNet, or None."""
    module = sys.modules[type(model).__module__]
    return module if all(hasattr(module, name) for name in (*FUNCTIONS, *_CONVOLUTIONS)) else None


def chunked_rule(module: ModuleType) -> Callable:
    """The module's own rule over a sequence, without a dispatcher before it."""
    rule: Callable = _originals.get(module, vars(module))[FUNCTIONS[0]]
    return rule


def install(module: ModuleType) -> None:
    """Put the dispatchers into a modeling module; several users share them."""
    if not _users.get(module, 0):
        _originals[module] = {name: getattr(module, name) for name in (*FUNCTIONS, *_CONVOLUTIONS)}
        wrappers = (_dispatcher, _dispatcher, gating.convolution, gating.single)
        for wrapper, (name, original) in zip(wrappers, _originals[module].items(), strict=True):
            setattr(module, name, wrapper(original))
    _users[module] = _users.get(module, 0) + 1


def uninstall(module: ModuleType) -> None:
    """Take them out again when the last user goes."""
    _users[module] -= 1
    if not _users[module]:
        for name, original in _originals.pop(module).items():
            setattr(module, name, original)


@contextmanager
def installed(module: ModuleType) -> Iterator[None]:
    """The dispatchers while the block runs."""
    install(module)
    try:
        yield
    finally:
        uninstall(module)


def _dispatcher(original: Callable) -> Callable:
    @functools.wraps(original)
    def dispatch(query: Any, key: Any, value: Any, g: Any, beta: Any, *rest: Any, **named: Any) -> Any:
        handle = named.get("initial_state")
        g, beta = gating.gated(g, beta)
        if not isinstance(handle, StateHandle):
            return original(query, key, value, g, beta, *rest, **named)
        if not named.get("use_qk_l2norm_in_kernel"):
            raise UnsupportedError(f"layer {handle.layer.index} has keys that are not of norm 1, which the engine's "
                                   "units do not provide for; detach the engine for this model")
        return handle.layer.rule(query, key, value, g, beta), handle

    return dispatch
