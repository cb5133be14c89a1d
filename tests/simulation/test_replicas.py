"""Replicas come and go while the others train."""

import json

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.schema import COLUMNS
from lmj_api.status import Incident, IncidentKind, Phase
from lmj_api.view import View

from .cluster import Cluster
from .pod import Pod


def replicated(replicas: int, stages: int = 1, **more: object) -> Cluster:
    """A job of some steps more than the test needs."""
    parts = {"shards": 4, "replicas": replicas, **more}
    spec = job_spec(stages, pipeline={"stages": stages, "microBatches": 4}, dataParallel=parts)
    return Cluster(spec, steps=60, nodes=("a", "b"))


def rounds(cluster: Cluster, count: int) -> None:
    for _ in range(count):
        cluster.reconcile()
        cluster.tick()


def own(cluster: Cluster, rank: int) -> Pod:
    return max((p for p in cluster.living() if p.rank == rank), key=lambda p: p.serial)


def ranks(view: View | None) -> list[int]:
    assert view is not None
    return [m.rank for m in view.members]


def trains(cluster: Cluster) -> list[int]:
    """The ranks that are in the newest view."""
    assert cluster.status.view is not None
    number = cluster.status.view.number
    return sorted(
        p.rank
        for p in cluster.living()
        if p.rank is not None and p.worker.phase is WorkerPhase.RUNNING and p.worker.view == number
    )


def to_the_end(cluster: Cluster) -> None:
    for _ in range(200):
        if cluster.reconcile().status.phase is Phase.SUCCEEDED:
            return
        cluster.tick()
    raise AssertionError(cluster.status.message)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_replica_is_not_waited_for_and_comes_back(stages: int, lost: int) -> None:
    cluster = replicated(3, stages)
    rounds(cluster, 8)
    every = list(range(3 * stages))
    assert trains(cluster) == every
    cluster.kill_pod(own(cluster, lost * stages))
    rounds(cluster, 4)
    rest = [rank for rank in every if rank // stages != lost]
    assert trains(cluster) == rest
    assert all(times == 1 for times in cluster.losses.values()), "nothing was trained twice"
    assert cluster.status.view is not None
    assert cluster.status.view.resume.goes_on
    before = max(cluster.losses)
    rounds(cluster, 12)
    assert trains(cluster) == every
    assert max(cluster.losses) >= before + 8, "the others trained meanwhile"
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())
    assert cluster.status.joins == []


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("told", [1, 2, 3])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_commit_of_which_some_heard_is_not_lost_with_the_leader(stages: int, told: int, lost: int) -> None:
    """Nor with another rank that dies as it is told."""
    cluster = replicated(3, stages)
    rounds(cluster, 8)
    if told > 3 * stages - 1:
        return
    cluster.half_commit(told, dies=lost == 0)
    if lost:
        cluster.kill_worker(own(cluster, lost))
    step = max(cluster.losses)
    to_the_end(cluster)
    assert cluster.losses[step] == 1, "what was committed is not done again"
    assert cluster.status.steps_lost == 0


def test_with_fewer_than_are_enough_the_lost_one_is_waited_for() -> None:
    cluster = replicated(2, minReplicas=2)
    rounds(cluster, 8)
    cluster.kill_pod(own(cluster, 1))
    rounds(cluster, 1)
    assert "waits for rank 1" in cluster.reconcile().status.message
    assert trains(cluster) == []
    to_the_end(cluster)


def test_training_begins_with_those_that_have_room() -> None:
    cluster = replicated(3)
    cluster.nodes = ()
    for _ in range(9):
        rounds(cluster, 1)
        for pod in cluster.pods.values():
            pod.node, pod.reachable = (None, False) if pod.rank == 2 else ("a", True)
    assert trains(cluster) == [0, 1]
    pod = own(cluster, 2)
    pod.node, pod.reachable = "b", True
    rounds(cluster, 10)
    assert trains(cluster) == [0, 1, 2]
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("room", [1, 2, 3])
def test_the_first_replica_gets_the_room_that_there_is(stages: int, room: int) -> None:
    """The scheduler places pods in any order."""
    cluster = replicated(3, stages)
    cluster.nodes = ()
    for _ in range(12):
        cluster.reconcile()
        for pod in sorted(cluster.pods.values(), key=lambda pod: pod.rank or 0, reverse=True):
            if pod.node is None and sum(other.node is not None for other in cluster.pods.values()) < room * stages:
                pod.node, pod.reachable = "a", True
        cluster.tick()
    assert trains(cluster)[:stages] == list(range(stages))
    assert len(trains(cluster)) == room * stages
    assert len(cluster.pods) == 3 * stages, "the others are made, and wait"


