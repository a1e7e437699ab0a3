"""Requests that are on their way over a lossy link: what to send, what to send again, and when all is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from statecell.link import framing
from statecell.link.framing import FrameError, Response
from statecell.spec import frame
from statecell.spec.commands import Status
from statecell.spec.serial import SHORTEST, SerialLink

UNREAD = (Status.BAD_FRAME, Status.BAD_VERSION, Status.BAD_CRC)
"""Outcomes that mean: the frame was damaged on its way, nothing was carried out, send it again."""


@dataclass(frozen=True, kw_only=True)
class Parcel:
    """A request: its number, its bytes on the wire, and the most bytes of its answer."""

    sequence: int
    opcode: int
    wire: bytes
    answer_bytes: int


class Window:
    """The parcels of one exchange against the device's buffers.

    The device carries out requests in the order of their numbers and keeps its last answers. So a request that is sent
    again is either carried out, because its turn has come, or answered from what is kept: never twice carried out. At
    any time the unanswered requests fit in the device's queue and their answers in its memory; a longer request goes
    alone.
    """

    def __init__(self, parcels: Sequence[Parcel], link: SerialLink, link_bytes: int) -> None:
        self._parcels = parcels
        self._link = link
        self._link_bytes = link_bytes
        self._answers: list[bytes | None] = [None] * len(parcels)
        self._first = 0  # oldest without answer
        self._next = 0  # next to send
        self._place = {parcel.sequence: i for i, parcel in enumerate(parcels)}
        self._sent = [0] * len(parcels)  # running number of the latest transmission of each
        self._transmissions = 0
        self._again: list[int] = []
        self._limit = link.answers  # requests on their way: halved by a loss, which costs all behind it, then grows
        self.repeats = 0
        """Requests sent again."""

    @property
    def done(self) -> bool:
        """Every request is answered."""
        return self._first == len(self._parcels)

    @property
    def answers(self) -> list[bytes]:
        """The answers in order of the requests, as frames with their padding; only when ``done``."""
        return [answer for answer in self._answers if answer is not None]

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the requests sent and not answered, and of their answers."""
        open_ = (self._parcels[at] for at in range(self._first, self._next) if self._answers[at] is None)
        return sum(len(parcel.wire) + parcel.answer_bytes for parcel in open_)

    def sendable(self) -> list[bytes]:
        """What is to go out now: lost answers are asked for, then as many requests as the device has room for."""
        out: list[bytes] = []
        out += [self._transmit(at) for at in sorted(set(self._again)) if self._answers[at] is None]
        self._again.clear()
        while self._next < len(self._parcels):
            if self._answers[self._next] is None:
                if not self._fits(self._parcels[self._next]):
                    break
                out.append(self._transmit(self._next))
            self._next += 1
        return out

    def rewind(self) -> None:
        """Send every unanswered request again: those behind a lost one were dropped."""
        self._limit = max(1, self._limit // 2)
        self._next = self._first
        self._again.clear()

    def damaged(self) -> None:
        """Something came that is no frame: most likely the answer to the oldest request."""
        if self._first < self._next:
            self._again.append(self._first)

    def take(self, data: bytes, response: Response) -> bool:
        """A response came, ``data`` being its frame with padding; False if it answers nothing that is unanswered."""
        if response.status in UNREAD:
            self.rewind()
            return False
        at = self._place.get(response.sequence, -1)
        if at < 0 or self._answers[at] is not None or self._parcels[at].opcode != response.opcode:
            return False
        self._answers[at] = data
        self._limit = min(self._limit + 1, self._link.answers)
        # The wire keeps the order: an older request whose latest transmission was earlier has lost its answer.
        self._again += [
            older for older in range(self._first, at)
            if self._answers[older] is None and self._sent[older] < self._sent[at]
        ]
        while self._first < len(self._parcels) and self._answers[self._first] is not None:
            self._first += 1
        self._next = max(self._next, self._first)
        return True

    def _fits(self, parcel: Parcel) -> bool:
        # Those answered behind one that is not take their place among the device's answers too.
        ahead = self._parcels[self._first : self._next]
        return not ahead or (
            len(ahead) < self._limit
            and sum(len(p.wire) for p in ahead) + len(parcel.wire) <= self._link.request_bytes
            # An answer to a damaged frame needs room beside the answers that are kept.
            and sum(p.answer_bytes for p in ahead) + parcel.answer_bytes <= self._link.answer_bytes - SHORTEST
        )

    def _transmit(self, at: int) -> bytes:
        self._transmissions += 1
        self.repeats += self._sent[at] > 0
        self._sent[at] = self._transmissions
        return self._parcels[at].wire


def strip(sealed: bytes, link_bytes: int) -> bytes:
    """A frame as it goes on the wire: without the zeros that pad its CRC."""
    return sealed[: len(sealed) - frame.trailer_bytes(link_bytes) + frame.CRC_BYTES]


def restore(data: bytes, link_bytes: int) -> tuple[bytes, Response]:
    """A frame from the wire with its padding, and the response in it. Raises FrameError for a damaged one."""
    if len(data) < SHORTEST:
        raise FrameError(f"a response of {len(data)} bytes is shorter than a header and a CRC")
    padded = data + bytes(frame.trailer_bytes(link_bytes) - frame.CRC_BYTES)
    return padded, framing.decode(padded, link_bytes)
