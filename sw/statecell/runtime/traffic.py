"""Bytes and cycles that an engine spent, beside what an FP16 cache would have read."""

from __future__ import annotations

from dataclasses import dataclass

from statecell.runtime.engine import Engine
from statecell.runtime.support import Geometry as ModelGeometry
from statecell.spec.commands import Counters
from statecell.spec.geometry import Geometry as DeviceGeometry

FP16_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Device cycles (None where nothing is clocked), bytes read from the two banks (scales included), bytes of FP16."""

    cycles: int | None
    array_bytes: float
    fp16_bytes: int


class Traffic:
    """Measures token-by-token decoding of one sequence on an engine: `start`, then `stop`."""

    def __init__(self, engine: Engine, model: ModelGeometry, device: DeviceGeometry) -> None:
        self._engine = engine
        self._model = model
        self._device = device
        self._length = 0
        self._before: Counters | None = None

    def start(self, length: int) -> None:
        """Begin with `length` tokens in the cache."""
        self._length, self._before = length, self._engine.counters()

    def stop(self, length: int) -> Spent:
        """What was spent while the cache grew, one token a step, from the start's length to `length`."""
        before, now = self._before, self._engine.counters()
        if before is None:
            raise RuntimeError("stop was called before start")
        rows = now.key_rows + now.value_rows - before.key_rows - before.value_rows
        # A step that stores the token number n (from 1) reads n keys and n values in every layer and KV head.
        reads = sum(range(self._length + 1, length + 1))
        elements = 2 * reads * self._model.layers * self._model.kv_heads * self._model.head_dim
        if (states := self._model.states) is not None:  # a float state is read whole for every token
            steps = length - self._length
            elements += steps * len(states.layers) * states.heads * states.dim * states.channels
        return Spent(
            cycles=now.cycles - before.cycles if now.cycles else None,
            array_bytes=rows * self._device.row_bits / 8,
            fp16_bytes=elements * FP16_BYTES,
        )


def bits_per_element(cache_format: str, tokens: int, device: DeviceGeometry | None) -> float:
    """Mean stored bits of one key or value element of a sequence of `tokens` tokens, scales and 8-bit rows included.

    Without a `device` the cache is on the host, `fp16` or `float`. A row in 8 bits takes two rows of the array: in int4
    the first token's, in int8 every token's.
    """
    if device is None:
        return {"float": 32.0, "fp16": 16.0}[cache_format]
    rows = 2 * tokens if cache_format == "int8" else tokens + 1
    return device.bits_per_element * rows / max(tokens, 1)
