"""Errors of the link between driver and device."""

from __future__ import annotations

from statecell.errors import StatecellError


class LinkError(StatecellError):
    """The link cannot be opened or does not carry frames."""


class LinkTimeout(LinkError):
    """The device did not answer in time."""
