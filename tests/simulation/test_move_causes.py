"""Who has ranks move: a person, a node that is to be left, a placement that was changed; and who does not."""

from dataclasses import replace

import pytest
from planned import job_spec

from lmj_api.status import Phase
from lmj_operator.plan.moves.moves import CHECKPOINT_SECONDS
from lmj_operator.plan.moves.request import MoveRequest, parse_request

from .cluster import Cluster
from .relocated import assert_clean, cluster_of, follower, leaving_node, wide
from .test_hot_standbys import at_work, go_on, own


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


@pytest.mark.parametrize(
    ("text", "ranks", "node"),
    [
        ("0", (0,), None),
        ("1,0 17:20", (1, 0), None),
        (" 2,2 ", (2,), None),
        ("1 to=node-3.example 17:20", (1,), "node-3.example"),
    ],
)
def test_a_request_is_read(text: str, ranks: tuple[int, ...], node: str | None) -> None:
    assert parse_request(text, 3) == MoveRequest(ranks, node)


@pytest.mark.parametrize("text", ["1 to=", "1 to=A", "1 to=a to=b", "1 to=-a"])
def test_a_request_that_names_no_node(text: str) -> None:
    with pytest.raises(ValueError, match="write one node's name, as in to=node-1"):
        parse_request(text, 3)


@pytest.mark.parametrize("text", ["", "  ", "3", "-1", "one", "0;1", "0,,1"])
def test_a_request_that_names_no_rank(text: str) -> None:
    with pytest.raises(ValueError, match="write ranks from 0 to 2, as in 0,1"):
        parse_request(text, 3)


@pytest.mark.parametrize("strategy", ["Live", "Checkpoint"])
@pytest.mark.parametrize("node", ["a", "c"])
def test_a_rank_moves_to_the_node_that_was_named(strategy: str, node: str) -> None:
    cluster = wide(strategy=strategy)
    assert own(cluster, 1).node == "b"
    cluster.move_request = f"1 to={node}"
    go_on(cluster, lambda: cluster.status.migrations == 1)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).node == node
    assert_clean(cluster, 1)


def test_a_request_for_another_node_takes_the_place_of_the_first() -> None:
    cluster = wide()
    cluster.move_request = "1 to=x"
    go_on(cluster, lambda: follower(cluster, 1) is not None)
    cluster.reconcile()
    cluster.move_request = "1 to=c"
    go_on(cluster, lambda: cluster.status.migrations == 1)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).node == "c"
    assert_clean(cluster, 1)


def test_a_node_that_takes_no_pod_is_not_moved_to_and_the_rank_stays() -> None:
    """A checkpoint would bring it no nearer: its next pod would wait, and training with it."""
    cluster = wide(timeoutSeconds=10)
    name = own(cluster, 1).name
    cluster.move_request = "1 to=x"
    go_on(cluster, lambda: bool(cluster.status.moves) and cluster.status.moves[0].given_up is not None)
    for _ in range(10):
        cluster.reconcile()
        cluster.tick()
    assert own(cluster, 1).name == name
    given_up = cluster.status.moves[0].given_up
    assert given_up is not None
    assert given_up.endswith("because its pod waits (Unschedulable: 0 of 2 nodes are available): it stays")
    assert (cluster.status.phase, cluster.status.restarts, cluster.status.followers) == (Phase.RUNNING, 0, [])
    assert len(cluster.living()) == 2


def test_the_node_that_was_named_counts_for_a_rank_with_a_replica_too() -> None:
    spec = job_spec(2, recovery={"hotStandby": True})
    cluster = Cluster(spec, steps=400, checkpoint_every=1000, nodes=("a", "b", "c"))
    go_on(cluster, lambda: len(cluster.status.followers) == 2 and all(f.state == "InSync" for f in cluster.status.followers))
    for node in ("c", "a"):
        number = cluster.status.view.number if cluster.status.view is not None else 0
        moves = cluster.status.migrations
        cluster.move_request = f"1 to={node}"
        go_on(cluster, lambda moves=moves: cluster.status.migrations == moves + 1)  # type: ignore[misc]
        go_on(cluster, lambda number=number: at_work(cluster, number + 1))  # type: ignore[misc]
        assert own(cluster, 1).node == node
    assert (cluster.status.steps_lost, cluster.status.restarts) == (0, 0)


