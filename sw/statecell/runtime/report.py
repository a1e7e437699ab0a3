"""What one generation did, for people and for JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GenerationReport:
    """What one call of `Session.generate` did.

    `prompt_ids` and `ids` are the token ids of the prompt and of the answer, `text` is the answer decoded.
    `tokens_per_s`, cycles and bytes are of the tokens after the first, which alone are decoded one by one; None where
    there is none, or where no device counts them. `agreement` is the share of generated tokens that the float model,
    given the same text before them, ranks first; `mean_logit_difference` is the mean absolute difference of all logits
    at those positions. `saturated_elements` counts the elements that left the calibrated range.
    """

    model: str
    device: str
    cache: str
    text: str
    prompt_ids: list[int]
    ids: list[int]
    prompt_tokens: int
    tokens: int
    seconds: float
    time_to_first_token_s: float
    tokens_per_s: float | None
    cycles_per_token: float | None
    array_bytes_per_token: float | None
    fp16_bytes_per_token: float | None
    bits_per_element: float
    agreement: float | None
    mean_logit_difference: float | None
    saturated_elements: int | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)
