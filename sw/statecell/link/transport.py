"""What every link offers to the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Transport(Protocol):
    """Carries request frames to a device and its response frames back; knows nothing of what they say.

    `link_bytes` is the size of one link word. Every frame, in both directions, is a whole number of words, at least
    one. A transport is used by one thread at a time.
    """

    link_bytes: int

    def exchange(self, frames: Sequence[bytes], *, timeout: float) -> list[bytes]:
        """Send the frames back to back and return one response frame for each, in order.

        `timeout` is in seconds of wall-clock time for the whole call. Responses are taken while frames are still
        being sent, so any number of frames may be offered.

        Raises LinkTimeout when the responses are not complete in time; the responses that did come are lost, the
        device may have carried out any of the requests, and the next exchange starts with a whole frame. Raises
        ValueError for a frame that is not a whole number of words, with nothing sent.
        """
        ...

    def close(self) -> None:
        """Release the link; a second call does nothing."""
        ...
