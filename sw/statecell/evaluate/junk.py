"""What runs of padding or of '#' in a prompt cost: perplexity of the text after them, with and without the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from statecell.evaluate.perplexity import check_context, text_ids
from statecell.evaluate.states import FLOAT, check_states, losses_with, pieces
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent.calibration import known_states
from statecell.runtime.support import model_geometry
from statecell.store.models import load_model


@dataclass(frozen=True, kw_only=True)
class JunkCost:
    """`ppl` of the `follow` tokens after a run of `run` junk tokens, and `ppl_plain` of the same ones without the run.

    The run stands `gap` tokens before them, after a prompt of `prompt` tokens in all, in `streams` pieces of the text.
    """

    model: str
    text: str
    state: str
    junk: str
    run: int
    gap: int
    prompt: int
    follow: int
    streams: int
    ppl: float
    ppl_plain: float
    increase: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def junk_cost(model_name: str, text: str, *, states: Sequence[str] = (FLOAT,), runs: Sequence[int] = (16, 64, 256),
              prompt: int = 1024, gap: int = 64, follow: int = 512, streams: int = 8,
              progress: Callable[[int, int], None] | None = None) -> list[JunkCost]:
    """The cost of runs of '#' and of the padding token, for each format of states and length of run.

    `progress` counts runs. Raises UnsupportedError for a tokenizer without padding, a model without states or an
    unknown format, EvaluationError for a text that is too short.
    """
    check_states(states)
    loaded = load_model(model_name)
    shape, tokenizer = model_geometry(loaded.model).states, loaded.tokenizer
    if shape is None or tokenizer.pad_token_id is None:
        raise UnsupportedError(f"{loaded.name} has no recurrent states or no padding token: use hybrid-tiny.")
    check_context(loaded.model, prompt + follow + max(runs))
    ids = pieces(text_ids(tokenizer, text), streams, prompt + follow)
    junk = {"#": tokenizer("#", add_special_tokens=False)["input_ids"][0], "padding": tokenizer.pad_token_id}
    calibration = known_states(loaded.model)

    def bits(name: str, tokens: Tensor) -> float:
        return float(losses_with(loaded.model, shape, name, tokens, calibration)[:, -follow:].mean())

    rows = []
    for name in states:
        plain = bits(name, ids)
        for sign, token in junk.items():
            for run in runs:
                mine = bits(name, inserted(ids, token, run, prompt - gap))
                rows.append(JunkCost(
                    model=loaded.name, text=text, state=name, junk=sign, run=run, gap=gap, prompt=prompt, follow=follow,
                    streams=streams, ppl=2**mine, ppl_plain=2**plain, increase=2 ** (mine - plain) - 1))
                if progress is not None:
                    progress(len(rows), len(states) * len(junk) * len(runs))
    return rows


def inserted(ids: Tensor, token: int, run: int, at: int) -> Tensor:
    """The rows of ``ids`` with ``run`` times ``token`` before position ``at``."""
    return torch.cat([ids[:, :at], torch.full((len(ids), run), token), ids[:, at:]], 1)
