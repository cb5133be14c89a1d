"""Ranks that move while training goes on."""

from dataclasses import replace

import pytest

from lmj_api.protocol import WorkerPhase
from lmj_api.status import Phase
from lmj_operator.plan.moves import parse_request

from .cluster import Cluster, Pod, job_spec
from .test_replicas import at_work, go_on, own


def cluster_of(ranks: int = 2, **migration: object) -> Cluster:
    spec = job_spec(ranks, migration=migration)
    made = Cluster(spec, steps=400, checkpoint_every=1000)
    go_on(made, lambda: at_work(made, 1))
    return made


def follower(cluster: Cluster, rank: int) -> Pod | None:
    entry = next((f for f in cluster.status.followers if f.rank == rank), None)
    return cluster.pods.get(entry.pod) if entry is not None else None


def assert_clean(cluster: Cluster, moves: int) -> None:
    """``moves`` were made, nothing was done twice, and there are no more pods than ranks."""
    go_on(cluster, lambda: len(cluster.living()) == cluster.spec.world_size)
    assert (cluster.status.migrations, cluster.status.steps_lost, cluster.status.restarts) == (moves, 0, 0)
    assert set(cluster.losses.values()) == {1}
    assert (cluster.status.moves, cluster.status.followers) == ([], [])


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_a_rank_moves(ranks: tuple[int, ...]) -> None:
    cluster = cluster_of()
    before = [own(cluster, rank).name for rank in (0, 1)]
    cluster.move_request = f"{','.join(map(str, ranks))} now"
    go_on(cluster, lambda: cluster.status.migrations == len(ranks))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert [own(cluster, rank).name != before[rank] for rank in (0, 1)] == [rank in ranks for rank in (0, 1)]
    assert_clean(cluster, len(ranks))
    assert [i.kind for i in cluster.status.incidents] == ["Moved"] * len(ranks)
    migrating = next(c for c in cluster.status.conditions if c.type == "Migrating")
    assert (migrating.status, migrating.reason) == ("False", "NothingMoves")


def test_a_node_that_is_uncordoned_is_not_left_and_may_be_cordoned_again() -> None:
    cluster = cluster_of(timeoutSeconds=10, onTimeout="Stay")

    def look(cordoned: bool) -> None:
        reason = "node node is cordoned" if cordoned else None
        cluster.reconcile(tuple(replace(p, node_leaving=reason) if p.name.endswith("1-1") else p for p in cluster.look()))

    look(True)
    assert [m.rank for m in cluster.status.moves] == [1]
    look(False)
    assert cluster.status.moves == []
    look(True)
    cluster.now += 11
    look(True)
    assert cluster.status.moves[0].given_up is not None
    look(False)
    look(True)
    assert [m.given_up for m in cluster.status.moves] == [None]


def test_a_move_that_was_asked_for_is_not_of_a_node() -> None:
    cluster = cluster_of()
    cluster.move_request = "1"
    cluster.reconcile()
    cluster.reconcile()
    assert [m.rank for m in cluster.status.moves] == [1]


def test_no_more_ranks_move_at_once_than_may() -> None:
    cluster = cluster_of(3, maxConcurrent=1, timeoutSeconds=6)
    cluster.move_request = "0,1,2"
    seen = 0

    def moved() -> bool:
        nonlocal seen
        seen = max(seen, len(cluster.status.followers))
        return cluster.status.migrations == 3

    go_on(cluster, moved, rounds=200)
    assert seen == 1
    assert_clean(cluster, 3)


def test_a_request_is_taken_up_once() -> None:
    cluster = cluster_of()
    cluster.move_request = "1"
    go_on(cluster, lambda: cluster.status.migrations == 1)
    for _ in range(20):
        cluster.reconcile()
        cluster.tick()
    assert cluster.status.migrations == 1
    cluster.move_request = "1 again"
    go_on(cluster, lambda: cluster.status.migrations == 2)
    assert_clean(cluster, 2)


def test_the_target_dies_before_it_is_level() -> None:
    cluster = cluster_of()
    cluster.move_request = "0"
    go_on(cluster, lambda: follower(cluster, 0) is not None)
    target = follower(cluster, 0)
    assert target is not None
    cluster.kill_pod(target)
    go_on(cluster, lambda: cluster.status.migrations == 1, rounds=200)
    assert_clean(cluster, 1)


