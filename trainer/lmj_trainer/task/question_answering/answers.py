"""Answers as rows have them, and how near a predicted one is to them, as SQuAD's own evaluation says it."""

from __future__ import annotations

import json
import re
import string
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Answer:
    """A part of a text."""

    text: str
    begin: int
    """Its first character."""

    @property
    def end(self) -> int:
        """The character after its last one."""
        return self.begin + len(self.text)


def answers_of(value: Any, context: str) -> list[Answer]:
    """Those in ``value``, as datasets write them: ``{"text": [...], "answer_start": [...]}``, a list of texts or of objects with both, a text
    (then it is the first place that has it), or JSON of these. None: the text has no answer. Raises ValueError: one is not in ``context``.
    """
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")) and value not in context:
        try:
            value = json.loads(value)
        except RecursionError as error:
            raise ValueError(str(error)) from None
    if value is None or value == "":
        return []
    if isinstance(value, dict):
        texts, begins = (_list(value.get(name)) for name in ("text", "answer_start"))
        if begins and len(begins) != len(texts):
            raise ValueError(f"{len(texts)} texts and {len(begins)} places (answer_start)")
        return [_found(text, begin, context) for text, begin in zip(texts, begins or [None] * len(texts), strict=True)]
    if isinstance(value, list):
        return [answer for entry in value for answer in answers_of(entry, context)]
    return [_found(value, None, context)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _found(text: Any, begin: Any, context: str) -> Answer:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{json.dumps(text)[:60]} is no text")
    if isinstance(begin, int) and begin >= 0 and context[begin : begin + len(text)] == text:
        return Answer(text, begin)
    begin = context.find(text)
    if begin < 0:
        raise ValueError(f"{text[:60]!r} is not in the text")
    return Answer(text, begin)


def normalized(text: str) -> str:
    """``text`` in small letters, without punctuation and articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact(said: str, answers: Sequence[str]) -> bool:
    """Whether ``said`` is one of ``answers``, but for what :func:`normalized` leaves out. No answers: whether nothing is said."""
    return normalized(said) in {normalized(answer) for answer in answers or [""]}


def overlap(said: str, answers: Sequence[str]) -> float:
    """F1 of the words of ``said`` and those of the nearest of ``answers``."""
    return max(_f1(normalized(said).split(), normalized(answer).split()) for answer in answers or [""])


def _f1(said: list[str], there: list[str]) -> float:
    if not said or not there:
        return float(said == there)
    same = sum((Counter(said) & Counter(there)).values())
    return 2 * same / (len(said) + len(there))
