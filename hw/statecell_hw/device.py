"""The device that a geometry asks for."""

from __future__ import annotations

from statecell.spec.geometry import Geometry
from statecell.spec.serial import SerialLink
from statecell_hw.array.multiply import Multiplier
from statecell_hw.small.cell import SmallCell
from statecell_hw.top import StateCell


def device_of(
    g: Geometry, *, build_hash: int = 0, multiplier: Multiplier = "native", serial: SerialLink | None = None
) -> StateCell | SmallCell:
    """The array, or the small device where ``g.small``; both have the same members. Parameters as StateCell's."""
    if g.small:
        return SmallCell(g, build_hash=build_hash, serial=serial)
    return StateCell(g, build_hash=build_hash, multiplier=multiplier, serial=serial)
