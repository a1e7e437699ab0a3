"""Error of the data path alone: the device's attention against exact attention over the same stored rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from statecell.evaluate.perplexity import check_context, check_windows, text_ids, windows_of
from statecell.model import reference, rotate
from statecell.runtime.attention import attach, detach
from statecell.runtime.engine import Append, Attend, Attended
from statecell.runtime.engines import default_config
from statecell.runtime.model_engine import ModelEngine
from statecell.runtime.support import model_geometry
from statecell.spec.geometry import config
from statecell.store.models import load_model


@dataclass(frozen=True, kw_only=True)
class Datapath:
    """Cosine similarity over every attention output vector of a text: `mean`, `worst`, and the share below 0.9999."""

    model: str
    text: str
    config: str
    query_bits: int
    vectors: int
    mean_cosine: float
    worst_cosine: float
    below_0_9999: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class ProbedEngine(ModelEngine):
    """The integer model, keeping the cosine of each answer against exact attention over the de-quantised rows.

    Exact means float64 softmax (`model.reference`) of the 16-bit queries over the very rows that the array holds, so
    what differs is query quantisation, fixed-point scores and softmax, weights, reciprocal and output rounding.
    """

    def __init__(self, name: str) -> None:
        self.geometry = config(name)
        super().__init__(self.geometry)
        self.cosines: list[torch.Tensor] = []

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        """Do the items in order and compare every attention."""
        results: list[Attended | None] = []
        for item in items:
            answer = super().run([item])[0]
            if isinstance(item, Attend) and answer is not None:
                self.cosines.append(self._compare(item, answer))
            results.append(answer)
        return results

    def _compare(self, item: Attend, answer: Attended) -> torch.Tensor:
        dim = self.geometry.head_dim
        keys, values = self.rows(item.slot)
        start, end = self.bounds(item)
        # the planes of a wide row are one token: add the high plane to the low one, and keep only the high row's place
        last = ~keys.low
        back = rotate.hadamard(dim) * 2.0**self.geometry.rotate_shift / dim
        k, v = (_join_planes(rows.dequantise(), keys.low)[last] @ back for rows in (keys, values))
        token = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cumsum(last.long(), 0)])
        q = torch.from_numpy(item.q).double()
        exact = reference.attend(q, k, v, token[start], token[end], math.log(2) * 2.0**-item.shift)
        ours = torch.from_numpy(answer.out).double() * 2.0 ** torch.from_numpy(answer.exponent)[:, None].double()
        return torch.nn.functional.cosine_similarity(ours, exact, dim=-1)


def _join_planes(rows: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    joined = rows.clone()
    joined[1:] += torch.where(low[:-1, None], rows[:-1], 0)
    return joined


def datapath(
    model_name: str, text: str, *, config_name: str | None = None, tokens: int = 1024, window: int = 512,
    progress: Callable[[int, int], None] | None = None,
) -> Datapath:
    """Run the model over `tokens` tokens of a text on the integer model and compare every attention of every layer.

    `config_name` defaults to the configuration of the model's head_dim. Raises as `evaluate.perplexity`.
    """
    check_windows(tokens, window)
    if config_name is not None:
        config(config_name)
    loaded = load_model(model_name)
    check_context(loaded.model, window)
    name = config_name or default_config(model_geometry(loaded.model).head_dim)
    engine = ProbedEngine(name)
    windows = windows_of(text_ids(loaded.tokenizer, text), tokens, window)
    attachment = attach(loaded.model, engine)
    try:
        for done, ids in enumerate(windows, 1):
            with torch.inference_mode():
                loaded.model(torch.tensor([ids]), cache=attachment.new_cache(), use_cache=True)
            if progress is not None:
                progress(done, len(windows))
    finally:
        detach(loaded.model)
    cosine = torch.cat(engine.cosines)
    return Datapath(
        model=loaded.name, text=text, config=name, query_bits=engine.geometry.query_bits, vectors=len(cosine),
        mean_cosine=float(cosine.mean()), worst_cosine=float(cosine.min()),
        below_0_9999=float((cosine < 0.9999).double().mean()),
    )
