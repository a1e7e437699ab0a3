"""`attach` an engine to a transformers model, `detach` it again."""

from __future__ import annotations

import functools
import inspect
import logging
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from statecell.model.recurrent.named import DEFAULT
from statecell.runtime import calibration as calibrations
from statecell.runtime.cache import SlotCache
from statecell.runtime.calibration import Calibration
from statecell.runtime.compute import slot_attention
from statecell.runtime.engine import Engine
from statecell.runtime.errors import CacheStateError, UnsupportedError
from statecell.runtime.masking import slot_mask
from statecell.runtime.recurrent import dispatch
from statecell.runtime.recurrent.calibration import StateCalibration, known_states, plans
from statecell.runtime.recurrent.dispatch import rules_of
from statecell.runtime.recurrent.guards import guards_of
from statecell.runtime.recurrent.layer import LayerPlan
from statecell.runtime.sharing import share
from statecell.runtime.state import CACHE_FORMATS, CacheFormat, Tally
from statecell.runtime.support import Geometry, check_call, check_generation, check_head_dim, model_geometry

IMPLEMENTATION = "statecell"
_HOOKED_METHODS = ("forward", "_prepare_cache_for_generation", "_prefill", "prepare_inputs_for_generation")
_log = logging.getLogger("statecell")
_attachments: weakref.WeakKeyDictionary[PreTrainedModel, Attachment] = weakref.WeakKeyDictionary()


