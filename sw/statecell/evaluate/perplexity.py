"""Perplexity of a model over a text, with float attention and with a cache format."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from statecell.errors import StatecellError
from statecell.evaluate.formats import check_formats, using
from statecell.runtime.support import context_of
from statecell.store.models import load_model
from statecell.store.texts import load_text

SKIP_BYTES = 100_000
"""Evaluation begins here, past title pages and prefaces."""


class EvaluationError(StatecellError):
    """A text or a window is too short to evaluate."""


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """Perplexity `ppl` of one format beside `ppl_reference` of float attention over the same `tokens` predictions.

    `increase` is ppl / ppl_reference - 1. `bits_per_element` counts scales and 8-bit rows at a full window.
    """

    model: str
    text: str
    cache: str
    device: str
    window: int
    tokens: int
    ppl: float
    ppl_reference: float
    increase: float
    bits_per_element: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def text_ids(tokenizer: Any, text: str, skip_bytes: int = SKIP_BYTES) -> list[int]:
    """Token ids of a text from byte `skip_bytes` on (from 0 where it is shorter than twice that)."""
    data = load_text(text).encode()
    part = data[skip_bytes if len(data) >= 2 * skip_bytes else 0 :].decode(errors="ignore")
    return list(tokenizer(part, add_special_tokens=False)["input_ids"])


def check_windows(tokens: int, window: int) -> None:
    """Raise EvaluationError unless `tokens` is a multiple of a `window` of at least 2 tokens."""
    if window < 2 or tokens < window or tokens % window:
        raise EvaluationError(
            f"The evaluation has {tokens} tokens in windows of {window}: give a window of at least 2 and a "
            "multiple of it."
        )


def check_context(model: Any, tokens: int) -> None:
    """Raise EvaluationError where one sequence of `tokens` is longer than the model's context."""
    context = context_of(model)
    if tokens > context:
        raise EvaluationError(f"A sequence has {tokens} tokens, the model's context is {context}: make it shorter.")


def windows_of(ids: Sequence[int], tokens: int, window: int) -> list[list[int]]:
    """The first `tokens` ids in separate windows of `window`. Raises EvaluationError if there are not so many."""
    if len(ids) < tokens:
        raise EvaluationError(
            f"The text has only {len(ids)} tokens and {tokens} are wanted: give fewer, or a longer text."
        )
    return [list(ids[start : start + window]) for start in range(0, tokens, window)]


def negative_log_likelihood(
    model: Any, windows: Sequence[Sequence[int]], new_cache: Callable[[], Any], step: Callable[[], None]
) -> float:
    """Mean negative log likelihood in nats of every token but the first of each window, each in a cache of its own.

    `step` runs after each window.
    """
    total, count = 0.0, 0
    for window in windows:
        ids = torch.tensor([list(window)])
        with torch.inference_mode():
            cache = new_cache()
            logits = model(ids, cache=cache, use_cache=True).logits[0, :-1].float()
            del cache
        total += torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="sum").item()
        count += len(window) - 1
        step()
    if not math.isfinite(total):
        raise EvaluationError("The model yields NaN or infinity on this text: check its weights.")
    return total / count


def perplexity(
    model_name: str,
    text: str,
    *,
    cache_formats: Sequence[str] = ("int4",),
    device_url: str = "model:",
    tokens: int = 4096,
    window: int = 1024,
    skip_bytes: int = SKIP_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> list[Perplexity]:
    """Perplexity of each format in `cache_formats` (see `statecell.evaluate.formats`) on one text.

    The text is read from byte `skip_bytes` (from 0 where it is shorter than twice that), each window is a fresh
    sequence. `progress(done, total)` counts windows. Raises EvaluationError for a text that is too short, and what
    loading the model and opening the device raise.
    """
    check_windows(tokens, window)
    check_formats(cache_formats, device_url)
    loaded = load_model(model_name)
    check_context(loaded.model, window)
    windows = windows_of(text_ids(loaded.tokenizer, text, skip_bytes), tokens, window)
    done, total = 0, len(windows) * (len(cache_formats) + 1)

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    with using(loaded.model, "float", device_url) as place:
        reference = math.exp(negative_log_likelihood(loaded.model, windows, place.new_cache, step))
    results = []
    for cache in cache_formats:
        with using(loaded.model, cache, device_url) as place:
            value = math.exp(negative_log_likelihood(loaded.model, windows, place.new_cache, step))
        results.append(
            Perplexity(
                model=loaded.name,
                text=text,
                cache=cache,
                device=place.address,
                window=window,
                tokens=tokens,
                ppl=value,
                ppl_reference=reference,
                increase=value / reference - 1,
                bits_per_element=place.bits(window),
            )
        )
    return results