@pytest.mark.parametrize(
    ("request_", "strategy", "why"),
    [
        ("1", "Never", "no rank is moved: migration.strategy is Never"),
        ("1 to=b", "Live", "rank 1 runs on b already"),
        ("7", "Live", "'7' names no ranks to move: write ranks from 0 to 1, as in 0,1"),
    ],
)
def test_a_request_that_cannot_be_followed_is_refused(request_: str, strategy: str, why: str) -> None:
    cluster = wide(strategy=strategy)
    cluster.move_request = request_
    cluster.reconcile()
    assert (cluster.status.move_request, cluster.status.move_refused) == (request_, why)
    assert cluster.status.moves == []
    cluster.reconcile()
    assert cluster.status.move_refused == why
    if strategy == "Live":
        cluster.move_request = "1"
        cluster.reconcile()
        assert cluster.status.move_refused is None


@pytest.mark.parametrize("hot", [False, True])
def test_a_node_that_is_not_in_the_cluster_is_refused_and_no_follower_is_touched(hot: bool) -> None:
    spec = job_spec(2, recovery={"hotStandby": hot})
    cluster = Cluster(spec, steps=400, checkpoint_every=1000, nodes=tuple("abcdefghij"))
    cluster.nodes_known = True
    go_on(cluster, lambda: at_work(cluster, 1))
    go_on(cluster, lambda: not hot or [f.state for f in cluster.status.followers] == ["InSync", "InSync"])
    pods, followers = set(cluster.pods), cluster.status.followers
    cluster.move_request = "1 to=x"
    for _ in range(5):
        assert cluster.reconcile().actions == ()
        cluster.tick()
    assert cluster.status.move_refused == "node x is not in the cluster; nodes: a, b, c, d, e, f, g, h and 2 more"
    assert (cluster.status.moves, cluster.status.followers, set(cluster.pods)) == ([], followers, pods)
    cluster.move_request = "1 to=c"
    go_on(cluster, lambda: cluster.status.migrations == 1)
    assert cluster.status.move_refused is None


def test_one_machine_has_no_other_node() -> None:
    cluster = cluster_of()
    cluster.move_request = "1 to=b"
    cluster.reconcile()
    assert cluster.status.move_refused == "no rank is moved to b: a job on one machine has no other node"


def test_a_request_that_was_given_up_does_not_keep_a_rank_on_a_node_that_is_drained() -> None:
    cluster = wide(timeoutSeconds=10)
    cluster.move_request = "1 to=x"
    go_on(cluster, lambda: bool(cluster.status.moves) and cluster.status.moves[0].given_up is not None)
    leaving_node(cluster, 1, node_leaving="node b is cordoned")
    assert own(cluster, 1).node != "b"
    assert_clean(cluster, 1)


@pytest.mark.parametrize("passes", range(4))
def test_a_request_of_the_first_moments_keeps_no_pod_from_being_made(passes: int) -> None:
    cluster = Cluster(job_spec(2, migration={"strategy": "Checkpoint"}), steps=400, checkpoint_every=1000, nodes=("a", "b"))
    cluster.interrupted = True
    for _ in range(passes):
        cluster.reconcile()
    cluster.interrupted = False
    cluster.move_request = "0 to=x"
    go_on(cluster, lambda: at_work(cluster, 1))


def test_a_rank_without_a_pod_is_not_moved() -> None:
    cluster = Cluster(job_spec(2))
    cluster.move_request = "0,1"
    cluster.reconcile()
    assert cluster.status.move_refused == "rank 0 has no pod yet: ask again when it trains"


# Nodes and placements.


