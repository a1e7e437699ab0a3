"""Storage modes by the names that commands use, and the choice of each head's mode by its decay."""

from __future__ import annotations

from collections.abc import Sequence

from statecell.model.recurrent.mode import Mode, RecurrentError, Rounding, Scales, Storage
from statecell.spec.geometry import Geometry

MODES: dict[str, Mode] = {
    "int4-fresh": Mode(scales=Scales.FRESH, rotate=False),
    "int4-fresh-stochastic": Mode(scales=Scales.FRESH, rounding=Rounding.STOCHASTIC, rotate=False),
    "int4": Mode(),
    "int4-stochastic": Mode(rounding=Rounding.STOCHASTIC),
    "residual": Mode(storage=Storage.RESIDUAL),
    "int8": Mode(storage=Storage.INT8),
    "int4-log8": Mode(interval=8),
    "int4-log32": Mode(interval=32),
    "int8-log8": Mode(storage=Storage.INT8, interval=8),
}
"""Storage modes by name whose scales the array chooses itself."""
FORMATS: dict[str, Mode] = MODES | {"int4-predicted": Mode(scales=Scales.SUPPLIED)}
"""All of them: a model's scale predictor, which needs its tokens' embeddings, supplies the others'."""
DEFAULT = "default"
"""Two planes for the slow heads, one for the others, write-back every 8 tokens: put together from two other modes."""
FAST, SLOW = "int4-log8", "int8-log8"
"""The two modes of the default."""
DEFAULT_BITS = 5.5
"""Most stored bits of a state element that the default takes, averaged over a model's heads."""


def default_modes(decays: Sequence[float], geometry: Geometry) -> list[Mode]:
    """The default's mode of each head: two planes for the slowest heads, as many as DEFAULT_BITS allow.

    decays: mean decay of every head of a model. Raises RecurrentError for one outside (0, 1].
    """
    if wrong := [decay for decay in decays if not 0 < decay <= 1]:
        raise RecurrentError(f"a head's mean decay is {wrong[0]}; it must be above 0 and at most 1")
    fast, slow = (MODES[name].bits_per_element(geometry) for name in (FAST, SLOW))
    wide = int((DEFAULT_BITS - fast) / (slow - fast) * len(decays))
    slowest = sorted(range(len(decays)), key=lambda head: -decays[head])[:wide]
    return [MODES[SLOW if head in slowest else FAST] for head in range(len(decays))]
