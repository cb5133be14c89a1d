"""The last checkpoint of a pod that is told to end is gone on from, whoever saves it and whenever others have looked."""

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_operator.plan import CreatePod, Look, PodPhase, PutView

from .cluster import Cluster
from .pod import Pod
from .relocated import follower
from .test_hot_standbys import at_work, go_on, own

SLOW = 6.0
"""Seconds that a checkpoint takes; longer than another pod needs to be ready."""


def cluster_of(ranks: int, strategy: str = "Live", save_seconds: float = 0.0, **recovery: object) -> Cluster:
    spec = job_spec(ranks, migration={"strategy": strategy}, recovery=recovery)
    made = Cluster(spec, steps=400, checkpoint_every=1000, nodes=("a", "b", "c"))
    made.save_seconds = save_seconds
    go_on(made, lambda: at_work(made, 1) and made.status.warm_standbys == spec.recovery.standby)
    for _ in range(14):
        made.reconcile()
        made.tick(0.5)
    return made


def assert_nothing_is_lost(cluster: Cluster, old: Pod) -> None:
    go_on(cluster, lambda: at_work(cluster, 2), rounds=200)
    view = cluster.status.view
    assert view is not None
    assert (cluster.status.steps_lost, cluster.status.restarts, view.number) == (0, 1, 2)
    assert set(cluster.losses.values()) == {1}
    assert view.resume.step == cluster.checkpoints[-1]
    assert old.draining


@pytest.mark.parametrize("save_seconds", [0.0, SLOW])
@pytest.mark.parametrize("strategy", ["Live", "Checkpoint", "Never"])
@pytest.mark.parametrize(("ranks", "rank"), [(1, 0), (2, 0), (2, 1)])
def test_of_one_that_is_evicted(ranks: int, rank: int, strategy: str, save_seconds: float) -> None:
    """With a grace that is too short for a move, or on a node that ends all pods (NoExecute), or where ranks do not move live."""
    cluster = cluster_of(ranks, strategy, save_seconds)
    old = own(cluster, rank)
    cluster.tell_to_end(old, hurried=True)
    assert any(isinstance(action, CreatePod) for action in cluster.reconcile().actions), "another is made at once"
    assert_nothing_is_lost(cluster, old)


@pytest.mark.parametrize("save_seconds", [0.0, SLOW])
@pytest.mark.parametrize("ranks", [1, 2])
def test_where_a_standby_takes_the_place_at_once(ranks: int, save_seconds: float) -> None:
    cluster = cluster_of(ranks, "Never", save_seconds, standby=1)
    old = own(cluster, 0)
    cluster.tell_to_end(old, hurried=True)
    assert_nothing_is_lost(cluster, old)


@pytest.mark.parametrize("save_seconds", [0.0, SLOW])
@pytest.mark.parametrize("ranks", [1, 2])
def test_of_a_live_move_that_fell_back(ranks: int, save_seconds: float) -> None:
    cluster = cluster_of(ranks, save_seconds=save_seconds)
    old = own(cluster, 0)
    cluster.tell_to_end(old)

    def at_work_again() -> bool:
        target = follower(cluster, 0)
        if target is not None and not old.draining:
            cluster.kill_worker(target)
        return at_work(cluster, 2)

    go_on(cluster, at_work_again, rounds=200)
    assert (cluster.status.migrations, cluster.status.steps_lost, cluster.status.restarts) == (0, 0, 1)
    assert set(cluster.losses.values()) == {1}


@pytest.mark.parametrize("save_seconds", [0.0, SLOW])
def test_where_a_snapshot_in_memory_is_older(save_seconds: float) -> None:
    cluster = cluster_of(2, "Never", save_seconds, memorySnapshot={"everySteps": 7})
    old = own(cluster, 0)
    cluster.tell_to_end(old, hurried=True)
    assert_nothing_is_lost(cluster, old)


def test_what_is_in_memory_waits_for_nobody_who_saves() -> None:
    cluster = cluster_of(2, "Never", SLOW, hotStandby=True)
    go_on(cluster, lambda: [f.state for f in cluster.status.followers] == ["InSync", "InSync"])
    old = own(cluster, 0)
    cluster.tell_to_end(old, hurried=True)
    looks = []
    for _ in range(40):
        looks += [action for action in cluster.reconcile().actions if isinstance(action, Look)]
        cluster.tick(0.5)
    assert at_work(cluster, 2)
    assert (looks, cluster.status.steps_lost) == ([], 0)