@pytest.mark.parametrize(
    ("strategy", "on_cordon", "saved", "moves"),
    [
        ("Live", "Live", False, 1),
        ("Live", "Checkpoint", True, 1),
        ("Live", "Never", False, 0),
        ("Checkpoint", "Live", True, 1),
        ("Checkpoint", "Never", False, 0),
        ("Never", "Live", False, 0),
    ],
)
def test_how_a_node_that_is_cordoned_is_left(strategy: str, on_cordon: str, saved: bool, moves: int) -> None:
    cluster = wide(strategy=strategy, onCordon=on_cordon)
    leaving_node(cluster, 1, node_leaving="node b is cordoned")
    assert (cluster.status.migrations, bool(cluster.checkpoints)) == (moves, saved)
    assert (own(cluster, 1).node != "b") == bool(moves)
    assert_clean(cluster, moves)


@pytest.mark.parametrize(
    ("nodes", "seconds", "saved", "moves"),
    [
        (("a", "b", "c"), 30.0, False, 1),  # live
        (("a", "b", "c"), 12.0, True, 1),  # no follower is in sync so soon
        (("a", "b", "c"), CHECKPOINT_SECONDS, True, 1),
        (("a", "b", "c"), None, False, 1),
    ],
)
def test_a_machine_that_is_taken_away_is_left_before(
    nodes: tuple[str, ...], seconds: float | None, saved: bool, moves: int
) -> None:
    cluster = Cluster(job_spec(2), steps=400, checkpoint_every=1000, nodes=nodes)
    go_on(cluster, lambda: at_work(cluster, 1))
    left = own(cluster, 1)
    cluster.give_notice(left, seconds)
    cluster.reconcile()
    assert [(m.rank, m.reason) for m in cluster.status.moves] == [
        (1, f"node {left.node} is about to be taken away: the cloud is to stop it")
    ]
    for _ in range(90):
        cluster.reconcile()
        cluster.tick(0.5)
    assert own(cluster, 1).node != left.node
    assert (cluster.status.migrations, bool(cluster.checkpoints)) == (moves, saved)
    assert_clean(cluster, moves)


def test_a_machine_that_stays_after_all_is_not_left() -> None:
    cluster = wide()
    here = own(cluster, 1)
    cluster.give_notice(here, None)
    cluster.reconcile()
    assert [m.rank for m in cluster.status.moves] == [1]
    here.notice = None
    for _ in range(20):
        cluster.reconcile()
        cluster.tick(0.5)
    assert own(cluster, 1).name == here.name
    assert_clean(cluster, 0)


def test_a_rank_that_waits_for_its_turn_leaves_in_time_too() -> None:
    """One at a time moves, and the first one has no deadline."""
    cluster = wide(maxConcurrent=1)
    first, second = own(cluster, 0), own(cluster, 1)
    cluster.move_request = "0 to=x"
    cluster.reconcile()
    cluster.give_notice(second, CHECKPOINT_SECONDS + 2)
    for _ in range(60):
        cluster.reconcile()
        cluster.tick(0.5)
    assert (own(cluster, 0).name, bool(cluster.checkpoints)) == (first.name, True)
    assert own(cluster, 1).node != second.node
    assert (cluster.status.migrations, cluster.status.steps_lost, cluster.status.restarts) == (1, 0, 0)


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


@pytest.mark.parametrize(("strategy", "saved", "moves"), [("Live", False, 1), ("Checkpoint", True, 1), ("Never", False, 0)])
def test_how_a_changed_placement_is_followed(strategy: str, saved: bool, moves: int) -> None:
    cluster = wide(strategy=strategy, onCordon="Never")
    leaving_node(cluster, 0, misplaced="its placement asks for pool=b")
    assert (cluster.status.migrations, bool(cluster.checkpoints)) == (moves, saved)
    assert_clean(cluster, moves)


def test_a_placement_that_is_changed_back_moves_nothing() -> None:
    cluster = wide()
    leaving_node(cluster, 0, rounds=1, misplaced="its placement asks for pool=b")
    assert [m.reason for m in cluster.status.moves] == ["its placement asks for pool=b"]
    leaving_node(cluster, 0, rounds=1, misplaced="its placement asks for pool=c")
    assert [m.reason for m in cluster.status.moves] == ["its placement asks for pool=c"]
    cluster.reconcile()
    assert cluster.status.moves == []