class Attachment:
    """A model with its attention in an engine, as returned by `attach`.

    `calibration` is the one in use, None for neutral scales; `tally` counts the converted and the saturated elements.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        engine: Engine,
        calibration: Calibration | None,
        cache_format: CacheFormat,
        state_format: str,
        state_calibration: StateCalibration | None,
        recalibrate: int | None,
    ) -> None:
        self.geometry = model_geometry(model)
        if self.geometry.layers:
            check_head_dim(self.geometry.head_dim, engine.head_dim)
        if calibration is None:
            calibration = calibrations.known(model)
        else:
            calibration.check(self.geometry)
        self.calibration = calibration
        self.cache_format = cache_format
        self.state_format = state_format
        self.recurrent = _recurrent(model, self.geometry, engine, state_format, state_calibration, recalibrate)
        self.tally = Tally()
        self._shared = share(engine)
        self._model = weakref.ref(model)
        self._parameters = [name for name in inspect.signature(model.forward).parameters if name != "self"]
        self._previous = model.config._attn_implementation
        model.set_attn_implementation(IMPLEMENTATION)
        config = model.config.get_text_config(decoder=True)
        if model.config._attn_implementation != IMPLEMENTATION or config._attn_implementation != IMPLEMENTATION:
            model.set_attn_implementation(self._previous)
            raise UnsupportedError(
                f"a model of type {model.config.model_type} does not use transformers' attention interface, so its "
                "attention cannot be moved to an engine; use a model that does, such as Llama, Qwen or Mistral"
            )
        self._rules = rules_of(model) if self.recurrent else None
        if self._rules is not None:
            dispatch.install(self._rules)
        # Instance attributes, found before the class's methods: the model's code stays, and `detach` deletes them.
        # torch's own forward hooks would do for `forward`, but none of them is called after an interrupt.
        self._hook(model, "forward", self._forward)
        self._hook(model, "_prepare_cache_for_generation", self._prepare_cache)
        self._hook(model, "_prefill", self._prefill)
        self._hook(model, "prepare_inputs_for_generation", self._prepare_inputs)

    @property
    def engine(self) -> Engine:
        """The engine that the model is attached to."""
        return self._shared.engine

    def new_cache(self) -> SlotCache:
        """An empty cache for one batch; `generate` and the model itself make one where none is passed."""
        return SlotCache(
            self._shared,
            layers=self.geometry.depth,
            calibration=self.calibration,
            cache_format=self.cache_format,
            tally=self.tally,
            recurrent=self.recurrent,
        )

    def release(self) -> None:
        """Undo what the constructor changed in the model, and in its modeling module."""
        if self._rules is not None:
            dispatch.uninstall(self._rules)
        model = self._model()
        if model is None:
            return
        for name in _HOOKED_METHODS:
            delattr(model, name)
        model.set_attn_implementation(self._previous)

    def _hook(self, model: PreTrainedModel, name: str, replacement: Callable) -> None:
        original = getattr(model, name)

        @functools.wraps(original)  # transformers reads the signature
        def hooked(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(model, name, hooked)

    def _prepare_cache(
        self, original: Callable, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *rest: Any
    ) -> Any:
        """Refuse unsupported kinds of generation, and give `generate` a slot cache where the caller passed none."""
        check_generation(getattr(generation_mode, "value", str(generation_mode)), generation_config)
        if model_kwargs.get("cache") is None:
            model_kwargs["cache"] = self.new_cache()
            return None
        self._check_cache(model_kwargs["cache"]).state.check()
        return original(generation_config, model_kwargs, generation_mode, *rest)

    def _prefill(
        self,
        original: Callable,
        input_ids: Any,
        generation_config: Any,
        model_kwargs: dict[str, Any],
        *rest: Any,
        **named: Any,
    ) -> Any:
        """Where `generate` got the whole history, whose stored part it will skip, compare that part with the cache."""
        cache, mask = model_kwargs.get("cache"), model_kwargs.get("attention_mask")
        length = getattr(generation_config, "_mask_length", -1) if mask is None else mask.shape[1]
        if isinstance(cache, SlotCache) and cache.sequences and length == input_ids.shape[1]:
            cache.check_history(input_ids)
            if all(cache.is_linear):  # of which transformers skips nothing
                input_ids = input_ids[:, cache.get_seq_length():]
        return original(input_ids, generation_config, model_kwargs, *rest, **named)

    def _prepare_inputs(self, original: Callable, input_ids: Any, *args: Any, **named: Any) -> Any:
        """Refuse a first step that would store the history again, as prompt lookup does with the whole history."""
        cache = named.get("cache")
        whole = named.get("is_first_iteration") and named.get("next_sequence_length") is None
        if whole and isinstance(cache, SlotCache) and cache.repeats_history(input_ids):
            raise CacheStateError(
                "the input repeats the history that the cache holds, and this kind of generation does not skip it; "
                "pass only the new ids, with an attention_mask over the whole history"
            )
        return original(input_ids, *args, **named)

    def _forward(self, original: Callable, *args: Any, **kwargs: Any) -> Any:
        """Give a forward pass a slot cache where the caller passed none, and take back what it stored if it raises."""
        named = dict(zip(self._parameters, args, strict=False)) | kwargs
        for old_name in ("past_key_values", "cache_params"):
            older = named.pop(old_name, None)
            if named.get("cache") is None:
                named["cache"] = older
        if named.get("cache") is None:
            named["cache"] = self.new_cache()
        cache = self._check_cache(named["cache"])
        check_call(self._model(), 0.0, named)
        given = named.get("input_ids")
        cache.begin_forward(given, named.get("inputs_embeds") if given is None else given, named.get("attention_mask"))
        try:
            output = original(**named)
            cache.end_forward()
        except BaseException as error:
            cache.abandon_forward(error)
            raise
        return output

    def _check_cache(self, cache: Any) -> SlotCache:
        if not isinstance(cache, SlotCache):
            raise UnsupportedError(
                f"a {type(cache).__name__} was passed to a model that is attached to an engine; pass a cache made by "
                "the attachment's new_cache(), or leave it out"
            )
        if cache.state.engine is not self._shared or len(cache) != self.geometry.depth:
            raise CacheStateError(
                "the cache belongs to another model or engine; pass one made by this attachment's new_cache()"
            )
        return cache


def _recurrent(
    model: PreTrainedModel,
    shape: Geometry,
    engine: Engine,
    state_format: str,
    calibration: StateCalibration | None,
    recalibrate: int | None,
) -> dict[int, LayerPlan]:
    """The plan of each recurrent layer, by its index. Raises UnsupportedError where the engine keeps no states."""
    if shape.states is None and recalibrate is not None:
        raise UnsupportedError(
            f"a model of type {model.config.model_type} has no recurrent states, so there is nothing to recalibrate; "
            "leave `recalibrate` out"
        )
    if shape.states is None:
        return {}
    if engine.states is None:
        raise UnsupportedError(
            f"a model of type {model.config.model_type} has recurrent states, which this device cannot keep; open the "
            "integer model (model:) instead"
        )
    used = calibration or known_states(model)
    chosen = plans(shape.states, engine.states, state_format, used, guards_of(model), recalibrate)
    return dict(zip(shape.states.layers, chosen, strict=True))


def attach(
    model: PreTrainedModel,
    engine: Engine,
    *,
    calibration: Calibration | None = None,
    cache_format: str = "int4",
    state_format: str = DEFAULT,
    state_calibration: StateCalibration | None = None,
    recalibrate: int | None = None,
) -> Attachment:
    """Move the attention of a model and its KV cache to an engine, and the states of its Gated DeltaNet or
    Mamba-2 layers too.

    Afterwards `model.generate(...)` and `model(...)` are used as always; for several turns pass the cache of the last
    one (`return_dict_in_generate=True`, then `.cache`, or one from the returned attachment's `new_cache()`).

    `cache_format` is "int4" (4-bit rows, the first token of each sequence in 8 bits) or "int8" (all rows in 8 bits).
    `calibration` None takes the one shipped for these weights, or else neutral scales from the first prompt.
    `state_format` is "default" or a storage mode of `statecell.model.recurrent.named`; `state_calibration` None takes
    the one kept or shipped for the model; without one the default stores every head in two planes. With `recalibrate`
    every row of the states takes a new scale after so many tokens of a sequence, and again after as many. The log
    (logger "statecell") says which format and calibration are in force.

    Raises UnsupportedError where the model's attention is of a kind that the engine does not compute, the head_dim
    differs, the format is unknown, or the model is attached already; CalibrationError where the calibration is for
    another shape. The model is then unchanged.
    """
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedError(
            f"a model of transformers was expected and {type(model).__name__} given; load one with "
            "AutoModelForCausalLM.from_pretrained, or pass the `model` of statecell's load_model"
        )
    if cache_format not in CACHE_FORMATS:
        raise UnsupportedError(
            f"cache format {cache_format!r} is not known to the engine; use one of {', '.join(CACHE_FORMATS)}, or "
            "detach for a float cache"
        )
    if model in _attachments:
        raise UnsupportedError("the model is attached to an engine already; detach it first")
    AttentionInterface.register(IMPLEMENTATION, slot_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, slot_mask)
    attachment = Attachment(
        model, engine, calibration, cast(CacheFormat, cache_format), state_format, state_calibration, recalibrate
    )
    _attachments[model] = attachment
    used = attachment.calibration
    _log.info(
        "attention of %s attached: cache format %s, calibration %s, %s",
        model.config.model_type,
        cache_format,
        f"{used.model} on {used.text}" if used is not None else "neutral (no means, scales from the first prompt)",
        attachment.geometry,
    )
    return attachment


def detach(model: PreTrainedModel) -> None:
    """Give a model its former attention back. Raises UnsupportedError where it is not attached."""
    attachment = _attachments.pop(model, None)
    if attachment is None:
        raise UnsupportedError("the model is not attached to an engine, so there is nothing to detach")
    attachment.release()


def attachment_of(model: torch.nn.Module) -> Attachment | None:
    """The attachment of a model, or None."""
    return _attachments.get(cast(PreTrainedModel, model))
