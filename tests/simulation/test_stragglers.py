"""Ranks that compute slower than their peers in other replicas are reported, or moved."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.status import Condition, JobStatus, Phase, StragglerStatus
from lmj_operator.plan import CreatePod
from lmj_operator.plan.observe.times import epoch_seconds

from .cluster import Cluster
from .pod import Pod
from .test_replicas import own, rounds, to_the_end, trains

SECONDS = 20
NODES = ("a", "b", "c", "d")


def watched(
    replicas: int = 3,
    stages: int = 1,
    shards: int = 3,
    nodes: tuple[str, ...] = NODES,
    action: str = "Report",
    least: int = 1,
    **migration: object,
) -> Cluster:
    """A job that trains, with a rank on each node, as far as there are any."""
    spec = job_spec(
        stages,
        pipeline={"stages": stages, "microBatches": 12},
        training={"batchSize": 12},
        dataParallel={"shards": shards, "replicas": replicas, "minReplicas": least},
        recovery={"straggler": {"factor": 1.5, "seconds": SECONDS, "action": action}},
        migration=migration,
    )
    cluster = Cluster(spec, steps=3000, checkpoint_every=10_000, nodes=nodes)
    rounds(cluster, 8)
    assert trains(cluster) == list(range(replicas * stages))
    return cluster


def on(node: str, seconds: float) -> Callable[[Pod], float]:
    return lambda pod: seconds if pod.node == node else 1.0


def straggler(status: JobStatus) -> Condition | None:
    return next((c for c in status.conditions if c.type == "Straggler"), None)


def is_told(cluster: Cluster) -> bool:
    condition = straggler(cluster.status)
    return condition is not None and condition.status == "True"


def until(cluster: Cluster, holds: Callable[[], bool], limit: int = 200) -> None:
    for _ in range(limit):
        if holds():
            return
        rounds(cluster, 1)
    raise AssertionError(f"not within {limit} rounds: {cluster.status.message}, {cluster.status.stragglers}")


def time_passes(cluster: Cluster, seconds: float) -> None:
    """In large strides, but while something moves."""
    end = cluster.now + seconds
    while cluster.now < end:
        cluster.reconcile()
        cluster.tick(1.0 if cluster.status.moves else 20.0)


def entry(cluster: Cluster) -> StragglerStatus:
    (only,) = cluster.status.stragglers
    return only


def test_a_slow_rank_is_reported_in_time_and_not_before() -> None:
    cluster = watched()
    cluster.shard_seconds = on("b", 2.34)
    until(cluster, lambda: bool(cluster.status.stragglers))
    since = entry(cluster).since
    assert since is not None
    while cluster.now < since + SECONDS:
        cluster.reconcile()
        assert straggler(cluster.status) is None
        cluster.tick()
    made = cluster.reconcile()
    told = straggler(cluster.status)
    assert told is not None
    start = "rank 1 (stage 0, replica 1) in sim-r1-1 on b computes 2.3 times as long as its peers since "
    assert (told.status, told.reason, told.message[: len(start)]) == ("True", "SlowRank", start)
    assert epoch_seconds(told.message.removeprefix(start)) == since
    assert epoch_seconds(told.last_transition_time) == cluster.now
    assert made.actions == ()
    assert [rank.compute_seconds for rank in cluster.status.ranks] == [1.0, 2.34, 1.0]
    rounds(cluster, 30)
    assert (cluster.status.migrations, cluster.status.moves) == (0, []), "it is reported, and no more"
    assert straggler(cluster.status) == told, "nothing is new, so nothing is written"


def test_the_plan_asks_to_be_made_when_the_time_is_over() -> None:
    cluster = watched()
    cluster.shard_seconds = on("b", 2.0)
    cluster.tick()
    made = cluster.reconcile()
    assert made.due_after == SECONDS
    cluster.now += SECONDS
    assert cluster.reconcile().due_after is None, "what is past is not waited for"
    assert is_told(cluster)


def test_noise_is_not_reported() -> None:
    cluster = watched()
    for count in range(100):
        cluster.shard_seconds = on("b", 1.45 if count % 2 else 0.7)
        rounds(cluster, 1)
        assert cluster.status.stragglers == []
    assert straggler(cluster.status) is None


def test_slow_times_that_are_shorter_are_not_added_up() -> None:
    cluster = watched()
    for _ in range(6):
        cluster.shard_seconds = on("b", 3.0)
        rounds(cluster, SECONDS - 2)
        assert cluster.status.stragglers
        cluster.shard_seconds = on("b", 1.4)
        rounds(cluster, 2)
        assert cluster.status.stragglers == []
    assert straggler(cluster.status) is None


def test_it_is_slow_until_it_is_well_below_the_factor() -> None:
    cluster = watched()
    cluster.shard_seconds = on("b", 2.0)
    until(cluster, lambda: is_told(cluster))
    cluster.shard_seconds = on("b", 1.3)
    rounds(cluster, 3 * SECONDS)
    assert is_told(cluster)
    cluster.shard_seconds = on("b", 1.2)
    rounds(cluster, 2)
    told = straggler(cluster.status)
    assert told is not None
    assert (told.status, told.reason, cluster.status.stragglers) == ("False", "NoSlowRank", [])
    cluster.shard_seconds = on("b", 1.3)
    rounds(cluster, 3 * SECONDS)
    assert straggler(cluster.status) == told


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_more_shards_take_longer_and_are_no_reason(replicas: int) -> None:
    cluster = watched(replicas, shards=6)
    rounds(cluster, 3 * SECONDS)
    seconds = {rank.compute_seconds for rank in cluster.status.ranks}
    assert len(seconds) == (2 if replicas == 5 else 1)
    assert cluster.status.stragglers == []
    cluster.shard_seconds = lambda pod: 1.6 if pod.rank == 1 else 1.0
    until(cluster, lambda: is_told(cluster))
    assert (entry(cluster).rank, entry(cluster).ratio) == (1, 1.6)


def test_stages_are_not_compared_with_each_other() -> None:
    cluster = watched(2, stages=2)
    cluster.shard_seconds = lambda pod: 1.0 + 4.0 * ((pod.rank or 0) % 2)
    rounds(cluster, 3 * SECONDS)
    assert cluster.status.stragglers == []
    cluster.shard_seconds = lambda pod: (1.0, 5.0, 1.0, 11.0)[pod.rank or 0]
    until(cluster, lambda: is_told(cluster))
    assert (entry(cluster).rank, entry(cluster).ratio) == (3, 2.2)


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("slow", [0, 1])
def test_a_slow_rank_moves_to_another_node_once(slow: int, stages: int) -> None:
    cluster = watched(2, stages, action="Move")
    first = own(cluster, slow * stages)
    cluster.shard_seconds = lambda pod: 2.0 if pod.rank == first.rank and pod.node == first.node else 1.0
    until(cluster, lambda: cluster.status.migrations == 1)
    rounds(cluster, 4 * SECONDS)
    now = own(cluster, slow * stages)
    assert now.name != first.name
    assert now.node != first.node
    assert trains(cluster) == list(range(2 * stages))
    status = cluster.status
    assert (status.migrations, status.restarts, status.steps_lost) == (1, 0, 0)
    assert set(cluster.losses.values()) == {1}, "every step was committed once"
    told = straggler(status)
    assert told is not None
    assert told.status == "False"
    assert [i.kind for i in status.incidents] == ["Moved"]
    time_passes(cluster, 650)
    assert (cluster.status.stragglers, cluster.status.migrations) == ([], 1)


def test_what_moves_and_why_is_told() -> None:
    cluster = watched(action="Move")
    cluster.shard_seconds = on("b", 2.0)
    until(cluster, lambda: bool(cluster.status.moves))
    (move,) = cluster.status.moves
    assert (move.rank, move.cause, move.node, move.to) == (1, "Straggler", "b", None)
    assert move.reason == "it computes 2.0 times as long as its peers"
    told = straggler(cluster.status)
    assert told is not None
    assert told.message.endswith(", and it is to move")
    assert entry(cluster).moves == 1


def test_a_rank_that_is_slow_everywhere_is_not_moved_for_ever() -> None:
    cluster = watched(action="Move")
    cluster.shard_seconds = lambda pod: 2.0 if pod.rank == 1 else 1.0
    seen = []
    for seconds in (590, 100, 1100, 200, 5000):
        time_passes(cluster, seconds)
        seen.append(cluster.status.migrations)
    assert seen == [1, 2, 2, 3, 3]
    told = straggler(cluster.status)
    assert told is not None
    assert told.message.endswith(", and it is not moved: 3 moves did not help")
    assert set(cluster.losses.values()) == {1}


def test_between_two_moves_the_condition_says_when_the_next_may_begin() -> None:
    cluster = watched(action="Move")
    cluster.shard_seconds = lambda pod: 2.0 if pod.rank == 1 else 1.0
    until(cluster, lambda: cluster.status.migrations == 1)
    until(cluster, lambda: is_told(cluster))
    told = straggler(cluster.status)
    assert told is not None
    assert "and it is not moved: a move did not help; the next one may begin at " in told.message


@pytest.mark.parametrize(
    ("migration", "nodes", "why"),
    [({"strategy": "Never"}, NODES, "migration.strategy is Never"), ({}, ("a",), "there is one node")],
)
def test_a_rank_that_cannot_move_is_reported(migration: dict[str, object], nodes: tuple[str, ...], why: str) -> None:
    cluster = watched(nodes=nodes, action="Move", **migration)
    cluster.shard_seconds = lambda pod: 2.0 if pod.rank == 1 else 1.0
    until(cluster, lambda: is_told(cluster))
    rounds(cluster, 10)
    assert (cluster.status.moves, cluster.status.migrations, entry(cluster).stays) == ([], 0, why)


def test_a_move_that_was_given_up_is_begun_again_later() -> None:
    cluster = watched(action="Move", timeoutSeconds=30, onTimeout="Stay")
    cluster.shard_seconds = on("b", 2.0)
    until(cluster, lambda: bool(cluster.status.moves))
    nodes, cluster.nodes = cluster.nodes, ("b",)
    observed = cluster.observed
    cluster.observed = lambda pods=None: replace(observed(pods), one_node=False)  # type: ignore[method-assign]
    until(cluster, lambda: bool(cluster.status.moves) and cluster.status.moves[0].given_up is not None)
    rounds(cluster, 1)
    stays = entry(cluster).stays
    assert stays is not None
    assert stays.startswith(
        "no follower was in sync within 30 s (migration.timeoutSeconds): it stays; the next one may begin at "
    )
    cluster.nodes = nodes
    assert cluster.now < entry(cluster).not_before
    time_passes(cluster, 650)
    assert cluster.status.migrations == 1
    assert own(cluster, 1).node != "b"
    assert set(cluster.losses.values()) == {1}


@pytest.mark.parametrize("migration", [{"strategy": "Checkpoint"}, {"timeoutSeconds": 10}])
def test_a_slow_rank_moves_through_a_checkpoint_where_it_cannot_otherwise(migration: dict[str, object]) -> None:
    cluster = watched(action="Move", **migration)
    cluster.shard_seconds = on("b", 2.0)
    cluster.save_seconds = 5.0
    for _ in range(120):
        rounds(cluster, 1)
        assert all(e.stays is None for e in cluster.status.stragglers if cluster.status.migrations == 0)
        for target in [
            p for p in cluster.living() if p.serial > 1 and cluster.status.migrations == 0 and cluster.status.followers
        ]:
            cluster.kill_worker(target)
    assert own(cluster, 1).node != "b"
    assert trains(cluster) == [0, 1, 2]
    assert (cluster.status.migrations, entry(cluster).moves, cluster.status.restarts) == (1, 1, 0)
    assert set(cluster.losses.values()) == {1}


def test_a_rank_that_is_well_before_its_turn_does_not_move() -> None:
    cluster = watched(4, shards=4, action="Move", maxConcurrent=1)
    cluster.shard_seconds = lambda pod: 2.0 if pod.node in ("b", "c") else 1.0
    until(cluster, lambda: len(cluster.status.moves) == 2)
    assert [move.rank for move in cluster.status.moves] == [1, 2]
    cluster.shard_seconds = on("b", 2.0)
    until(cluster, lambda: cluster.status.migrations == 1)
    rounds(cluster, SECONDS)
    assert (own(cluster, 1).node == "b", own(cluster, 2).node, cluster.status.migrations) == (False, "c", 1)


def test_an_operator_that_is_away_forgets_nothing() -> None:
    cluster = watched()
    cluster.shard_seconds = on("b", 2.0)
    until(cluster, lambda: bool(cluster.status.stragglers))
    began = cluster.now
    since = entry(cluster).since
    for _ in range(SECONDS):
        cluster.tick()
    cluster.plan()  # and dies before it stores that
    rounds(cluster, 1)
    assert is_told(cluster)
    assert entry(cluster).since == since
    assert cluster.now - began < SECONDS + 3


def test_a_move_that_was_stored_and_not_begun_is_begun_once() -> None:
    cluster = watched(action="Move")
    cluster.shard_seconds = on("b", 2.0)
    while not cluster.status.moves:
        cluster.reconcile(first=0)
        cluster.tick()
    for _ in range(10):
        cluster.reconcile(first=0)
        cluster.tick()
    assert entry(cluster).moves == 1
    until(cluster, lambda: cluster.status.migrations == 1)
    rounds(cluster, 4 * SECONDS)
    assert (cluster.status.migrations, entry(cluster).moves) == (1, 1)
    assert set(cluster.losses.values()) == {1}


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_an_operator_with_another_clock_reports_it_too(ahead: float) -> None:
    cluster = watched()
    cluster.shard_seconds = on("b", 2.0)
    cluster.operator_ahead = ahead
    rounds(cluster, 3)
    cluster.operator_ahead = 0.0
    until(cluster, lambda: is_told(cluster), limit=SECONDS + 5)


def test_what_is_known_outlives_a_view() -> None:
    """A lost peer is replaced, and the slow one is told of all the time; while it has no peer nobody can say that it is well."""
    cluster = watched(2)
    cluster.shard_seconds = on("b", 2.0)
    until(cluster, lambda: is_told(cluster))
    told = straggler(cluster.status)
    cluster.kill_pod(own(cluster, 0))
    for _ in range(15):
        rounds(cluster, 1)
        now = straggler(cluster.status)
        assert now is not None
        assert told is not None
        assert now.model_copy(update={"message": ""}) == told.model_copy(update={"message": ""})
    assert trains(cluster) == [0, 1]


def test_nobody_is_judged_while_no_view_trains() -> None:
    """What workers told of the last one is old."""
    cluster = watched(2, shards=4, least=2)
    cluster.shard_seconds = on("b", 2.0)
    until(cluster, lambda: bool(cluster.status.stragglers))
    rounds(cluster, SECONDS - 5)
    cluster.nodes = ()
    cluster.kill_pod(own(cluster, 0))
    rounds(cluster, SECONDS)
    assert cluster.status.ranks[1].compute_seconds == 4.0
    assert (entry(cluster).slow, is_told(cluster)) == (False, False)


def test_a_job_that_is_suspended_has_no_slow_rank() -> None:
    cluster = watched()
    cluster.shard_seconds = on("b", 2.0)
    until(cluster, lambda: is_told(cluster))
    cluster.interrupted = True
    until(cluster, lambda: cluster.status.phase is Phase.SUSPENDED)
    assert (is_told(cluster), cluster.status.stragglers) == (False, [])


def test_another_pod_of_the_rank_is_judged_anew() -> None:
    cluster = watched()
    cluster.shard_seconds = lambda pod: 2.0 if pod.rank == 1 else 1.0
    until(cluster, lambda: is_told(cluster))
    cluster.kill_pod(own(cluster, 1))
    rounds(cluster, 3)
    assert not is_told(cluster)
    until(cluster, lambda: is_told(cluster))
    assert entry(cluster).pod == "sim-r1-2"


@pytest.mark.parametrize("node", ["a", "b"])
def test_with_one_replica_nobody_is_slow(node: str) -> None:
    cluster = watched(2)
    cluster.shard_seconds = on(node, 2.0)
    until(cluster, lambda: is_told(cluster))
    cluster.scale(1)
    rounds(cluster, 6)
    told = straggler(cluster.status)
    assert told is not None
    assert (told.status, cluster.status.stragglers, trains(cluster)) == ("False", [], [0])
    cluster.scale(2)
    until(cluster, lambda: trains(cluster) == [0, 1])
    rounds(cluster, 3)
    cluster.shard_seconds = lambda pod: 2.0 if pod.rank == 1 else 1.0
    until(cluster, lambda: is_told(cluster))
    cluster.shard_seconds = lambda pod: 1.0
    cluster.steps = max(cluster.losses) + 20
    to_the_end(cluster)
    assert set(cluster.losses.values()) == {1}


def test_nobody_compares_unless_asked_to() -> None:
    cluster = watched()
    cluster.spec = cluster.spec.model_copy(update={"recovery": cluster.spec.recovery.model_copy(update={"straggler": None})})
    cluster.shard_seconds = on("b", 5.0)
    rounds(cluster, 3 * SECONDS)
    assert (cluster.status.stragglers, straggler(cluster.status)) == ([], None)
    assert cluster.status.ranks[1].compute_seconds == 5.0, "but it is shown"


def test_a_source_is_not_judged_while_its_state_is_copied() -> None:
    cluster = watched(2)
    cluster.shard_seconds = lambda pod: 3.0 if pod.follower is not None else 1.0
    cluster.scale(3)
    made = cluster.reconcile()
    assert any(isinstance(action, CreatePod) for action in made.actions)
    seen = 0
    for _ in range(SECONDS):
        rounds(cluster, 1)
        seen += any(p.follower is not None and p.worker.phase is WorkerPhase.RUNNING for p in cluster.living())
        assert cluster.status.stragglers == []
    assert seen
    assert trains(cluster) == [0, 1, 2]
