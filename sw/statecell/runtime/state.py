"""What the layers of one slot cache share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from statecell.device import ArrayFullError
from statecell.runtime.calibration import Calibration
from statecell.runtime.engine import Append, Attend, Attended
from statecell.runtime.errors import CacheStateError, other_batch
from statecell.runtime.masking import Plan
from statecell.runtime.sharing import SharedEngine

CacheFormat = Literal["int4", "int8"]
CACHE_FORMATS: tuple[str, ...] = get_args(CacheFormat)


@dataclass(kw_only=True)
class Tally:
    """Elements that were converted to integers, and how many of them were saturated."""

    elements: int = 0
    saturated: int = 0

    def add(self, other: Tally) -> None:
        """Count what another one counted."""
        self.elements += other.elements
        self.saturated += other.saturated


@dataclass(eq=False, kw_only=True)
class SlotState:
    """What the layers of one cache share.

    `valid` [batch, padded length] tells which positions are tokens, `ids` are their token ids where they are known.
    `tally` counts for all caches of an attachment, `counted` the running forward pass, `plan` is that pass's.
    """

    engine: SharedEngine
    calibration: Calibration | None
    cache_format: CacheFormat
    tally: Tally
    counted: Tally = field(default_factory=Tally)
    valid: NDArray[np.bool_] = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    ids: NDArray[np.int64] | None = None
    slots: dict[int, int] = field(default_factory=dict)  # slot -> sequence of the batch
    plan: Plan | None = None
    fault: str | None = None

    def check(self) -> None:
        """Raise CacheStateError where the cache can no longer be used."""
        if self.fault is not None:
            raise CacheStateError(f"this cache cannot be used: {self.fault}; start a new one")

    def plan_for(self, past: int, batch: int, new: int, mask: torch.Tensor | None) -> Plan:
        """The plan of the running forward pass for a layer that holds `past` positions."""
        plan = self.plan
        if past == self.valid.shape[1]:
            stored = self.valid if self.valid.shape[0] else np.zeros((batch, 0), np.bool_)
            if stored.shape[0] != batch:
                raise other_batch(batch, stored.shape[0])
            plan = self.plan = Plan(stored, new, mask)
        elif plan is None or past != plan.past or new != plan.new:
            self.fault = "its layers hold different numbers of tokens, because an earlier forward pass did not finish"
            self.check()
            raise AssertionError("unreachable: a cache with a fault is refused")
        return plan

    def commit(self, plan: Plan) -> None:
        """Called by every layer before it changes its slots.

        The first one raises ArrayFullError where the pass will not fit into the slots of some layer: were it found out
        there, the pages that the layers before had taken would be missing afterwards.
        """
        if self.valid is plan.valid:
            return
        if not plan.drops:
            wide = self.cache_format == "int8"
            rows = [2 * new if wide else new + plan.first_is_new(b) for b, new in enumerate(plan.take.sum(axis=1))]
            self.engine.check_room({slot: int(rows[b]) for slot, b in self.slots.items()})
        self.valid = plan.valid

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        """Run items on the engine. Raises the engine's errors.

        A full array is the only one after which the rows are known; any other, an interrupt too, breaks the cache.
        """
        try:
            return self.engine.run(items)
        except ArrayFullError:
            raise
        except BaseException as error:
            self.fault = ended_early(error)
            raise


def ended_early(error: BaseException) -> str:
    """Why a cache is broken whose forward pass raised `error`."""
    return f"a forward pass ended early with {type(error).__name__}"