def test_the_target_dies_when_its_place_is_free() -> None:
    """All have left the view for it: they go on as they were."""
    cluster = cluster_of()
    name = own(cluster, 1).name
    cluster.move_request = "1"
    go_on(cluster, lambda: own(cluster, 1).handover > 0)
    while own(cluster, 1).worker.phase is WorkerPhase.RUNNING:
        cluster.tick(0.5)
    target = follower(cluster, 1)
    assert target is not None
    cluster.kill_pod(target)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name == name
    assert (cluster.status.steps_lost, cluster.status.restarts) == (0, 0)
    go_on(cluster, lambda: cluster.status.migrations == 1, rounds=200)
    assert_clean(cluster, 1)


def test_the_source_dies_when_its_follower_is_level() -> None:
    cluster = cluster_of()
    cluster.move_request = "1"
    go_on(cluster, lambda: bool(cluster.status.followers) and cluster.status.followers[0].state == "Level")
    cluster.kill_pod(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.steps_lost == 0
    assert set(cluster.losses.values()) == {1}


def test_a_move_that_takes_too_long_is_given_up_and_the_rank_stays() -> None:
    cluster = cluster_of(timeoutSeconds=10, onTimeout="Stay")
    name = own(cluster, 1).name
    cluster.move_request = "1"
    for _ in range(30):
        cluster.reconcile()
        target = follower(cluster, 1)
        if target is not None:
            cluster.kill_worker(target)
        cluster.tick(1)
    assert own(cluster, 1).name == name
    assert cluster.status.moves[0].given_up == "no follower was level within 10 s (migration.timeoutSeconds): it stays"
    assert cluster.status.phase is Phase.RUNNING
    assert (cluster.status.migrations, cluster.status.followers) == (0, [])


def test_a_move_that_takes_too_long_goes_through_a_checkpoint() -> None:
    cluster = cluster_of(timeoutSeconds=10)
    name = own(cluster, 1).name
    cluster.move_request = "1"
    for _ in range(40):
        cluster.reconcile()
        target = follower(cluster, 1)
        if target is not None:
            cluster.kill_worker(target)
        cluster.tick(1)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name != name
    assert cluster.status.steps_lost == 0
    assert set(cluster.losses.values()) == {1}


def test_what_was_saved_while_the_target_was_made_is_gone_on_from() -> None:
    """The new rank 0's agent looked through the checkpoints when it began to follow, and has not heard of those since."""
    cluster = cluster_of()
    cluster.scan_once = True
    cluster.move_request = "0"
    go_on(cluster, lambda: follower(cluster, 0) is not None)
    cluster.save(own(cluster, 0).step or 0, own(cluster, 0))
    saved = cluster.checkpoints[-1]
    go_on(cluster, lambda: cluster.status.migrations == 1)
    go_on(cluster, lambda: at_work(cluster, 2))
    cluster.kill_pod(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 3))
    assert cluster.status.view is not None
    assert cluster.status.view.resume.step == saved
    assert cluster.status.checkpoint is not None
    assert cluster.status.checkpoint.step == saved


def test_a_move_that_was_given_up_is_gone_on_with_when_the_operator_dies() -> None:
    """What was stored before the rank was told to leave is not all that is done."""
    cluster = cluster_of(timeoutSeconds=10)
    name = own(cluster, 1).name
    cluster.move_request = "1"
    for _ in range(40):
        given_up = any(move.given_up for move in cluster.plan().status.moves)
        cluster.reconcile(first=0 if given_up and not cluster.status.moves[0].given_up else None)
        target = follower(cluster, 1)
        if target is not None:
            cluster.kill_worker(target)
        cluster.tick(1)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name != name


@pytest.mark.parametrize(("text", "ranks"), [("0", (0,)), ("1,0 17:20", (1, 0)), (" 2,2 ", (2,))])
def test_a_request_is_read(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_request(text, 3) == ranks


@pytest.mark.parametrize("text", ["", "  ", "3", "-1", "one", "0;1", "0,,1"])
def test_a_request_that_names_no_rank(text: str) -> None:
    with pytest.raises(ValueError, match="write ranks from 0 to 2, as in 0,1"):
        parse_request(text, 3)
