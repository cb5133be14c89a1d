"""A pod that is told to end: its rank moves in its grace period, or leaves with a checkpoint."""

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_operator.plan import Drain, Stay

from .cluster import Cluster
from .relocated import assert_clean, cluster_of, follower, wide
from .test_hot_standbys import at_work, go_on, own
from .test_hot_standbys import cluster_of as with_replicas
from .world import STAY_SECONDS


@pytest.mark.parametrize("rank", [0, 1])
def test_its_rank_moves_before_it_ends(rank: int) -> None:
    cluster = wide()
    old = own(cluster, rank)
    told = cluster.now
    cluster.tell_to_end(old)
    go_on(cluster, lambda: cluster.status.migrations == 1)
    assert cluster.now - told < STAY_SECONDS
    assert_clean(cluster, 1)
    assert old.draining, "it does not stay when another has its place"
    assert cluster.status.incidents[-1].kind == "Moved"


def test_both_are_told_at_once() -> None:
    cluster = wide()
    for rank in (0, 1):
        cluster.tell_to_end(own(cluster, rank))
    go_on(cluster, lambda: cluster.status.migrations == 2)
    assert_clean(cluster, 2)


def test_the_node_that_it_is_deleted_on_is_as_good_as_any() -> None:
    cluster = cluster_of()
    cluster.tell_to_end(own(cluster, 1))
    go_on(cluster, lambda: cluster.status.migrations == 1)
    assert_clean(cluster, 1)


def test_when_nobody_can_take_its_place_in_time_it_leaves_with_a_checkpoint() -> None:
    cluster = wide()
    old = own(cluster, 1)
    cluster.tell_to_end(old)

    def at_work_again() -> bool:
        target = follower(cluster, 1)
        if target is not None and not old.draining:
            cluster.kill_worker(target)
        return old.name not in cluster.pods and at_work(cluster, 2)

    go_on(cluster, at_work_again, rounds=200)
    assert (cluster.status.migrations, cluster.status.steps_lost, cluster.status.restarts) == (0, 0, 1)
    assert set(cluster.losses.values()) == {1}


@pytest.mark.parametrize("strategy", ["Checkpoint", "Never"])
def test_a_job_whose_ranks_do_not_move_live_leaves_at_once(strategy: str) -> None:
    cluster = wide(strategy=strategy)
    old = own(cluster, 1)
    cluster.tell_to_end(old)
    assert not any(isinstance(a, Stay) for a in cluster.plan().actions)
    go_on(cluster, lambda: old.name not in cluster.pods and at_work(cluster, 2))
    assert (cluster.status.migrations, cluster.status.steps_lost) == (0, 0)
    assert not old.staying


def test_a_follower_that_is_told_to_end_is_replaced() -> None:
    cluster = wide()
    cluster.move_request = "1"
    go_on(cluster, lambda: follower(cluster, 1) is not None)
    target = follower(cluster, 1)
    assert target is not None
    target.told_to_end = cluster.now
    go_on(cluster, lambda: cluster.status.migrations == 1, rounds=200)
    assert own(cluster, 1).name != target.name
    assert_clean(cluster, 1)


def test_the_word_is_said_until_it_was_heard() -> None:
    cluster = wide()
    old = own(cluster, 1)
    cluster.tell_to_end(old)
    cluster.reconcile(first=0)
    made = cluster.plan()
    assert Stay(old.name) in made.actions
    assert Drain(old.name) not in made.actions
    cluster.reconcile()
    assert old.staying
    assert not any(isinstance(a, Stay) for a in cluster.plan().actions)


def test_a_job_of_its_own_grace_goes_on_when_the_operator_is_away() -> None:
    cluster = wide()
    old = own(cluster, 1)
    cluster.tell_to_end(old)
    for _ in range(4):
        cluster.tick(1)
    assert old.gone or old.draining
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.steps_lost == 0


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_is_deleted_by_force_leaves_with_a_checkpoint_where_its_processes_have_a_moment(rank: int) -> None:
    """Its peers are not told to leave at once: nobody could take its place yet."""
    cluster = wide()
    old = own(cluster, rank)
    cluster.force(old)

    def at_work_again() -> bool:
        for pod in cluster.living():
            pod.reachable = old.gone or pod.serial == 1  # a new pod takes longer to start
        return at_work(cluster, 2)

    go_on(cluster, at_work_again, rounds=200)
    assert (cluster.status.steps_lost, cluster.status.restarts) == (0, 1)
    assert set(cluster.losses.values()) == {1}
    assert old.worker.phase is WorkerPhase.DRAINED


def test_who_trains_with_one_that_was_deleted_by_force_leaves_when_another_has_its_place() -> None:
    cluster = wide()
    old = own(cluster, 1)
    cluster.force(old)
    old.told_to_end = cluster.now + 1000  # its node does not hear of it
    go_on(cluster, lambda: at_work(cluster, 2))
    assert old.worker.phase is not WorkerPhase.DRAINED
    assert cluster.status.restarts == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_replica_takes_the_place_of_one_that_was_deleted_by_force_and_trains_yet(rank: int) -> None:
    cluster = with_replicas()
    before, old = cluster.status, own(cluster, rank)
    cluster.force(old)
    old.told_to_end = cluster.now + 1000
    go_on(cluster, lambda: at_work(cluster, 2), rounds=10)
    assert own(cluster, rank).name == before.followers[rank].pod
    assert (cluster.status.restarts, cluster.status.steps_lost) == (1, 0)
    assert set(cluster.losses.values()) == {1}


def test_a_standby_waits_until_the_pod_that_ends_has_left_with_its_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    recovery = {"standby": 1}
    cluster = Cluster(job_spec(2, recovery=recovery, migration={"strategy": "Never"}), steps=100, checkpoint_every=1000)
    go_on(cluster, lambda: at_work(cluster, 1) and cluster.status.warm_standbys == 1)
    with monkeypatch.context() as long_step:
        long_step.setattr(cluster, "_train", lambda: None)
        cluster.tell_to_end(own(cluster, 1))
        for _ in range(8):
            cluster.tick(0.6)
            made = cluster.reconcile()
        assert cluster.status.promotions, "the standby is ready to take the place"
        assert made.status.view is not None
        assert made.status.view.number == 1
        assert "waits for sim-r1-1, which ends, to leave view 1 with a checkpoint" in made.reason
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.steps_lost == 0
    assert set(cluster.losses.values()) == {1}
