"""Turns of a conversation: which tokens a new message adds to what the cache already holds."""

from __future__ import annotations

from typing import Any

from statecell.runtime.errors import UnsupportedError
from statecell.runtime.session import Session


class Conversation:
    """Renders messages by the model's chat template; only what is new is tokenised, never the history.

    A message becomes part of the conversation with its answer: `ask`, generate, `answered`. One that could not be
    answered leaves no trace. Raises UnsupportedError where the model has no chat template, or one that rewrites earlier
    messages.
    """

    def __init__(self, session: Session) -> None:
        if session.tokenizer.chat_template is None:
            raise UnsupportedError(f"The model {session.name} has no chat template: use `statecell generate` instead.")
        self._session = session
        self._messages: list[dict[str, str]] = []
        self._asked: list[dict[str, str]] = []

    def ask(self, message: str) -> list[int]:
        """The token ids that `message` adds: the end of the last answer, the message, the start of the next answer."""
        told = self._render(self._messages[:-1]) + self._messages[-1]["content"] if self._messages else ""
        self._asked = [{"role": "user", "content": message}]
        text = self._render(self._messages + self._asked)
        if not text.startswith(told):
            raise UnsupportedError(
                f"The chat template of {self._session.name} changes earlier messages, which are stored already: "
                "start a new conversation for each message."
            )
        ids = self._session.ids
        new = self._session.encode(text[len(told) :], special_tokens=False)
        # The end token may stand in the conversation already, as the last one that the model generated.
        return new[1:] if ids and new[:1] == ids[-1:] == [self._session.tokenizer.eos_token_id] else new

    def answered(self, text: str) -> None:
        """Note the answer that was generated to the last message."""
        self._messages += [*self._asked, {"role": "assistant", "content": text}]

    def _render(self, messages: list[dict[str, str]]) -> str:
        template: Any = self._session.tokenizer.apply_chat_template
        text: str = template(messages, tokenize=False, add_generation_prompt=True)
        return text
