"""What one message may say: it comes from whatever runs in a pod."""

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from lmj_api.bounds import CHARACTERS, LARGEST, LONG_CHARACTERS
from lmj_api.protocol import (
    MOST_CELLS,
    MOST_CHECKPOINTS,
    MOST_EVALUATIONS,
    MOST_LINES,
    MOST_SNAPSHOTS,
    AgentState,
    CheckpointInfo,
    Evaluation,
    Event,
    EventKind,
    Exit,
    Snapshots,
)
from lmj_api.status import JobStatus
from lmj_api.view import MOST_RANKS, View

MANY = 50_000
MEMBER = {"rank": 0, "pod": "p", "incarnation": 1, "address": "a"}


def evaluation(labels: int, name: str = "a") -> Evaluation:
    return Evaluation(
        split="test", step=1, samples=1, loss=1, accuracy=1, f1=1, labels=[name] * labels, confusion=[[0] * labels] * labels
    )


def state(**changes: Any) -> str:
    return json.dumps({"pod": "p", "started": 1.0, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"pod": "p" * 256},
        {"started": -1},
        {"started": 1e300},
        {"handover": LARGEST + 1},
        {"worker": {"since": math.inf}},
        {"worker": {"heartbeat": math.nan}},
        {"worker": {"view": -1}},
        {"worker": {"address": "a" * 256}},
        {"worker": {"exit": {"code": 1 << 31, "message": ""}}},
        {"worker": {"progress": {"step": 10**30, "steps": 1, "epoch": 0}}},
        {"worker": {"snapshots": {"own": list(range(MOST_SNAPSHOTS + 1))}}},
        {"worker": {"snapshots": {"kept": ["a"] * MANY}}},
        {"worker": {"exit": {"code": 1, "message": "", "stderr": [0] * MANY}}},
        {"checkpoints": [{"name": "a", "step": 1}] * (MOST_CHECKPOINTS + 1)},
        {"checkpoints": [{}] * MANY},
        {"evaluations": [{}] * MANY},
        {"evaluations": [json.loads(evaluation(1).to_json())] * (MOST_EVALUATIONS + 1)},
        {"evaluations": [{**json.loads(evaluation(1).to_json()), "confusion": ["a"] * MANY}]},
        {"view": {"number": 1, "members": [{}] * MANY, "resume": {"step": 0}, "reason": ""}},
        {"view": {"number": 1, "members": [MEMBER], "resume": {"step": 0, "fetched": [0] * (MOST_RANKS + 1)}, "reason": ""}},
        {"view": {"number": LARGEST + 1, "members": [MEMBER], "resume": {"step": 0}, "reason": ""}},
        # as many replicas as there are numbers up to it would be looked at
        {"view": {"number": 1, "members": [{**MEMBER, "rank": MOST_RANKS}], "resume": {"step": 0}, "reason": ""}},
        {"view": {"number": 1, "members": [MEMBER], "resume": {"step": 0, "toldBy": MOST_RANKS}, "reason": ""}},
        {"knownView": LARGEST + 1},
    ],
)
def test_what_no_agent_says_is_refused_and_told_in_few_words(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as told:
        AgentState.model_validate_json(state(**changes))
    assert told.value.error_count() < 10


def test_text_is_cut() -> None:
    long = "x" * (2 * LONG_CHARACTERS)
    assert len(Exit(code=1, message=long).message) == CHARACTERS
    assert Exit(code=1, message="x" * CHARACTERS).message == "x" * CHARACTERS
    told = Exit(code=1, message="", stderr=[str(line) for line in range(MOST_LINES)] + [long]).stderr
    assert (len(told), told[0], len(told[-1])) == (MOST_LINES, "1", CHARACTERS)
    view = View.model_validate({"number": 1, "members": [MEMBER], "resume": {"step": 0}, "reason": long})
    assert len(view.reason) == LONG_CHARACTERS
    assert View.model_validate_json(view.to_json()) == view  # once is enough


HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31mred\u202e\nnext"
"""Commands of a terminal, of 7 and 8 bits, and a second line."""


def test_words_for_people_are_no_commands_of_a_terminal() -> None:
    def clean(text: str | None) -> bool:
        return text is not None and text.isprintable() and "owned" in text and text.endswith("red  next")

    ended = Exit(code=1, message=HOSTILE, stderr=[HOSTILE])
    assert clean(ended.message)
    assert clean(ended.stderr[0])
    assert clean(View.model_validate({"number": 1, "members": [MEMBER], "resume": {"step": 0}, "reason": HOSTILE}).reason)
    told = evaluation(1).model_validate({**json.loads(evaluation(1).to_json()), "metrics": {HOSTILE: 1}})
    assert clean(next(iter(told.metrics)))
    incident = {
        "time": "2026-11-21T07:41:35Z",
        "kind": "WorkerExited",
        "rank": 0,
        "pod": "p",
        "message": HOSTILE,
        "view": 1,
        "step": 1,
    }
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "R",
        "message": HOSTILE,
        "lastTransitionTime": "2026-11-21T07:41:35Z",
    }
    status = JobStatus.model_validate(
        {"message": HOSTILE, "incidents": [{**incident, "recovery": HOSTILE}], "conditions": [condition]}
    )
    assert all(
        map(clean, (status.message, status.incidents[0].message, status.incidents[0].recovery, status.conditions[0].message))
    )
    words = "Gradients of step 3 are ∞: größer als 10³"
    assert JobStatus(message=words).message == words


def test_a_large_matrix_is_not_told_but_kept() -> None:
    """The results' file has it; the status of a job with hundreds of labels would be more than a cluster's object may be."""
    small, large, wordy = evaluation(64), evaluation(65), evaluation(2, "a" * 10_000)
    assert len(small.confusion) ** 2 == MOST_CELLS
    assert len(large.confusion) == 65
    for whole in (small, large, wordy):
        event = Event(time=1, kind=EventKind.EVALUATED, evaluation=whole)
        there = AgentState.model_validate_json(state(evaluations=[json.loads(whole.to_json())]))
        expected = whole if whole is small else whole.model_copy(update={"labels": [], "confusion": []})
        assert event.evaluation == expected
        assert there.evaluations == [expected]


def test_what_an_honest_agent_says_most_is_believed() -> None:
    full = AgentState(
        pod="p" * 253,
        started=2e9,
        checkpoints=[CheckpointInfo(name=f"step-{n:09}", step=n, size=LARGEST, time=2e9) for n in range(MOST_CHECKPOINTS)],
        evaluations=[evaluation(64)] * 3,
    )
    assert AgentState.model_validate_json(full.to_json()) == full
    assert Snapshots(own=list(range(MOST_SNAPSHOTS))).own[-1] == MOST_SNAPSHOTS - 1
