"""The twin engine finds a difference, and finds none where there is none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from statecell.evaluate.equality import TwinEngine
from statecell.runtime.engine import Append, Attend, Attended
from statecell.runtime.model_engine import ModelEngine
from statecell.spec.geometry import config


class Faulty(ModelEngine):
    """Answers with one output bit wrong."""

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        wrong = np.array([1] + [0] * 31, np.int16)
        return [None if a is None else Attended(out=a.out ^ wrong, exponent=a.exponent) for a in super().run(items)]


@pytest.mark.parametrize(("device", "different"), [(ModelEngine, 0), (Faulty, 5)])
def test_differences_are_counted(device: type[ModelEngine], different: int) -> None:
    g = config("tiny")
    twins = TwinEngine(device(g), ModelEngine(g))
    slot = twins.open_slots(1)[0]
    x = np.random.default_rng(1).integers(-5000, 5000, (5, 32)).astype(np.int16)
    attend = Attend(slot=slot, q=x, start=np.zeros(5, np.int64), end=np.arange(5) + 1, shift=25)
    twins.run([Append(slot=slot, k=x, v=x), attend])
    assert (twins.attends, twins.vectors, twins.different) == (1, 5, different)
    twins.truncate(slot, 2)
    assert twins.length(slot) == 2
    twins.free_slots([slot])
    twins.close()
