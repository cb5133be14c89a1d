"""What the results of a job in object storage say: a line of metrics for each step, and evaluations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from lmj_api.bounds import LARGEST
from lmj_api.protocol import Evaluation
from lmj_trainer.worker.metrics_file import kept_lines

if TYPE_CHECKING:
    from lmj_trainer.worker.results import Results


class Collected(NamedTuple):
    """Of steps up to one."""

    lines: dict[int, bytes]
    """By step."""
    evaluations: list[Evaluation]
    pieces: int
    """Files of lines that were read."""


def collect(results: Results, last: int = LARGEST) -> Collected:
    """What ``results`` say of steps up to ``last``. Raises OSError."""
    lines: dict[int, bytes] = {}
    evaluations: list[Evaluation] = []
    pieces = 0
    for until, content in results.lines():
        lines |= by_step(content, min(until, last))
        pieces += 1
    for until, content in results.evaluations():
        evaluations = merged(evaluations, [e for e in read(content) if e.step <= min(until, last)])
    return Collected(lines, evaluations, pieces)


def by_step(content: bytes, last: int) -> dict[int, bytes]:
    """Lines of steps up to ``last`` in a file of metrics."""
    return {step: line for step, _, line in kept_lines(BytesIO(content), last)}


def as_json(evaluations: Sequence[Evaluation]) -> bytes:
    """A file of evaluations."""
    return json.dumps([e.model_dump(mode="json", by_alias=True) for e in evaluations], indent=1).encode() + b"\n"


def merged(old: Sequence[Evaluation], new: Sequence[Evaluation]) -> list[Evaluation]:
    """``old``, then ``new``, which takes the place of those of the same split and step."""
    newer = {(e.split, e.step) for e in new}
    return [e for e in old if (e.split, e.step) not in newer] + list(new)


def read(content: bytes) -> list[Evaluation]:
    """Those in ``content``, which may be anything."""
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError):
        return []
    found: list[Evaluation] = []
    for entry in entries if isinstance(entries, list) else []:
        try:
            found.append(Evaluation.model_validate(entry))
        except ValidationError:
            continue
    return found
