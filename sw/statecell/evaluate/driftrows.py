"""What `drift` reports: one row a head and mode, one line a mode, and the formulas of both. docs/numerics.md, 8.8."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class DriftRow:
    """One head in one mode.

    decay: geometric mean. spectral_radius: growth per token of an error in the state, 1 at most.
    epsilon: error of one write-back over the state's norm. bound: epsilon (1 - rho^T) / (1 - rho^C), every error in the
    same direction; for rho near 1 that is epsilon T / C. expected: the same for independent errors.
    state_error: ||S - S_ref|| / ||S_ref|| at the end; inflation: ||S|| / ||S_ref||.
    read_error: {t: RMS error of the read-outs of tokens t/2 to t over their RMS}. growth: last of them over the one at
    an eighth of the tokens.
    """

    mode: str
    head: int
    decay: float
    spectral_radius: float
    bits_per_element: float
    log_bits_per_element: float
    epsilon: float
    bound: float
    expected: float
    state_error: float
    inflation: float
    read_error: dict[int, float]
    growth: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ModeSummary:
    """All heads of a mode: bits averaged, errors as root mean square, ``growth`` of that, the largest inflation."""

    mode: str
    bits_per_element: float
    log_bits_per_element: float
    state_error: float
    inflation: float
    read_error: dict[int, float]
    growth: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def summary(rows: Sequence[DriftRow]) -> list[ModeSummary]:
    """One line for each mode, in the order of the rows."""
    lines = []
    for name in dict.fromkeys(row.mode for row in rows):
        mine = [row for row in rows if row.mode == name]
        errors = {t: _rms([row.read_error[t] for row in mine]) for t in mine[0].read_error}
        lines.append(ModeSummary(
            mode=name, bits_per_element=sum(row.bits_per_element for row in mine) / len(mine),
            log_bits_per_element=sum(row.log_bits_per_element for row in mine) / len(mine),
            state_error=_rms([row.state_error for row in mine]), inflation=max(row.inflation for row in mine),
            read_error=errors, growth=errors[max(errors)] / errors[min(errors)],
        ))
    return lines


def _rms(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def series(ratio: float, length: int, interval: int) -> float:
    """Sum of ratio^(interval n) over the write-backs of ``length`` tokens; their number where the ratio is 1."""
    count = length // interval
    step = ratio**interval
    return float(count) if 1 - step < 1e-12 else (1 - step**count) / (1 - step)


def windows(square: Tensor, energy: Tensor) -> dict[int, float]:
    """{t: RMS over tokens t/2 .. t} for the whole length, halved three times."""
    length = len(square)
    return {end: float((square[end // 2:end].sum() / energy[end // 2:end].sum()).sqrt())
            for end in (length // 8, length // 4, length // 2, length)}
