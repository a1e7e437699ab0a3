"""What a head brings to its rows."""

from __future__ import annotations

from amaranth.hdl import signed
from amaranth.lib import data

from statecell.spec import formats
from statecell.spec.geometry import Geometry
from statecell_hw.layouts import SCALE

EXPONENT_BITS = formats.SCALE_BITS - formats.SCALE_MANTISSA - 1
"""Unsigned exponent of a stored scale."""
WIDE_BITS = 2 * formats.CODE_BITS
"""Signed 8-bit code, 16 * high + low."""
OCTAVE_BITS = (formats.FACTOR_BITS - 1).bit_length()
"""Octaves that a factor can lose between two write-backs, 0 to FACTOR_BITS - 1."""
LOST_BITS = (formats.LOG_MAX * (formats.FACTOR_BITS - 1)).bit_length()
"""Octaves that a factor can lose over the tokens of a full log."""
BELOW_BITS = formats.LOST_MAX.bit_length()
"""Octaves between two factors, at most LOST_MAX."""
HALVES = 2
"""Halves that a key can have, each as wide as a row."""
ENTRIES = formats.LOG_MAX + 1
"""Tokens that a log can hold, and none."""
FALL_BITS = formats.UPDATE_BITS.bit_length()
"""Right shift of a stored code, at most UPDATE_BITS."""

MODE = data.StructLayout({
    "delta": 1,
    "wide": 1,
    "blind": 1,
    "fresh": 1,
    "supplied": 1,
    "stochastic": 1,
    "feedback": formats.FEEDBACK_FRACTION + 1,
    "shift": (formats.STATE_SHIFT_MAX).bit_length(),
})
"""How the rows of a head are read and written. ``wide``: two planes; ``blind``: the read-out sees the high one only;
``fresh`` and ``supplied``: where scales come from, held if neither; ``feedback``: sixteenths of the low plane that an
update takes, 16 unless ``blind``; ``shift``: state shift."""

HEAD = data.StructLayout({
    "mode": MODE,
    "halved": 1,
    "write": 1,
    "beta": formats.BETA_BITS,
    "mix": signed(formats.MIX_BITS),
    "octaves": OCTAVE_BITS,
    "noise": formats.LFSR_BITS,
    "log": 1,
    "commit": 1,
    "lost": data.ArrayLayout(LOST_BITS, 2),
})
"""Scalars of one head's token. ``halved``: the rotation doubles products (it is not orthonormal); ``write``: rows are
written back, or the token is logged; ``mix``: q . b; ``octaves``: that the head's factor has lost since the rows were
written, 0 with a factor per lane; ``noise``: the register at the first row; ``log``: the token goes to the log;
``commit``: no token, the log goes to the rows; ``lost``: octaves as above, of the factor that q and that k has met."""


def key_layout(geometry: Geometry) -> data.StructLayout:
    """The token's key as the rows take it, by halves: 8-bit codes, a scale per group; the second means nothing where
    keys have one. ``falls``: right shift of each lane's codes, 0 with one factor a head.
    """
    return data.StructLayout({
        "codes": data.ArrayLayout(data.ArrayLayout(signed(WIDE_BITS), geometry.head_dim), HALVES),
        "scales": data.ArrayLayout(data.ArrayLayout(SCALE, geometry.groups), HALVES),
        "falls": data.ArrayLayout(FALL_BITS, geometry.head_dim),
    })


def state_row(geometry: Geometry) -> data.StructLayout:
    """One value channel's row: nibbles of both planes (``low`` is 0 with one plane) and a scale per group."""
    nibbles = data.ArrayLayout(signed(formats.CODE_BITS), geometry.head_dim)
    return data.StructLayout({"high": nibbles, "low": nibbles, "scales": data.ArrayLayout(SCALE, geometry.groups)})


BAYS = 4
"""Tokens in the token buffer: one comes in, one is prepared, one waits, and the rows of one stream."""
CHANNEL_STEP = 8
"""Value channels come in whole blocks of a payload."""


def channel_limit(geometry: Geometry) -> int:
    """Most value channels of a head."""
    return 2 * geometry.head_dim


def slot_layout(geometry: Geometry) -> data.StructLayout:
    """What a recurrent slot keeps from its opening on.

    ``mode``; ``rotate``: q and k pass the rotation; ``lane_decay``: a decay per lane; ``decay_first``: the read-out
    sees the decayed state; ``bonus``: tokens bring b, which else is k; ``halves``: keys have two halves, and a channel
    a row for each; ``base``: first row of the state in both banks; ``channels``: value channels, MIN_ROWS to
    ``channel_limit``, a multiple of CHANNEL_STEP; ``interval``: tokens from one write-back to the next; with more than
    one, which needs as many channels as lanes, the log follows the state's rows: the keys of ``interval`` tokens in two
    planes, then their values.
    """
    return data.StructLayout({
        "mode": MODE,
        "rotate": 1,
        "lane_decay": 1,
        "decay_first": 1,
        "bonus": 1,
        "halves": 1,
        "base": range(geometry.rows),
        "channels": range(channel_limit(geometry) + 1),
        "interval": range(ENTRIES),
    })


def pass_layout(geometry: Geometry, slots: int) -> data.StructLayout:
    """One token's pass over the rows of ``slot``: its ``config``, the ``head`` operands, the ``bay`` of the token
    buffer that has its values; ``stored``: the rows hold a state, else they count as 0; ``entries``: tokens in its log.
    """
    return data.StructLayout({
        "slot": range(slots), "config": slot_layout(geometry), "head": HEAD, "bay": range(BAYS), "stored": 1,
        "entries": range(ENTRIES),
    })
