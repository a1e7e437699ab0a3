"""The probe sees an exact data path as exact and a coarse one as coarse, wide rows included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from statecell.evaluate.datapath import ProbedEngine
from statecell.runtime.engine import Append, Attend


@pytest.mark.parametrize(("name", "shift", "least", "most"), [("bench64", 24, 0.9999, 1.0), ("tiny", 22, 0.99, 0.9999)])
def test_cosines(name: str, shift: int, least: float, most: float) -> None:
    engine = ProbedEngine(name)
    d = engine.head_dim
    rng = np.random.default_rng(2)
    k, v, q = (rng.normal(0, 2500, (40, d)).astype(np.int16) for _ in range(3))
    slot = engine.open_slots(1)[0]
    engine.run([
        Append(slot=slot, k=k[:1], v=v[:1], wide=True), Append(slot=slot, k=k[1:30], v=v[1:30]),
        Append(slot=slot, k=k[30:32], v=v[30:32], wide=True), Append(slot=slot, k=k[32:], v=v[32:]),
        Attend(slot=slot, q=q, start=np.zeros(40, np.int64), end=np.arange(40) + 1, shift=shift),
    ])
    cosine = torch.cat(engine.cosines)
    assert len(cosine) == 40
    assert least <= float(cosine.min()) and float(cosine[1:].min()) <= most
