"""The reciprocal of a number between 1 and 2, linear in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amaranth.hdl import Module, Mux, Value
from amaranth.lib import data
from amaranth.lib.memory import Memory

from statecell.spec import formats
from statecell_hw.array.arithmetic import choose

FRACTION_BITS = formats.INVERSE_INDEX + formats.INVERSE_FRACTION
"""Bits of a number below its leading one that the reciprocal takes."""
LEAST = 1 << (formats.INVERSE_BITS - 1)
"""Least reciprocal. Of a number above 1 it has INVERSE_BITS, and what it has beyond LEAST one bit less."""
INVERSE = data.StructLayout({
    "base": formats.INVERSE_BITS,
    "slope": max(slope for _, slope in formats.INVERSE_TABLE).bit_length(),
})
"""One piece of the reciprocal table, base less LEAST."""
QUARTERS = 4
"""Parts of the table that are read side by side."""
RECIPROCAL = 3
"""Registers of the reciprocal: table, slope, difference."""


def reciprocal(m: Module, hold: Callable[[int, Value, str], Any], stage: int, fraction: Value, *,
               name: str = "table") -> Any:
    """2^INVERSE_BITS / (1 + fraction / 2^FRACTION_BITS) less LEAST, RECIPROCAL cycles after ``stage``: the formula of
    docs/numerics.md, section 6. ``hold(stage, value, name)`` is the caller's register, ``name`` that of the table.
    """
    # The table's quarters side by side: which of them counts is left to the next cycle; of the slope, which goes into
    # the multiplier there, only which half.
    pieces = [{"base": base - LEAST, "slope": slope} for base, slope in formats.INVERSE_TABLE]
    depth = len(pieces) // QUARTERS
    table: Memory = Memory(
        shape=data.ArrayLayout(INVERSE, QUARTERS), depth=depth, init=[pieces[i::depth] for i in range(depth)],
        attrs={"rom_style": "logic"},  # a block RAM would be too slow in front of the multiplier
    )
    m.submodules[name] = table
    read: Any = table.read_port(domain="comb")
    m.d.comb += read.addr.eq(fraction[formats.INVERSE_FRACTION:-2])
    quarter = hold(stage, fraction[-2:], "quarter")
    base = choose(list(quarter), [hold(stage, read.data[i].base, f"base_{i}") for i in range(QUARTERS)])
    slopes = [
        hold(stage, Mux(fraction[-2], read.data[i + 1].slope, read.data[i].slope), f"slope_{i}")
        for i in range(0, QUARTERS, 2)
    ]
    slope = choose([quarter[-1]], slopes)
    rest = hold(stage, fraction[:formats.INVERSE_FRACTION], "rest")
    base, less = hold(stage + 1, base, "base"), hold(stage + 1, slope * rest, "less")
    return hold(stage + 2, (base - (less >> formats.INVERSE_FRACTION))[:formats.INVERSE_BITS], "inverse")
