"""Number formats of the array. docs/numerics.md explains each; hardware and integer model both take them from here."""

from __future__ import annotations

import math

VECTOR_BITS = 16
"""Signed elements of K, V, q and output vectors on the link."""
VECTOR_MAX = (1 << (VECTOR_BITS - 1)) - 1
"""Largest magnitude of a vector element; vectors and rotated vectors saturate symmetrically at it."""

# -- stored rows ------------------------------------------------------------------------------------------------------
CODE_BITS = 4
CODE_MIN, CODE_MAX = -8, 7
WIDE_MIN, WIDE_MAX = -128, 119
"""Range of an 8-bit code that splits into two signed nibbles: 16 * high + low, both in -8..7."""

SCALE_BITS = 8
"""Signed minifloat: bit 7 sign, bits 6..3 exponent e, bits 2..0 mantissa m; value (-1)^sign (8 + m) 2^(e - 6)."""
SCALE_MANTISSA = 3
SCALE_BIAS = 6
SCALE_MAGNITUDE_MAX = 14 << SCALE_MANTISSA | 7
"""Largest magnitude code (e, m) of a stored scale; exponent 15 is the mark of a low plane."""
LOW_PLANE = 15
"""Exponent that marks a row as the low plane of a two-plane row: its scale is that of the next row divided by 16."""
ZERO_BITS = 4
"""Zero point z of a group, 0..15: effective code = code + 8 - z."""
CANDIDATES = 4
"""Scale codes tried for the least squared error: the smallest that clips nothing, and the next smaller ones."""
RECIPROCAL_BITS = 18
SCALE_RECIPROCALS = tuple(round((1 << RECIPROCAL_BITS) / (8 + m)) for m in range(8))
"""round(2^18 / (8 + m)): division by a scale is a multiplication and a shift."""
ERROR_FRACTION = 4
"""Fraction bits of the rounding error that the scale search squares."""

# -- scores -----------------------------------------------------------------------------------------------------------
SCORE_FRACTION = 8
SCORE_BITS = 18
"""Signed score in log2 units with 8 fraction bits: +-512 octaves, saturating."""
PARTIAL_BITS = 22
"""Signed scaled dot product of one group before the query's mantissa is applied, saturating."""
PARTIAL_GUARD = 8
"""Left shift before the right shift that aligns a group's dot product."""
ALIGN_MAX = 40
"""Largest right shift of that alignment."""
MANTISSA_SHIFT = 6
"""Right shift, rounding half up, after the query's mantissa (8 + m) is applied."""

# -- softmax ----------------------------------------------------------------------------------------------------------
STEP = 2
"""log2 of the octaves of one step of the running maximum; a step rescales the accumulators by 2^-4."""
STEP_OCTAVES = 1 << STEP
LOOKAHEAD = 5
"""Rows by which the running maximum sees ahead, so that it can climb one step a row."""
EXP_BITS = 16
EXP_TABLE = tuple(round(((1 << EXP_BITS) - 1) * 2 ** (-i / (1 << SCORE_FRACTION))) for i in range(1 << SCORE_FRACTION))
"""2^-f for the 256 fractions f of an octave, as unsigned 16-bit fractions of 65535."""
WEIGHT_BITS = 20
"""Unsigned weight of a row (2^-n times table times value scale), and of the softmax sum's terms."""
SHIFT_MAX = 31
"""A weight shifted further than this is zero."""
VALUE_EXPONENT = 14
"""Value scale exponent at which a weight is not shifted."""

# -- output -----------------------------------------------------------------------------------------------------------
INVERSE_INDEX = 7
INVERSE_FRACTION = 9
INVERSE_BITS = 17
OUTPUT_FRACTION = 4
OUTPUT_BITS = VECTOR_BITS + OUTPUT_FRACTION + 1
"""Signed normalised output before the inverse rotation, 4 fraction bits below the value LSB."""


def _inverse(i: int) -> int:
    return round((1 << INVERSE_BITS) / (1 + i / (1 << INVERSE_INDEX)))


