"""A cable that is broken between two nodes only: both pods are well, and the operator reaches both."""

import pytest
from planned import job_spec

from lmj_api.status import Phase
from lmj_operator.plan import CreatePod

from .cluster import Cluster
from .test_ladder import pod_of
from .test_limits import at_step, rest

ONE_WAY = pytest.mark.parametrize(("one", "other", "one_way"), [("a", "b", False), ("a", "b", True), ("b", "a", True)])


def broken(one: str, other: str, one_way: bool, nodes: str = "abc", ranks: int = 2, **recovery: object) -> Cluster:
    cluster = Cluster(job_spec(ranks, recovery=recovery), nodes=tuple(nodes))
    at_step(cluster, 3)
    cluster.break_cable(one, other, one_way=one_way)
    return cluster


@ONE_WAY
def test_one_of_the_two_ranks_moves_to_another_node(one: str, other: str, one_way: bool) -> None:
    cluster = broken(one, other, one_way)
    rest(cluster)
    assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message
    assert cluster.status.restarts == 3
    told = [(i.kind, i.rank) for i in cluster.status.incidents]
    assert told[-1] == ("ViewDropped", 1)
    assert "rank 1 moves off b because its link to rank 0 (sim-r0-1) broke in 3 views without a new step" in (
        cluster.status.incidents[-1].message
    )
    [bad] = cluster.status.nodes
    assert (bad.node, bad.rank) == ("b", 1)


def test_other_ranks_may_run_where_one_lost_its_peer() -> None:
    cluster = broken("a", "b", False)
    for _ in range(40):
        cluster.tick()
        cluster.reconcile()
    assert pod_of(cluster, 1).serial == 2
    cluster.kill_pod(pod_of(cluster, 0))
    assert CreatePod(0, 2) in cluster.reconcile().actions + cluster.reconcile().actions


@pytest.mark.parametrize(("at", "used"), [("b", False), ("c", True)])
def test_a_standby_takes_the_place_if_it_is_elsewhere(at: str, used: bool) -> None:
    cluster = Cluster(job_spec(2, recovery={"standby": 1}), nodes=("a", "b", "c"), steps=100)
    at_step(cluster, 3)
    cluster.pods["sim-s-1"].node = at
    cluster.break_cable("a", "b")
    rest(cluster)
    assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message
    assert cluster.status.restarts == 3
    assert bool(cluster.status.promotions) == used


@ONE_WAY
def test_a_follower_elsewhere_takes_the_place_and_no_step_is_lost(one: str, other: str, one_way: bool) -> None:
    cluster = Cluster(job_spec(2, recovery={"hotStandby": True}), steps=100, nodes=("a", "b", "c"))
    at_step(cluster, 3)
    followers = {f.rank: cluster.pods[f.pod] for f in cluster.status.followers}
    followers[0].node = followers[1].node = "c"
    while any(f.state != "InSync" for f in cluster.status.followers):
        cluster.tick()
        cluster.reconcile()
    cluster.break_cable(one, other, one_way=one_way)
    rest(cluster)
    assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message
    assert (cluster.status.restarts, cluster.status.steps_lost) == (3, 0)


@pytest.mark.parametrize(("first", "moves"), [("a", 1), ("c", 0)])
def test_a_follower_behind_the_same_cable_does_not_take_the_place(first: str, moves: int) -> None:
    cluster = Cluster(job_spec(2, recovery={"hotStandby": True}), steps=100, nodes=("a", "b", "c"))
    at_step(cluster, 3)
    for entry in cluster.status.followers:
        cluster.pods[entry.pod].node = first if entry.rank == 0 else "b"
    while any(f.state != "InSync" for f in cluster.status.followers):
        cluster.tick()
        cluster.reconcile()
    cluster.break_cable("a", "b")
    rest(cluster)
    assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message
    assert cluster.status.restarts == 3
    assert cluster.status.incidents[-1].rank == moves
    assert (cluster.status.steps_lost == 0) == (first == "c")


def test_the_rank_that_lost_several_peers_is_the_one_that_moves() -> None:
    cluster = Cluster(job_spec(3), nodes=("a", "b", "c", "d"))
    at_step(cluster, 3)
    for node in "bc":
        cluster.break_cable("a", node)
    rest(cluster)
    assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message
    assert pod_serials(cluster)[0] == 2
    assert cluster.status.restarts < 10


def test_when_the_rank_that_moved_loses_the_same_peer_again_that_one_moves() -> None:
    cluster = Cluster(job_spec(2), nodes=("a", "b", "c"), steps=100)
    at_step(cluster, 3)
    cluster.break_cable("a", "b")
    cluster.break_cable("a", "c")
    for _ in range(200):
        cluster.reconcile()
        for pod in cluster.living():
            # Rank 0's node has no room for a second pod.
            if pod.rank == 1 and pod.node == "a":
                pod.node = "c"
        if cluster.status.phase in (Phase.SUCCEEDED, Phase.FAILED):
            break
        cluster.tick()
    assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message
    assert pod_serials(cluster) == [2, 2]
    assert cluster.status.restarts == 6


def test_a_link_that_breaks_now_and_then_moves_nobody() -> None:
    cluster = Cluster(job_spec(2), nodes=("a", "b", "c"), steps=100)
    for step in range(3, 30, 5):
        at_step(cluster, step)
        cluster.break_cable("a", "b")
        for _ in range(3):
            cluster.tick()
            cluster.reconcile()
        cluster.cables.clear()
    rest(cluster)
    assert cluster.status.phase is Phase.SUCCEEDED, cluster.status.message
    assert pod_serials(cluster) == [1, 1]
    assert len(cluster.status.incidents) == 6
    assert cluster.status.nodes == []


def test_on_one_machine_the_pod_is_made_anew() -> None:
    cluster = Cluster(job_spec(2))
    at_step(cluster, 3)
    for _ in range(40):
        cluster.cables = {("node", "node")} if "sim-r1-1" in cluster.pods else set()
        cluster.tick()
        cluster.reconcile()
    assert pod_of(cluster, 1).serial == 2
    assert cluster.status.nodes == []
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def pod_serials(cluster: Cluster) -> list[int]:
    """Of each rank, the highest."""
    return [cluster.status.serials[str(rank)] for rank in range(cluster.spec.world_size)]
