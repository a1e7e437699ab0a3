"""A whole model on a device: cycles, bytes and time per token, beside the same loop with float attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from statecell.runtime.report import GenerationReport
from statecell.runtime.session import Session

_TEXT = "In the beginning the sea was grey and quiet, and the ships lay in the harbour waiting for the wind. "


@dataclass(frozen=True, kw_only=True)
class ModelBench:
    """Decoding of `tokens` tokens around `context` tokens in the cache; `slowdown` is float speed / device speed."""

    model: str
    device: str
    cache: str
    context: int
    tokens: int
    cycles_per_token: float | None
    tokens_per_s: float
    float_tokens_per_s: float
    slowdown: float
    time_to_first_token_s: float
    float_time_to_first_token_s: float
    bytes_per_token: float | None
    fp16_bytes_per_token: float | None
    bits_per_element: float
    agreement: float | None
    mean_logit_difference: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def bench_model(
    model_name: str,
    *,
    device_url: str = "sim:",
    cache_format: str = "int4",
    context: int = 64,
    tokens: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> ModelBench:
    """Generate greedily with the format and with float attention, from the same prompt and in the same process.

    The prompt has `context` - `tokens` / 2 tokens, so that the cache holds `context` tokens in the mean. Both loops
    run once to warm up before they are measured. `progress(done, total)` counts the four runs. Raises
    what `Session` raises.
    """
    steps = 0

    def run(session: Session, prompt: list[int], count: int, check: bool) -> GenerationReport:
        nonlocal steps
        session.restart()
        report = session.generate(prompt, count, check=check, stop_at_end=False)
        steps += 1
        if progress is not None:
            progress(steps, 4)
        return report

    with Session(model_name, cache_format="float") as plain, Session(model_name, device_url, cache_format) as session:
        length = max(1, context - tokens // 2)
        text = _TEXT * (length // 8 + 1)  # at most four characters a token for any tokenizer that is used here
        prompt = session.tokenizer(text, add_special_tokens=False)["input_ids"][:length]
        run(plain, prompt, 2, False)
        run(session, prompt, 2, False)
        float_report = run(plain, prompt, tokens + 1, False)
        report = run(session, prompt, tokens + 1, True)
    speed, float_speed = report.tokens_per_s or 0.0, float_report.tokens_per_s or 0.0
    return ModelBench(
        model=report.model,
        device=report.device,
        cache=report.cache,
        context=context,
        tokens=tokens,
        cycles_per_token=report.cycles_per_token,
        tokens_per_s=speed,
        float_tokens_per_s=float_speed,
        slowdown=float_speed / speed,
        time_to_first_token_s=report.time_to_first_token_s,
        float_time_to_first_token_s=float_report.time_to_first_token_s,
        bytes_per_token=report.array_bytes_per_token,
        fp16_bytes_per_token=report.fp16_bytes_per_token,
        bits_per_element=report.bits_per_element,
        agreement=report.agreement,
        mean_logit_difference=report.mean_logit_difference,
    )
