"""Which replicas the next view has."""

from __future__ import annotations

import pytest

from lmj_api.protocol import AgentState, Holding, WorkerPhase, WorkerState
from lmj_api.status import RankStatus
from lmj_api.topology import Topology
from lmj_api.view import Member, Resume, View
from lmj_operator.plan.membership.choice import ACCUSED_SECONDS, LEAVE_SECONDS, chosen
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import PodObserved, PodPhase, PodWait

TOPOLOGY = Topology(2, 3)
NOW = 1000.0
READY, RUNNING, FOLLOWING, EXITED = WorkerPhase.READY, WorkerPhase.RUNNING, WorkerPhase.FOLLOWING, WorkerPhase.EXITED


def view(*ranks: int) -> View:
    members = [Member(rank=rank, pod=f"pod-{rank}", incarnation=1, address=f"a:{rank}") for rank in ranks]
    return View(number=7, members=members, resume=Resume(step=10), reason="test")


ALL = view(*range(6))


def rank(
    number: int, phase: WorkerPhase = READY, step: int | None = 12, *, prepared: bool = False, lost: int | None = None
) -> RankFacts:
    holding = None if step is None or phase is RUNNING else Holding(step=step, prepared=prepared)
    address = None if phase is EXITED else f"a:{number}"
    worker = WorkerState(incarnation=1, phase=phase, view=7, address=address, holding=holding, lost_rank=lost)
    agent = AgentState(pod=f"pod-{number}", rank=number, started=0.0, worker=worker)
    pod = PodObserved(f"pod-{number}", number, 1, PodPhase.RUNNING, 0.0, agent=agent)
    return RankFacts(number, 1, pod, True, 1, RankStatus(rank=number, state=phase))


def pending(number: int) -> RankFacts:
    waits = PodWait("Unschedulable", "0 of 3 nodes", 0.0)
    pod = PodObserved(f"pod-{number}", number, 1, PodPhase.PENDING, 0.0, waits=waits)
    return RankFacts(number, 1, pod, True, 1, RankStatus(rank=number, state="Pending"))


def present(*ranks: RankFacts, newest: View | None = ALL, least: int = 1, gone: float | None = 0.0) -> list[int]:
    """``gone``: seconds since a member left; None: none has."""
    left = None if gone is None else NOW - gone
    return list(chosen(TOPOLOGY, least, ranks, newest, left, NOW).present)


def replicas(*each: tuple[RankFacts, ...]) -> list[RankFacts]:
    return [facts for replica in each for facts in replica]


def of(replica: int, phase: WorkerPhase = READY, step: int | None = 12, **more: object) -> tuple[RankFacts, ...]:
    return tuple(rank(number, phase, step, **more) for number in (2 * replica, 2 * replica + 1))  # type: ignore[arg-type]


def test_a_view_that_holds_is_left_as_it_is() -> None:
    every = replicas(of(0, RUNNING), of(1, RUNNING), of(2))
    assert present(*every, newest=view(0, 1, 2, 3), gone=None) == [0, 1], "the third joins when it follows"


def test_those_that_have_the_step_go_on_at_once() -> None:
    dead = (rank(2, EXITED, None), rank(3, lost=2))
    assert present(*replicas(of(0), dead, of(2))) == [0, 2]
    assert present(*replicas(of(0), (rank(2), rank(3, EXITED, None)), of(2, prepared=True, step=11))) == [0, 2]


def test_a_stale_state_does_not_join() -> None:
    assert present(*replicas(of(0), of(1, step=9), of(2))) == [0, 2]
    assert present(*replicas(of(0), of(1, step=11), of(2))) == [0, 2], "it lacks the gradients of that step"


def test_a_replica_that_has_not_heard_yet_is_waited_for_a_moment() -> None:
    every = replicas(of(0), of(1, RUNNING), of(2))
    assert present(*every) == [0, 1, 2]
    assert present(*every, gone=LEAVE_SECONDS) == [0, 2]


def test_one_that_a_peer_has_lost_is_waited_for_less() -> None:
    every = replicas(of(0, lost=3), of(1, RUNNING), of(2))
    assert present(*every) == [0, 1, 2]
    assert present(*every, gone=ACCUSED_SECONDS) == [0, 2]


def test_one_in_sync_is_in_the_next_view() -> None:
    before = view(0, 1, 2, 3)
    assert present(*replicas(of(0), of(1), of(2, FOLLOWING)), newest=before) == [0, 1, 2]
    assert present(*replicas(of(0), of(1), of(2)), newest=before) == [0, 1, 2]
    assert present(*replicas(of(0), of(1), of(2, FOLLOWING, None)), newest=before) == [0, 1]


def test_with_fewer_than_are_enough_all_are_waited_for() -> None:
    every = replicas(of(0), of(1, EXITED, None), of(2, EXITED, None))
    assert present(*every, least=1) == [0]
    assert present(*every, least=2) == [0, 1, 2]


@pytest.mark.parametrize(("without", "begins"), [((4,), [0, 1]), ((2, 4), [0]), ((0,), [0, 1, 2]), ((), [0, 1, 2])])
def test_training_begins_with_those_that_have_room(without: tuple[int, ...], begins: list[int]) -> None:
    """The first replica's agent knows the checkpoints."""
    every = [pending(number) if number in without else rank(number, step=None) for number in range(6)]
    assert present(*every, newest=None, gone=None) == begins


def test_with_one_replica_there_is_no_choice() -> None:
    assert chosen(Topology(2), 1, (rank(0, EXITED, None), rank(1)), view(0, 1), NOW, NOW) == Topology(2)
