"""Errors of the transformers glue."""

from __future__ import annotations

from statecell.errors import StatecellError


class UnsupportedError(StatecellError):
    """The model, or the way it is called, needs something that the engine does not compute; nothing was stored."""


class CacheStateError(StatecellError):
    """A slot cache is used in a way that its stored rows do not allow: closed, broken, edited history, wrong mask."""


class CalibrationError(StatecellError):
    """A calibration file cannot be read, or belongs to another model."""


class NotFiniteError(StatecellError):
    """A vector holds NaN or infinity; the text names the tensor and the layer, and nothing of it was stored."""


def other_batch(given: int, held: int) -> CacheStateError:
    """The refusal of an input of another number of sequences than the cache holds."""
    return CacheStateError(
        f"the input has {given} sequences, but the cache holds {held}; start a new cache for another batch"
    )
