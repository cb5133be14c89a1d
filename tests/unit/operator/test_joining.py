"""Replicas on their way into the view."""

from __future__ import annotations

from dataclasses import replace

from lmj_api.protocol import AgentState, Holding, WorkerPhase, WorkerState
from lmj_api.spec.recovery import Recovery
from lmj_api.status import JoinStatus, RankStatus
from lmj_api.topology import Topology
from lmj_api.view import Member, Resume, View
from lmj_operator.plan import Follow, HandOver, LeaveView
from lmj_operator.plan.moves.joining import Joins, plan_joins
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import PodObserved, PodPhase

TOPOLOGY = Topology(2, 3)
NOW = 1000.0


def member(rank: int) -> Member:
    return Member(rank=rank, pod=f"pod-{rank}", incarnation=1, address=f"a:{rank}")


VIEW = View(number=7, members=[member(rank) for rank in range(4)], resume=Resume(step=10), reason="test")


def facts(
    rank: int, phase: WorkerPhase, *, holds: int | None = None, follower: Member | None = None, handover: int = 0
) -> RankFacts:
    holding = Holding(step=holds) if holds is not None else None
    worker = WorkerState(incarnation=1, phase=phase, view=7, address=f"a:{rank}", holding=holding)
    agent = AgentState(pod=f"pod-{rank}", rank=rank, started=0.0, worker=worker, follower=follower, handover=handover)
    pod = PodObserved(f"pod-{rank}", rank, 1, PodPhase.RUNNING, 0.0, agent=agent)
    return RankFacts(rank, 1, pod, True, 1, RankStatus(rank=rank, state=phase))


def ranks(*joiners: RankFacts, **sources: Member) -> tuple[RankFacts, ...]:
    """Four that train, with whom follows each, and the ``joiners``."""
    trains = [facts(rank, WorkerPhase.RUNNING, follower=sources.get(f"r{rank}")) for rank in range(4)]
    return (*trains, *joiners)


def planned(every: tuple[RankFacts, ...], *known: JoinStatus, moving: tuple[int, ...] = (), now: float = NOW) -> Joins:
    return plan_joins(TOPOLOGY, every, VIEW, known, moving, Recovery(), now)


READY = (facts(4, WorkerPhase.READY), facts(5, WorkerPhase.READY))


def test_whom_it_follows_is_stored_before_it_does() -> None:
    joins = planned(ranks(*READY))
    assert [(e.replica, e.source, e.state) for e in joins.entries] == [(2, 1, "Starting")], "the one that leads last"
    assert (joins.actions, joins.due) == ((), (0.0,))
    after = planned(ranks(*READY), *joins.entries)
    assert after.actions == (Follow("pod-2", member(4)), Follow("pod-3", member(5)))
    assert after.followed(TOPOLOGY) == {2, 3}


def test_a_replica_with_a_rank_that_moves_is_not_followed() -> None:
    assert planned(ranks(*READY), moving=(3,)).entries[0].source == 0
    assert planned(ranks(*READY), moving=(3, 0)).entries == ()


def test_it_joins_when_all_of_its_ranks_are_in_sync() -> None:
    known = JoinStatus(replica=2, source=1, state="Starting")
    served = {"r2": member(4), "r3": member(5)}
    one = ranks(facts(4, WorkerPhase.FOLLOWING, holds=12), facts(5, WorkerPhase.FOLLOWING), **served)
    assert (planned(one, known).entries[0].state, planned(one, known).actions) == ("Copying", ())
    both = ranks(facts(4, WorkerPhase.FOLLOWING, holds=12), facts(5, WorkerPhase.FOLLOWING, holds=12), **served)
    joins = planned(both, known)
    assert joins.actions == (HandOver("pod-2", 7), HandOver("pod-3", 7))
    assert joins.urgent


def test_a_stream_that_ends_is_tried_again_later_and_later() -> None:
    known = JoinStatus(replica=2, source=1, state="Copying", failures=1)
    joins = planned(ranks(facts(4, WorkerPhase.FOLLOWING), facts(5, WorkerPhase.READY), r2=member(4)), known)
    (entry,) = joins.entries
    assert (entry.source, entry.failures) == (None, 2)
    assert entry.not_before > NOW
    assert joins.actions == (LeaveView("pod-4", 7),), "the other does not follow alone"
    waits = planned(ranks(*READY), entry)
    assert waits.entries == (entry,)
    assert waits.due == (entry.not_before - NOW,)
    assert planned(ranks(*READY), entry, now=entry.not_before).entries[0].source == 1


def test_one_that_was_let_go_and_has_not_heard_of_it_is_told() -> None:
    known = JoinStatus(replica=2, source=1, state="Copying")
    joins = planned(ranks(facts(4, WorkerPhase.FOLLOWING), facts(5, WorkerPhase.FOLLOWING), r3=member(5)), known)
    assert joins.actions == (LeaveView("pod-4", 7),)


def test_one_whose_pod_is_not_there_yet_is_waited_for() -> None:
    starts = (facts(4, WorkerPhase.READY), facts(5, WorkerPhase.STARTING))
    assert planned(ranks(*starts)) == Joins(())
    drained = replace(READY[1], pod=replace(READY[1].pod, leaves=True))  # type: ignore[type-var]
    assert planned(ranks(READY[0], drained)) == Joins(())
