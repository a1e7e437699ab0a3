"""The data path for one query in plain Python integers, row by row: docs/numerics.md read aloud.

It shares no code and no table with statecell.model and is the oracle that the vectorised model is checked against.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


def half_up(x: int, n: int) -> int:
    return x if n == 0 else ((x >> (n - 1)) + 1) >> 1


def clamp(x: int, bits: int) -> int:
    return max(-(1 << (bits - 1)), min((1 << (bits - 1)) - 1, x))


def walsh(x: list[int]) -> list[int]:
    return [sum(v if (i & j).bit_count() % 2 == 0 else -v for i, v in enumerate(x)) for j in range(len(x))]


def rotate(x: list[int]) -> list[int]:
    shift = (len(x).bit_length() - 1) // 2
    return [max(-32767, min(32767, (z + (1 << (shift - 1))) >> shift)) for z in walsh(x)]


def divide(x: int, scale: int, bits: int) -> int:
    e, m = scale >> 3, scale & 7
    return (x * round(Fraction(1 << 18, 8 + m))) >> (12 + e - bits)


def first_scale(magnitude: int) -> int:
    if magnitude == 0:
        return 0
    for scale in range(14 * 8 + 8):
        if 8 * (8 + scale % 8) * Fraction(2) ** (scale // 8 - 6) >= magnitude:
            return scale
    return 14 * 8 + 7


@dataclass
class Group:
    codes: list[int]
    scale: int
    zero: int = 8


def narrow(x: list[int], zero_point: bool) -> Group:
    high, low = max(0, *x), max(0, *(-v for v in x))
    turned = not zero_point and high >= low
    x = [-v for v in x] if turned else x
    start = first_scale((1093 * (high + low) + 2047) >> 11 if zero_point else max(high, low))
    best: tuple[int, Group] | None = None
    for scale in (max(0, start - j) for j in range(4)):
        z = max(0, min(15, half_up(divide(low, scale, 1), 1))) if zero_point else 8
        if zero_point:
            codes = [max(0, min(15, half_up(divide(v, scale, 1), 1) + z)) - 8 for v in x]
        else:
            codes = [max(-8, min(7, half_up(divide(v, scale, 1), 1))) for v in x]
        error = sum((divide(v, scale, 4) - 16 * (c + 8 - z)) ** 2 for v, c in zip(x, codes, strict=True))
        error *= (8 + scale % 8) ** 2 * (4 if scale // 8 == start // 8 else 1)
        if best is None or error < best[0]:
            best = error, Group(codes, scale + 128 * turned, z)
    assert best is not None
    return best[1]


def wide(x: list[int]) -> tuple[Group, Group]:
    high, low = max(0, *x), max(0, *(-v for v in x))
    sign = 128 if high >= low else 0
    scale = first_scale(max(high, low))
    codes = [max(-128, min(119, half_up(divide(-v if sign else v, scale, 5), 1))) for v in x]
    upper = [(c + 8) >> 4 for c in codes]
    lower = [c - 16 * u for c, u in zip(codes, upper, strict=True)]
    return Group(lower, sign + 15 * 8 + scale % 8), Group(upper, sign + scale)


Row = list[Group]


def store(x: list[int], group: int, kind: str) -> list[Row]:
    y = rotate(x)
    parts = [y[i:i + group] for i in range(0, len(y), group)]
    if kind == "wide":
        planes = [wide(p) for p in parts]
        return [[p[0] for p in planes], [p[1] for p in planes]]
    return [[narrow(p, kind == "zero_point") for p in parts]]


def query(x: list[int], bits: int) -> tuple[list[int], int, int, int]:
    return stationary(rotate(x), bits)


def stationary(y: list[int], bits: int) -> tuple[list[int], int, int, int]:
    high, low = max(0, *y), max(0, *(-v for v in y))
    turned = high >= low
    scale = first_scale(max(high, low))
    codes = [clamp(half_up(divide(-v if turned else v, scale, bits - 3), 1), bits) for v in y]
    return codes, -1 if turned else 1, 8 + scale % 8, scale // 8


def in_force(rows: list[Row], i: int, g: int) -> tuple[int, int, int]:
    """(sign, mantissa, exponent) of row i, group g."""
    low = rows[i][0].scale >> 3 & 15 == 15
    source = rows[i + 1][g].scale if low else rows[i][g].scale
    return (-1 if source >> 7 else 1), 8 + source % 8, (source >> 3 & 15) - 4 * low


def attend(q: list[int], keys: list[Row], values: list[Row], start: int, end: int, shift: int,
           bits: int) -> tuple[list[int], int, dict[str, int]]:
    """(16-bit output, block exponent, how often each event happened)."""
    codes, q_sign, q_mantissa, q_exponent = query(q, bits)
    group = len(keys[0][0].codes)
    events = {"climb": 0, "drop": 0}

    def partial(i: int) -> int:
        total = 0
        for g, part in enumerate(keys[i]):
            sign, mantissa, exponent = in_force(keys, i, g)
            dot = sum(a * (c + 8 - part.zero) for a, c in zip(codes[g * group:], part.codes, strict=False))
            align = max(0, min(40, shift + bits - 6 - q_exponent - exponent + 8))
            total += clamp((dot * mantissa * sign * q_sign << 8) >> align, 22)
        return total

    scores = []
    for i in range(start, end):
        is_low = keys[i][0].scale >> 3 & 15 == 15
        after_low = i > start and keys[i - 1][0].scale >> 3 & 15 == 15
        total = partial(i) + (partial(i + 1) if is_low else 0) + (partial(i - 1) if after_low else 0)
        scores.append(clamp((total * q_mantissa + 32) >> 6, 18))
    needs = [-(-s // 1024) for s in scores]
    acc = [0] * len(q)
    weight_sum = 0
    maximum: int | None = None
    for t, s in enumerate(scores):
        goal = max(needs[:t + 6])
        if maximum is None:
            maximum = goal
        elif goal > maximum:
            maximum += 1
            events["climb"] += 1
            acc, weight_sum = [a >> 4 for a in acc], weight_sum >> 4
        if needs[t] > maximum:
            events["drop"] += 1
            acc, weight_sum, maximum = [0] * len(q), 0, goal
        octaves, fraction = divmod(1024 * maximum - s, 256)
        table = round(65535 * 2 ** (-fraction / 256))
        row = values[start + t]
        if row[0].scale >> 3 & 15 != 15:
            weight_sum += half_up(table << 4, octaves)
        for g, part in enumerate(row):
            sign, mantissa, exponent = in_force(values, start + t, g)
            weight = half_up(table * mantissa, octaves + 14 - exponent)
            for lane, c in enumerate(part.codes):
                acc[g * group + lane] += sign * weight * (c + 8 - part.zero)
    log = weight_sum.bit_length() - 1
    x = (weight_sum << 16 >> log) % 65536
    base = [round(Fraction(2**17 * 128, 128 + j)) for j in range(129)]
    inverse = base[x >> 9] - ((base[x >> 9] - base[(x >> 9) + 1]) * (x % 512) >> 9)
    out = [clamp((clamp(a << 16 >> log, 22) * inverse + 65536) >> 17, 21) for a in acc]
    z = walsh(out)
    block = 0
    while any(not -32768 <= v >> block <= 32767 for v in z):
        block += 1
    return [max(-32767, min(32767, half_up(v, block))) for v in z], block, events
