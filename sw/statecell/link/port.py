"""A serial port of this machine, opened for this process alone; everything that goes wrong with it has a name."""

from __future__ import annotations

import errno
import select
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import serial

from statecell.link.errors import PortError, UnpluggedError

_WRITE_S = 5.0
"""Longest wait for room in the port's own buffer."""


class Port:
    """Bytes over a serial port, 8N1. Raises PortError if it cannot be opened, with the reason in one sentence."""

    def __init__(self, path: str, baud: int) -> None:
        self.path = path
        try:
            # Exclusive: two drivers on one line would take each other's answers.
            self._serial = serial.Serial(path, baud, timeout=0, write_timeout=_WRITE_S, exclusive=True)
        except (OSError, ValueError, termios.error) as error:
            raise PortError(_reason(path, error)) from error

    def takes(self, baud: int) -> bool:
        """Whether the port can be set to a bit rate; the present one is kept."""
        before = self._serial.baudrate
        try:
            self._serial.baudrate = baud
        except (ValueError, OSError, termios.error):
            return False
        finally:
            self.set_rate(before)
        return True

    def set_rate(self, baud: int) -> None:
        """Set the bit rate to one that the port takes. Raises UnpluggedError."""
        with self._present():
            self._serial.baudrate = baud

    def write(self, data: bytes) -> None:
        """Send bytes. Raises UnpluggedError, and PortError if the port takes nothing for seconds."""
        with self._present():
            try:
                self._serial.write(data)
            except serial.SerialTimeoutException as error:
                raise PortError(
                    f"{self.path} has taken no bytes for {_WRITE_S:.0f} s; switch hardware flow control off"
                ) from error

    def read(self, wait: float) -> bytes:
        """The bytes that are there; if none, those that come within ``wait`` seconds. Raises UnpluggedError."""
        with self._present():
            if not select.select([self._serial.fileno()], [], [], wait)[0]:
                return b""
            data: bytes = self._serial.read(max(self._serial.in_waiting, 1))
            return data

    def drain(self) -> None:
        """Wait until everything is on the wire. Raises UnpluggedError."""
        with self._present():
            self._serial.flush()

    def close(self) -> None:
        """Release the port; a second call does nothing."""
        self._serial.close()

    @contextmanager
    def _present(self) -> Iterator[None]:
        try:
            yield
        except serial.SerialTimeoutException:
            raise
        except (OSError, termios.error) as error:
            raise UnpluggedError(
                f"{self.path} is gone: the cable was pulled or the board lost power; "
                "plug it in and open the device again"
            ) from error


def _reason(path: str, error: Exception) -> str:
    number = getattr(error, "errno", None)
    if number == errno.ENOENT or not Path(path).exists():
        return f"there is no serial port {path}; plug the board in and look for its name in /dev (ttyUSB*, ttyACM*)"
    if number in (errno.EACCES, errno.EPERM):
        return f"{path} may not be opened by this user; join the group that owns it (often dialout) and log in again"
    if number in (errno.EBUSY, errno.EAGAIN) or "lock" in str(error):
        return f"{path} is in use by another program; close that one first"
    return f"{path} cannot be used as a serial port ({getattr(error, 'strerror', None) or error}); give a serial port"
