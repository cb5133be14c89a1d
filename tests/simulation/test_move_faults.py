"""Whatever dies in whichever phase of a move: no step is lost or done twice, and the rank moves all the same."""

import pytest

from lmj_api.protocol import WorkerPhase

from .cluster import Cluster
from .pod import Pod
from .relocated import assert_clean, cluster_of, follower
from .test_hot_standbys import at_work, go_on, own

PHASES = ("Starting", "Copying", "InSync", "Told", "Left")
"""As in the status, and then: its source was told to hand over, and did."""
VICTIMS = ("target's worker", "target's pod", "source's worker", "other's worker", "operator")


def phase_of(cluster: Cluster, rank: int) -> str:
    source = own(cluster, rank)
    if source.worker.phase is WorkerPhase.READY:
        return "Left"
    entry = next((f for f in cluster.status.followers if f.rank == rank), None)
    return "Told" if source.handover > 0 else entry.state if entry is not None else ""


def reach(cluster: Cluster, rank: int, phase: str) -> Pod:
    """Go on until the rank's move is in ``phase``, and no further; its target."""
    for _ in range(200):
        if phase_of(cluster, rank) != "Told":
            cluster.reconcile()
        if phase_of(cluster, rank) != phase:
            cluster.tick(0.1)
        if phase_of(cluster, rank) == phase:
            target = follower(cluster, rank)
            assert target is not None
            return target
    raise AssertionError(f"the move never was {phase}: {cluster.status.followers}")


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("phase", PHASES)
def test_a_death_in_a_move_costs_no_step(phase: str, victim: str, rank: int) -> None:
    cluster = cluster_of()
    cluster.move_request = f"{rank}"
    target = reach(cluster, rank, phase)
    if victim == "target's pod":
        cluster.kill_pod(target)
    elif victim == "target's worker":
        cluster.kill_worker(target)
    elif victim == "source's worker":
        cluster.kill_worker(own(cluster, rank))
    elif victim == "other's worker":
        cluster.kill_worker(own(cluster, 1 - rank))
    else:
        for first in (0, 1, 0, 2):  # each of its successors dies too, after so many actions
            cluster.reconcile(first=first)
            cluster.tick(0.1)
    go_on(cluster, lambda: cluster.status.migrations == 1, rounds=200)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert_clean(cluster, 1, restarts=victim in ("source's worker", "other's worker"))


def test_a_target_that_loses_power_while_it_starts_is_not_waited_for() -> None:
    """It took no worker yet, and might be slow to; but nothing takes a connection there."""
    cluster = cluster_of()
    cluster.move_request = "1"
    cluster.cut_power(reach(cluster, 1, "Starting"))
    begin = cluster.now
    go_on(cluster, lambda: cluster.status.migrations == 1, rounds=200)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.now - begin < 60
    assert cluster.status.steps_lost == 0