INVERSE_TABLE = tuple((_inverse(i), _inverse(i) - _inverse(i + 1)) for i in range(1 << INVERSE_INDEX))
"""(base, slope) of 2^17 / x over [1, 2) in 128 pieces: inverse = base - (slope * fraction >> 9)."""


# -- recurrent state --------------------------------------------------------------------------------------------------
KEY_FRACTION = 14
"""Fraction bits of the 16-bit keys and queries of a recurrent step: 1.0 is 2^14."""
DECAY_FRACTION = 24
"""Decays and the weights of logged tokens: unsigned, 2^24 is 1.0, which is allowed."""
FACTOR_BITS = 24
"""Factor that collects the decays (one per head, or one per lane): 1.23 bits, 1.0 to 2.0 after a write-back."""
BETA_BITS, BETA_FRACTION = 16, 14
"""Write strength: unsigned, below 4.0."""
RECUR_BITS, RECUR_FRACTION = 24, 6
"""Signed read-outs r and o and written values d: 6 fraction bits below the value LSB, saturating."""
RECUR_PARTIAL_BITS, RECUR_GUARD = 28, 4
"""One group's share of a read-out before the mantissa of the query: 4 more fraction bits, saturating."""
MIX_BITS, MIX_FRACTION = 24, 16
"""Signed product q . k of two tokens, saturating."""
SHARE_BITS, SHARE_GUARD = 20, 4
"""Signed weight of a logged d in a read-out, saturating, and the bits below RECUR_FRACTION that its products keep."""
STATE_SHIFT_MAX = 15
"""Largest state shift of a head: stored values are the state's divided by 2^shift."""
GAIN_BITS, GAIN_FRACTION = 14, 8
"""Signed multiplier from a key code of 8 bits to the update of a lane."""
UPDATE_BITS, UPDATE_FRACTION = 14, 8
"""Signed updated lane, in units of 2^-8 of a 4-bit code of the working scale."""
RATIO_FRACTION = 12
SCALE_RATIOS = tuple(tuple(round((1 << RATIO_FRACTION) * (8 + m) / (8 + n)) for n in range(8)) for m in range(8))
"""[m][n]: (8 + m) / (8 + n) in 2^-12, from the mantissa of the working scale to that of the new one."""
FEEDBACK_FRACTION = 4
"""Fraction bits of the error-feedback strength alpha, 0 to 16 sixteenths."""
HELD_CLIP = 1
"""Scale codes (7 to 12 % each) by which a one-plane row's new held scale lies below the one that clips nothing."""
HELD_SHRINK = 2
"""A held scale is taken anew when the row's largest magnitude is below this many 4-bit codes."""
LOG_MAX = 128
"""Most tokens between two write-backs."""
LOST_MAX = 63
"""Octaves, lost by a factor, that count as this many where they are more: nothing is left of a product by then."""
NOISE_BITS = 8
LFSR_BITS = 32
LFSR_TAPS = 0x80200003
"""Galois mask of x^32 + x^22 + x^2 + x + 1, shifting right."""
LFSR_LEAP = 32
"""Shifts of the register between two rows."""


def rotation_gain(head_dim: int) -> float:
    """Factor g with x . y = g * (Rx) . (Ry), R the device's forward rotation: 2^(2 * shift) / head_dim."""
    shift = (head_dim.bit_length() - 1) // 2
    return 4.0**shift / head_dim


def score_shift(shift: int, head_dim: int) -> int:
    """Argument ``shift`` of ATTEND for scores of 2^-shift per unit of the product of unrotated integers.

    The device multiplies rotated vectors, and x . y = rotation_gain * (Rx) . (Ry). Beyond the limits the scores are all
    below one LSB, or all saturated, whatever the shift.
    """
    return max(0, min(SHIFT_LIMIT, shift - round(math.log2(rotation_gain(head_dim)))))


SHIFT_LIMIT = 63
"""Largest ``shift`` argument of ATTEND."""


def output_exponent(block: int, head_dim: int) -> int:
    """Power of two of one output LSB, in value LSBs, from a response's block exponent."""
    log_dim = head_dim.bit_length() - 1
    return block - OUTPUT_FRACTION + log_dim // 2 - log_dim
