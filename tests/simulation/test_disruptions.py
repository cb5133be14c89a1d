"""Pods that the cluster takes away: evicted, preempted, or with their node. They are replaced, and use up no budget."""

import pytest
from planned import job_spec

from lmj_api.status import IncidentKind, Phase
from lmj_operator.plan.failures.budget import in_row

from .cluster import Cluster
from .pod import Pod
from .test_limits import at_step, rest

NO_BUDGET = {"maxRestarts": 0, "backoffSeconds": 4, "avoidNode": {"fallbackSeconds": 5}}


def own(cluster: Cluster, rank: int) -> Pod:
    return max((p for p in cluster.living() if p.rank == rank), key=lambda p: p.serial)


def go_on(cluster: Cluster, steps: int) -> None:
    """Until so many more are committed."""
    end = max(cluster.losses) + steps
    for _ in range(60):
        cluster.reconcile()
        cluster.tick()
        if max(cluster.losses) >= end:
            return
    raise AssertionError(cluster.status.message)


def test_evictions_use_up_no_budget() -> None:
    cluster = Cluster(job_spec(2, recovery=NO_BUDGET), steps=100, nodes=("a", "b"))
    at_step(cluster, 3)
    for times in range(1, 5):
        cluster.evict(own(cluster, times % 2))
        cluster.reconcile()
        assert (cluster.status.restarts, cluster.status.disruptions) == (times, times)
        assert "replaced at once, and not counted as a restart: it was evicted" in cluster.status.message
        go_on(cluster, 3)
    assert cluster.status.incidents[-1].message == "pod sim-r0-2 is being deleted because it was evicted"
    assert rest(cluster).status.phase is Phase.SUCCEEDED
    assert (cluster.status.restarts, cluster.status.restarts_before, cluster.status.disruptions) == (4, 4, 4)


def test_replicas_on_nodes_that_come_and_go_train_on() -> None:
    parts = {"pipeline": {"stages": 2, "microBatches": 4}, "dataParallel": {"shards": 4, "replicas": 3}}
    cluster = Cluster(job_spec(2, recovery=NO_BUDGET, **parts), steps=200, nodes=("a", "b"))
    at_step(cluster, 3)
    for times in range(12):
        cluster.evict(own(cluster, times % 6), "a pod of higher priority took its place")
        go_on(cluster, 8)
    assert rest(cluster).status.phase is Phase.SUCCEEDED
    assert (cluster.status.restarts, cluster.status.disruptions) == (12, 12)
    assert all(times == 1 for times in cluster.losses.values()), "no step was done again"


def test_a_machine_without_power_is_no_restart_of_the_budget() -> None:
    cluster = Cluster(job_spec(2, recovery=NO_BUDGET), steps=60, nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.cut_power(own(cluster, 1))
    go_on(cluster, 3)
    assert (cluster.status.restarts, cluster.status.disruptions) == (1, 1)
    assert rest(cluster).status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("victim", ["worker", "pod", "agent"])
def test_what_dies_by_itself_does_use_it_up(victim: str) -> None:
    cluster = Cluster(job_spec(2, recovery=NO_BUDGET), steps=60, nodes=("a", "b"))
    at_step(cluster, 3)
    pod = own(cluster, 1)
    if victim == "worker":
        cluster.kill_worker(pod)
    elif victim == "pod":
        cluster.kill_pod(pod)
    else:
        pod.reachable = False  # its machine takes connections
    assert rest(cluster).status.phase is Phase.FAILED
    assert "recovery.maxRestarts 0 is used up" in cluster.status.message
    assert cluster.status.disruptions == 0


def test_one_that_is_deleted_by_somebody_does_use_it_up() -> None:
    cluster = Cluster(job_spec(2, recovery=NO_BUDGET), steps=60, nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.tell_to_end(own(cluster, 1), hurried=True)
    assert rest(cluster).status.phase is Phase.FAILED


def test_of_two_that_go_at_once_the_one_that_died_counts() -> None:
    cluster = Cluster(job_spec(2, recovery={"maxRestarts": 1}), steps=60, nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.evict(own(cluster, 0))
    cluster.kill_pod(own(cluster, 1))
    cluster.reconcile()
    assert (cluster.status.restarts, cluster.status.disruptions) == (2, 1)
    assert "restart 1 of 1 at once" in cluster.status.message
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def test_it_is_told_once_although_operators_die() -> None:
    cluster = Cluster(job_spec(2, recovery=NO_BUDGET), steps=60, nodes=("a", "b"))
    at_step(cluster, 3)
    cluster.evict(own(cluster, 1))
    for _ in range(3):
        cluster.plan()
        cluster.reconcile(first=0)
    assert (cluster.status.restarts, cluster.status.disruptions, len(cluster.status.incidents)) == (1, 1, 1)
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def test_a_cluster_that_takes_every_pod_away_is_given_time_and_memory_is_believed() -> None:
    cluster = Cluster(job_spec(2, recovery=NO_BUDGET), steps=60, nodes=("a", "b"))
    at_step(cluster, 3)
    waits = []
    for _ in range(5):
        pod, died = own(cluster, 1), cluster.now
        cluster.evict(pod)
        cluster.kill_pod(pod)
        for _ in range(60):
            cluster.reconcile()
            cluster.tick()
            if any(p.rank == 1 and p.serial > pod.serial for p in cluster.living()):
                break
        waits.append(round(cluster.now - died) - 1)
    assert waits == [0, 4, 8, 16, 32], "later and later, while there is no new step"
    assert in_row(cluster.status, cluster.status.restart_step) == 0, "nothing that is in memory failed"
    assert cluster.status.disruptions_without_progress == 5
    go_on(cluster, 2)
    cluster.evict(own(cluster, 1))
    cluster.reconcile()
    assert cluster.status.disruptions_without_progress == 1
    assert {i.kind for i in cluster.status.incidents} == {IncidentKind.POD_GONE}