def test_who_leads_is_the_first_that_is_there() -> None:
    cluster = replicated(2)
    rounds(cluster, 8)
    cluster.kill_pod(own(cluster, 0))
    rounds(cluster, 3)
    assert ranks(cluster.status.view) == [1]
    rounds(cluster, 12)
    assert ranks(cluster.status.view) == [0, 1]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("left", [1, 2])
def test_what_was_trained_is_not_lost_with_the_replicas_that_a_smaller_job_would_have_kept(stages: int, left: int) -> None:
    cluster = replicated(3, stages)
    rounds(cluster, 8)
    for rank in range(left * stages):
        cluster.kill_pod(own(cluster, rank))
    cluster.scale(1)
    rounds(cluster, 4)
    assert trains(cluster) == list(range(left * stages, (left + 1) * stages)), "the first that is left goes on"
    assert cluster.status.wanted_replicas == 1, "nobody asks for the one that trains"
    rounds(cluster, 16)
    assert trains(cluster) == list(range(stages))
    assert {p.rank for p in cluster.living()} == set(range(stages)), "nobody else is left"
    (told,) = of(cluster, IncidentKind.SCALED)
    assert (told.replicas_before, told.replicas_after, told.whole_step is not None) == (3, 1, True)
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values()), "no step was trained twice"


def test_with_all_replicas_lost_a_smaller_job_goes_on_from_its_checkpoint() -> None:
    cluster = replicated(3)
    rounds(cluster, 9)
    for pod in cluster.living():
        cluster.kill_pod(pod)
    cluster.scale(1)
    to_the_end(cluster)
    assert ranks(cluster.status.view) == [0]
    assert max(cluster.losses.values()) == 2, "what no checkpoint had is done again"


@pytest.mark.parametrize("stages", [1, 2])
def test_a_view_of_replicas_that_a_smaller_job_has_no_more_is_followed_by_one_of_those_it_has(stages: int) -> None:
    """The last one that trained is lost as the job is made smaller: nobody of the view is of the job, and a view needs members."""
    cluster = replicated(3, stages)
    rounds(cluster, 8)
    for rank in range(2 * stages):
        cluster.kill_pod(own(cluster, rank))
    rounds(cluster, 4)
    kept = list(range(2 * stages, 3 * stages))
    assert trains(cluster) == kept
    for rank in kept:
        cluster.kill_pod(own(cluster, rank))
    cluster.scale(2)
    for _ in range(20):
        rounds(cluster, 1)
        assert ranks(cluster.status.view)
    assert trains(cluster) == list(range(2 * stages))
    to_the_end(cluster)


@pytest.mark.parametrize("stages", [1, 2])
def test_the_number_of_replicas_changes_while_it_trains(stages: int) -> None:
    cluster = replicated(1, stages)
    rounds(cluster, 8)
    for replicas in (4, 2, 3):
        cluster.scale(replicas)
        rounds(cluster, 14)
        every = list(range(replicas * stages))
        assert ranks(cluster.status.view) == every
        assert trains(cluster) == every
        assert {p.rank for p in cluster.living()} == set(every), "nobody else is left"
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values()), "no step was trained twice"
    assert cluster.status.restarts == 0
    told = [(i.kind, i.replicas_before, i.replicas_after, i.replicas, i.steps_lost) for i in cluster.status.incidents]
    assert told == [
        (IncidentKind.SCALED, 1, 4, [1, 2, 3], 0),
        (IncidentKind.SCALED, 4, 2, [2, 3], 0),
        (IncidentKind.SCALED, 2, 3, [2], 0),
    ]


def with_restarts(cluster: Cluster, count: int) -> None:
    """Rounds in each of which operators die: before they store a status, before its first action, and after that."""
    for _ in range(count):
        cluster.plan()
        cluster.reconcile(first=0)
        cluster.reconcile(first=1)
        cluster.reconcile()
        cluster.tick()


def of(cluster: Cluster, kind: IncidentKind) -> list[Incident]:
    return [i for i in cluster.status.incidents if i.kind is kind]


