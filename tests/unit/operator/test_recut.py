"""Pods of another cut: made, followed from, handed over to, and who is which cut's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from planned import job_spec

from lmj_api.cut import Cut
from lmj_api.protocol import USER_ERROR, AgentState, Exit, Holding, Recut, WorkerPhase, WorkerState
from lmj_api.status import JobStatus, Phase, RankStatus, RecutFollower, RecutStatus
from lmj_api.view import Member, Resume, View
from lmj_operator.plan import CreatePod, DeletePod, FollowParts, HandOver, LeaveView, Observed, PodObserved, PodPhase, StartWorker
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import PodWait
from lmj_operator.plan.plan import Plan
from lmj_operator.plan.recut.cuts import current_cut, with_cut, with_cuts_told
from lmj_operator.plan.recut.recutting import Recutting, plan_recut

ONE, TWO, THREE = Cut(stages=1), Cut(stages=2), Cut(stages=3)
NOW, VIEW = 1000.0, 7
READY, FOLLOWING, RUNNING = WorkerPhase.READY, WorkerPhase.FOLLOWING, WorkerPhase.RUNNING


def member(rank: int) -> Member:
    return Member(rank=rank, pod=f"j-r{rank}-2", incarnation=1, address=f"new:{rank}")


def successor(rank: int, phase: WorkerPhase = READY, *, holds: int | None = None, **more: Any) -> PodObserved:
    """The pod of ``rank`` in the next cut."""
    holding = Holding(step=holds) if holds is not None else None
    values = {"since": NOW, "heartbeat": NOW, **more}
    worker = WorkerState(incarnation=1, phase=phase, address=f"new:{rank}", holding=holding, **values)
    agent = AgentState(pod=f"j-r{rank}-2", rank=rank, started=0.0, worker=worker)
    return PodObserved(f"j-r{rank}-2", rank, 2, PodPhase.RUNNING, 0.0, agent=agent, cut=THREE)


def trains(rank: int, recut: Recut | None = None, handover: int = 0) -> RankFacts:
    worker = WorkerState(incarnation=1, phase=RUNNING, view=VIEW, address=f"a:{rank}")
    agent = AgentState(pod=f"j-r{rank}-1", rank=rank, started=0.0, worker=worker, recut=recut, handover=handover)
    pod = PodObserved(f"j-r{rank}-1", rank, 1, PodPhase.RUNNING, 0.0, agent=agent, cut=TWO)
    return RankFacts(rank, 1, pod, True, 1, RankStatus(rank=rank, state="Running"))


def told(*ranks: int) -> Recut:
    return Recut(cut=THREE, followers=[member(rank) for rank in ranks])


def entry(rank: int, state: str = "Starting", **more: Any) -> RecutFollower:
    values = {"rank": rank, "serial": 2, "pod": f"j-r{rank}-2", "state": state, "source": 0, **more}
    return RecutFollower.model_validate(values)


def of(*entries: RecutFollower, cut: Cut = THREE, **more: Any) -> RecutStatus:
    return RecutStatus(cut=cut, followers=list(entries), **more)


MADE = {str(rank): 2 for rank in range(3)}


def planned(
    recut: RecutStatus | None,
    *pods: PodObserved,
    ranks: tuple[RankFacts, ...] | None = None,
    wanted: Cut | None = THREE,
    busy: bool = False,
    made: dict[str, int] | None = None,
    serials: dict[str, int] | None = None,
    trains_now: bool = True,
) -> Recutting:
    """Two stages train, and three are wanted."""
    every = ranks if ranks is not None else (trains(0), trains(1))
    members = [Member(rank=f.rank, pod=f"j-r{f.rank}-1", incarnation=1, address=f"a:{f.rank}") for f in every]
    view = View(number=VIEW, members=members, cut=TWO, resume=Resume(step=5), reason="test")
    status = JobStatus(serials=serials or {"0": 1, "1": 1}, recut=recut, cut=TWO)
    observed = Observed("j", job_spec(2), status, wanted_cut=wanted, apart=pods)
    return plan_recut(observed, every, view if trains_now else None, busy, MADE if made is None else made, NOW)


def states(found: Recutting) -> list[str]:
    assert found.status is not None
    return [pod.state for pod in found.status.followers]


def test_pods_are_stored_before_they_are_made() -> None:
    found = planned(None, made={})
    assert found.status is not None
    assert [(pod.rank, pod.pod, pod.source) for pod in found.status.followers] == [
        (0, "j-r0-2", 0),
        (1, "j-r1-2", 0),
        (2, "j-r2-1", 0),
    ]
    assert (found.made, found.actions, 0.0 in found.due) == ({"0": 2, "1": 2, "2": 1}, (), True)
    after = planned(found.status, made=found.made)
    assert after.actions == (CreatePod(0, 2, cut=THREE), CreatePod(1, 2, cut=THREE), CreatePod(2, 1, cut=THREE))


def test_a_worker_is_started_in_each() -> None:
    agent = AgentState(pod="j-r0-2", rank=0, started=0.0)
    bare = replace(successor(0), agent=agent)
    found = planned(of(entry(0), entry(1), entry(2)), bare, successor(1), successor(2))
    assert found.actions == (StartWorker("j-r0-2", 1),)


def test_nobody_follows_before_all_of_them_can() -> None:
    recut = of(entry(0), entry(1), entry(2))
    starts = successor(2, WorkerPhase.STARTING)
    assert planned(recut, successor(0), successor(1), starts).actions == ()
    found = planned(recut, successor(0), successor(1), successor(2))
    assert found.actions == (FollowParts("j-r0-1", told(0, 1, 2)), FollowParts("j-r1-1", told(0, 1, 2)))
    assert found.under_way
    assert states(found) == ["Starting"] * 3


def test_one_copies_when_all_sources_know_of_it() -> None:
    recut = of(entry(0), entry(1), entry(2))
    pods = [successor(rank, FOLLOWING) for rank in range(3)]
    half = planned(recut, *pods, ranks=(trains(0, told(0, 1, 2)), trains(1)))
    assert half.actions == (FollowParts("j-r1-1", told(0, 1, 2)),)
    assert states(half) == ["Starting"] * 3
    both = (trains(0, told(0, 1, 2)), trains(1, told(0, 1, 2)))
    assert states(planned(recut, *pods, ranks=both)) == ["Copying"] * 3
    synced = planned(recut, successor(0, FOLLOWING, holds=9), *pods[1:], ranks=both)
    assert states(synced) == ["InSync", "Copying", "Copying"]
    assert synced.actions == ()


def test_they_take_over_when_all_are_in_sync() -> None:
    recut = of(*(entry(rank, "Copying") for rank in range(3)))
    pods = [successor(rank, FOLLOWING, holds=9) for rank in range(3)]
    every = told(0, 1, 2)
    found = planned(recut, *pods, ranks=(trains(0, every), trains(1, every)))
    assert found.actions == (HandOver("j-r0-1", VIEW), HandOver("j-r1-1", VIEW))
    assert found.urgent
    again = planned(recut, *pods, ranks=(trains(0, every, VIEW), trains(1, every)))
    assert again.actions == (HandOver("j-r1-1", VIEW),), "each is told once"


def test_one_that_a_source_has_lost_begins_anew_with_all_of_them() -> None:
    recut = of(*(entry(rank, "Copying") for rank in range(3)))
    pods = [successor(rank, FOLLOWING) for rank in range(3)]
    one = planned(recut, *pods, ranks=(trains(0, told(0, 1, 2)), trains(1, told(0, 2))))
    assert one.actions == (FollowParts("j-r0-1", told(0, 2)),)
    none = planned(recut, *pods, ranks=(trains(0, told(0, 2)), trains(1, told(0, 2))))
    assert none.actions == (LeaveView("j-r1-2", VIEW),), "it has not heard of it"
    ready = planned(recut, pods[0], successor(1), pods[2], ranks=(trains(0, told(0, 2)), trains(1, told(0, 2))))
    assert ready.status is not None
    assert (ready.status.followers[1].state, ready.status.followers[1].failures) == ("Starting", 1)


def test_a_stream_that_ends_again_and_again_is_begun_later_and_later() -> None:
    recut = of(entry(0, "Copying"), entry(1, "Copying", failures=3), entry(2, "Copying"))
    found = planned(recut, successor(0, FOLLOWING), successor(1), successor(2, FOLLOWING))
    assert found.status is not None
    pause = found.status.followers[1].not_before
    assert pause > NOW
    assert pause - NOW in found.due


def test_one_that_was_let_go_and_hangs_gets_another_worker() -> None:
    recut = of(*(entry(rank, "Copying") for rank in range(3)))
    silent = successor(1, FOLLOWING, since=0.0, heartbeat=0.0)
    found = planned(recut, successor(0, FOLLOWING), silent, successor(2, FOLLOWING))
    assert found.status is not None
    assert (found.status.followers[1].incarnation, found.status.followers[1].state) == (2, "Starting")


def test_moves_come_first() -> None:
    recut = of(*(entry(rank, "InSync") for rank in range(3)))
    every = told(0, 1, 2)
    pods = [successor(rank, FOLLOWING, holds=9) for rank in range(3)]
    found = planned(recut, *pods, ranks=(trains(0, every), trains(1, every)), busy=True)
    assert found.actions == (FollowParts("j-r0-1", None), FollowParts("j-r1-1", None))
    assert states(found) == ["Starting"] * 3
    assert not found.under_way
    assert found.status is not None
    assert [pod.failures for pod in found.status.followers] == [0] * 3


def test_one_that_is_lost_is_made_again_at_nobodys_cost() -> None:
    recut = of(*(entry(rank, "Copying") for rank in range(3)))
    gone = replace(successor(1), phase=PodPhase.GONE, agent=None, exit_code=-9)
    found = planned(recut, successor(0, FOLLOWING), gone, successor(2, FOLLOWING))
    assert found.status is not None
    assert DeletePod("j-r1-2", "it is lost before it took over") in found.actions
    assert (found.status.followers[1].pod, found.made["1"]) == ("j-r1-3", 3)


@pytest.mark.parametrize("where", ["worker", "pod"])
def test_a_user_error_is_final_for_the_cut_and_for_nothing_else(where: str) -> None:
    recut, said = of(*(entry(rank) for rank in range(3))), "3 stages are more than the model's 2 layers"
    wrong = successor(2, WorkerPhase.EXITED, exit=Exit(code=USER_ERROR, message=said))
    if where == "pod":
        wrong = replace(successor(2), phase=PodPhase.GONE, agent=None, exit_code=USER_ERROR, exit_message=said)
    found = planned(recut, successor(0), successor(1), wrong, ranks=(trains(0, told(0)), trains(1)))
    assert found.status is not None
    assert (found.status.given_up, found.status.followers) == (said, [])
    assert found.actions == (FollowParts("j-r0-1", None),)
    assert planned(found.status).status == found.status, "until something else is asked for"
    other = planned(found.status, wanted=Cut(stages=4))
    assert other.status is not None
    assert (other.status.given_up, len(other.status.followers)) == (None, 4)


def test_what_is_wanted_no_more_is_let_go() -> None:
    recut = of(*(entry(rank, "Copying") for rank in range(3)))
    found = planned(recut, ranks=(trains(0, told(0, 1, 2)), trains(1)), wanted=None)
    assert (found.status, found.actions) == (None, (FollowParts("j-r0-1", None),))
    other = planned(recut, wanted=ONE)
    assert other.status is not None
    assert [(pod.rank, pod.serial) for pod in other.status.followers] == [(0, 3)]


def test_each_replica_follows_another_and_the_one_that_leads_last() -> None:
    ranks = tuple(trains(rank) for rank in range(4))
    found = planned(None, ranks=ranks)
    assert found.status is not None
    assert [pod.source for pod in found.status.followers] == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("waits", "least", "goes"), [(True, 1, True), (False, 1, False), (True, 2, False)])
def test_replicas_without_room_are_not_waited_for_where_the_others_are_enough(waits: bool, least: int, goes: bool) -> None:
    entries = [entry(rank, "InSync", source=1) for rank in range(3)] + [entry(rank, source=0) for rank in range(3, 6)]
    pods = [successor(rank, FOLLOWING, holds=9) for rank in range(3)]
    wait = PodWait("Unschedulable", "no room", NOW)
    pods += [replace(successor(rank), phase=PodPhase.PENDING, agent=None, waits=wait if waits else None) for rank in range(3, 6)]
    ranks = (trains(0), trains(1), trains(2, told(0, 1, 2)), trains(3, told(0, 1, 2)))
    parts = {"shards": 4, "replicas": 2, "minReplicas": least}
    spec = job_spec(2, pipeline={"stages": 2, "microBatches": 4}, dataParallel=parts)
    view = View(
        number=VIEW,
        members=[Member(rank=f.rank, pod=f"j-r{f.rank}-1", incarnation=1, address="a") for f in ranks],
        cut=TWO,
        resume=Resume(step=5),
        reason="test",
    )
    observed = Observed("j", spec, JobStatus(recut=of(*entries), cut=TWO), wanted_cut=THREE, apart=tuple(pods))
    found = plan_recut(observed, ranks, view, False, {str(rank): 2 for rank in range(6)}, NOW)
    told_to = [action for action in found.actions if isinstance(action, HandOver)]
    assert told_to == ([HandOver("j-r2-1", VIEW), HandOver("j-r3-1", VIEW)] if goes else [])


def test_one_whose_rank_has_a_later_pod_by_now_is_made_anew() -> None:
    """A rank's pod was replaced meanwhile: the name of the next one has a higher serial, and so has that of who takes over."""
    overtaken = of(entry(0, "InSync"), entry(1, "InSync"), entry(2, "InSync"))
    made = planned(overtaken, successor(0), successor(1), successor(2), serials={"0": 3, "1": 1}, made={**MADE, "0": 3})
    assert made.status is not None
    assert {e.rank: (e.serial, e.state) for e in made.status.followers}[0] == (4, "Pending")
    assert [e.serial for e in made.status.followers] == [4, 2, 2]
    waits = planned(overtaken, trains_now=False, serials={"0": 3, "1": 1})
    assert waits.status is not None
    assert [e.rank for e in waits.status.followers] == [1, 2], "it waits for nothing of a pod that can never take over"


