"""Perplexity of a hybrid model whose recurrent states are stored in some format, over long sequences."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from statecell.evaluate.naive_states import NaiveStates, naive_bits
from statecell.evaluate.perplexity import EvaluationError, check_context, text_ids
from statecell.model.recurrent.named import DEFAULT, FORMATS
from statecell.runtime.engines import default_config
from statecell.runtime.errors import UnsupportedError
from statecell.runtime.recurrent.cache import StateCache
from statecell.runtime.recurrent.calibration import StateCalibration, known_states, plans
from statecell.runtime.recurrent.dispatch import installed, rules_of
from statecell.runtime.recurrent.engine import StateEngine
from statecell.runtime.recurrent.guards import Guards, guards_of
from statecell.runtime.recurrent.layer import LayerPlan
from statecell.runtime.recurrent.model_states import ModelStates
from statecell.runtime.support import StateGeometry, array_of, model_geometry
from statecell.spec.geometry import config
from statecell.store.models import load_model
from statecell.store.quiet import quiet_transformers

NAIVE = {"naive-int4": 4, "naive-int8": 8}
"""Controls: float arithmetic, a fresh float scale per column at every token, no rotation."""
FLOAT = "fp32"
STATES = (FLOAT, DEFAULT, *FORMATS, *NAIVE)
EDGES = (0, 1024, 4096, 8192, 16384, 32768)
"""Positions between which the added loss is averaged."""
_CHUNK = 256


@dataclass(frozen=True, kw_only=True)
class StatePerplexity:
    """Perplexity `ppl` per token with states in one format, beside `ppl_reference` of float32 states.

    `loss_added` (bits per byte, with the standard error of its mean over blocks of 256 tokens of the same text) and
    `relative` (over the reference's bits per byte) cover all `tokens` positions of `streams` sequences, `..._8k` the
    first 8,192; `added_by_position` maps ranges of positions to bits per byte. `bits_per_element` counts scales but not
    the log, which is `log_bits_per_element`; both are averaged over the model's heads.
    """

    model: str
    text: str
    state: str
    streams: int
    tokens: int
    ppl: float
    ppl_reference: float
    bits_per_byte: float
    bits_per_byte_reference: float
    loss_added: float
    loss_added_error: float
    relative: float
    loss_added_8k: float
    relative_8k: float
    added_by_position: dict[str, float]
    bits_per_element: float
    log_bits_per_element: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


def check_states(names: Sequence[str]) -> None:
    """Raise UnsupportedError for a format of states that is not known."""
    if wrong := [name for name in names if name not in STATES]:
        raise UnsupportedError(f"The state format '{wrong[0]}' is not known: use {', '.join(STATES)}.")


def state_perplexity(
    model_name: str,
    text: str,
    *,
    states: Sequence[str] = (DEFAULT,),
    tokens: int = 8192,
    streams: int = 4,
    recalibrate: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[StatePerplexity]:
    """Perplexity of each format in `states` on `streams` pieces of `tokens` tokens, evenly spread over the text.

    Keys and values stay float, so that the difference is the states'. The integer model takes all streams in step, and
    every row of the array's formats takes a new scale after each ``recalibrate`` tokens.
    `progress(done, total)` counts tokens of all passes. Raises EvaluationError for a text that is too short,
    UnsupportedError for a format that is not known or a model without recurrent states.
    """
    check_states(states)
    loaded = load_model(model_name)
    module, shape = rules_of(loaded.model), model_geometry(loaded.model).states
    if module is None or shape is None:
        raise UnsupportedError(f"{loaded.name} has no recurrent states: use a hybrid model such as hybrid-tiny.")
    if tokens < 2 or streams < 1:
        raise EvaluationError(f"There are {streams} streams of {tokens} tokens: give at least one stream of 2 tokens.")
    check_context(loaded.model, tokens)
    ids = pieces(text_ids(loaded.tokenizer, text), streams, tokens)
    bytes_per_token = len(str(loaded.tokenizer.decode(ids.flatten().tolist())).encode()) / ids.numel()
    calibration = known_states(loaded.model)
    wanted = [name for name in states if name != FLOAT]
    total = ids.numel() * (1 + len(wanted))
    done = 0

    def step(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    found = {FLOAT: losses(loaded.model, ids, DynamicCache(config=loaded.model.config), step)}
    for names in passes(wanted):
        with stored(loaded.model, shape, names, streams, calibration, recalibrate) as cache:
            several = losses(loaded.model, ids.repeat(len(names), 1), cache, step)
        found |= dict(zip(names, several.unflatten(0, (len(names), streams)), strict=True))
    return [_row(loaded.name, text, name, found[name], found[FLOAT], bytes_per_token,
                 *bits(shape, name, calibration, guards_of(loaded.model))) for name in states]


def passes(names: Sequence[str]) -> list[list[str]]:
    """The formats of each pass: all of the array's, which the integer model takes in step, then one control each."""
    array = [name for name in names if name not in NAIVE]
    return ([array] if array else []) + [[name] for name in names if name in NAIVE]


def bits(shape: StateGeometry, name: str, calibration: StateCalibration | None,
         guards: Guards | None = None) -> tuple[float, float]:
    """(stored bits of a state element with its scales, its share of the log), averaged over a model's heads."""
    if name == FLOAT:
        return 32.0, 0.0
    if name in NAIVE:
        return naive_bits(NAIVE[name], shape.dim), 0.0
    states = ModelStates(config(default_config(array_of(shape.dim))))
    modes = [mode for plan in plans(shape, states, name, calibration, guards) for mode in plan.modes]
    each = [(m.bits_per_element(states.geometry), m.log_bits_per_element(states.geometry, shape.channels))
            for m in modes]
    return sum(x for x, _ in each) / len(each), sum(x for _, x in each) / len(each)


@contextmanager
def stored(model: Any, shape: StateGeometry, names: Sequence[str], streams: int,
           calibration: StateCalibration | None, recalibrate: int | None = None) -> Iterator[StateCache]:
    """A cache for ``streams`` sequences in each of the formats ``names`` (of one of `passes`) while the block runs."""
    geometry = config(default_config(array_of(shape.dim)))
    control = NAIVE.get(names[0])
    engine: StateEngine = ModelStates(geometry) if control is None else NaiveStates(geometry, control)
    guards = guards_of(model)
    each = [plans(shape, engine, "int8" if name in NAIVE else name, calibration, guards, recalibrate)
            for name in names]
    chosen = [LayerPlan(rule=shape.rule, modes=[mode for plan in layer for mode in [*plan.modes] * streams],
                        units=layer[0].units, recalibrate=recalibrate,
                        predictor=_first(plan.predictor for plan in layer),
                        feedback=_first(plan.feedback for plan in layer))
              for layer in zip(*each, strict=True)]
    module = rules_of(model)
    assert module is not None, "a model with a StateGeometry has these rules"
    cache = StateCache(engine, model_geometry(model).depth, dict(zip(shape.layers, chosen, strict=True)))
    with installed(module):
        yield cache
    cache.close()


def _first(values: Iterable[Any]) -> Any:
    """The first value that is one."""
    return next((value for value in values if value is not None), None)


def pieces(ids: Sequence[int], streams: int, tokens: int) -> Tensor:
    """Evenly spread pieces [streams, tokens] of a text. Raises EvaluationError where it is shorter than one."""
    if len(ids) < tokens:
        raise EvaluationError(f"The text has only {len(ids)} tokens and {tokens} are wanted: give fewer, or a longer "
                              "text.")
    starts = torch.linspace(0, len(ids) - tokens, streams).long().tolist()
    return torch.tensor([list(ids[start:start + tokens]) for start in starts])


def losses(model: Any, ids: Tensor, cache: Any, step: Callable[[int], None] = lambda _: None) -> Tensor:
    """Bits of each token but the first of each stream, float64 [streams, tokens - 1]; ``step`` counts tokens.

    Raises EvaluationError where the model yields NaN or infinity.
    """
    rows, before = [], None
    for begin in range(0, ids.shape[1], _CHUNK):
        part = ids[:, begin:begin + _CHUNK]
        with torch.inference_mode(), quiet_transformers():
            logits = model(part, cache=cache, use_cache=True).logits.float()
        seen = logits if before is None else torch.cat([before, logits[:, :-1]], 1)
        targets = part[:, 1:] if before is None else part
        seen = seen[:, :targets.shape[1]]
        rows.append(torch.nn.functional.cross_entropy(seen.transpose(1, 2), targets, reduction="none").double())
        before = logits[:, -1:]
        step(part.numel())
    bits = torch.cat(rows, 1) / math.log(2)
    if not bool(torch.isfinite(bits).all()):
        raise EvaluationError("The model yields NaN or infinity on this text: check its weights.")
    return bits


def losses_with(model: Any, shape: StateGeometry, name: str, ids: Tensor,
                calibration: StateCalibration | None) -> Tensor:
    """`losses` with the states in one format, FLOAT among them."""
    if name == FLOAT:
        return losses(model, ids, DynamicCache(config=model.config))
    with stored(model, shape, [name], len(ids), calibration) as cache:
        return losses(model, ids, cache)


def _row(model: str, text: str, name: str, mine: Tensor, reference: Tensor, bytes_per_token: float, bits: float,
         log_bits: float) -> StatePerplexity:
    added = (mine - reference) / bytes_per_token
    start = slice(0, 8192 - 1)
    blocks = torch.stack([part.mean() for part in added.flatten().split(_CHUNK)])
    spread = float(blocks.std() / len(blocks) ** 0.5) if len(blocks) > 1 else 0.0
    ranges = [(low, high) for low, high in pairwise(EDGES) if low < added.shape[1]]
    return StatePerplexity(
        model=model, text=text, state=name, streams=mine.shape[0], tokens=mine.shape[1] + 1,
        ppl=float(2 ** mine.mean()), ppl_reference=float(2 ** reference.mean()),
        bits_per_byte=float(mine.mean()) / bytes_per_token,
        bits_per_byte_reference=float(reference.mean()) / bytes_per_token,
        loss_added=float(added.mean()), loss_added_error=spread,
        relative=float(mine.mean() / reference.mean() - 1),
        loss_added_8k=float(added[:, start].mean()),
        relative_8k=float(mine[:, start].mean() / reference[:, start].mean() - 1),
        added_by_position={f"{low}-{high}": float(added[:, max(0, low - 1):high - 1].mean()) for low, high in ranges},
        bits_per_element=bits, log_bits_per_element=log_bits)