@pytest.mark.parametrize("stages", [1, 2])
def test_a_lost_replica_is_told_once_and_that_it_is_back(stages: int) -> None:
    cluster = replicated(3, stages)
    with_restarts(cluster, 8)
    lost = own(cluster, 2 * stages - 1)
    step = max(cluster.losses)
    cluster.kill_pod(lost)
    with_restarts(cluster, 3)
    (told,) = of(cluster, IncidentKind.REPLICA_LOST)
    assert (told.replicas, told.replicas_before, told.replicas_after) == ([1], 3, 2)
    assert (told.rank, told.pod, told.node, told.step) == (lost.rank, lost.name, lost.node, step)
    assert told.message == (
        f"replica 1 is lost: rank {lost.rank}: pod {lost.name} is gone: its agent ended with signal 9; replicas 0 and 2 train on"
    )
    assert (told.steps_lost, told.whole_step) == (0, None)
    with_restarts(cluster, 12)
    (told,) = of(cluster, IncidentKind.REPLICA_LOST)
    assert cluster.status.view is not None
    assert told.whole_step == cluster.status.view.resume.step
    assert told.whole_step > step + 2, "the others trained meanwhile"
    assert told.whole_seconds is not None
    assert told.whole_seconds >= told.whole_step - step - 1
    assert len(of(cluster, IncidentKind.POD_GONE)) == 1
    to_the_end(cluster)
    assert len(of(cluster, IncidentKind.REPLICA_LOST)) == 1


def test_another_number_of_replicas_is_told_once() -> None:
    cluster = replicated(2)
    with_restarts(cluster, 8)
    step = max(cluster.losses)
    cluster.scale(4)
    with_restarts(cluster, 1)
    (told,) = of(cluster, IncidentKind.SCALED)
    assert (told.message, told.step, told.whole_step) == ("scaled from 2 to 4 replicas", step, None)
    assert cluster.status.wanted_replicas == 4
    with_restarts(cluster, 12)
    (told,) = of(cluster, IncidentKind.SCALED)
    assert told.seconds is None, "no step was waited for"
    assert cluster.status.view is not None
    assert told.whole_step == cluster.status.view.resume.step > step
    assert of(cluster, IncidentKind.REPLICA_LOST) == []
    cluster.scale(1)
    with_restarts(cluster, 4)
    assert [(i.replicas_after, i.whole_step is not None) for i in of(cluster, IncidentKind.SCALED)] == [(4, True), (1, True)]
    assert of(cluster, IncidentKind.REPLICA_LOST) == [], "who is to leave is not lost"


@pytest.mark.parametrize("stages", [1, 2])
def test_a_replica_that_the_job_has_again_gets_pods_of_new_names(stages: int) -> None:
    """A view that is not over yet may know the old ones: their next owner would be taken for its member."""
    cluster = replicated(2, stages)
    rounds(cluster, 8)
    names = {p.name for p in cluster.living()}
    cluster.scale(1)
    rounds(cluster, 8)
    assert trains(cluster) == list(range(stages))
    cluster.scale(2)
    rounds(cluster, 8)
    assert trains(cluster) == list(range(2 * stages))
    assert not {p.name for p in cluster.living() if p.rank is not None and p.rank >= stages} & names
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())


def test_a_number_that_never_was_is_over_when_another_is_asked_for() -> None:
    cluster = replicated(2)
    rounds(cluster, 8)
    cluster.nodes = ()
    cluster.scale(4)
    rounds(cluster, 6)
    assert [i.whole_step for i in of(cluster, IncidentKind.SCALED)] == [None]
    cluster.scale(2)
    rounds(cluster, 2)
    first, second = of(cluster, IncidentKind.SCALED)
    assert (first.recovery, first.whole_seconds) == ("another number was asked for before so many trained", None)
    assert second.whole_step is not None, "two train all the time"


def test_a_lost_replica_that_the_job_has_no_more_is_over() -> None:
    cluster = replicated(2)
    rounds(cluster, 8)
    cluster.nodes = ()
    cluster.kill_pod(own(cluster, 1))
    rounds(cluster, 6)
    assert [i.whole_step for i in of(cluster, IncidentKind.REPLICA_LOST)] == [None]
    cluster.scale(1)
    rounds(cluster, 2)
    (told,) = of(cluster, IncidentKind.REPLICA_LOST)
    assert told.whole_step is not None
    assert told.whole_seconds is None, "it never was back"


