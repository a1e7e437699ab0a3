"""Everything the engine does not compute is refused in a clear sentence before anything is stored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DeepseekV3Config,
    DynamicCache,
    FalconConfig,
    Gemma2Config,
    GptOssConfig,
    Llama4TextConfig,
    Qwen3NextConfig,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    chunked_causal_mask_function,
    create_causal_mask,
    or_masks,
    sliding_window_causal_mask_function,
    sliding_window_overlay,
)

from statecell.link.errors import LinkError
from statecell.runtime.attention import Attachment, attach, attachment_of, detach
from statecell.runtime.cache import SlotCache
from statecell.runtime.engine import Append, Attend
from statecell.runtime.errors import CacheStateError, CalibrationError, NotFiniteError, UnsupportedError
from statecell.runtime.masking import slot_mask, window_of
from statecell.runtime.model_engine import ModelEngine
from statecell.spec.geometry import config
from tests.runtime.exact_engine import ExactEngine
from tests.runtime.small_models import HEAD_DIM, prompt, small_model

_TINY: dict[str, Any] = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "pad_token_id": 0,
}
def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="a model of transformers was expected and NoneType given; load one"):
        attach(None, ExactEngine(HEAD_DIM))  # type: ignore[arg-type]


def test_a_closed_engine_says_so() -> None:
    engine = ModelEngine(config("tiny"))
    (slot,) = engine.open_slots(1)
    engine.close()
    vectors = np.ones((1, 32), np.int16)
    ends = np.ones(1, np.int64)
    for call in (
        lambda: engine.open_slots(1),
        lambda: engine.length(slot),
        lambda: engine.truncate(slot, 0),
        lambda: engine.free_slots([slot]),
        lambda: engine.run([Append(slot=slot, k=vectors, v=vectors)]),
        lambda: engine.run([Attend(slot=slot, q=vectors, start=0 * ends, end=ends, shift=20)]),
    ):
        with pytest.raises(LinkError, match="The engine is closed: open a new one."):
            call()


REFUSED_MODELS: dict[str, tuple[Any, str]] = {
    "gemma2": (lambda: Gemma2Config(**_TINY), "softcapping"),
    "gpt-oss": (lambda: GptOssConfig(**_TINY, num_local_experts=2), "sinks"),
    "llama4": (lambda: Llama4TextConfig(**_TINY, num_local_experts=2), "chunked"),
    "deepseek": (
        lambda: DeepseekV3Config(
            **{**_TINY, "head_dim": None}, kv_lora_rank=8, q_lora_rank=8, n_routed_experts=4, n_group=2, topk_group=1
        ),
        "MLA",
    ),
    "falcon": (
        lambda: FalconConfig(vocab_size=32, hidden_size=32, num_hidden_layers=1, num_attention_heads=2),
        "falcon",
    ),
    "bloom": (lambda: BloomConfig(vocab_size=32, hidden_size=32, n_layer=1, n_head=2), "bloom"),
    "qwen3-next": (
        lambda: Qwen3NextConfig(**_TINY, num_experts=2, layer_types=["linear_attention", "full_attention"]),
        "recurrent states, which this device cannot keep",
    ),
}


@pytest.fixture
def engine() -> ExactEngine:
    return ExactEngine(HEAD_DIM)


@pytest.fixture
def model() -> Iterator[Any]:
    model = small_model()
    yield model
    if attachment_of(model) is not None:
        detach(model)


@pytest.fixture
def attachment(model: Any, engine: ExactEngine) -> Attachment:
    return attach(model, engine)


@pytest.mark.parametrize("name", sorted(REFUSED_MODELS))
def test_models_of_another_kind(name: str, engine: ExactEngine) -> None:
    config, reason = REFUSED_MODELS[name]
    model = AutoModelForCausalLM.from_config(config())
    before = model.config._attn_implementation
    with pytest.raises(UnsupportedError, match=reason):
        attach(model, engine)
    assert model.config._attn_implementation == before
    assert attachment_of(model) is None
    assert not engine.rows


def test_encoder_decoder(engine: ExactEngine) -> None:
    config = T5Config(vocab_size=32, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2)
    with pytest.raises(UnsupportedError, match="encoder"):
        attach(T5ForConditionalGeneration(config), engine)


def test_head_dim_names_what_there_is(model: Any) -> None:
    with pytest.raises(UnsupportedError, match="head_dim 16, the engine has head_dim 64"):
        attach(model, ExactEngine(64))
    assert model.config._attn_implementation == "sdpa"


def test_unknown_format_and_second_attach(model: Any, engine: ExactEngine) -> None:
    with pytest.raises(UnsupportedError, match="'int3' is not known to the engine; use one of int4, int8"):
        attach(model, engine, cache_format="int3")
    attach(model, engine)
    with pytest.raises(UnsupportedError, match="attached to an engine already"):
        attach(model, engine)
    detach(model)
    with pytest.raises(UnsupportedError, match="nothing to detach"):
        detach(model)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"num_beams": 3}, "beam search .num_beams=3."),
        ({"use_cache": False}, "use_cache=False"),
        ({"cache_implementation": "static"}, "cache_implementation='static'"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "attention weights"),
    ],
)
def test_kinds_of_generation(
    model: Any, attachment: Attachment, engine: ExactEngine, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        model.generate(prompt(4), max_new_tokens=3, **options)
    assert not engine.rows


def test_reordering_the_cache(model: Any, attachment: Attachment) -> None:
    cache = model(prompt(4)).cache
    with pytest.raises(UnsupportedError, match="beam search"):
        cache.reorder_cache(torch.tensor([0]))
    with pytest.raises(UnsupportedError, match="copy stored rows"):
        cache.batch_repeat_interleave(2)
    with pytest.raises(UnsupportedError, match="copy stored rows"):
        cache.batch_select_indices(torch.tensor([0]))


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_arguments_of_the_attention_call(model: Any, attachment: Attachment, engine: ExactEngine, name: str) -> None:
    with pytest.raises(UnsupportedError, match=name.split("_")[0] if name != "s_aux" else "sinks"):
        model.model.layers[0].self_attn(
            torch.zeros(1, 4, 48),
            position_embeddings=(torch.ones(1, 4, HEAD_DIM), torch.zeros(1, 4, HEAD_DIM)),
            cache=attachment.new_cache(),
            **{name: torch.ones(1)},
        )
    assert not engine.runs


def test_training_mode(model: Any, attachment: Attachment, engine: ExactEngine) -> None:
    model.train()
    with pytest.raises(UnsupportedError, match=r"training mode .*model.eval"):
        model(prompt(4))
    assert not engine.rows


def test_foreign_caches(model: Any, attachment: Attachment) -> None:
    with pytest.raises(UnsupportedError, match="DynamicCache"):
        model.generate(prompt(4), cache=DynamicCache(), max_new_tokens=2)
    with pytest.raises(UnsupportedError, match="DynamicCache"):
        model(prompt(4), cache=DynamicCache())
    other = attach(small_model(), ExactEngine(HEAD_DIM)).new_cache()
    with pytest.raises(CacheStateError, match="another model or engine"):
        model(prompt(4), cache=other)


def test_calls_around_the_attached_model(model: Any, attachment: Attachment) -> None:
    with pytest.raises(UnsupportedError, match="without a slot cache"):
        model.model(prompt(4), use_cache=False)
    detach(model)
    with pytest.raises(UnsupportedError, match="computes on cached keys"):
        model(prompt(4), cache=attachment.new_cache())


def test_masks_of_another_kind() -> None:
    for mask_function in (
        chunked_causal_mask_function(4, torch.zeros(1)),
        or_masks(causal_mask_function, sliding_window_overlay(3)),
        and_masks(sliding_window_overlay(3), sliding_window_overlay(2)),
        and_masks(sliding_window_overlay(3), causal_mask_function, causal_mask_function),
        lambda batch, head, q, kv: kv <= q,
    ):
        with pytest.raises(UnsupportedError, match="mask of kind"):
            slot_mask(batch_size=1, kv_length=4, mask_function=mask_function)
    assert window_of(slot_mask(batch_size=1, kv_length=4), 9) is None
    assert window_of(slot_mask(batch_size=1, kv_length=4, mask_function=sliding_window_causal_mask_function(3)), 9) == 3
    assert window_of(None, 9) == 9


def test_packed_and_4d_masks(model: Any, attachment: Attachment, engine: ExactEngine) -> None:
    with pytest.raises(UnsupportedError, match="mask of kind"):
        create_causal_mask(model.config, torch.zeros(1, 4, 48), None, None, position_ids=torch.tensor([[0, 1, 0, 1]]))
    with pytest.raises(CacheStateError, match="mask has shape"):
        model(prompt(4), attention_mask=torch.ones(1, 1, 4, 4))
    assert not engine.runs


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("weight", "what"), [("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value")])
def test_not_finite_vectors(model: Any, engine: ExactEngine, bad: float, weight: str, what: str) -> None:
    with torch.no_grad():
        getattr(model.model.layers[0].self_attn, weight).weight[3, 5] = bad
    attachment = attach(model, engine)
    cache = attachment.new_cache()
    with pytest.raises(NotFiniteError, match=f"the {what} vectors of layer 0 hold NaN or infinity"):
        model(prompt(4), cache=cache)
    assert not engine.runs
    assert cache.get_seq_length() == 0


def test_a_pass_refused_before_it_stored_anything_leaves_the_cache_usable(model: Any, attachment: Attachment) -> None:
    cache = model(prompt(4)).cache
    with pytest.raises(CacheStateError, match=r"shape \(1, 3\).*pass a mask of shape \(1, 6\)"):
        model(prompt(2, seed=5), cache=cache, attention_mask=torch.ones(1, 3))
    logits = model(prompt(2, seed=5), cache=cache).logits
    both = torch.cat([prompt(4), prompt(2, seed=5)], dim=1)
    assert torch.allclose(logits, model(both).logits[:, 4:], atol=2e-2)


def test_a_first_pass_that_was_refused_leaves_no_trace(model: Any, attachment: Attachment, engine: ExactEngine) -> None:
    cache = attachment.new_cache()
    with pytest.raises(CacheStateError, match="mask has shape"):
        model(prompt(4), cache=cache, attention_mask=torch.ones(1, 3))
    model(prompt(5, batch=2), cache=cache)
    assert cache.token_counts == [5, 5]
    assert len(engine.rows) == 2 * 2 * 3
    cache.crop(-5)
    with pytest.raises(CacheStateError, match="input has 1 sequences, but the cache holds 2"):
        model(prompt(4), cache=cache)
    assert model(prompt(5, batch=2), cache=cache).cache.token_counts == [5, 5]


def test_closed_cache(model: Any, attachment: Attachment) -> None:
    cache = model(prompt(4)).cache
    cache.close()
    with pytest.raises(CacheStateError, match="it is closed"):
        model(prompt(1), cache=cache)


def talked(model: Any, attachment: Attachment) -> tuple[SlotCache, torch.Tensor]:
    cache = attachment.new_cache()
    return cache, model.generate(prompt(6), max_new_tokens=4, cache=cache, do_sample=False)


def test_edited_history(model: Any, attachment: Attachment) -> None:
    cache, history = talked(model, attachment)
    edited = torch.cat([history, prompt(2)], dim=1)
    edited[0, 3] = (edited[0, 3] + 1) % 90 + 3
    for options in ({}, {"prefill_chunk_size": 2}):
        with pytest.raises(CacheStateError, match="differs from the cached history at token 3 of sequence 0"):
            model.generate(edited, max_new_tokens=2, cache=cache, **options)
    cache.crop(-(cache.get_seq_length() - 3))
    assert cache.token_counts == [3]
    answer = model.generate(edited, max_new_tokens=2, cache=cache, do_sample=False)
    assert torch.equal(answer, model.generate(edited, max_new_tokens=2, do_sample=False))


def test_nothing_new_and_repeated_history(model: Any, attachment: Attachment) -> None:
    cache, history = talked(model, attachment)
    with pytest.raises(CacheStateError, match="holds 9 tokens and the input has 4"):
        model.generate(history[:, :4], max_new_tokens=2, cache=cache)
    with pytest.raises(CacheStateError, match="repeats the history"):
        model.generate(history, max_new_tokens=2, cache=cache, prompt_lookup_num_tokens=2)
    assert cache.token_counts == [9]


def test_masks_that_do_not_fit_the_stored_tokens(model: Any, attachment: Attachment) -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    cache = model(prompt(4, batch=2), attention_mask=mask).cache
    with pytest.raises(CacheStateError, match="padding when they were processed"):
        model(prompt(1, batch=2), cache=cache)  # without a mask everything would be visible
    hole = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 1, 1]])
    with pytest.raises(CacheStateError, match="middle of sequence 1"):
        model(prompt(1, batch=2), cache=cache, attention_mask=hole)
    with pytest.raises(CacheStateError, match="input has 1 sequences, but the cache holds 2"):
        model(prompt(1), cache=cache)
    good = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    model(prompt(1, batch=2), cache=cache, attention_mask=good)
    assert cache.token_counts == [3, 5]


def test_positive_crop(model: Any, attachment: Attachment) -> None:
    with pytest.raises(ValueError, match="negative count"):
        model(prompt(4)).cache.crop(2)


def test_calibration_of_another_model(model: Any, engine: ExactEngine, tmp_path: Path) -> None:
    from statecell.runtime.calibration import Calibration

    shape = (3, 2, 8)
    other = Calibration(
        model="other",
        fingerprint="",
        text="text",
        tokens=1,
        k_mean=np.zeros(shape, np.float32),
        v_mean=np.zeros(shape, np.float32),
        k_lsb=np.ones(shape[:2], np.float32),
        v_lsb=np.ones(shape[:2], np.float32),
    )
    with pytest.raises(CalibrationError, match="is for 3 layers of 2 KV heads with head_dim 8, the model has 3 layers"):
        attach(model, engine, calibration=other)
    assert model.config._attn_implementation == "sdpa"
