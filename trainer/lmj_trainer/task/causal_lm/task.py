"""The task: its rows, and how a text goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_api.base import Message
from lmj_trainer.data.labels import Labels
from lmj_trainer.data.messages import is_kind
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.texts import check_texts
from lmj_trainer.errors import UserError
from lmj_trainer.task.causal_lm.chat import ASSISTANT, Chat
from lmj_trainer.task.causal_lm.heads import HEADS
from lmj_trainer.task.causal_lm.texts import Ends, Row, cut, following, joined, row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from lmj_trainer.data.split import Split
    from lmj_trainer.data.ticker import Ticker
    from lmj_trainer.task.port import Objective
    from lmj_trainer.task.saved_model import SavedModel

_CHUNK = 1000
"""Rows that are tokenized at a time."""
_NEW_TOKENS = 64
"""Of a text that goes on, at most."""


class Continuation(Message):
    """How the model goes on with a text."""

    text: str
    """The text."""
    continuation: str
    """What follows, each token the likeliest one."""


class CausalLM:
    """Methods are those of :class:`~lmj_trainer.task.port.Task`. No labels: targets are the tokens themselves, ``[b, t]``."""

    heads = HEADS
    key: Mapping[str, object] = {"task": "CausalLM"}
    pipeline = "text-generation"
    noun = "language model"
    evaluation_rows = 8
    windows = False
    masked = False

    def labels(self, rows: Rows, given: Sequence[str] | None, column: str | None) -> Labels:
        """None."""
        return Labels((), by_number=False)

    def check(self, rows: Rows, say: Callable[[str], None]) -> None:
        """Every text has to be there, and in each conversation somebody has to answer."""
        if not any(is_kind(text.type) for text in rows.texts):
            check_texts(rows, say)
            return
        if len(rows.columns) != 1:
            raise UserError(f"dataset.text names {len(rows.columns)} columns, of which one has conversations: give that alone")
        for place, messages in enumerate(rows.texts[0].to_pylist()):
            if not any(message["role"] == ASSISTANT for message in messages or ()):
                raise UserError(
                    f"{rows.where(place)} has no message of the role {ASSISTANT!r} in column {rows.columns[0]!r}: leave it out"
                )

    def ids(self, rows: Rows, labels: Labels) -> NDArray[np.int64]:
        """None."""
        return np.empty(0, np.int64)

    def encode(
        self, tokenizer: Any, rows: Rows, ids: NDArray[Any], max_length: int, types: bool, ticker: Ticker, what: str
    ) -> Split:
        """A column of texts: each with its end. Two: a prompt, and what is learned. Of conversations: what the assistant says.

        UserError: of some row nothing is learned.
        """
        talk = _conversations(tokenizer, rows) if is_kind(rows.texts[0].type) else _texts(tokenizer, rows)
        made = []
        for place, whole in enumerate(talk):
            if place % _CHUNK == 0:
                ticker.tick(f"tokenizing {what}: row {place} of {len(rows)}")
            if (kept := cut(whole, max_length)) is None:
                raise UserError(f"{rows.where(place)} has nothing to learn{_why_not(whole, max_length)}")
            made.append(kept)
        return joined(made, max_length)

    def targets(self, split: Split, rows: NDArray[np.int64], width: int) -> NDArray[np.int64]:
        """``[b, width]``: the token that follows each."""
        return following(split, rows, width)

    def objective(self, labels: Sequence[str], splits: Mapping[str, Split], smoothing: float = 0.0) -> Objective:
        """Cross entropy."""
        from lmj_trainer.task.causal_lm.objective import TokenObjective

        return TokenObjective(smoothing)

    def predict(self, saved: SavedModel, texts: Sequence[str], ticker: Ticker) -> list[tuple[str, Message]]:
        """How each text goes on, until its end or for 64 tokens."""
        import torch

        ends, found = _ends(saved.tokenizer), list[tuple[str, Message]]()
        for number, text in enumerate(texts):
            ticker.tick(f"text {number} of {len(texts)}")
            tokens = Chat(saved.tokenizer).asked(text) if saved.chat else [*ends.begin, *_tokens(saved.tokenizer, [text])[0]]
            if not 0 < len(tokens) < saved.longest:
                raise UserError(f"text {number + 1} has {len(tokens)} tokens: the model goes on with 1 to {saved.longest - 1}")
            ids = torch.tensor([tokens])
            with torch.inference_mode():
                whole = saved.model.generate(
                    ids,
                    attention_mask=torch.ones_like(ids),
                    max_new_tokens=min(_NEW_TOKENS, saved.longest - len(tokens)),
                    do_sample=False,
                    eos_token_id=ends.end,
                    pad_token_id=saved.tokenizer.pad_token_id,
                )
            more = saved.tokenizer.decode(whole[0, len(tokens) :], skip_special_tokens=True)
            found.append(
                (f"{text}{'' if more[:1].isspace() else ' '}{more}".rstrip(), Continuation(text=text, continuation=more))
            )
        return found


def _why_not(whole: Row, room: int) -> str:
    if cut(whole, len(whole[0])) is None:
        return ": leave the row out"
    return f" within {room} tokens (dataset.maxLength): raise that, or leave the row out"


def _texts(tokenizer: Any, rows: Rows) -> Iterator[Row]:
    ends = _ends(tokenizer)
    for start in range(0, len(rows), _CHUNK):
        *prompts, answers = (_tokens(tokenizer, column.slice(start, _CHUNK).to_pylist()) for column in rows.texts)
        for prompt, answer in zip(prompts[0] if prompts else [[]] * len(answers), answers, strict=True):
            yield row(ends, prompt, answer)


def _conversations(tokenizer: Any, rows: Rows) -> Iterator[Row]:
    chat = Chat(tokenizer)
    for place, messages in enumerate(rows.texts[0].to_pylist()):
        try:
            yield chat.row(messages)
        except ValueError as error:
            raise UserError(f"{rows.where(place)} has a conversation that cannot be used: {error}") from error


def _ends(tokenizer: Any) -> Ends:
    try:
        return Ends.of(tokenizer)
    except ValueError as error:
        raise UserError(f"the tokenizer cannot be used for model.task CausalLM: {error}") from error


def _tokens(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    # Longer ones than the model reads are cut later: no warning.
    found: list[list[int]] = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return found
