"""The C side of the simulator as Python sees it: its functions, its job structure, and the buffers of one exchange."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

NO_LIMIT = 2**64 - 1

DONE, CYCLES, SECONDS, CAPACITY, UNSTABLE = range(5)  # results of sc_run, as in harness.cpp


class Job(ctypes.Structure):
    """`struct Job` of harness.cpp."""

    _fields_ = [
        ("in_data", ctypes.c_void_p),
        ("in_last", ctypes.c_void_p),
        ("in_words", ctypes.c_uint64),
        ("in_position", ctypes.c_uint64),
        ("in_frames", ctypes.c_uint64),
        ("in_stamps", ctypes.c_void_p),
        ("out_data", ctypes.c_void_p),
        ("out_last", ctypes.c_void_p),
        ("out_capacity", ctypes.c_uint64),
        ("out_words", ctypes.c_uint64),
        ("out_frames", ctypes.c_uint64),
        ("out_expected", ctypes.c_uint64),
        ("out_stamps", ctypes.c_void_p),
    ]


class Transfer:
    """The buffers of one exchange, alive as long as C may use them."""

    def __init__(self, frames: Sequence[bytes], expected: int, link_bytes: int, capacity: int) -> None:
        self.link_bytes = link_bytes
        for index, frame in enumerate(frames):
            if not frame or len(frame) % link_bytes:
                raise ValueError(
                    f"Frame {index} has {len(frame)} bytes; it must be a multiple of the link word, {link_bytes} bytes."
                )
        self.data = np.frombuffer(b"".join(frames), dtype=np.uint8)
        ends = np.cumsum([len(frame) // link_bytes for frame in frames], dtype=np.int64)
        self.last = np.zeros(len(self.data) // link_bytes, dtype=np.uint8)
        self.last[ends - 1] = 1
        self.in_stamps = np.zeros(len(frames), dtype=np.uint64)
        self.out_stamps = np.zeros(expected if expected < NO_LIMIT else 0, dtype=np.uint64)
        self.out_data = np.zeros(capacity * link_bytes, dtype=np.uint8)
        self.out_last = np.zeros(capacity, dtype=np.uint8)
        self.job = Job(
            in_data=self.data.ctypes.data,
            in_last=self.last.ctypes.data,
            in_words=len(self.last),
            in_stamps=self.in_stamps.ctypes.data,
            out_expected=expected,
            out_stamps=self.out_stamps.ctypes.data if len(self.out_stamps) else None,
        )
        self._attach()

    def _attach(self) -> None:
        self.job.out_data = self.out_data.ctypes.data
        self.job.out_last = self.out_last.ctypes.data
        self.job.out_capacity = len(self.out_last)

    def grow(self) -> None:
        """Double the room for responses."""
        self.out_data = np.concatenate([self.out_data, np.zeros_like(self.out_data)])
        self.out_last = np.concatenate([self.out_last, np.zeros_like(self.out_last)])
        self._attach()

    def responses(self) -> list[bytes]:
        """The complete frames received so far."""
        data = self.out_data[: self.job.out_words * self.link_bytes].tobytes()
        ends = ((np.flatnonzero(self.out_last[: self.job.out_words]) + 1) * self.link_bytes).tolist()
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def load(library: Path) -> Any:
    """The library with the types of its functions declared."""
    c = ctypes.CDLL(str(library))
    handle, u64 = ctypes.c_void_p, ctypes.c_uint64
    declared: dict[str, tuple[Any, list[Any]]] = {
        "sc_link_bytes": (ctypes.c_uint, []),
        "sc_create": (handle, []),
        "sc_destroy": (None, [handle]),
        "sc_cycles": (u64, [handle]),
        "sc_waits": (None, [handle, ctypes.POINTER(u64), ctypes.POINTER(u64)]),
        "sc_offered": (ctypes.c_int, [handle]),
        "sc_reset": (None, [handle]),
        "sc_pauses": (None, [handle, ctypes.c_int, u64, u64, ctypes.c_uint32, u64]),
        "sc_trace": (ctypes.c_int, [handle, ctypes.c_char_p]),
        "sc_flush": (None, [handle]),
        "sc_run": (ctypes.c_int, [handle, ctypes.POINTER(Job), u64, ctypes.c_double]),
    }
    for name, (result, arguments) in declared.items():
        function = getattr(c, name)
        function.restype = result
        function.argtypes = arguments
    return c
