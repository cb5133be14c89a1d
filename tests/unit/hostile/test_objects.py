"""Hostile jobs are drawn by number: what they are, and what is said of them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hostile.journal import Journal
from hostile.objects import DEEPEST, LARGEST, SEEDS, Case, case
from hostile.text import json_of, marked
from hostile.told import unsaid

from lmj_operator.backend.kubernetes.nesting import shallow


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case(number) for number in range(400)]


def test_the_same_number_of_the_same_seed_is_the_same_job(cases: list[Case]) -> None:
    assert [case(number) for number in range(60)] == cases[:60]
    assert case(300, seed=1) != cases[300]


def test_kept_examples_come_first_and_each_kind_is_among_the_first_few_hundred(cases: list[Case]) -> None:
    kept = sorted(file.stem for file in SEEDS.glob("*.json"))
    assert [drawn.kind for drawn in cases[: len(kept)]] == kept
    assert {"good", "template", "anything", "spec", "large"} <= {drawn.kind for drawn in cases}
    changed = Counter(change.of for drawn in cases for change in drawn.changes)
    assert {"", "status", "scale"} == changed.keys()
    assert sum(len(drawn.changes) > 1 for drawn in cases) > 40


def test_all_are_json_up_to_the_largest_and_deepest_that_a_server_takes(cases: list[Case]) -> None:
    for drawn in cases:
        for text in (drawn.body, *(change.body for change in drawn.changes)):
            assert isinstance(json.loads(shallow(text)), dict)
    assert max(len(drawn.body) for drawn in cases) > 1_300_000
    assert all(len(drawn.body) < LARGEST + 20_000 for drawn in cases)
    assert any(b'{"a":' * (DEEPEST - 10) in drawn.body for drawn in cases)


def test_a_mark_stands_for_much() -> None:
    assert json_of({"a": marked("$deep", 2), "b": [marked("$lists", 3), marked("$text", 4)]}) == (
        b'{"a": {"a":{"a":1}}, "b": [[[[]]], "aaaa"]}'
    )
    assert json_of([marked("$keys", 2), marked("$items", 2)]) == b'[{"k0":{},"k1":{}}, [[],[]]]'


def job(generation: int = 1, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "generation": generation}, "status": status}


REFUSED = [{"type": "ChangeRefused", "status": "True", "message": "no"}]


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (job(), "it has no phase"),
        (job(phase="Failed", message="no data", observedGeneration=1), None),
        (job(phase="Failed", observedGeneration=1), "it is Failed without a word"),
        (job(2, phase="Pending", message="waits", observedGeneration=1), "it speaks of generation 1, and not of 2"),
        (job(2, phase="Pending", message="waits", observedGeneration=1, conditions=REFUSED), None),
        (job(2, phase="Failed", started=1.0, message="over", observedGeneration=1), None),
        (job(phase="Running", observedGeneration=1), None),
    ],
)
def test_a_job_says_why_it_is_as_it_is_or_what_is_missing_is_told(thing: dict[str, Any], said: str | None) -> None:
    assert unsaid(thing) == said


LEFT_ALONE = [{"type": "ReconcileFailed", "status": "True", "reason": "StatusUnreadable", "message": "it is left alone"}]


@pytest.mark.parametrize(
    ("thing", "said", "by_stranger"),
    [
        (job(phase="Succeeded", observedGeneration=1), "it is Succeeded without a word", None),
        (job(phase="Pending", observedGeneration=1), "it is Pending without a word", "it is Pending without a word"),
        (job(conditions=LEFT_ALONE), "it has no phase", None),
        (job(), "it has no phase", "it has no phase"),
    ],
)
def test_a_status_that_somebody_else_wrote_may_say_less(thing: dict[str, Any], said: str | None, by_stranger: str | None) -> None:
    assert (unsaid(thing), unsaid(thing, stranger=True)) == (said, by_stranger)


def test_errors_of_the_log_are_those_of_jobs_or_of_nobody(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = [
        {"level": "warning", "message": "fine", "namespace": "a", "job": "x"},
        {"level": "error", "message": "a pass failed", "namespace": "a", "job": "y", "error": "Traceback: first"},
        {"level": "error", "message": "a pass failed", "namespace": "a", "job": "y", "error": "Traceback: second"},
    ]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + "Traceback (most")
    journal = Journal(log)
    journal.read()
    assert journal.troubles == {("a", "y"): "a pass failed\nTraceback: first"}
    with log.open("a") as file:
        file.write(" recent call last):\n")
    journal.read()
    assert journal.troubles["", ""] == "Traceback (most recent call last):"
