"""What people are told of replicas that are lost, and of another number of them."""

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.operator.seen import facts, pod, worker

from lmj_api.cut import Cut
from lmj_api.protocol import CUT_OFF, WorkerPhase
from lmj_api.status import Incident, IncidentKind, JobStatus, RankStatus
from lmj_api.topology import Topology
from lmj_api.view import Member, Resume, View
from lmj_operator.cli.lines import changes
from lmj_operator.cli.table import status_lines
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import notes
from lmj_operator.plan import PodPhase, PodWait
from lmj_operator.plan.failures.budget import counted
from lmj_operator.plan.failures.failures import Failure, Remedy
from lmj_operator.plan.failures.incidents import cost, is_over, newest
from lmj_operator.plan.failures.replicas import Change, named, with_replicas

NOW = 1000.0
READY = WorkerPhase.READY


def view(number: int, *ranks: int) -> View:
    members = [Member(rank=rank, pod=f"j-r{rank}-1", incarnation=1, address="a") for rank in ranks]
    return View(number=number, members=members, resume=Resume(step=7), reason="r")


def change(**more: Any) -> Change:
    """View 4 goes on without replica 1 of three."""
    ranks = tuple(facts(rank, pod(rank, 1, worker(READY))) for rank in range(3))
    made = Change(Topology(1, 3), 3, view(3, 0, 1, 2), view(4, 0, 2), runs=False, done=False, ranks=ranks, step=7)
    return replace(made, **more)


def lost(**more: Any) -> Incident:
    values: dict[str, Any] = {"time": "2026-11-21T07:41:35Z", "kind": "ReplicaLost", "rank": 1, "pod": "j-r1-1", "node": "n"}
    values |= {"message": "replica 1 is lost: why; replicas 0 and 2 train on", "view": 3, "step": 7, "replicas": [1]}
    return Incident.model_validate({**values, "replicas_before": 3, "replicas_after": 2, **more})


def scaled(**more: Any) -> Incident:
    values: dict[str, Any] = {"time": "2026-11-21T07:41:35Z", "kind": "Scaled", "rank": 1, "pod": "", "steps_lost": 0}
    values |= {"message": "scaled from 1 to 2 replicas", "view": 3, "step": 7, "replicas": [1]}
    return Incident.model_validate({**values, "replicas_before": 1, "replicas_after": 2, **more})


def test_what_befell_the_rank_is_why() -> None:
    gone = Incident(
        time="2026-11-21T07:41:35Z",
        kind=IncidentKind.POD_GONE,
        rank=1,
        pod="j-r1-1",
        node="n",
        message="it is gone",
        view=3,
        step=7,
    )
    other = gone.model_copy(update={"rank": 2, "message": "of another replica"})
    earlier = gone.model_copy(update={"view": 2, "message": "of an earlier view"})
    *_, told = with_replicas([earlier, other, gone], change(), NOW)
    assert told.message == "replica 1 is lost: rank 1: it is gone; replicas 0 and 2 train on"
    assert (told.rank, told.pod, told.node, told.noticed_by) == (1, "j-r1-1", "n", "the operator")


def test_before_that_is_known_its_peers_word_is_why() -> None:
    two = Topology(2, 2)
    peer = pod(0, 1, worker(READY, lost_rank=3, lost="rank 3 is lost: EOF"))
    ranks = (facts(0, peer), *(facts(rank, pod(rank, 1, worker(READY), node=f"n{rank}")) for rank in (1, 2, 3)))
    parts = {"wanted": two, "known": 2, "before": view(3, 0, 1, 2, 3), "after": view(4, 0, 1), "ranks": ranks}
    (told,) = with_replicas([], change(**parts), NOW)
    assert told.message == "replica 1 is lost: rank 3 is lost: EOF; replica 0 trains on"
    assert (told.rank, told.node, told.noticed_by) == (3, "n3", "its peers")


