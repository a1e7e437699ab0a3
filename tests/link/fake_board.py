"""A board's end of the serial link in Python: what intake and answers do, and a device that only counts."""

from __future__ import annotations

import os
import select
import threading
import tty
from collections.abc import Callable
from dataclasses import astuple

from statecell.link import cobs
from statecell.link.framing import FrameError
from statecell.link.window import strip
from statecell.spec import frame
from statecell.spec.commands import INFO_FIELDS, Info, Opcode, Status
from statecell.spec.fingerprint import fingerprint
from statecell.spec.serial import SerialLink

LINK = SerialLink(request_bytes=1024, answer_bytes=1024, answers=7)
LINK_BYTES = 8


def info(**changes: int) -> bytes:
    """INFO's payload."""
    fields = dict.fromkeys(INFO_FIELDS, 0) | {
        "version": frame.VERSION, "fingerprint": fingerprint(), "head_dim": 32, "rows": 64, "lanes": 2, "tiles": 1,
        "group": 32, "page_rows": 4, "slots": 4, "pages_per_slot": 8, "link_bytes": LINK_BYTES, "query_bits": 8,
        "clock_hz": 24_000_000, "request_bytes": LINK.request_bytes, "answer_bytes": LINK.answer_bytes,
        "answers": LINK.answers, "bit_cycles": 8,
    }  # fmt: skip
    return b"".join(v.to_bytes(4, "little") for v in astuple(Info(**(fields | changes))))


class FakeDevice:
    """Frames in, frames out, as on the wire before encoding. ``applied`` lists the requests carried out.

    ``careless`` carries out every good frame, whether it is its turn or not.
    """

    def __init__(self, *, careless: bool = False, info_payload: bytes | None = None) -> None:
        self.careless = careless
        self.info_payload = info() if info_payload is None else info_payload
        self.applied: list[tuple[int, int]] = []
        self.session = 0
        self.due = 0
        self.kept: dict[int, bytes] = {}

    def restart(self) -> None:
        """The power went off and on."""
        self.__init__(info_payload=self.info_payload)  # type: ignore[misc]

    def frame(self, data: bytes) -> bytes | None:
        """The answer to what came between two delimiters, if there is one."""
        if len(data) < 5:
            return None
        header = frame.unpack_header(frame.REQUEST_HEADER, data.ljust(frame.BLOCK, b"\0"))
        opcode, sequence = header["opcode"], header["sequence"]
        past = (self.due - sequence) % frame.SEQUENCES
        turn = self.session and sequence < frame.SEQUENCES and past == 0
        if opcode != Opcode.CONNECT and not turn and not (self.careless and self.session):
            return self.kept.get(sequence) if self.session and 0 < past <= LINK.answers else None
        if len(data) < 20 or frame.seal(data[:-4], 4) != data:
            return self._answer(header, status=Status.BAD_CRC)
        if opcode == Opcode.CONNECT:
            right = header["slot"] == self.session
            if right and header["first"] != self.session:
                self.session, self.due = header["first"], (sequence + 1) % frame.SEQUENCES
                self.kept.clear()
            return self._answer(header, value=self.session)
        self.due = (sequence + 1) % frame.SEQUENCES
        self.applied.append((opcode, header["count"]))
        payload = self.info_payload if opcode == Opcode.INFO else bytes(frame.BLOCK * (opcode == Opcode.COUNTERS) * 4)
        answer = self._answer(header, value=len(self.applied), payload=payload)
        self.kept[sequence] = answer
        while len(self.kept) > LINK.answers:
            del self.kept[next(iter(self.kept))]
        return answer

    def _answer(
        self, header: dict[str, int], *, status: Status = Status.OK, value: int = 0, payload: bytes = b""
    ) -> bytes:
        head = frame.pack_header(
            frame.RESPONSE_HEADER, version=frame.VERSION, opcode=header["opcode"] | frame.RESPONSE,
            sequence=header["sequence"], slot=header["slot"], status=status, value=value,
            blocks=len(payload) // frame.BLOCK,
        )
        return strip(frame.seal(head + payload, LINK_BYTES), LINK_BYTES)


class FakeBoard:
    """A pseudo terminal with something on it; a context manager. ``path`` is its serial port.

    ``talk`` gets the bytes that came and returns those to send. Without it, a FakeDevice is behind the link.
    """

    def __init__(self, device: FakeDevice | None = None, talk: Callable[[bytes], bytes] | None = None) -> None:
        self.device = device or FakeDevice()
        self.talk = talk or self._frames
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        self.path = os.ttyname(self._slave)
        self._buffer = b""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> FakeBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.unplug()

    def unplug(self) -> None:
        """The port vanishes."""
        if not self._stop.is_set():
            self._stop.set()
            self._thread.join()
            os.close(self._slave)
            os.close(self._master)

    def _run(self) -> None:
        while not self._stop.is_set():
            if select.select([self._master], [], [], 0.01)[0]:
                answer = self.talk(os.read(self._master, 4096))
                while answer:
                    answer = answer[os.write(self._master, answer):]

    def _frames(self, data: bytes) -> bytes:
        *wires, self._buffer = (self._buffer + data).split(b"\0")
        out = b""
        for wire in wires:
            try:
                answer = self.device.frame(cobs.decode(wire))
            except FrameError:
                continue
            out += cobs.encode(answer) if answer else b""
        return out
