"""A fact far back in a text: how many bits its repetition still costs, with states in several formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from statecell.evaluate.perplexity import check_context, text_ids
from statecell.evaluate.states import FLOAT, check_states, losses, losses_with, pieces
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent.calibration import known_states
from statecell.runtime.support import StateGeometry, model_geometry
from statecell.store.models import load_model

QUESTION = "\n\nThe secret word of the house was "
SOFTMAX = "softmax"
"""Float states that are emptied before the question: what the softmax layers alone, which see every token, bring."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WORD = 8


@dataclass(frozen=True, kw_only=True)
class Needle:
    """`bits` of a random word of eight letters, asked for `distance` tokens after it was told, a token each, and
    `bits_untold` of the same word where it had not been told. `found`: share of the words whose every token had a
    probability above 1/2, so that the likeliest text is the word.
    """

    model: str
    text: str
    state: str
    distance: int
    words: int
    bits: float
    bits_untold: float
    found: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def needle(model_name: str, text: str, *, states: Sequence[str] = (FLOAT,), distances: Sequence[int] = (1024, 4096),
           words: int = 8, seed: int = 0, progress: Callable[[int, int], None] | None = None) -> list[Needle]:
    """Needles of random words in pieces of a text, with ``states`` in formats of `eval ppl` or SOFTMAX.

    `progress` counts distances times formats.

    Raises UnsupportedError for a model without states or an unknown format, EvaluationError for a text too short.
    """
    check_states([name for name in states if name != SOFTMAX])
    loaded = load_model(model_name)
    shape = model_geometry(loaded.model).states
    if shape is None:
        raise UnsupportedError(f"{loaded.name} has no recurrent states: use a hybrid model such as hybrid-tiny.")
    tokenizer = loaded.tokenizer
    generator = torch.Generator().manual_seed(seed)
    told_ids = [_ids(tokenizer, QUESTION + _word(generator) + ".\n\n") for _ in range(words)]
    if any(len(ids) != len(QUESTION) + _WORD + 3 for ids in told_ids):
        raise UnsupportedError(f"The tokens of {loaded.name} are not bytes: use hybrid-tiny.")
    told = torch.tensor(told_ids)
    asked = told[:, :len(QUESTION) + _WORD]
    check_context(loaded.model, max(distances) + 2 * told.shape[1])
    calibration = known_states(loaded.model)
    rows = []
    for distance in distances:
        hay = pieces(text_ids(tokenizer, text), words, distance)
        for name in states:
            def bits(ids: Tensor, name: str = name) -> Tensor:
                if name == SOFTMAX:
                    return _without_states(loaded.model, shape, ids, asked.shape[1])[:, -_WORD:]
                return losses_with(loaded.model, shape, name, ids, calibration)[:, -_WORD:]

            mine = bits(torch.cat([told, hay, asked], 1))
            plain = bits(torch.cat([hay, asked], 1))
            rows.append(Needle(
                model=loaded.name, text=text, state=name, distance=distance, words=words, bits=float(mine.mean()),
                bits_untold=float(plain.mean()), found=float((mine < 1).all(1).double().mean())))
            if progress is not None:
                progress(len(rows), len(distances) * len(states))
    return rows


def _without_states(model: Any, shape: StateGeometry, ids: Tensor, last: int) -> Tensor:
    """Bits of the ``last`` tokens but the first, the states empty before them."""
    cache = DynamicCache(config=model.config)
    losses(model, ids[:, :-last], cache)
    for layer in shape.layers:
        kept: Any = cache.layers[layer]
        kept.recurrent_states[0] = torch.zeros_like(kept.recurrent_states[0])
    return losses(model, ids[:, -last:], cache)


def _word(generator: torch.Generator) -> str:
    return "".join(_LETTERS[int(i)] for i in torch.randint(len(_LETTERS), (_WORD,), generator=generator))


def _ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
