"""What a checkpoint can be of at most, by what the members of the last view have in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lmj_api.protocol import AgentState, Holding, WorkerPhase, WorkerState
from lmj_api.status import RankStatus
from lmj_api.topology import Topology
from lmj_api.view import Member, Resume, View
from lmj_operator.plan.membership.looking import LOOK_SECONDS, last_saver, newest_possible, to_wait_for
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import PodObserved, PodPhase

NUMBER = 7
MEMBERS = [Member(rank=rank, pod=f"pod-{rank}", incarnation=2, address=f"a:{rank}") for rank in range(3)]
VIEW = View(number=NUMBER, members=MEMBERS, resume=Resume(step=10), reason="test")


def rank(
    number: int,
    step: int | None,
    *,
    pod: str | None = None,
    incarnation: int = 2,
    view: int = NUMBER,
    phase: WorkerPhase = WorkerPhase.READY,
) -> RankFacts:
    """A rank that holds ``step``, in the pod and worker that the view names unless told otherwise."""
    name = pod or f"pod-{number}"
    worker = WorkerState(
        incarnation=incarnation,
        phase=phase,
        view=view,
        holding=None if step is None else Holding(step=step, prepared=True),
    )
    agent = AgentState(pod=name, rank=number, started=0.0, worker=worker, looked=0)
    seen = PodObserved(name, number, 1, PodPhase.RUNNING, 0.0, agent=agent)
    return RankFacts(number, 1, seen, True, incarnation, RankStatus(rank=number, state="Ready"))


@pytest.mark.parametrize(
    ("ranks", "bound"),
    [
        pytest.param([rank(0, 15), rank(1, 15), rank(2, None)], 15, id="a rank has lost its memory"),
        pytest.param([rank(0, 15), rank(1, 14), rank(2, None)], 14, id="one has not committed the newest step"),
        pytest.param([rank(0, 8, incarnation=3, view=0), rank(1, None), rank(2, None)], 10, id="what the view began with"),
        pytest.param(
            [rank(0, 15, incarnation=3, view=0), rank(1, None), rank(2, None)], 15, id="another worker, the same memory"
        ),
        pytest.param([rank(0, 15, view=6), rank(1, None), rank(2, None)], None, id="it may be in the view by now, and commit"),
        pytest.param([rank(0, 15, view=6), rank(1, 16), rank(2, None)], 16, id="and nobody waits for what it says then"),
        pytest.param([rank(0, 15, pod="pod-9"), rank(1, None), rank(2, None)], None, id="it was not in the view"),
        pytest.param([rank(0, None), rank(1, None), rank(2, None)], None, id="nobody has its state"),
        pytest.param([rank(0, 15), rank(1, 15)], None, id="there were more ranks"),
    ],
)
def test_what_may_have_been_saved(ranks: list[RankFacts], bound: int | None) -> None:
    assert newest_possible(Topology(3), tuple(ranks), VIEW) == bound


@pytest.mark.parametrize("trains", [False, True])
def test_no_time_counts_while_nobody_may_look_yet(trains: bool) -> None:
    """Who trains in the view may be about to save its last checkpoint."""
    phase = WorkerPhase.RUNNING if trains else WorkerPhase.READY
    ranks = (rank(0, 15), rank(1, None, phase=phase), rank(2, None, pod="pod-9"))
    wait = to_wait_for(Topology(3), ranks, VIEW, (), None, Resume(step=12, snapshot=True), 1000.0, 1000.0 + LOOK_SECONDS)
    assert (wait is not None) is trains
    assert wait is None or (wait.look, wait.since) == (None, None)


@pytest.mark.parametrize(
    ("phase", "keyless", "waited"),
    [
        (PodPhase.TERMINATING, True, True),
        (PodPhase.RUNNING, True, True),
        (PodPhase.GONE, True, False),
        (PodPhase.TERMINATING, False, False),
    ],
)
def test_a_leader_that_nobody_can_ask_may_save_until_it_is_gone(phase: PodPhase, keyless: bool, waited: bool) -> None:
    ranks = (rank(0, None, pod="pod-9", incarnation=1, view=0), rank(1, 15), rank(2, 15))
    ranks = (replace(ranks[0], serial=2), *ranks[1:])
    old = PodObserved("pod-0", 0, 1, phase, 0.0, keyless=keyless)
    assert last_saver(Topology(3), ranks, (old,), 1000.0) == (("pod-0", None) if waited else None)
    another = PodObserved("pod-1", 1, 1, phase, 0.0, keyless=keyless)
    assert last_saver(Topology(3), ranks, (another,), 1000.0) is None, "the leader alone writes manifests"
