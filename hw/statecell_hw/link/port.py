"""What a device and a link that repeats frames tell each other beside the frames."""

from __future__ import annotations

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from statecell.spec.serial import DIVISOR_BITS, SESSION_BITS

LINK_PORT = wiring.Signature(
    {"accepted": Out(1), "rejected": Out(1), "connect": Out(1), "token": Out(SESSION_BITS),
     "divisor": Out(DIVISOR_BITS), "answering": Out(1), "session": In(SESSION_BITS)}
)  # fmt: skip
"""What a link that repeats frames must know.

`accepted`, `rejected`: a frame was read whole and good; it could not be read. `connect`: with `accepted`, a CONNECT is
carried out for session `token` and bit length `divisor` (0: as it is). `answering`: a response has not left, from the
cycle after `accepted` or `rejected` on. `session`: the one that runs.
"""
