"""Replicas come and go while the others train."""

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.status import Phase
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
    rounds(cluster, 1)
    for pod in cluster.pods.values():
        pod.node, pod.reachable = (None, False) if pod.rank == 2 else ("a", True)
    rounds(cluster, 8)
    assert trains(cluster) == [0, 1]
    pod = own(cluster, 2)
    pod.node, pod.reachable = "b", True
    rounds(cluster, 10)
    assert trains(cluster) == [0, 1, 2]
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values())


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
    rounds(cluster, 16)
    assert trains(cluster) == list(range(stages))
    assert {p.rank for p in cluster.living()} == set(range(stages)), "nobody else is left"
    to_the_end(cluster)
    assert all(times == 1 for times in cluster.losses.values()), "no step was trained twice"


def test_with_all_replicas_lost_a_smaller_job_goes_on_from_its_checkpoint() -> None:
    cluster = replicated(3)
    rounds(cluster, 8)
    for pod in cluster.living():
        cluster.kill_pod(pod)
    cluster.scale(1)
    to_the_end(cluster)
    assert ranks(cluster.status.view) == [0]
    assert max(cluster.losses.values()) == 2, "what no checkpoint had is done again"


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
    assert cluster.status.incidents == []
