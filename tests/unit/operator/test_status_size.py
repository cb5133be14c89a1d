"""The largest job's status, and what is told of its views, fit where they are put."""

import pytest
from full_status import LINE, STAGES, TIME, full, pod, size, stored, view
from tests.unit.operator.seen import facts

from lmj_api.protocol import MOST_CHECKPOINTS, MOST_LINES, AgentState, CheckpointInfo, Event, EventKind, Exit, WorkerState
from lmj_api.status import RankStatus
from lmj_api.topology import Topology
from lmj_api.view import MOST_RANKS
from lmj_operator.backend.agent_client import LONGEST_ANSWER
from lmj_operator.backend.event_stream import LONGEST
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.pods.wants import Want
from lmj_operator.plan.report.report import EXIT_BYTES, rank_table
from lmj_trainer.agent.exits import describe
from lmj_trainer.agent.server import LARGEST_BODY
from lmj_trainer.agent.tail import Tail

ONE_MIB = 1 << 20


@pytest.mark.parametrize("joining", [0, MOST_RANKS // STAGES - 1], ids=["all train", "all but one join"])
def test_a_status_of_the_largest_job_fits_into_an_object_with_room(joining: int) -> None:
    """With the longest names, and all that a status can say said at once. etcd takes half as much again, for spec and bookkeeping."""
    told = stored(full(joining))
    assert size(told) < 0.94 * ONE_MIB, {name: size(value) for name, value in told.items()}


def test_what_is_told_of_the_largest_view_fits_into_a_request_and_an_answer() -> None:
    assert len(view().to_json().encode()) < LARGEST_BODY / 4
    state = AgentState(
        pod=pod(0),
        rank=0,
        started=TIME,
        view=view(),
        worker=WorkerState(exit=Exit(code=1, message=LINE, stderr=[LINE] * MOST_LINES)),
        checkpoints=[CheckpointInfo(name="step-000000120-v2-1a2b3c4d", step=10**6, size=10**15, time=TIME)] * MOST_CHECKPOINTS,
        evaluations=full().evaluations,
    )
    assert len(state.to_json().encode()) < LONGEST_ANSWER


def test_the_longest_events_of_an_agent_fit_into_a_line() -> None:
    tail = Tail()
    for _ in range(MOST_LINES):
        tail.add(("\N{WHITE HEAVY CHECK MARK}\N{GRINNING FACE}" * 1000).encode())
    ended = Event(time=TIME, kind=EventKind.WORKER_EXITED, message=LINE, exit=describe(1, tail.lines()))
    assert ended.exit is not None
    assert len(ended.exit.stderr) > 10
    names = [f"step-{step:09d}-v{step}-1a2b3c4d" for step in range(MOST_CHECKPOINTS)]
    removed = Event(time=TIME, kind=EventKind.CHECKPOINTED, message=LINE, removed=names)
    assert all(len(event.to_json().encode()) < LONGEST for event in (ended, removed))


def failed(rank: int, message: str) -> RankFacts:
    return facts(rank, None, known=RankStatus(rank=rank, state="NoPod", exit_message=message))


@pytest.mark.parametrize(("count", "whole"), [(1, True), (30, True), (MOST_RANKS, False)])
def test_messages_of_many_failures_are_told_in_short(count: int, whole: bool) -> None:
    ranks = tuple(failed(rank, LINE if rank < count else "") for rank in range(MOST_RANKS))
    wanted = {rank: Want(1, 1) for rank in range(MOST_RANKS)}
    told = [entry.exit_message or "" for entry in rank_table(Topology(STAGES, 256), ranks, wanted, (), TIME, {})]
    assert (told[0] == LINE) == whole
    assert sum(len(message.encode()) for message in told) <= EXIT_BYTES
    assert told[0].startswith("x" * 20)


def test_what_is_cut_is_text_yet() -> None:
    ranks = tuple(failed(rank, "ü" * 500) for rank in range(MOST_RANKS))
    table = rank_table(Topology(STAGES, 256), ranks, {rank: Want(1, 1) for rank in range(MOST_RANKS)}, (), TIME, {})
    message = table[0].exit_message
    assert message is not None
    assert set(message[:-1]) == {"ü"}
    assert message.endswith("…")
