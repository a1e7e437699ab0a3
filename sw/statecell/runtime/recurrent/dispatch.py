"""Dispatchers in front of transformers' recurrences: a state handle goes to the engine, a tensor does not.

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

from statecell.model.recurrent.families import Family, GatedDeltaNet, Mamba2
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent import gating, mamba2
from statecell.runtime.recurrent.layer import StateHandle

_users: dict[ModuleType, int] = {}
_originals: dict[ModuleType, dict[str, Any]] = {}


def family_of(model: Any) -> type[Family] | None:
    """The family of a model's recurrent layers where it is Gated DeltaNet or Mamba-2, or None."""
    return _family(sys.modules[type(model).__module__])


def rules_of(model: Any) -> ModuleType | None:
    """The modeling module of a model that has such layers, or None."""
    module = sys.modules[type(model).__module__]
    return None if _family(module) is None else module


def functions(module: ModuleType) -> tuple[str, str]:
    """Names of a module's recurrences, of a sequence and of one token."""
    family = _family(module)
    assert family is not None, "`rules_of` gives a module that has them"
    sequence, token = _RULES[family]
    return sequence, token


def chunked_rule(module: ModuleType) -> Callable:
    """The module's own rule over a sequence, without a dispatcher before it."""
    rule: Callable = _originals.get(module, vars(module))[functions(module)[0]]
    return rule


def install(module: ModuleType) -> None:
    """Put the dispatchers into a modeling module; several users share them."""
    if not _users.get(module, 0):
        family = _family(module)
        assert family is not None, "`rules_of` gives a module that has them"
        wrappers = _RULES[family] | _CONVOLUTIONS
        _originals[module] = {name: getattr(module, name) for name in wrappers}
        for name, wrapper in wrappers.items():
            setattr(module, name, wrapper(_originals[module][name]))
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


def _gated_delta(original: Callable) -> Callable:
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


Wrapper = Callable[[Callable], Callable]
_CONVOLUTIONS: dict[str, Wrapper] = {"causal_conv1d_fn": gating.convolution, "causal_conv1d_update": gating.single}
_RULES: dict[type[Family], dict[str, Wrapper]] = {
    GatedDeltaNet: {"torch_chunk_gated_delta_rule": _gated_delta, "torch_recurrent_gated_delta_rule": _gated_delta},
    Mamba2: {"mamba2_chunk_scan": mamba2.of_sequence, "mamba2_selective_state_update": mamba2.of_token},
}


def _family(module: ModuleType) -> type[Family] | None:
    """Of which a modeling module has the functions."""
    return next((family for family, rules in _RULES.items()
                 if all(hasattr(module, name) for name in (*rules, *_CONVOLUTIONS))), None)
