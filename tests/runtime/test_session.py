"""A session on the integer model: formats, turns, reports and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache

from statecell.runtime.errors import UnsupportedError
from statecell.runtime.session import Session
from statecell.runtime.turns import Conversation
from statecell.store.models import load_model
from tests.small_folder import make_folder

PROMPT = "the sea was grey and quiet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_folder(tmp_path_factory.mktemp("small")))


def _greedy(folder: str, prompt: list[int], count: int) -> list[int]:
    model, cache, ids, out = load_model(folder).model, DynamicCache(), prompt, []
    with torch.inference_mode():
        for _ in range(count):
            ids = [int(model(torch.tensor([ids]), cache=cache, use_cache=True).logits[0, -1].argmax())]
            out += ids
    return out


def test_float_is_what_the_model_says(folder: str) -> None:
    with Session(folder, cache_format="float") as session:
        prompt = session.tokenizer(PROMPT)["input_ids"]
        report = session.generate(PROMPT, 8, stop_at_end=False)
        assert session.ids == prompt + _greedy(folder, prompt, 8)
        assert report.agreement == 1.0
        assert report.mean_logit_difference is not None and report.mean_logit_difference < 1e-5
        assert (report.prompt_tokens, report.tokens, report.device, report.bits_per_element) == (6, 8, "host", 32.0)
        assert report.array_bytes_per_token is None and report.saturated_elements is None


@pytest.mark.parametrize(("cache", "bits"), [("int4", 4.25 * 14 / 13), ("int8", 8.5)])
def test_an_array_format_is_reported(folder: str, cache: str, bits: float) -> None:
    pieces: list[str] = []
    layers: list[tuple[int, int]] = []
    with Session(folder, "model:tiny", cache) as session:
        report = session.generate(
            PROMPT,
            8,
            stop_at_end=False,
            on_text=pieces.append,
            on_prefill=lambda done, total: layers.append((done, total)),
        )
        assert session.device == "model:tiny"
    assert "".join(pieces) == report.text
    assert layers == [(1, 2), (2, 2)]
    assert report.cache == cache and report.bits_per_element == pytest.approx(bits)
    assert report.mean_logit_difference is not None and 0 < report.mean_logit_difference < 1
    # Steps 2 to 8 store tokens 7 to 13 in 2 layers x 2 KV heads, keys and values: 2 bytes x 32 elements each in FP16.
    tokens = sum(range(7, 14))
    assert report.fp16_bytes_per_token == tokens * 2 * 2 * 2 * 32 * 2 / 7
    rows = tokens * 2 if cache == "int8" else tokens + 7
    assert report.array_bytes_per_token == rows * 2 * 2 * 2 * 17 / 7


def test_int8_is_nearer_to_float_than_int4(folder: str) -> None:
    differences = {}
    for cache in ("fp16", "int8", "int4"):
        with Session(folder, "model:tiny", cache) as session:
            differences[cache] = session.generate(PROMPT, 6, stop_at_end=False).mean_logit_difference or 0.0
    assert 0 < differences["fp16"] < differences["int8"] < differences["int4"]


def test_sampling_follows_the_seed(folder: str) -> None:
    def sample(seed: int) -> list[int]:
        with Session(folder, cache_format="float") as session:
            session.generate(PROMPT, 16, temperature=2.0, seed=seed, check=False, stop_at_end=False)
            return session.ids

    assert sample(1) == sample(1) != sample(2)


def test_turns_store_the_history_once(folder: str) -> None:
    with Session(folder, "model:tiny", "int4") as session:
        conversation = Conversation(session)
        for message in ("the sea was grey", "a ship lay in harbour", "it rained"):
            before = len(session.ids)
            ids = conversation.ask(message)
            report = session.generate(ids, 3)
            conversation.answered(report.text)
            assert len(session.ids) == before + len(ids) + report.tokens
            # The last token was generated, but nothing has come after it yet.
            assert session._cache.get_seq_length() == len(session.ids) - 1
        text = session.tokenizer.decode(session.ids)
        turns = [f"<user> {message}" for message in ("the sea was grey", "a ship lay in harbour", "it rained")]
        assert [text.count(turn) for turn in turns] == [1, 1, 1]
        assert sorted(turns, key=text.index) == turns


def test_an_end_token_that_was_generated_is_not_repeated(folder: str) -> None:
    with Session(folder, cache_format="float") as session:
        conversation = Conversation(session)
        end = session.tokenizer.eos_token_id
        session.ids = [*conversation.ask("it rained"), 7, end]
        conversation.answered(session.tokenizer.decode([7]))
        assert conversation.ask("a ship")[0] == session.tokenizer.convert_tokens_to_ids("<user>")
        session.ids = session.ids[:-1]
        assert conversation.ask("a ship")[0] == end


def test_a_message_without_an_answer_leaves_no_trace(folder: str) -> None:
    with Session(folder, cache_format="float") as session:
        conversation = Conversation(session)
        conversation.ask("it rained")
        conversation.answered(session.generate(conversation.ask("the sea was grey"), 3).text)
        conversation.ask("it rained")
        conversation.answered(session.generate(conversation.ask("a ship lay in harbour"), 3).text)
        assert "it rained" not in session.tokenizer.decode(session.ids)


def test_restart_forgets(folder: str) -> None:
    with Session(folder, "model:tiny", "int4") as session:
        first = session.generate(PROMPT, 5, stop_at_end=False).text
        session.restart()
        assert session.generate(PROMPT, 5, stop_at_end=False).text == first
        assert len(session.ids) == 6 + 5


def test_refusals(folder: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="'int2' is not known: use one of float, fp16, int8, int4"):
        Session(folder, cache_format="int2")
    with pytest.raises(UnsupportedError, match="head_dim 32.*head_dim 64"):
        Session(folder, "model:bench64")
    with Session(folder, "model:", "int4") as session:
        assert session.device == "model:glassllm"
        for arguments, reason in (
            (("", 4), "no tokens"),
            ((PROMPT, 0), "at least 1"),
            ((PROMPT, 4, -1.0), "temperature"),
            ((PROMPT, 4, float("nan")), "temperature"),
            ((PROMPT, 60), "would have 66 tokens.*holds 64"),
        ):
            with pytest.raises(UnsupportedError, match=reason):
                session.generate(*arguments)
        assert session.ids == []
    make_folder(tmp_path, template=None)
    with (
        Session(str(tmp_path), cache_format="float") as session,
        pytest.raises(UnsupportedError, match="no chat template"),
    ):
        Conversation(session)


@pytest.mark.parametrize(
    ("prompt", "options"),
    [([10**6], {}), ([-1], {}), (["a"], {}), ([1], {"seed": 1 << 70}), ([1], {"temperature": 1e-300})],
)
def test_a_refused_prompt_leaves_the_session_usable(
    folder: str, prompt: list[int], options: dict[str, Any]
) -> None:
    with Session(folder, "host", "float") as session:
        with pytest.raises(UnsupportedError):
            session.generate(prompt, **options)
        assert session.ids == []
        assert session.generate([1, 2, 3], max_new_tokens=2).tokens == 2
