"""Ports that are not streams in a cocotb bench: words with a strobe, records, and credits."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from amaranth.hdl import Const
from amaranth.lib import data
from cocotb.triggers import FallingEdge, RisingEdge


class Strobe:
    """Input words that come with a strobe and are never held up: ``valid`` and ``payload`` of a block.

    ``idle`` is the probability of a pause before a word, in each cycle; a pause shows noise on the payload, which the
    block must not use.
    """

    def __init__(self, dut: Any, valid: Any, payload: Any, *, idle: float, seed: int) -> None:
        self.clk = dut.clk
        self.valid = valid
        self.payload = payload
        self.idle = idle
        self._rng = random.Random(f"strobe {seed}")
        self.valid.value = 0

    async def send(self, words: Sequence[int]) -> None:
        """Give the words in order; returns in the cycle after the last."""
        for word in words:
            while self._rng.random() < self.idle:
                self.payload.value = self._rng.getrandbits(len(self.payload))
                await RisingEdge(self.clk)
            self.payload.value = word
            self.valid.value = 1
            await RisingEdge(self.clk)
            self.valid.value = 0


async def pulse_when(clk: Any, strobe: Any, allowed: Callable[[], bool], *, watchdog: int,
                     value: int = 1) -> None:
    """One pulse of ``strobe``, to ``value``, in a cycle in which ``allowed`` says so.

    ``allowed`` is asked in the middle of a cycle, when combinational outputs have settled.
    """
    for _ in range(watchdog):
        await FallingEdge(clk)
        if allowed():
            strobe.value = value
            await RisingEdge(clk)
            strobe.value = 0
            return
    raise AssertionError(f"{strobe._name} was not allowed in {watchdog} cycles")


def write(dut: Any, port: str, **values: int) -> None:
    """Set the members of a port."""
    for name, value in values.items():
        getattr(dut, f"{port}__{name}").value = value


def read(dut: Any, port: str, *names: str) -> tuple[int, ...]:
    """The members of a port as bit patterns."""
    return tuple(bits(getattr(dut, f"{port}__{name}")) for name in names)


def bits(handle: Any) -> int:
    """A port as a bit pattern."""
    return int(handle.value)


def constant(layout: data.Layout, fields: Mapping[int | str, Any]) -> int:
    """The bit pattern of a record."""
    return int(Const.cast(layout.const(fields)).value)
