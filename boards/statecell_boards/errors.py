"""Errors of the board builds."""

from __future__ import annotations

from statecell.errors import StatecellError


class BoardError(StatecellError):
    """A board that does not exist, a build that failed, or a board that cannot be programmed."""