def test_a_pod_that_waits_is_why() -> None:
    waits = pod(1, 2, phase=PodPhase.PENDING, waits=PodWait("Unschedulable", "no room", 0.0))
    ranks = (facts(0, None), facts(1, waits), facts(2, None))
    (told,) = with_replicas([], change(ranks=ranks), NOW)
    assert told.message == "replica 1 is lost: pod j-r1-2 waits: Unschedulable: no room; replicas 0 and 2 train on"
    assert told.pod == "j-r1-1", "the one that was in the view"


def test_one_that_has_nothing_to_go_on_from_is_told_too() -> None:
    (told,) = with_replicas([], change(), NOW)
    assert told.message == "replica 1 is lost: it could not go on at once; replicas 0 and 2 train on"


@pytest.mark.parametrize(
    "parts",
    [
        {"after": view(3, 0, 1, 2)},
        {"before": None},
        {"before": view(3, 0, 2)},
        {"after": None},
        {"wanted": Topology(1, 1), "known": 1, "after": view(4, 0)},
        {"before": view(3, 0, 1, 2, 3, 4, 5).model_copy(update={"cut": Cut(stages=2)})},
    ],
    ids=["the same view", "the first view", "it was not there", "no view", "the job has it no more", "another cut"],
)
def test_nothing_is_lost(parts: dict[str, Any]) -> None:
    if parts.get("after", 0) is None:
        parts = {**parts, "before": None}
    assert with_replicas([], change(**parts), NOW) == []


def test_an_earlier_operator_did_not_say_how_many_were_wanted() -> None:
    assert with_replicas([], change(known=0, after=view(3, 0, 1, 2)), NOW) == []


def test_it_is_back_only_when_all_of_a_view_are_in_it() -> None:
    there = {"before": view(5, 0, 1, 2), "after": view(5, 0, 1, 2)}
    assert with_replicas([lost()], change(**there), NOW) == [lost()]
    (told,) = with_replicas([lost(time="1970-01-01T00:16:30Z")], change(**there, runs=True), NOW)
    assert (told.whole_step, told.whole_seconds) == (7, 10.0)
    assert cost(told) == "back since step 7, after 10.00 s"
    settled = told.model_copy(update={"steps_lost": 0, "seconds": 0.5})
    assert cost(settled) == "the next new step came after 0.50 s, 0 steps done again; back since step 7, after 10.00 s"


def test_so_many_train_only_when_they_do() -> None:
    asked = scaled(replicas_after=3, step=9)
    there = {"before": view(5, 0, 1, 2), "after": view(5, 0, 1, 2)}
    assert with_replicas([asked], change(**there), NOW) == [asked]
    (told,) = with_replicas([asked], change(**there, runs=True), NOW)
    assert (told.whole_step, told.seconds, told.recovery) == (9, None, "view 5: r")


def test_replicas_are_those_of_the_view_s_own_cut() -> None:
    two = view(4, 0, 1, 2, 3).model_copy(update={"cut": Cut(stages=2)})
    assert change().present(two) == {0, 1}
    assert change().present(view(4, 0, 2)) == {0, 2}


def test_at_the_end_of_training_all_is_over() -> None:
    after = {"before": view(4, 0, 2), "after": view(4, 0, 2), "done": True, "step": 90}
    out, asked = with_replicas([lost(), scaled()], change(**after), NOW)
    assert (out.whole_step, out.whole_seconds) == (90, None)
    assert (asked.whole_step, asked.recovery) == (90, "training had ended before so many trained")


def test_what_is_not_over_is_kept() -> None:
    over = [lost(whole_step=8, rank=n) for n in range(20)]
    kept = newest([lost(seconds=1.0), scaled(), *over])
    assert [i.kind for i in kept[:2]] == [IncidentKind.REPLICA_LOST, IncidentKind.SCALED]
    assert [is_over(i) for i in kept[:3]] == [False, False, True]
    assert len(kept) == 10


def test_a_replica_that_is_out_makes_no_failure_free() -> None:
    """A worker that was cut off is not counted after the death that cut it off: that a replica is out is none."""
    cut_off = Failure(IncidentKind.WORKER_EXITED, 0, "j-r0-1", "cut off", Remedy.WORKER, exit_code=CUT_OFF)
    assert counted([cut_off], [lost()]) == 1


