"""A conversation with a hybrid model: turns, and errors that leave it as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from statecell.runtime.recurrent.layer import StateLayer
from statecell.runtime.session import Session
from statecell.runtime.turns import Conversation
from tests.hybrid_folder import make_hybrid_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_hybrid_folder(tmp_path_factory.mktemp("session") / "small"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATECELL_CACHE", str(tmp_path))


def told(session: Session, fail: bool) -> list[int]:
    """Three turns; with `fail` each is tried before and ends in an error after some tokens."""
    conversation = Conversation(session)
    for message in ("All work", "and no play", "makes Jack"):
        ids = conversation.ask(message)
        if fail:
            with pytest.raises(KeyboardInterrupt):
                session.generate([*ids, 65], 9, on_text=interrupt_after(3), check=False)
        conversation.answered(session.generate(ids, 5, check=False, stop_at_end=False).text)
    return session.ids


def interrupt_after(pieces: int) -> Callable[[str], None]:
    seen = []

    def show(text: str) -> None:
        seen.append(text)
        if len(seen) >= pieces:
            raise KeyboardInterrupt

    return show


@pytest.mark.parametrize("cache_format", ["int4", "float"])
def test_errors_leave_the_conversation_as_it_was(folder: str, cache_format: str) -> None:
    with Session(folder, None, cache_format) as plain, Session(folder, None, cache_format) as failing:
        assert told(plain, False) == told(failing, True)


def test_without_the_way_back_the_test_above_fails(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(folder) as plain, Session(folder) as failing:
        expected = told(plain, False)
        monkeypatch.setattr(StateLayer, "go_back", lambda *_: None)
        assert told(failing, True) != expected


def test_turns_and_restart(folder: str) -> None:
    with Session(folder) as session:
        first = session.generate("All work and no play", 8)
        assert first.tokens == 8 and first.agreement is not None and first.array_bytes_per_token is not None
        session.restart()
        assert session.generate("All work and no play", 8).text == first.text
        assert session.device == "model:hybrid"
