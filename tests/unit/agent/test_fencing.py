"""What is accepted."""

from collections.abc import Callable

import pytest

from lmj_api.protocol import AgentState, Exit, WorkerPhase, WorkerState
from lmj_api.view import View
from lmj_trainer.agent.fencing import Answer, admit_view, admit_worker

MakeView = Callable[..., View]


def state(incarnation: int = 1, *, gone: bool = False, draining: bool = False, view: View | None = None) -> AgentState:
    ended = Exit(code=1, message="") if gone else None
    worker = WorkerState(incarnation=incarnation, phase=WorkerPhase.EXITED if gone else WorkerPhase.READY, exit=ended)
    return AgentState(pod="job-r0-1", rank=0, started=0, worker=worker, draining=draining, view=view)


@pytest.mark.parametrize(
    ("current", "asked", "answer"),
    [
        (0, 1, Answer.NEW),
        (0, 4, Answer.NEW),
        (1, 1, Answer.KNOWN),
        (2, 3, Answer.NEW),
        (2, 1, Answer.REFUSED),
    ],
)
@pytest.mark.parametrize("gone", [False, True])
def test_workers(current: int, asked: int, answer: Answer, gone: bool) -> None:
    assert admit_worker(state(current, gone=gone and current > 0), asked).answer is answer


def test_no_worker_while_draining() -> None:
    assert admit_worker(state(1, draining=True), 2).answer is Answer.REFUSED
    assert admit_worker(state(1, draining=True), 1).answer is Answer.KNOWN


@pytest.mark.parametrize(
    ("own", "asked", "answer", "reason"),
    [
        (None, 1, Answer.NEW, "the first"),
        (None, None, Answer.REFUSED, "pod job-r0-1 is a standby: it must be told which rank worker 1 is to be"),
        (1, 1, Answer.NEW, "the first"),
        (1, None, Answer.NEW, "the first"),
        (1, 0, Answer.REFUSED, "pod job-r0-1 is rank 1: it cannot become rank 0"),
    ],
)
def test_ranks(own: int | None, asked: int | None, answer: Answer, reason: str) -> None:
    verdict = admit_worker(state(0).model_copy(update={"rank": own}), 1, asked)
    assert verdict.answer is answer
    assert reason in verdict.reason


def test_views(make_view: MakeView) -> None:
    accepted = state(view=make_view(5))
    for view, answer, reason in (
        (make_view(6), Answer.NEW, "for the test"),
        (make_view(5), Answer.KNOWN, "already"),
        (make_view(5, reason="another"), Answer.REFUSED, "other content"),
        (make_view(4), Answer.REFUSED, "older than view 5"),
        (make_view(6, incarnation=2), Answer.REFUSED, "for worker 2, but worker 1 runs"),
        (make_view(6, pod="job-r0-2"), Answer.REFUSED, "not this pod"),
    ):
        verdict = admit_view(accepted, view)
        assert verdict.answer is answer
        assert reason in verdict.reason
    assert admit_view(state(), make_view(1)).answer is Answer.NEW


def test_views_for_nobody(make_view: MakeView) -> None:
    assert "no worker runs" in admit_view(state(gone=True), make_view(1)).reason
    assert "no worker runs" in admit_view(state(0), make_view(1)).reason
    assert "0 members of rank 0" in admit_view(state(), make_view(1).model_copy(update={"members": []})).reason
    # Told already, but to a worker that is gone.
    assert admit_view(state(gone=True, view=make_view(5)), make_view(5)).answer is Answer.REFUSED