def test_events_tell_it_twice_when_it_is_lost_and_when_it_is_back() -> None:
    before = JobStatus()
    out = JobStatus(incidents=[lost()])
    going_on = JobStatus(incidents=[lost(steps_lost=0, seconds=0.5, recovery="view 4: rank 1 left")])
    back = JobStatus(incidents=[lost(steps_lost=0, seconds=0.5, whole_step=20, whole_seconds=12.5)])
    (told,) = notes(before, out)
    assert (told.reason, told.warning) == ("ReplicaLost", True)
    assert told.message.startswith(
        "replica 1 is lost: why; replicas 0 and 2 train on; rank 1 in j-r1-1 on n at step 7, noticed by"
    )
    assert notes(out, going_on) == [], "what befell the rank says so"
    (told,) = notes(going_on, back)
    assert (told.reason, told.warning) == ("ReplicaJoined", False)
    assert told.message.startswith("replica 1: back since step 20, after 12.50 s; it was: replica 1 is lost: why")
    assert notes(back, back) == []
    assert changes(before, out) == ["incident at step 7: replica 1 is lost: why; replicas 0 and 2 train on"]
    assert changes(out, going_on) == []
    assert changes(going_on, back) == ["replica 1: back since step 20, after 12.50 s"]


def test_metrics_count_each_replica_once() -> None:
    metrics = Metrics(list)
    out = JobStatus(incidents=[lost(replicas=[1, 2])])
    back = JobStatus(incidents=[lost(replicas=[1, 2], whole_step=20, whole_seconds=1.0), scaled()])
    for before, after in ((JobStatus(), out), (out, out), (out, back)):
        metrics.count(before, after)
    assert "lmj_replicas_lost_total 2.0" in metrics.render().decode()


def test_metrics_count_what_the_cluster_takes_away() -> None:
    metrics = Metrics(list)
    metrics.count(JobStatus(restarts=1), JobStatus(restarts=3, disruptions=2))
    told = metrics.render().decode()
    assert "lmj_disruptions_total 2.0" in told
    assert "lmj_restarts_total 2.0" in told


def test_another_number_is_no_warning() -> None:
    asked, there = JobStatus(incidents=[scaled()]), JobStatus(incidents=[scaled(whole_step=20, whole_seconds=12.5)])
    told = [*notes(JobStatus(), asked), *notes(asked, there)]
    assert [(n.reason, n.message, n.warning) for n in told] == [
        ("Scaled", "scaled from 1 to 2 replicas at step 7", False),
        ("Scaled", "scaled from 1 to 2 replicas; so many train since step 20, after 12.50 s", False),
    ]
    assert changes(JobStatus(), asked) == ["asked at step 7: scaled from 1 to 2 replicas"]
    assert changes(asked, there) == ["scaled from 1 to 2 replicas: so many train since step 20, after 12.50 s"]
    never = JobStatus(incidents=[scaled(whole_step=20, recovery="another number was asked for before so many trained")])
    assert notes(asked, never) == changes(asked, never) == []


def test_status_shows_both() -> None:
    ranks = [RankStatus(rank=0, replica=0, stage=0, state="Running"), RankStatus(rank=1, replica=1, stage=0, state="NoPod")]
    status = JobStatus(ranks=ranks, replicas=1, wanted_replicas=2, incidents=[lost(whole_step=9, whole_seconds=2.0), scaled()])
    lines = status_lines(status, 1)
    assert "1 of 2 replicas train" in lines
    assert any(line.endswith("replicas 0 and 2 train on (back since step 9, after 2.00 s)") for line in lines)
    assert any(line.endswith("Scaled at step 7: scaled from 1 to 2 replicas") for line in lines)


def test_names_of_replicas() -> None:
    assert [named(each) for each in ([1], [0, 2], [0, 2, 3])] == ["replica 1", "replicas 0 and 2", "replicas 0, 2 and 3"]
