"""LLM attention computed where the KV cache lives: an INT4 array, its driver, and its glue to language models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statecell.device import Device
    from statecell.runtime.attention import attach, detach

__all__ = ["Device", "__version__", "attach", "detach"]
__version__ = "0.1.0"

# Loaded at first use: the command line and the specification must not wait for torch and transformers.
_LAZY = {
    "Device": "statecell.device",
    "attach": "statecell.runtime.attention",
    "detach": "statecell.runtime.attention",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'statecell' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