def test_one_that_is_silent_is_not_waited_for_long() -> None:
    """Its machine may be cut off, and its grace may never end. What it saves after all is of a view that is over."""
    cluster = cluster_of(2, "Never", SLOW)
    old = own(cluster, 0)
    cluster.save(old.step or 0, old)
    cluster.tell_to_end(old, hurried=True)
    cluster.reconcile()
    old.told_to_end = cluster.now + 1000  # nobody ends it
    old.reachable = False
    at = cluster.now
    other = own(cluster, 1)
    cluster.break_link(other)
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.now - at < 10.0
    assert cluster.status.view is not None
    assert cluster.status.view.resume.step == cluster.checkpoints[-1]


def test_one_that_is_silent_for_a_moment_is_waited_for() -> None:
    """The network was gone, or the operator is another since."""
    cluster = cluster_of(1, "Never", SLOW, standby=1)
    old = own(cluster, 0)
    cluster.tell_to_end(old, hurried=True)
    old.reachable = False
    for _ in range(4):
        cluster.tick(0.5)
        cluster.reconcile()
    old.reachable = True
    assert cluster.status.view is not None
    assert cluster.status.view.number == 1
    assert_nothing_is_lost(cluster, old)


def test_the_word_to_look_is_said_until_it_was_done_and_not_before_the_last_writer_is_done() -> None:
    cluster = cluster_of(1, "Never", SLOW)
    old = own(cluster, 0)
    cluster.tell_to_end(old, hurried=True)
    for _ in range(200):
        looks = [action for action in cluster.plan().actions if isinstance(action, Look)]
        if looks:
            break
        cluster.reconcile()
        cluster.tick(0.5)
    assert [(look.pod, look.number) for look in looks] == [("sim-r0-2", 1)]
    assert old.worker.phase is WorkerPhase.DRAINED
    cluster.reconcile(first=0)
    cluster.tick(0.5)
    assert looks[0] in cluster.plan().actions
    for _ in range(2):
        made = cluster.reconcile()
    assert any(isinstance(action, PutView) for action in made.actions)
    assert not any(isinstance(action, Look) for action in made.actions)


def test_a_checkpoint_that_was_heard_of_is_looked_for_by_its_name() -> None:
    """Storage may list it later than others have written it."""
    cluster = cluster_of(2, "Never")
    old = own(cluster, 0)
    cluster.tell_to_end(old, hurried=True)
    heard: set[str] = set()
    for _ in range(200):
        made = cluster.plan()
        heard |= {c.name for p in cluster.look() if p.phase is PodPhase.TERMINATING and p.agent for c in p.agent.checkpoints}
        looks = [action for action in made.actions if isinstance(action, Look)]
        if looks:
            break
        cluster.reconcile()
        cluster.tick(0.5)
    assert {name for look in looks for name in look.names} == heard
    assert heard


@pytest.mark.parametrize("put", [True, False])
def test_nobody_looks_while_rank_0_may_be_on_its_way_into_the_view(put: bool) -> None:
    """What was observed of it is a moment old: it may be in the view by now, and save."""
    cluster = cluster_of(2, "Never")
    cluster.break_link(own(cluster, 0))
    while cluster.status.view is None or cluster.status.view.number < 2:
        cluster.tick(0.5)
        made = cluster.plan()
        cluster.reconcile(first=None if put else 0)
    assert any(isinstance(action, PutView) for action in made.actions)
    cluster.kill_pod(own(cluster, 1))
    looks = []
    while not cluster.starts or cluster.starts[-1][0] != "sim-r1-2":
        cluster.now += 0.5
        looks += [action for action in cluster.reconcile().actions if isinstance(action, Look)]
    looks += [action for action in cluster.plan().actions if isinstance(action, Look)]
    assert own(cluster, 0).worker.view == 1
    assert looks == []
    go_on(cluster, lambda: at_work(cluster, 3))


def test_of_rank_0_that_was_deleted_by_force() -> None:
    """It cannot be seen any more, but who trains with it can; the worker of the next one takes a while to start."""
    cluster = cluster_of(2, "Never", 1.0)
    old = own(cluster, 0)
    cluster.force(old)

    def at_work_again() -> bool:
        for pod in cluster.living():
            pod.dark = pod.serial > 1 and not old.gone
        return at_work(cluster, 2)

    go_on(cluster, at_work_again)
    assert (cluster.status.steps_lost, cluster.status.restarts) == (0, 1)
    assert old.draining
