"""Greedy text of a cache format beside the float model's, over several prompts from a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from statecell.evaluate.formats import check_formats
from statecell.evaluate.perplexity import EvaluationError, text_ids
from statecell.runtime.session import Session


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Over all generated tokens: share that the float model ranks first after the same text, and mean absolute
    difference of all logits. `identical_prefix` is the mean number of tokens before the texts part.
    """

    model: str
    text: str
    cache: str
    device: str
    prompts: int
    prompt_tokens: int
    tokens: int
    top1: float
    mean_logit_difference: float
    identical_prefix: float
    per_prompt: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def agreement(
    model_name: str,
    text: str,
    *,
    cache_format: str = "int4",
    device_url: str = "model:",
    prompts: int = 5,
    prompt_tokens: int = 64,
    tokens: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> Agreement:
    """Generate `tokens` tokens greedily after each of `prompts` prompts of `prompt_tokens` tokens, evenly spread over
    the text from byte 100,000 on, with the format and with float attention.

    `progress(done, total)` counts prompts. Raises EvaluationError for a text that is too short, and what `Session`
    raises.
    """
    if prompts < 1 or prompt_tokens < 1 or tokens < 1:
        raise EvaluationError(
            f"{prompts} prompts of {prompt_tokens} tokens, each followed by {tokens}, are wanted: give at least 1 of "
            "each."
        )
    check_formats([cache_format], device_url)
    rows: list[dict[str, Any]] = []
    with Session(model_name, cache_format="float") as plain, Session(model_name, device_url, cache_format) as session:
        ids = text_ids(session.tokenizer, text)
        if len(ids) < prompts * prompt_tokens:
            raise EvaluationError(
                f"The text has {len(ids)} tokens and {prompts} prompts of {prompt_tokens} are wanted: give fewer, or a "
                "longer text."
            )
        for number in range(prompts):
            begin = number * (len(ids) // prompts)
            prompt = ids[begin : begin + prompt_tokens]
            for each in (plain, session):
                each.restart()
            report = session.generate(prompt, tokens, stop_at_end=False)
            plain.generate(prompt, tokens, stop_at_end=False, check=False)
            pairs = zip(session.ids[prompt_tokens:], plain.ids[prompt_tokens:], strict=True)
            same = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), tokens)
            rows.append(
                {
                    "first_token": begin,
                    "top1": report.agreement,
                    "mean_logit_difference": report.mean_logit_difference,
                    "identical_prefix": same,
                }
            )
            if progress is not None:
                progress(number + 1, prompts)
        return Agreement(
            model=session.name,
            text=text,
            cache=cache_format,
            device=session.device,
            prompts=prompts,
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            top1=sum(row["top1"] for row in rows) / prompts,
            mean_logit_difference=sum(row["mean_logit_difference"] for row in rows) / prompts,
            identical_prefix=sum(row["identical_prefix"] for row in rows) / prompts,
            per_prompt=rows,
        )
