"""The task: its rows, and what answers a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lmj_api.base import Message
from lmj_trainer.data.labels import Labels
from lmj_trainer.data.rows import Rows
from lmj_trainer.data.texts import check_texts
from lmj_trainer.errors import UserError
from lmj_trainer.task.question_answering.answers import Answer, answers_of
from lmj_trainer.task.question_answering.heads import HEADS
from lmj_trainer.task.question_answering.windows import Known, joined, overlap_of, window
from lmj_trainer.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from lmj_trainer.data.split import Split
    from lmj_trainer.data.ticker import Ticker
    from lmj_trainer.task.port import Objective
    from lmj_trainer.task.saved_model import SavedModel

_CHUNK = 1000
"""Rows that are tokenized at a time."""
_BATCH = 32
ALWAYS, OR_NONE = ("start", "end"), ("start or none", "end or none")
"""Names of the head's two outputs: where each text has an answer, and where some have none."""


class Said(Message):
    """What the model says of a question."""

    question: str
    answer: str
    """A part of the text; empty: the text does not answer it."""


class QuestionAnswering:
    """Methods are those of :class:`~lmj_trainer.task.port.Task`. A long text is several windows: labels are ``[windows, 4]``."""

    heads = HEADS
    key: Mapping[str, object] = {"task": "QuestionAnswering"}
    pipeline = "question-answering"
    noun = "model that answers questions"
    evaluation_rows = 32
    windows = True
    masked = False

    def labels(self, rows: Rows, given: Sequence[str] | None, column: str | None) -> Labels:
        """Of the two outputs."""
        if given is not None:
            return Labels(tuple(given), by_number=False)
        check_texts(rows, lambda warning: None)
        none = any(not answers for _, answers in _known(rows))
        return Labels(OR_NONE if none else ALWAYS, by_number=False)

    def check(self, rows: Rows, say: Callable[[str], None]) -> None:
        """Every question and text has to be there, and each answer in its text."""
        if len(rows.columns) != 2:
            raise UserError(f"dataset.text names {len(rows.columns)} columns: give those of the question and of the text")
        check_texts(rows, say)
        _known(rows)

    def ids(self, rows: Rows, labels: Labels) -> NDArray[Any]:
        """None: answers are looked for in the tokens."""
        return np.empty(0, np.float64)

    def encode(
        self, tokenizer: Any, rows: Rows, ids: NDArray[Any], max_length: int, types: bool, ticker: Ticker, what: str
    ) -> Split:
        """Windows of a text have a third of their tokens in common with the one before. UserError: a question leaves no room for that."""
        if not tokenizer.is_fast:
            raise UserError(f"the tokenizer {type(tokenizer).__name__} does not say where a token is in a text: save a fast one")
        known = _known(rows)
        questions = [question.lstrip() for question in rows.texts[0].to_pylist()]
        _check_room(tokenizer, rows, questions, max_length)
        tokens, kinds, labels, spans, numbers = [], [], [], [], list[int]()
        for start in range(0, len(rows), _CHUNK):
            ticker.tick(f"tokenizing {what}: row {start} of {len(rows)}")
            encoded = tokenizer(
                questions[start : start + _CHUNK],
                [context for context, _ in known[start : start + _CHUNK]],
                truncation="only_second",
                max_length=max_length,
                stride=overlap_of(max_length),
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
                return_attention_mask=False,
                return_token_type_ids=types,
                padding=False,
            )
            for place, (row, offsets) in enumerate(
                zip(encoded["overflow_to_sample_mapping"], encoded["offset_mapping"], strict=True)
            ):
                parts = encoded.sequence_ids(place)
                if 1 not in parts:
                    raise UserError(
                        f"{rows.where(start + row)} has a text of which the tokenizer knows nothing: leave the row out"
                    )
                first, count = parts.index(1), parts.count(1)
                answers = known[start + row][1]
                tokens.append(np.array(encoded["input_ids"][place], np.int32))
                spans.append(np.array(offsets, np.int64))
                labels.append(window(spans[-1], first, first + count, answers[0] if answers else None))
                numbers.append(start + row)
                if types:
                    kinds.append(np.array(encoded["token_type_ids"][place], np.uint8))
        return joined(tokens, kinds if types else None, labels, spans, numbers, known, max_length)

    def targets(self, split: Split, rows: NDArray[np.int64], width: int) -> NDArray[Any]:
        """``[b, 5]``"""
        return np.concatenate([np.asarray(split.labels[rows], np.int64), np.asarray(rows, np.int64)[:, None]], 1)

    def objective(self, labels: Sequence[str], splits: Mapping[str, Split], smoothing: float = 0.0) -> Objective:
        """Cross entropy."""
        from lmj_trainer.task.question_answering.objective import AnswerObjective

        return AnswerObjective(splits)

    def predict(self, saved: SavedModel, texts: Sequence[str], ticker: Ticker) -> list[tuple[str, Message]]:
        """A question and a text, with a tab between."""
        from lmj_trainer.task.question_answering.objective import best, said

        pairs = [text.split("\t") for text in texts]
        for number, pair in enumerate(pairs, 1):
            if len(pair) != 2 or not all(part.strip() for part in pair):
                raise UserError(f"text {number} is not a question and a text with a tab between them")
        rows = Rows.of_texts(["question", "text"], list(zip(*pairs, strict=True)), [None] * len(pairs))
        split = self.encode(saved.tokenizer, rows, np.empty(0), saved.usual_length, saved.types, ticker, "the input")
        windows = [each for output, targets in saved.outputs(split, _BATCH) for each in best(output, targets)]
        answers = said(windows, Known(split), may_lack=saved.labels == OR_NONE)
        return [
            (f"{answers[row]}\t{question}", Said(question=question, answer=answers[row]))
            for row, (question, _) in enumerate(pairs)
        ]


def _known(rows: Rows) -> list[tuple[str, list[Answer]]]:
    """The text and the answers of each row. UserError: an answer is not in its text."""
    found = []
    for place, (context, value) in enumerate(zip(rows.texts[-1].to_pylist(), rows.labels, strict=True)):
        try:
            found.append((context, answers_of(value, context)))
        except (ValueError, TypeError) as error:
            raise UserError(f"{rows.where(place)} has an answer that cannot be used: {one_line(error)}") from error
    return found


def _check_room(tokenizer: Any, rows: Rows, questions: Sequence[str], max_length: int) -> None:
    room = max_length - tokenizer.num_special_tokens_to_add(pair=True) - overlap_of(max_length)
    for start in range(0, len(questions), _CHUNK):
        counted = tokenizer(
            list(questions[start : start + _CHUNK]), add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        for place, found in enumerate(counted["input_ids"], start):
            if len(found) >= room:
                raise UserError(
                    f"{rows.where(place)} has a question of {len(found)} tokens, and there is room for {room - 1}: raise dataset.maxLength, "
                    "or leave the row out"
                )