def test_one_that_takes_over_is_no_failure() -> None:
    """Its streams end an instant before those that train say that they have left."""
    recut = of(*(entry(rank, "InSync") for rank in range(3)))
    pods = [successor(rank, READY, holds=10) for rank in range(3)]
    found = planned(recut, *pods, ranks=(trains(0, handover=VIEW), trains(1, handover=VIEW)))
    assert states(found) == ["InSync"] * 3
    assert found.actions == ()
    late = [successor(rank, READY, holds=10, since=NOW - 3) for rank in range(3)]
    assert states(planned(recut, *late, ranks=(trains(0, handover=VIEW), trains(1, handover=VIEW)))) == ["Starting"] * 3


RANKS = [RankStatus(rank=rank, state="Running", stage=rank) for rank in range(2)]


@pytest.mark.parametrize(
    ("status", "cut"),
    [
        (JobStatus(), THREE),
        (JobStatus(cut=ONE), ONE),
        (JobStatus(cut=ONE, phase=Phase.SUSPENDED), THREE),
        (JobStatus(ranks=RANKS), TWO),
        (JobStatus(ranks=[RankStatus(rank=0, state="Running")]), ONE),
        (JobStatus(ranks=[*RANKS, RankStatus(rank=2, state="Running", stage=2)]), THREE),
    ],
)
def test_which_cut_the_ranks_are_of(status: JobStatus, cut: Cut) -> None:
    assert current_cut(status, THREE) == cut


