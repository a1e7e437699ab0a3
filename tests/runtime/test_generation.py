"""The glue over exact attention gives the tokens that sdpa gives."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache
from transformers.generation.streamers import BaseStreamer

from statecell.runtime.attention import attach, attachment_of, detach
from statecell.runtime.compute import slot_attention
from statecell.runtime.layer import SlotLayer
from tests.runtime.exact_engine import ExactEngine
from tests.runtime.small_models import CONFIGS, HEAD_DIM, PAD, prompt, small_model

NEW = 16


@pytest.fixture
def engine() -> ExactEngine:
    return ExactEngine(HEAD_DIM)


@pytest.fixture
def model() -> Iterator[Any]:
    model = small_model()
    yield model
    if attachment_of(model) is not None:
        detach(model)


def greedy(model: Any, ids: torch.Tensor, **options: Any) -> Any:
    return model.generate(ids, max_new_tokens=options.pop("new", NEW), do_sample=False, **options)


@pytest.mark.parametrize("name", sorted(CONFIGS))
@pytest.mark.parametrize("cache_format", ["int4", "int8"])
def test_greedy_tokens_and_logits_are_those_of_sdpa(name: str, cache_format: str) -> None:
    model = small_model(name)
    ids = prompt(9)
    expected = greedy(model, ids)
    with torch.no_grad():
        logits = model(expected).logits
    attach(model, ExactEngine(HEAD_DIM), cache_format=cache_format)
    assert torch.equal(greedy(model, ids), expected)
    with torch.no_grad():
        error = (model(expected).logits - logits).abs().max()
    assert 0 < error < 0.02 * logits.abs().max()  # 16-bit rounding is there, and small


def test_sliding_window_matters() -> None:
    sliding, full = small_model("mistral-sliding"), small_model("mistral-sliding")
    full.config.sliding_window = None
    assert not torch.equal(greedy(sliding, prompt(9)), greedy(full, prompt(9)))


def test_detach_gives_the_model_back(model: Any, engine: ExactEngine) -> None:
    before = set(vars(model))
    expected = greedy(model, prompt(5))
    attach(model, engine)
    detach(model)
    assert set(vars(model)) == before
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(greedy(model, prompt(5)), expected)
    assert not engine.runs


def test_one_engine_call_per_layer_and_step(model: Any, engine: ExactEngine) -> None:
    attach(model, engine)
    greedy(model, prompt(5), new=4)
    # prefill: first token wide, the rest, and an attend, for 2 KV heads; then an append and an attend each
    assert engine.runs == [6] * 3 + [4] * 3 * 3


@pytest.mark.parametrize(("cache_format", "wide"), [("int4", [True] + [False] * 4), ("int8", [True] * 5)])
def test_first_token_is_wide_in_int4(model: Any, engine: ExactEngine, cache_format: str, wide: list[bool]) -> None:
    attach(model, engine, cache_format=cache_format)
    cache = model(prompt(5)).cache
    assert len(engine.wide) == 3 * 2
    assert all(flags == wide for flags in engine.wide.values())
    cache.crop(-5)
    model(prompt(5), cache=cache)
    assert all(flags == wide for flags in engine.wide.values())


class Collect(BaseStreamer):
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.ended = False

    def put(self, value: torch.Tensor) -> None:
        self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ended = True


def test_streaming_from_a_thread(model: Any, engine: ExactEngine) -> None:
    expected = greedy(model, prompt(7))
    attach(model, engine)
    streamer = Collect()
    thread = threading.Thread(target=greedy, args=(model, prompt(7)), kwargs={"streamer": streamer})
    thread.start()
    thread.join(60)
    assert streamer.ended
    assert streamer.tokens == expected[0].tolist()


def test_two_threads_share_an_engine(engine: ExactEngine) -> None:
    models = [small_model(), small_model("qwen2")]
    expected = [greedy(model, prompt(7)) for model in models]
    for model in models:
        attach(model, engine)
    results: dict[int, torch.Tensor] = {}
    threads = [
        threading.Thread(target=lambda i=i, m=m: results.update({i: greedy(m, prompt(7))}))
        for i, m in enumerate(models)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert torch.equal(results[0], expected[0])
    assert torch.equal(results[1], expected[1])


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma3-mixed"])
@pytest.mark.parametrize("how", ["whole history", "new ids"])
def test_several_turns(name: str, how: str) -> None:
    model = small_model(name)
    user = [prompt(6, seed=1), prompt(4, seed=2), prompt(1, seed=3)]

    def talk(cache: Any) -> Any:
        history = torch.zeros((1, 0), dtype=torch.long)
        for turn in user:
            history = torch.cat([history, turn], dim=1)
            past = cache.get_seq_length()
            ids = history if how == "whole history" else history[:, past:]
            answer = greedy(model, ids, new=7, cache=cache, attention_mask=torch.ones_like(history))
            history = torch.cat([history, answer[:, ids.shape[1] :]], dim=1)
        return history

    expected = talk(DynamicCache(config=model.config))
    attachment = attach(model, ExactEngine(HEAD_DIM))
    assert torch.equal(talk(attachment.new_cache()), expected)


def test_second_turn_with_the_returned_cache_appends_only_new_rows(model: Any, engine: ExactEngine) -> None:
    attach(model, engine)
    first = greedy(model, prompt(6), new=5, return_dict_in_generate=True)
    assert first.cache.token_counts == [10]
    longer = torch.cat([first.sequences, prompt(3, seed=9)], dim=1)
    second = greedy(model, longer, new=5, cache=first.cache)
    assert first.cache.token_counts == [longer.shape[1] + 4]
    detach(model)
    assert torch.equal(second, greedy(model, longer, new=5))


def padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(row.shape[1] for row in rows)
    ids = torch.full((len(rows), width), PAD)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, width - row.shape[1] :] = row[0]
        mask[i, width - row.shape[1] :] = 1
    return ids, mask


@pytest.mark.parametrize("name", ["llama", "mistral-sliding", "gemma3-mixed"])
def test_left_padded_batch_and_its_second_turn(name: str) -> None:
    model = small_model(name)
    ids, mask = padded([prompt(3, seed=1), prompt(9, seed=2)])
    more, more_mask = padded([prompt(5, seed=4), prompt(2, seed=5)])

    def talk(cache: Any) -> Any:
        first = greedy(model, ids, new=6, attention_mask=mask, cache=cache)
        answered = torch.cat([mask, torch.ones((2, 6), dtype=torch.long)], dim=1)
        return greedy(
            model,
            torch.cat([first, more], dim=1),
            new=6,
            attention_mask=torch.cat([answered, more_mask], dim=1),
            cache=cache,
        )

    expected = talk(DynamicCache())  # without a configuration it keeps every row, as slots do
    engine = ExactEngine(HEAD_DIM)
    attachment = attach(model, engine)
    cache = attachment.new_cache()
    assert torch.equal(talk(cache), expected)
    # Padding is not stored: 3 + 6 + 5 + 5 and 9 + 6 + 2 + 5 tokens.
    assert cache.token_counts == [19, 22]
    assert sorted({engine.length(slot) for slot in engine.rows}) == [19, 22]


def test_tokens_after_an_early_end_are_dropped_at_the_next_turn(model: Any, engine: ExactEngine) -> None:
    ids = prompt(5, batch=2)
    plain = greedy(model, ids, new=8)
    stop = int(plain[0, 7])  # sequence 0 ends at its third new token and then receives padding
    assert stop not in plain[1, 5:].tolist()
    more = prompt(4, batch=2, seed=8)
    cache = attach(model, engine).new_cache()
    first = greedy(model, ids, new=8, cache=cache, eos_token_id=stop)
    assert first[0, 8:].tolist() == [PAD] * 5
    mask = torch.ones((2, first.shape[1] + 4), dtype=torch.long)
    mask[0, 8:13] = 0
    second = greedy(model, torch.cat([first, more], dim=1), new=6, cache=cache, attention_mask=mask)
    assert cache.token_counts == [8 + 4 + 5, 13 + 4 + 5]
    detach(model)
    alone = greedy(model, torch.cat([first[:1, :8], more[:1]], dim=1), new=6)
    assert torch.equal(second[0, -6:], alone[0, -6:])


def test_prompt_lookup(model: Any, engine: ExactEngine) -> None:
    ids = prompt(6).repeat(1, 3)
    expected = greedy(model, ids)
    attach(model, engine)
    assert torch.equal(greedy(model, ids, prompt_lookup_num_tokens=4), expected)
    assert engine.truncations > 0  # guesses were rejected, so rows were cropped


def test_chunked_prefill(model: Any, engine: ExactEngine) -> None:
    expected = greedy(model, prompt(11))
    attach(model, engine)
    assert torch.equal(greedy(model, prompt(11), prefill_chunk_size=4), expected)


def test_sampling_with_several_answers(model: Any, engine: ExactEngine) -> None:
    def sample() -> Any:
        torch.manual_seed(11)
        return model.generate(prompt(6), max_new_tokens=NEW, do_sample=True, top_k=20, num_return_sequences=3)

    expected = sample()
    attach(model, engine)
    assert torch.equal(sample(), expected)


def test_layers_that_share_keys_store_them_once(model: Any, engine: ExactEngine) -> None:
    cache = attach(model, engine).new_cache()
    module, layer = model.model.layers[0].self_attn, SlotLayer(cache.state, 0)
    torch.manual_seed(2)
    for past, new in ((0, 4), (4, 1)):
        keys, query = torch.randn(1, 2, new, HEAD_DIM), torch.randn(1, 6, new, HEAD_DIM)
        handle, _ = layer.update(keys, keys)
        first, _ = slot_attention(module, query, handle, handle, None)
        again, _ = slot_attention(module, query, handle, handle, None)
        assert torch.equal(first, again)
        assert {engine.length(slot) for slot in engine.rows} == {past + new}


def test_bfloat16_model(engine: ExactEngine) -> None:
    model = small_model().to(torch.bfloat16)
    with torch.no_grad():
        expected = model(prompt(12)).logits
        attach(model, engine)
        logits = model(prompt(12)).logits
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).abs().max() < 0.05 * expected.abs().max()


def test_slots_are_given_back(model: Any, engine: ExactEngine) -> None:
    attachment = attach(model, engine)
    cache = attachment.new_cache()
    model(prompt(5), cache=cache)
    assert len(engine.rows) == 6
    cache.close()
    cache.close()
    assert not engine.rows
    model(prompt(5))  # its cache is dropped with the output
    gc.collect()
    kept = model(prompt(5)).cache
    assert len(engine.rows) == 6  # those of the dropped cache went when new ones were opened
    kept.reset()
    assert not engine.rows
    greedy(model, prompt(5), cache=kept, new=3)
    assert kept.token_counts == [7]


def test_the_log_names_format_and_calibration(
    model: Any, engine: ExactEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="statecell"):
        attach(model, engine, cache_format="int8")
    assert "cache format int8" in caplog.text
    assert "calibration neutral" in caplog.text
