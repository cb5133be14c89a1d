"""Conversations as texts, by the tokenizer's template, and which parts of these the assistant says: they are learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lmj_trainer.errors import UserError
from lmj_trainer.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

ASSISTANT = "assistant"

Message = dict[str, str]


class Chat:
    """The template of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """UserError: it has none, or does not say where a token is in a text."""
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "the tokenizer has no template for conversations (chat_template): take a model that was made for them, save one with the "
                "tokenizer, or name columns of texts in dataset.text"
            )
        if not tokenizer.is_fast:
            raise UserError(f"the tokenizer {type(tokenizer).__name__} does not say where a token is in a text: save a fast one")
        self._tokenizer = tokenizer

    def asked(self, text: str) -> list[int]:
        """The tokens of ``text`` as a user's message, up to where the assistant begins."""
        return self._tokens(self._text([{"role": "user", "content": text}], answers=True))[0]

    def row(self, messages: Sequence[Message]) -> tuple[list[int], list[bool]]:
        """The tokens of a conversation, and which of them are learned. Raises ValueError with the reason: it is of no use."""
        spans, whole = self.parts(messages)
        tokens, places = self._tokens(whole)
        return tokens, [
            any(begin <= place[0] and place[1] <= end for begin, end in spans) and place[1] > place[0] for place in places
        ]

    def parts(self, messages: Sequence[Message]) -> tuple[list[tuple[int, int]], str]:
        """Where the assistant's messages begin and end, with the template's mark of their end; and the whole text."""
        whole, spans = self._text(messages), []
        for place, message in enumerate(messages):
            if message["role"] != ASSISTANT:
                continue
            before, after = self._text(messages[:place], answers=True), self._text(messages[: place + 1])
            if not (after.startswith(before) and whole.startswith(after)):
                raise ValueError(
                    "the tokenizer's template writes a message another way when others follow: give each answer a row"
                )
            spans.append((len(before), len(after)))
        return spans, whole

    def _text(self, messages: Sequence[Message], *, answers: bool = False) -> str:
        """``answers``: the assistant is about to."""
        import jinja2

        try:
            text: str = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=answers)
        except (jinja2.TemplateError, ValueError, TypeError) as error:
            raise ValueError(f"the tokenizer's template does not take it: {one_line(error)}") from error
        return text

    def _tokens(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        # The template has all special tokens. Longer ones than the model reads are cut later: no warning.
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return found["input_ids"], found["offset_mapping"]
