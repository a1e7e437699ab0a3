"""Errors of the model and text store."""

from __future__ import annotations

from statecell.errors import StatecellError


class StoreError(StatecellError):
    """A model or text cannot be had or cannot be read."""


class UnknownNameError(StoreError):
    """The name is neither in the registry nor a path."""


class DownloadError(StoreError):
    """A package could not be downloaded; nothing was stored."""


class CorruptDownloadError(DownloadError):
    """A downloaded file is not the one that was expected; it was removed."""
