"""Payloads and port groups that more than one block uses, each defined once."""

from __future__ import annotations

from amaranth.hdl import signed, unsigned
from amaranth.lib import data, enum
from amaranth.lib.wiring import Out, Signature

from statecell.spec import formats
from statecell.spec.geometry import Geometry

SCALE = data.StructLayout({
    "mantissa": formats.SCALE_MANTISSA,
    "exponent": formats.SCALE_BITS - formats.SCALE_MANTISSA - 1,
    "sign": 1,
})
"""Stored scale byte: value (-1)^sign (8 + mantissa) 2^(exponent - 6)."""


def row_layout(geometry: Geometry) -> data.StructLayout:
    """A stored row: codes from lane 0 up, one scale per group, one zero point per group if the geometry has them."""
    fields: dict[str, data.ArrayLayout] = {
        "codes": data.ArrayLayout(signed(formats.CODE_BITS), geometry.head_dim),
        "scales": data.ArrayLayout(SCALE, geometry.groups),
    }
    if geometry.zero_point:
        fields["zeros"] = data.ArrayLayout(unsigned(formats.ZERO_BITS), geometry.groups)
    return data.StructLayout(fields)


class RowWrite(Signature):
    """Write port of a tile: ``data`` (a row of :func:`row_layout`) goes to ``row`` of the key bank if ``key_en`` and
    of the value bank if ``value_en``; one row a cycle.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__({
            "key_en": Out(1),
            "value_en": Out(1),
            "row": Out(range(geometry.rows)),
            "data": Out(geometry.row_bits),
        })


class QueryLoad(Signature):
    """Load port of a tile's shadow queries: ``codes`` and the query's scale for ``lane``, in a cycle with that lane's
    bit of ``valid``, at most one of which is set. ``sign`` is 1 for a negative scale; ``mantissa`` is without its
    leading 8.
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__({
            "valid": Out(geometry.lanes),
            "lane": Out(range(geometry.lanes)),
            "codes": Out(data.ArrayLayout(signed(geometry.query_bits), geometry.head_dim)),
            "sign": Out(1),
            "mantissa": Out(formats.SCALE_MANTISSA),
            "exponent": Out(formats.SCALE_BITS - formats.SCALE_MANTISSA - 1),
        })


def pass_layout(geometry: Geometry) -> data.StructLayout:
    """Descriptor of a pass: rows ``first`` to ``end`` - 1 of the tile's slot ``slot``; lane l, if its bit in ``active``
    is set, sees rows start[l] to end_[l] - 1. Lanes 0 to ``lanes`` - 1 are answered; ``shift`` as in ATTEND.
    """
    limit = range(geometry.slot_rows + 1)
    limits = data.ArrayLayout(unsigned(geometry.slot_rows.bit_length()), geometry.lanes)
    return data.StructLayout({
        "slot": range(geometry.tile_slots),
        "first": limit,
        "end": limit,
        "start": limits,
        "end_": limits,
        "active": geometry.lanes,
        "lanes": range(geometry.lanes + 1),
        "shift": range(formats.SHIFT_LIMIT + 1),
    })


def output_layout(geometry: Geometry) -> data.StructLayout:
    """One word of normalised output, 4 fraction bits below the value LSB."""
    return data.StructLayout({"data": data.ArrayLayout(signed(formats.OUTPUT_BITS), geometry.word)})


class Kind(enum.Enum, shape=2):
    """What becomes of a vector: a row of the key bank, a row of the value bank, or a query."""

    KEY = 0
    VALUE = 1
    QUERY = 2


def job_layout(geometry: Geometry) -> data.StructLayout:
    """What the writer does with a vector.

    ``lane`` is of queries. Of rows: ``row``, physical in the tile; ``wide``, two planes, the low one to ``row`` and the
    high one to ``following``; ``zero_point``, ignored for wide rows and where the geometry has none.
    """
    return data.StructLayout({
        "kind": Kind,
        "tile": range(geometry.tiles),
        "lane": range(geometry.lanes),
        "row": range(geometry.rows),
        "following": range(geometry.rows),
        "wide": 1,
        "zero_point": 1,
    })
