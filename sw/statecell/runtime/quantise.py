"""Between the model's floats and the engine's integers.

With the calibrated means and LSBs of a layer and KV head,

    k_int = round((k - k_mean) / k_lsb)                         saturated to +-32767, v likewise
    q_int = round(q * scaling * log2(e) * k_lsb * 2**shift)     max |q_int| of an Attend item in (16383, 32767]
    score = q_int . k_int * 2**-shift                           in log2 units (octaves)
    o     = out * 2**exponent * v_lsb + v_mean

Removing `k_mean` shifts all scores of a query by the same amount, which softmax does not see; removing `v_mean` shifts
the output by `v_mean`, which is added back here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from statecell.runtime.errors import NotFiniteError
from statecell.spec.formats import VECTOR_MAX

if TYPE_CHECKING:
    from statecell.runtime.calibration import Calibration

LOG2_E = math.log2(math.e)
# A 4-bit or 8-bit code is chosen from the 16-bit integer, so four bits of headroom over the first prompt's largest
# magnitude cost no accuracy that the stored row could keep, and later tokens have room to be larger.
FIRST_PROMPT_HEADROOM = 8.0
# An all-zero prompt row gives no magnitude; any positive LSB represents it exactly.
SMALLEST_LSB = 2.0**-40

Floats = NDArray[np.float32]


def log2_score(dot: NDArray[np.float64], shift: int) -> NDArray[np.float64]:
    """Score in log2 units of an integer dot product q_int . k_int: the meaning of `Attend.shift`."""
    return np.ldexp(dot, -shift)


@dataclass(frozen=True, kw_only=True)
class LayerScales:
    """Means [kv_heads, 1, d] and LSBs [kv_heads, 1, 1] of one layer, float32, shaped to broadcast over [B, H, T, d]."""

    k_mean: Floats
    v_mean: Floats
    k_lsb: Floats
    v_lsb: Floats

    @classmethod
    def calibrated(cls, calibration: Calibration, layer: int) -> LayerScales:
        """The scales of one layer of a calibration."""
        return cls(
            k_mean=calibration.k_mean[layer][:, None, :],
            v_mean=calibration.v_mean[layer][:, None, :],
            k_lsb=calibration.k_lsb[layer][:, None, None],
            v_lsb=calibration.v_lsb[layer][:, None, None],
        )

    @classmethod
    def from_first_rows(cls, k: Floats, v: Floats, layer: int) -> LayerScales:
        """Neutral scales: zero means, LSBs from the largest magnitude of the first rows [B, H, T, d] of each head."""
        mean = np.zeros((k.shape[1], 1, k.shape[3]), np.float32)
        lsbs = []
        for what, rows in (("key", k), ("value", v)):
            largest = np.abs(rows).max(axis=(0, 2, 3))
            if not np.isfinite(largest).all():
                raise _not_finite(what, layer)
            lsbs.append(np.maximum(largest * (FIRST_PROMPT_HEADROOM / VECTOR_MAX), SMALLEST_LSB).astype(np.float32))
        return cls(k_mean=mean, v_mean=mean, k_lsb=lsbs[0][:, None, None], v_lsb=lsbs[1][:, None, None])


def rows_to_int16(x: Floats, mean: Floats, lsb: Floats, what: str, layer: int) -> tuple[NDArray[np.int16], int]:
    """Key or value rows [B, H, n, d] as int16, and how many elements were saturated.

    Raises NotFiniteError, naming `what` ("key", "value") and the layer, where an element is NaN or infinite.
    """
    scaled = x - mean
    scaled /= lsb
    np.rint(scaled, out=scaled)
    largest = float(max(scaled.max(), -scaled.min()))
    if not math.isfinite(largest):
        raise _not_finite(what, layer)
    saturated = 0
    if largest > VECTOR_MAX:
        saturated = int(np.count_nonzero(np.abs(scaled) > VECTOR_MAX))
        np.clip(scaled, -VECTOR_MAX, VECTOR_MAX, out=scaled)
    return scaled.astype(np.int16), saturated


def queries_to_int16(
    q: Floats, scaling: float, k_lsb: Floats, layer: int
) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
    """Queries [B, H, L, d] of the KV heads as int16, and the shift [B, H] of each head's item.

    Raises NotFiniteError, naming the layer, where an element is NaN or infinite.
    """
    unit = q * (k_lsb * np.float32(scaling * LOG2_E))
    largest = np.maximum(unit.max(axis=(2, 3)), -unit.min(axis=(2, 3)))
    if not np.isfinite(largest).all():
        raise _not_finite("query", layer)
    fraction, exponent = np.frexp(largest)  # largest = fraction * 2**exponent, fraction in [0.5, 1), or 0
    # 2**15 * fraction lies in [16384, 32768); one bit less where it would exceed the range.
    over = fraction * np.float32(VECTOR_MAX + 1) > VECTOR_MAX
    shift = np.where(largest > 0, 15 - exponent - over, 0).astype(np.int32)
    scaled = np.ldexp(unit, shift[:, :, None, None])
    np.rint(scaled, out=scaled)
    return scaled.astype(np.int16), shift


def attended_to_float(out: NDArray[np.int16], exponent: NDArray[np.signedinteger], scales: LayerScales) -> Floats:
    """Attention outputs, out [B, H, L, d] and exponent [B, H, L], as float32 [B, H, L, d]."""
    value: Floats = np.ldexp(out.astype(np.float32), exponent[..., None])
    value *= scales.v_lsb
    value += scales.v_mean
    return value


def _not_finite(what: str, layer: int) -> NotFiniteError:
    return NotFiniteError(
        f"the {what} vectors of layer {layer} hold NaN or infinity, finite numbers were expected; "
        "check the model's weights and number format (float16 overflows where bfloat16 does not)"
    )
