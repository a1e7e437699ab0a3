"""Does a device answer what the integer model says, bit for bit, while a real model generates?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from statecell.evaluate.perplexity import check_context, text_ids, windows_of
from statecell.evaluate.twin_states import TwinStates
from statecell.link.address import check_address
from statecell.model.recurrent.named import DEFAULT
from statecell.runtime.attention import attach, detach
from statecell.runtime.engine import Append, Attend, Attended, Engine
from statecell.runtime.engines import open_engine
from statecell.runtime.model_engine import ModelEngine
from statecell.runtime.support import model_geometry
from statecell.spec.commands import Counters
from statecell.store.models import load_model
from statecell.store.quiet import quiet_transformers


@dataclass(frozen=True, kw_only=True)
class Equality:
    """`vectors` attention outputs, of `attends` engine items, and `readouts` of recurrent heads were compared;
    `different` of them differ in some bit. `state`: how recurrent states are stored, where there are any.
    """

    model: str
    device: str
    cache: str
    state: str | None
    prompt_tokens: int
    tokens: int
    attends: int
    vectors: int
    readouts: int
    different: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


class TwinEngine:
    """An engine that gives every item to a device and to the integer model, and compares every answer bit for bit.

    Answers are the device's. `attends`, `vectors` and `different` count items, output vectors and unequal vectors.
    """

    def __init__(self, device: Engine, model: ModelEngine) -> None:
        self._device, self._model = device, model
        self._states = None if device.states is None else TwinStates(device.states, model.states)
        self._twins: dict[int, int] = {}
        self.attends = self.vectors = self.different = 0

    @property
    def head_dim(self) -> int:
        """Lanes d of a row."""
        return self._device.head_dim

    @property
    def lanes(self) -> int:
        """Queries that one pass serves."""
        return self._device.lanes

    @property
    def states(self) -> TwinStates | None:
        """Recurrent states of both; None where the device keeps none."""
        return self._states

    def open_slots(self, count: int) -> list[int]:
        """Open slots in both."""
        slots = self._device.open_slots(count)
        self._twins.update(zip(slots, self._model.open_slots(count), strict=True))
        return slots

    def free_slots(self, slots: Sequence[int]) -> None:
        """Free slots in both."""
        self._device.free_slots(slots)
        self._model.free_slots([self._twins.pop(slot) for slot in slots])

    def length(self, slot: int) -> int:
        """Tokens stored in a slot."""
        return self._device.length(slot)

    def truncate(self, slot: int, tokens: int) -> None:
        """Keep the first tokens in both."""
        self._device.truncate(slot, tokens)
        self._model.truncate(self._twins[slot], tokens)

    def check_room(self, rows: Mapping[int, int]) -> None:
        """Whether the device has room."""
        self._device.check_room(rows)

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        """Do the items in both and compare."""
        answers = self._device.run(items)
        for answer, expected in zip(answers, self._model.run([self._for_model(item) for item in items]), strict=True):
            if answer is None or expected is None:
                continue
            same = (answer.out == expected.out).all(-1) & (answer.exponent == expected.exponent)
            self.attends += 1
            self.vectors += len(same)
            self.different += int(np.count_nonzero(~same))
        return answers

    def counters(self) -> Counters:
        """The device's counters."""
        return self._device.counters()

    def close(self) -> None:
        """Close both."""
        self._device.close()
        self._model.close()

    def _for_model(self, item: Append | Attend) -> Append | Attend:
        slot = self._twins[item.slot]
        if isinstance(item, Append):
            return Append(slot=slot, k=item.k, v=item.v, wide=item.wide)
        return Attend(slot=slot, q=item.q, start=item.start, end=item.end, shift=item.shift)


def equality(
    model_name: str,
    *,
    device_url: str = "sim:",
    state_format: str = DEFAULT,
    recalibrate: int | None = None,
    text: str = "persuasion",
    prompt_tokens: int = 16,
    tokens: int = 16,
    progress: Callable[[int, int], None] | None = None,
) -> Equality:
    """Generate `tokens` tokens greedily after a prompt from a text, on a device and the integer model side by side.

    `progress(done, total)` counts tokens. Raises EvaluationError for lengths beyond the text or the model's context,
    and what loading the model and opening the device raise.
    """
    check_address(device_url)
    loaded = load_model(model_name)
    check_context(loaded.model, prompt_tokens + tokens)
    ids = torch.tensor(windows_of(text_ids(loaded.tokenizer, text), prompt_tokens, prompt_tokens))
    shape = model_geometry(loaded.model)
    recurrent = shape.states is not None
    opened = open_engine(device_url, shape.head_dim, states=recurrent)
    engine = TwinEngine(opened.engine, ModelEngine(opened.geometry))
    try:
        attachment = attach(loaded.model, engine, state_format=state_format, recalibrate=recalibrate)
        try:
            with torch.inference_mode(), quiet_transformers():
                cache = attachment.new_cache()
                for done in range(1, tokens + 1):
                    logits = loaded.model(ids, cache=cache, use_cache=True).logits
                    ids = logits[:, -1:].argmax(-1)
                    if progress is not None:
                        progress(done, tokens)
        finally:
            detach(loaded.model)
    finally:
        engine.close()
    readouts, different = (engine.states.readouts, engine.states.different) if engine.states is not None else (0, 0)
    return Equality(
        model=loaded.name, device=opened.address, cache="int4", state=state_format if recurrent else None,
        prompt_tokens=prompt_tokens, tokens=tokens, attends=engine.attends, vectors=engine.vectors, readouts=readouts,
        different=engine.different + different,
    )