def test_pods_of_another_cut_are_apart_and_standbys_of_one_are_out_of_date() -> None:
    own = PodObserved("j-r0-1", 0, 1, PodPhase.RUNNING, 0.0, cut=TWO)
    old = PodObserved("j-r1-1", 1, 1, PodPhase.RUNNING, 0.0)
    other = successor(0)
    standby = PodObserved("j-s-1", None, 1, PodPhase.RUNNING, 0.0, cut=THREE)
    seen = with_cut(Observed("j", job_spec(3), JobStatus(cut=TWO), (own, old, other, standby)))
    assert seen.pods == (own, old, replace(standby, outdated=True))
    assert seen.apart == (other,)
    assert (seen.spec.pipeline.stages, seen.wanted_cut) == (2, THREE)
    as_wanted = Observed("j", job_spec(2), JobStatus(cut=TWO), (own,))
    assert with_cut(as_wanted) == as_wanted


def test_pods_that_are_made_are_of_their_cut_and_those_that_nobody_wants_go() -> None:
    own = PodObserved("j-r0-1", 0, 1, PodPhase.RUNNING, 0.0, cut=TWO)
    wanted, left = successor(0), replace(successor(1), cut=ONE)
    observed = Observed("j", job_spec(3), JobStatus(), (own, wanted, left))
    status = JobStatus(cut=TWO, recut=of(entry(0)))
    made = with_cuts_told(Plan(status, "", (CreatePod(1, 3), CreatePod(1, 2, cut=THREE)), None), observed)
    assert made.actions == (
        CreatePod(1, 3, cut=TWO),
        CreatePod(1, 2, cut=THREE),
        DeletePod("j-r1-2", "the layers are in 2 stages now"),
    )
    assert made.wake_after is not None
    same = Plan(JobStatus(cut=THREE), "", (CreatePod(1, 3),), None)
    assert with_cuts_told(same, Observed("j", job_spec(3), JobStatus(), ())) == same