def test_strategy_never_ends_a_live_move() -> None:
    cluster = cluster_of()
    cluster.move_request = "1"
    go_on(cluster, lambda: follower(cluster, 1) is not None)
    cluster.spec = job_spec(2, migration={"strategy": "Never"})
    for _ in range(5):
        cluster.reconcile()
        cluster.tick()
    assert_clean(cluster, 0)


@pytest.mark.parametrize("ranks", [1, 2, 4, pytest.param(12, marks=pytest.mark.slow)])
def test_ranks_for_which_all_nodes_are_as_bad_come_to_rest(ranks: int) -> None:
    """As when all are about to be taken away, and the pods tolerate it: each move ends on another such node."""
    spec = job_spec(ranks, migration={"strategy": "Checkpoint"}, model={"scratch": {"layers": ranks}})
    cluster = Cluster(spec, steps=4000, checkpoint_every=1000, nodes=("a", "b", "c"))
    for _ in range(600):
        cluster.reconcile(tuple(replace(p, node_leaving=f"node {p.node} is cordoned") for p in cluster.look()))
        cluster.tick()
    assert ranks <= cluster.status.migrations <= 6 * ranks
    assert cluster.status.progress is not None
    assert cluster.status.progress.step > 400
    assert (cluster.status.steps_lost, cluster.status.restarts) == (0, 0)


def test_a_rank_that_has_not_moved_does_not_wait_for_those_that_have() -> None:
    cluster = wide(strategy="Checkpoint")
    leaving_node(cluster, 0, rounds=20, node_leaving="node a is cordoned")
    leaving_node(cluster, 1, rounds=20, node_leaving="node b is cordoned")
    assert cluster.now - own(cluster, 0).created < 30
    assert_clean(cluster, 2)


def test_a_node_that_a_rank_moved_to_is_left_too_when_its_time_has_come() -> None:
    cluster = wide(strategy="Checkpoint")
    leaving_node(cluster, 1, node_leaving="node b is cordoned")
    assert cluster.status.migrations == 1
    leaving_node(cluster, 1, rounds=120, node_leaving="node a is cordoned")
    assert cluster.status.migrations == 2
    assert_clean(cluster, 2)


@pytest.mark.parametrize(
    ("mode", "stages", "how"),
    [(None, 1, "Checkpoint"), ("ReadWriteMany", 1, "Live"), (None, 2, "Live"), ("ReadWriteOnce", 2, "Checkpoint")],
)
def test_a_rank_whose_volume_is_for_one_node_moves_through_a_checkpoint(mode: str | None, stages: int, how: str) -> None:
    """Its follower's pod would wait for the volume, which its source has."""
    volume = {"size": "1Gi", **({"accessMode": mode} if mode else {})}
    cluster = Cluster(job_spec(stages, storage={"output": volume}), steps=400, checkpoint_every=1000, nodes=("a", "b", "c"))
    go_on(cluster, lambda: at_work(cluster, 1))
    cluster.move_request = "0"
    cluster.reconcile()
    assert [(m.strategy, m.given_up) for m in cluster.status.moves] == [(how, None)]
    assert_clean(cluster, 1)


def test_a_rank_whose_volume_is_for_one_node_stays_where_it_may_not_leave_through_a_checkpoint() -> None:
    spec = job_spec(1, storage={"output": {"size": "1Gi"}}, migration={"onTimeout": "Stay"})
    cluster = Cluster(spec, steps=400, checkpoint_every=1000, nodes=("a", "b", "c"))
    go_on(cluster, lambda: at_work(cluster, 1))
    cluster.move_request = "0"
    for _ in range(40):
        cluster.reconcile()
        cluster.tick(0.5)
    assert cluster.status.migrations == 0
    assert [m.given_up for m in cluster.status.moves] == [
        "its output volume is for one node at a time (storage.output.accessMode): it stays (migration.onTimeout)"
    ]