def test_what_befalls_a_replica_on_its_way_into_the_view_costs_it_nothing() -> None:
    cluster = replicated(2)
    rounds(cluster, 8)
    cluster.kill_pod(own(cluster, 1))
    for _ in range(10):
        rounds(cluster, 1)
        if own(cluster, 1).worker.phase is WorkerPhase.FOLLOWING:
            break
    cluster.kill_pod(own(cluster, 1))
    rounds(cluster, 2)
    _, lost, again = cluster.status.incidents
    assert (lost.kind, again.kind, again.steps_lost) == (IncidentKind.REPLICA_LOST, IncidentKind.POD_GONE, 0)
    assert again.recovery == "view 2 is of others"
    assert again.seconds is not None
    assert cluster.status.phase is Phase.RUNNING
    rounds(cluster, 12)
    assert trains(cluster) == [0, 1]
    assert len(of(cluster, IncidentKind.REPLICA_LOST)) == 1


def test_two_that_are_lost_at_once_are_one_incident() -> None:
    cluster = replicated(4)
    rounds(cluster, 8)
    cluster.kill_pod(own(cluster, 1))
    cluster.kill_pod(own(cluster, 3))
    rounds(cluster, 14)
    (told,) = of(cluster, IncidentKind.REPLICA_LOST)
    assert (told.replicas, told.replicas_after) == ([1, 3], 2)
    assert told.message.startswith("replicas 1 and 3 are lost: rank 1: ")
    assert told.message.endswith("replicas 0 and 2 train on")
    assert told.whole_step is not None


def shown(cluster: Cluster, column: str) -> object:
    """What ``kubectl get lmj`` prints there."""
    (path,) = [path for name, _, path, _, _ in COLUMNS if name == column]
    value: object = {"status": json.loads(cluster.status.to_json())}
    for part in path.removeprefix(".").split("."):
        assert isinstance(value, dict)
        value = value[part]
    return value


def test_a_table_shows_how_many_train_of_those_that_are_wanted() -> None:
    cluster = replicated(3)
    rounds(cluster, 1)
    assert (shown(cluster, "Replicas"), cluster.status.replicas) == ("0/3", 0)
    rounds(cluster, 8)
    assert (shown(cluster, "Replicas"), cluster.status.replicas) == ("3/3", 3)
    cluster.kill_pod(own(cluster, 1))
    rounds(cluster, 3)
    assert (shown(cluster, "Replicas"), cluster.status.replicas) == ("2/3", 2)
    rounds(cluster, 10)
    assert shown(cluster, "Replicas") == "3/3"
    cluster.scale(4)
    rounds(cluster, 1)
    assert (shown(cluster, "Replicas"), cluster.status.wanted_replicas) == ("3/4", 4)
    rounds(cluster, 12)
    assert shown(cluster, "Replicas") == "4/4"
    to_the_end(cluster)
    assert (shown(cluster, "Replicas"), cluster.status.replicas) == ("", 0), "nothing is wanted any more"


@pytest.mark.parametrize("first", [0, 1])
def test_a_job_that_goes_on_waits_for_all_of_its_replicas(first: int) -> None:
    """None of them has a state: those that are ready sooner have nothing that the others lack."""
    cluster = replicated(2)
    rounds(cluster, 8)
    cluster.interrupted = True
    rounds(cluster, 8)
    assert not cluster.living()
    cluster.interrupted = False
    for _ in range(8):
        rounds(cluster, 1)
        for pod in cluster.living():
            pod.reachable = pod.rank == first
    assert own(cluster, first).worker.phase is WorkerPhase.READY
    own(cluster, 1 - first).reachable = True
    rounds(cluster, 4)
    assert trains(cluster) == [0, 1]
    assert not of(cluster, IncidentKind.REPLICA_LOST)


def test_a_suspended_job_has_no_replicas() -> None:
    cluster = replicated(2)
    rounds(cluster, 8)
    cluster.interrupted = True
    rounds(cluster, 8)
    assert cluster.status.phase is Phase.SUSPENDED
    assert (shown(cluster, "Replicas"), cluster.status.replicas, cluster.status.wanted_replicas) == ("", 0, 2)


def test_a_job_of_one_shard_says_nothing_of_replicas() -> None:
    cluster = Cluster(job_spec(2))
    rounds(cluster, 8)
    assert (shown(cluster, "Replicas"), cluster.status.replicas) == ("", 1)
