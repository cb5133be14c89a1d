"""What snapshots in memory are for: a pod that is lost costs the steps since the newest."""

from collections.abc import Callable

import pytest
from planned import job_spec

from lmj_api.status import Phase

from .cluster import Cluster
from .pod import Pod
from .test_machine import RANKS, RECOVERY, Faults, examples

EVERY = 4


def cluster_of(ranks: int, steps: int = 200, every: int = EVERY) -> Cluster:
    spec = job_spec(ranks, recovery={"memorySnapshot": {"everySteps": every}, "maxRestarts": 100})
    return Cluster(spec, steps=steps, checkpoint_every=1000)


def go_on(cluster: Cluster, until: Callable[[], bool], rounds: int = 100) -> None:
    for _ in range(rounds):
        if until():
            return
        cluster.reconcile()
        cluster.tick(0.5)
    raise AssertionError(f"not within {rounds} rounds: {cluster.status.message}")


def step_of(cluster: Cluster) -> int:
    return max(cluster.losses, default=0)


def pod_of(cluster: Cluster, rank: int) -> Pod:
    assert cluster.status.view is not None
    return cluster.pods[cluster.status.view.members[rank].pod]


def at_work(cluster: Cluster, number: int) -> bool:
    view = cluster.status.view
    return view is not None and view.number >= number and cluster.status.phase is Phase.RUNNING


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("at", range(2 * EVERY, 3 * EVERY))
def test_a_lost_pod_costs_the_steps_since_the_newest_snapshot(ranks: int, at: int) -> None:
    for rank in range(ranks):
        cluster = cluster_of(ranks)
        go_on(cluster, lambda cluster=cluster: step_of(cluster) >= at)
        cluster.kill_pod(pod_of(cluster, rank))
        go_on(cluster, lambda cluster=cluster: at_work(cluster, 2))
        view = cluster.status.view
        assert view is not None
        # One that has not got to the neighbours yet does not count.
        newest = at - at % EVERY if at % EVERY else at - EVERY
        assert (view.resume.snapshot, view.resume.step, view.resume.fetched) == (True, newest, [rank])
        assert f"rank {rank}'s comes from rank {(rank + 1) % ranks}" in view.reason
        assert cluster.status.steps_lost == at - newest
        incident = cluster.status.incidents[-1]
        assert incident.recovery is not None
        assert f"the snapshot of step {newest} in memory" in incident.recovery


@pytest.mark.parametrize("moved", [0, 1])
def test_a_pod_that_is_lost_after_its_neighbour_moved_costs_no_more_than_any(moved: int) -> None:
    """The new pod has no snapshot of its own rank, which only the next rank has then: another is taken at once."""
    every = 50
    cluster = cluster_of(2, steps=4000, every=every)
    go_on(cluster, lambda: step_of(cluster) >= 220, rounds=400)
    cluster.move_request = str(moved)
    go_on(cluster, lambda: cluster.status.migrations == 1 and cluster.status.phase is Phase.RUNNING)
    at = step_of(cluster)
    go_on(cluster, lambda: step_of(cluster) >= at + 5)
    assert cluster.status.view is not None
    number = cluster.status.view.number
    cluster.kill_pod(pod_of(cluster, 1 - moved))
    go_on(cluster, lambda: at_work(cluster, number + 1))
    assert cluster.status.view.resume.snapshot, cluster.status.view.reason
    assert cluster.status.steps_lost <= every


def test_one_after_the_other_is_lost() -> None:
    cluster = cluster_of(3)
    for number, rank in enumerate((0, 1, 2, 2, 0), 2):
        step = step_of(cluster)
        go_on(cluster, lambda step=step: step_of(cluster) >= step + 2 * EVERY)
        cluster.kill_pod(pod_of(cluster, rank))
        go_on(cluster, lambda number=number: at_work(cluster, number))
        assert cluster.status.view is not None
        assert cluster.status.view.resume.snapshot
    assert max(cluster.losses.values()) <= 2


def test_two_neighbours_at_once_cost_what_the_checkpoint_lacks() -> None:
    cluster = cluster_of(3)
    go_on(cluster, lambda: step_of(cluster) >= 10)
    cluster.save(step_of(cluster))
    saved = step_of(cluster)
    go_on(cluster, lambda: step_of(cluster) >= saved + 2 * EVERY)
    for rank in (1, 2):
        cluster.kill_pod(pod_of(cluster, rank))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.view is not None
    assert (cluster.status.view.resume.step, cluster.status.view.resume.snapshot) == (saved, False)


class SnapshotFaults(Faults):
    """Every fault at every moment, with snapshots: none is gone back to that is not there."""

    spec = job_spec(RANKS, recovery={**RECOVERY, "memorySnapshot": {"everySteps": EVERY}})


TestSnapshots, TestMoreSnapshots, TestManySnapshots = examples(SnapshotFaults)
