"""A forward pass that raises leaves the cache as it was; where it cannot, the cache is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from statecell.device import ArrayFullError
from statecell.link.errors import LinkTimeout
from statecell.runtime.attention import attach
from statecell.runtime.cache import SlotCache
from statecell.runtime.engine import Append, Attend, Attended
from statecell.runtime.errors import CacheStateError, NotFiniteError
from statecell.runtime.session import Session
from statecell.runtime.sharing import SharedEngine
from statecell.runtime.turns import Conversation
from tests.runtime.exact_engine import ExactEngine
from tests.runtime.small_models import HEAD_DIM, prompt, small_model
from tests.small_folder import make_folder

LAYERS = 3


def _nan(_: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (arguments[0] * float("nan"), *arguments[1:])


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def failing(module: torch.nn.Module, hook: Callable[..., Any], error: type[BaseException]) -> Iterator[None]:
    """The block raises `error`, because `hook` acts on the input of `module`."""
    handle = module.register_forward_pre_hook(hook)
    try:
        with pytest.raises(error):
            yield
    finally:
        handle.remove()


def failures(model: Any) -> list[tuple[torch.nn.Module, Callable[..., Any], type[BaseException]]]:
    """NaN and an interrupt in front of every layer, and an interrupt after the last."""
    rows: list[tuple[torch.nn.Module, Callable[..., Any], type[BaseException]]] = []
    for layer in model.model.layers:
        rows += [(layer, _nan, NotFiniteError), (layer, _interrupt, KeyboardInterrupt)]
    return [*rows, (model.lm_head, _interrupt, KeyboardInterrupt)]


class Good:
    """The calls that succeed: a padded prompt, a turn, a crop, single tokens. `between` runs before each of them."""

    def __init__(self, between: Callable[[Any, SlotCache, torch.Tensor | None], None] = lambda *_: None) -> None:
        self.engine = ExactEngine(HEAD_DIM)
        self.model = small_model()
        self.attachment = attach(self.model, self.engine)
        self.cache = self.attachment.new_cache()
        self.logits: list[torch.Tensor] = []
        mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
        between(self.model, self.cache, None)
        self._step(prompt(6, batch=2), mask)
        for length, seed in ((3, 5), (1, 6), (1, 7)):
            mask = torch.cat([mask, torch.ones(2, length, dtype=mask.dtype)], dim=1)
            between(self.model, self.cache, mask)
            self._step(prompt(length, batch=2, seed=seed), mask)
            if length == 3:
                self.cache.crop(-1)
                mask = mask[:, :-1]

    def _step(self, ids: torch.Tensor, mask: torch.Tensor) -> None:
        self.logits.append(self.model(ids, cache=self.cache, attention_mask=mask).logits)

    def same_as(self, other: Good) -> None:
        """Every logit, every stored row and every count is equal."""
        for ours, theirs in zip(self.logits, other.logits, strict=True):
            assert torch.equal(ours, theirs)
        rows, others = list(self.engine.rows.values()), list(other.engine.rows.values())
        assert len(rows) == len(others) == 2 * 2 * LAYERS
        for (k, v), (other_k, other_v) in zip(rows, others, strict=True):
            assert np.array_equal(k, other_k) and np.array_equal(v, other_v)
        assert list(self.engine.wide.values()) == list(other.engine.wide.values())
        assert self.cache.token_counts == other.cache.token_counts
        assert self.cache.state.ids is not None and other.cache.state.ids is not None
        assert np.array_equal(self.cache.state.ids, other.cache.state.ids)
        assert self.attachment.tally == other.attachment.tally


def fail_everywhere(model: Any, cache: SlotCache, mask: torch.Tensor | None) -> None:
    """Passes that fail in every way, of another batch and length than the good one where the cache is empty."""
    for module, hook, error in failures(model):
        with failing(module, hook, error):
            if mask is None:
                model(prompt(4, batch=3, seed=9), cache=cache)
            else:
                model(prompt(mask.shape[1] - cache.get_seq_length(), batch=2, seed=9), cache=cache, attention_mask=mask)


def test_failed_passes_leave_no_trace() -> None:
    Good(fail_everywhere).same_as(Good())


def _nothing(*_: object) -> None:
    pass


@pytest.mark.parametrize(
    ("owner", "method"), [(SharedEngine, "truncate"), (SlotCache, "_shorten"), (SlotCache, "abandon_forward")]
)
def test_without_the_way_back_the_test_fails(
    owner: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Good()
    monkeypatch.setattr(owner, method, _nothing)
    with pytest.raises((AssertionError, CacheStateError)):
        Good(fail_everywhere).same_as(plain)


def test_generate_goes_on_after_a_failed_turn() -> None:
    def talk(fail: bool) -> torch.Tensor:
        model = small_model()
        cache = attach(model, ExactEngine(HEAD_DIM)).new_cache()
        first = model.generate(prompt(5), max_new_tokens=4, cache=cache, do_sample=False)
        if fail:
            with failing(model.model.layers[2], _nan, NotFiniteError):
                model.generate(torch.cat([first, prompt(3, seed=8)], dim=1), max_new_tokens=2, cache=cache)
        second = torch.cat([first, prompt(2, seed=4)], dim=1)
        out: torch.Tensor = model.generate(second, max_new_tokens=4, cache=cache, do_sample=False)
        return out

    assert torch.equal(talk(True), talk(False))


def test_a_full_array_leaves_the_cache_as_it_was() -> None:
    model, engine = small_model(), ExactEngine(HEAD_DIM, capacity=6 * 8)
    cache = attach(model, engine).new_cache()
    history = model.generate(prompt(5), max_new_tokens=3, cache=cache, do_sample=False)
    runs = len(engine.runs)
    with pytest.raises(ArrayFullError, match="the array is full"):
        model(prompt(3), cache=cache)
    assert len(engine.runs) == runs  # refused before the first layer took the room of the others
    assert cache.token_counts == [7] and {len(k) for k, _ in engine.rows.values()} == {7}
    answer = model.generate(history, max_new_tokens=1, cache=cache, do_sample=False)
    cache.close()
    assert torch.equal(answer, model.generate(history, max_new_tokens=1, do_sample=False))


def test_a_first_prompt_that_is_too_long_gives_its_slots_back() -> None:
    model, engine = small_model(), ExactEngine(HEAD_DIM, capacity=6 * 4)
    cache = attach(model, engine).new_cache()
    with pytest.raises(ArrayFullError):  # in the second layer: its slots are not open before
        model(prompt(9), cache=cache)
    assert not engine.rows and cache.sequences == 0
    assert model(prompt(4), cache=cache).cache.token_counts == [4]


class Unreliable(ExactEngine):
    """Does not answer while `silent`."""

    silent = False

    def run(self, items: Sequence[Append | Attend]) -> list[Attended | None]:
        self._answer()
        return super().run(items)

    def truncate(self, slot: int, tokens: int) -> None:
        self._answer()
        super().truncate(slot, tokens)

    def _answer(self) -> None:
        if self.silent:
            raise LinkTimeout("no answer")


def test_a_device_that_fails_breaks_the_cache_until_it_is_reset() -> None:
    model, engine = small_model(), Unreliable(HEAD_DIM)
    cache = attach(model, engine).new_cache()
    model(prompt(4), cache=cache)
    engine.silent = True
    with pytest.raises(LinkTimeout):
        model(prompt(1), cache=cache)
    engine.silent = False
    for use in (lambda: model(prompt(1), cache=cache), lambda: cache.crop(-1)):
        with pytest.raises(CacheStateError, match=r"ended early with LinkTimeout; start a new one"):
            use()
    cache.reset()
    assert model(prompt(4), cache=cache).cache.token_counts == [4]


def test_a_way_back_that_fails_breaks_the_cache() -> None:
    model, engine = small_model(), Unreliable(HEAD_DIM)
    cache = attach(model, engine).new_cache()
    model(prompt(4), cache=cache)

    def fall_silent(*_: object) -> None:
        engine.silent = True
        raise KeyboardInterrupt

    with failing(model.lm_head, fall_silent, KeyboardInterrupt):
        model(prompt(1), cache=cache)
    engine.silent = False
    with pytest.raises(CacheStateError, match="ended early with KeyboardInterrupt; start a new one"):
        model(prompt(1), cache=cache)


def test_dropped_rows_do_not_come_back() -> None:
    model = small_model()
    cache = attach(model, ExactEngine(HEAD_DIM)).new_cache()
    model(prompt(4, batch=2), cache=cache)
    mask = torch.tensor([[1, 1, 0, 0, 1], [1, 1, 1, 1, 1]])  # the first sequence had ended two tokens before
    with failing(model.model.layers[0], _nan, NotFiniteError):
        model(prompt(1, batch=2), cache=cache, attention_mask=mask)
    assert cache.token_counts == [4, 4]  # nothing had been dropped yet
    with failing(model.model.layers[1], _nan, NotFiniteError):
        model(prompt(1, batch=2), cache=cache, attention_mask=mask)
    with pytest.raises(CacheStateError, match="NotFiniteError after it had dropped rows; start a new one"):
        model(prompt(1, batch=2), cache=cache, attention_mask=mask)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize(
    ("device", "cache"),
    [("model:tiny", "int4"), ("model:tiny", "int8"), ("sim:tiny", "int4"), ("host", "fp16"), ("host", "float")],
)
def test_a_session_goes_on_as_if_the_failed_call_had_not_been(folder: Path, device: str, cache: str) -> None:
    def talk(fail: bool) -> list[int]:
        with Session(str(folder), device, cache) as session:
            # float attention passes NaN on; the session itself then refuses the logits
            places = (session.model.model.layers[1], session.model.lm_head)
            for text in ("the sea", "a ship"):
                for place in places if fail else ():
                    with failing(place, _nan, NotFiniteError):
                        session.generate("it rained at night", 2)
                    with failing(place, _Countdown(2), KeyboardInterrupt):
                        session.generate("it rained", 2)
                session.generate(text, 1, stop_at_end=False, check=False)
            return session.ids

    assert talk(True) == talk(False)


@pytest.mark.parametrize("fail", [_nan, "too long", None])
def test_a_failed_call_takes_no_room_in_the_array(folder: Path, fail: Any) -> None:
    """After each kind of failure the slots of the device can be filled to their last row."""
    with Session(str(folder), "sim:tiny", "int4") as session:
        session.generate("the sea was grey", 1, stop_at_end=False, check=False)
        if fail is _nan:
            with failing(session.model.model.layers[1], _nan, NotFiniteError):
                session.generate("it rained at night and it rained", 1)
        elif fail:
            with pytest.raises(ArrayFullError):
                session.generate("it rained at night and the wind came from west at night", 1)
        # 64 rows for 4 slots: 16 each, of which the first token takes two
        session.generate("the sea was grey and it rained", 4, stop_at_end=False, check=False)
        assert session._cache.token_counts == [15]
        with pytest.raises(ArrayFullError):
            session.generate("a", 1)


class _Countdown:
    """Interrupts the `count`-th call: a generation after its first token."""

    def __init__(self, count: int) -> None:
        self._left = count

    def __call__(self, *_: object) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def test_a_conversation_goes_on_after_a_failed_answer(folder: Path) -> None:
    def talk(fail: bool) -> list[int]:
        with Session(str(folder), "model:tiny", "int4") as session:
            conversation = Conversation(session)
            for message in ("the sea was grey", "a ship lay in harbour"):
                if fail:
                    with failing(session.model.model.layers[1], _nan, NotFiniteError):
                        session.generate(conversation.ask("it rained"), 3)
                conversation.answered(session.generate(conversation.ask(message), 3).text)
            return session.ids

    assert talk(True) == talk(False)
