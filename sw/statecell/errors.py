"""The root of every error that statecell raises on purpose."""

from __future__ import annotations


class StatecellError(Exception):
    """Something the user can repair. Its text is one sentence: what was wrong, what was expected, what to do.

    The command line prints the text alone, without a traceback, and ends with `exit_code`.
    """

    exit_code: int = 2
