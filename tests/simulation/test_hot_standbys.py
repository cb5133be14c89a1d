"""What a replica is for: a pod that is lost costs no step."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.status import NodeFailures, Phase
from lmj_operator.plan import DeletePod, PodObserved, PodPhase, PodWait

from .cluster import Cluster
from .pod import Pod


def cluster_of(ranks: int = 2, steps: int = 400, **recovery: object) -> Cluster:
    spec = job_spec(ranks, recovery={"hotStandby": True, "maxRestarts": 100, **recovery})
    made = Cluster(spec, steps=steps, checkpoint_every=1000)
    go_on(made, lambda: all_level(made))
    return made


def go_on(cluster: Cluster, until: Callable[[], bool], rounds: int = 60) -> None:
    for _ in range(rounds):
        if until():
            return
        cluster.reconcile()
        cluster.tick(0.5)
    raise AssertionError(f"not within {rounds} rounds: {cluster.status.message}, {cluster.status.followers}")


def all_level(cluster: Cluster) -> bool:
    followers = cluster.status.followers
    return len(followers) == cluster.spec.world_size and all(f.state == "InSync" for f in followers)


def own(cluster: Cluster, rank: int) -> Pod:
    """The rank's own pod."""
    assert cluster.status.view is not None
    return cluster.pods[cluster.status.view.members[rank].pod]


def at_work(cluster: Cluster, number: int) -> bool:
    view = cluster.status.view
    return view is not None and view.number >= number and cluster.status.phase is Phase.RUNNING


@pytest.mark.parametrize("rank", [0, 1])
def test_the_follower_takes_the_place(rank: int) -> None:
    cluster = cluster_of()
    before = cluster.status
    follower = before.followers[rank].pod
    cluster.kill_pod(own(cluster, rank))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, rank).name == follower
    assert cluster.status.serials[str(rank)] == before.followers[rank].serial
    assert (cluster.status.restarts, cluster.status.steps_lost) == (1, 0)
    # It has a follower again, under a serial that was never used.
    go_on(cluster, lambda: all_level(cluster))
    assert cluster.status.followers[rank].serial == before.followers[rank].serial + 1
    assert set(cluster.losses.values()) == {1}


@pytest.mark.parametrize("rank", [0, 1])
def test_between_prepare_and_commit(rank: int) -> None:
    cluster = cluster_of()
    step = own(cluster, 0).step or 0
    cluster.half_commit()
    cluster.kill_pod(own(cluster, rank))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.view is not None
    # With rank 0 goes what nobody else had heard of: the step is done again, and no other.
    assert cluster.status.view.resume.step == (step if rank == 0 else step + 1)
    assert cluster.status.view.resume.checkpoint is None


def test_both_lost_at_once() -> None:
    cluster = cluster_of()
    for rank in (0, 1):
        cluster.kill_pod(own(cluster, rank))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.steps_lost == 0
    assert set(cluster.losses.values()) == {1}


def test_a_follower_that_is_lost_costs_nothing() -> None:
    cluster = cluster_of()
    serials = dict(cluster.status.serials)
    for _ in range(3):
        cluster.kill_pod(cluster.pods[cluster.status.followers[1].pod])
        cluster.reconcile()
        go_on(cluster, lambda: all_level(cluster))
    assert (cluster.status.restarts, cluster.status.incidents) == (0, [])
    assert cluster.status.view is not None
    assert cluster.status.view.number == 1
    assert cluster.status.serials == serials
    assert cluster.status.made["1"] == 5
    assert len(cluster.living()) == 4


def test_a_worker_that_died_is_followed_again() -> None:
    cluster = cluster_of()
    cluster.kill_worker(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).serial == 1
    go_on(cluster, lambda: all_level(cluster))
    cluster.kill_pod(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 3))
    assert cluster.status.steps_lost == 0


def test_a_follower_whose_worker_dies_gets_another() -> None:
    cluster = cluster_of()
    pod = cluster.pods[cluster.status.followers[0].pod]
    cluster.kill_worker(pod)
    cluster.reconcile()
    go_on(cluster, lambda: all_level(cluster))
    assert cluster.status.followers[0].pod == pod.name
    assert pod.worker.incarnation == 2


def test_a_follower_that_was_let_go_and_does_not_know_it_follows_again() -> None:
    cluster = cluster_of()
    cluster.let_go(own(cluster, 1))
    for _ in range(3):
        cluster.reconcile()
        cluster.tick()
    go_on(cluster, lambda: all_level(cluster))
    cluster.kill_pod(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert (cluster.status.steps_lost, cluster.status.restarts) == (0, 1)


def test_one_that_cannot_keep_up_is_tried_later_and_later() -> None:
    """Each try stops training for a while."""
    cluster = cluster_of()
    tries = 0
    for _ in range(120):
        cluster.reconcile()
        source = own(cluster, 1)
        target = cluster.pods[cluster.status.followers[1].pod]
        if source.follower is not None and target.worker.phase is WorkerPhase.FOLLOWING:
            cluster.let_go(source)
            tries += 1
        cluster.tick(0.5)
    assert 2 < tries < 8
    assert cluster.status.restarts == 0


def waiting_follower(cluster: Cluster) -> tuple[str, tuple[PodObserved, ...]]:
    """The name of rank 1's follower, and what is observed when no node takes its pod."""
    name = cluster.status.followers[1].pod
    wait = PodWait("Unschedulable", "0 of 2 nodes are available", cluster.now)
    pods = tuple(
        replace(p, phase=PodPhase.PENDING, agent=None, node=None, created=cluster.now, waits=wait) if p.name == name else p
        for p in cluster.look()
    )
    return name, pods


def test_a_follower_that_waits_is_made_anew_from_another_template() -> None:
    cluster = cluster_of()
    name, pods = waiting_follower(cluster)
    assert not cluster.plan(pods).actions
    made = cluster.plan(tuple(replace(p, outdated=p.name == name) for p in pods))
    assert [a.name for a in made.actions if isinstance(a, DeletePod)] == [name]
    assert made.status.followers[1].serial == cluster.status.followers[1].serial + 1


def test_a_follower_that_no_node_takes_for_those_that_are_avoided_is_made_anew() -> None:
    cluster = cluster_of()
    cluster.nodes = ("a", "b")
    cluster.status.nodes.append(NodeFailures(node="a", avoided_since=cluster.now, reason="it fails"))
    name, pods = waiting_follower(cluster)
    cluster.now += cluster.spec.recovery.avoid_node.fallback_seconds + 1
    made = cluster.plan(pods)
    assert [a.name for a in made.actions if isinstance(a, DeletePod)] == [name]
    assert made.status.followers[1].serial == cluster.status.followers[1].serial + 1
    assert made.status.nodes[0].avoided_since is None


def test_a_follower_that_hangs_is_another_pod() -> None:
    """Its agent answers, but its worker is stopped: its source has let go of it, and it does not hear that it is to leave."""
    cluster = cluster_of(hangTimeoutSeconds=30)
    pod = cluster.pods[cluster.status.followers[1].pod]
    cluster.let_go(own(cluster, 1))
    pod.dark = True
    go_on(cluster, lambda: pod.name not in cluster.pods, rounds=300)
    go_on(cluster, lambda: all_level(cluster))
    assert cluster.status.restarts == 0


def test_a_rank_that_trains_is_not_replaced_because_it_let_go_of_its_follower() -> None:
    """And an agent did not answer once: its peers train with it."""
    cluster = cluster_of()
    cluster.let_go(own(cluster, 1))
    source = own(cluster, 1)
    for _ in range(40):
        seen = cluster.look()
        cut = tuple(
            replace(p, agent=None, dark=True, unreachable_since=cluster.now) if p.name == source.name else p for p in seen
        )
        cluster.plan(cut)
        assert cluster.plan(cut).status.incidents == []
        cluster.reconcile()
        cluster.tick()
    assert own(cluster, 1) is source
    assert cluster.status.restarts == 0


@pytest.mark.parametrize(("age", "incidents"), [(1.0, 1), (10.0, 0)])
def test_what_a_follower_alone_says_matters_where_no_peer_can(age: float, incidents: int) -> None:
    spec = job_spec(1, recovery={"hotStandby": True})
    cluster = Cluster(spec, steps=400, checkpoint_every=1000, nodes=("a", "b"))
    go_on(cluster, lambda: bool(cluster.status.followers) and cluster.status.followers[0].state == "InSync")
    source, target = own(cluster, 0), cluster.pods[cluster.status.followers[0].pod]
    target.worker = target.worker.model_copy(
        update={"phase": WorkerPhase.READY, "lost": "its source is gone", "since": cluster.now - age, "holding": target.holding}
    )
    seen = cluster.look()
    cut = tuple(replace(p, agent=None, dark=True, unreachable_since=cluster.now) if p.name == source.name else p for p in seen)
    assert len(cluster.plan(cut).status.incidents) == incidents


def test_without_a_level_follower_it_is_another_pod() -> None:
    cluster = cluster_of()
    for pod in list(cluster.pods.values()):
        if pod.worker.phase is WorkerPhase.FOLLOWING:
            cluster.kill_pod(pod)
    cluster.kill_pod(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert cluster.status.steps_lost > 0
    go_on(cluster, lambda: all_level(cluster))
    names = [pod.name for pod in cluster.pods.values()]
    assert len(names) == len(set(names)) == 4


@pytest.mark.parametrize("phase", [WorkerPhase.STARTING, WorkerPhase.READY, WorkerPhase.FOLLOWING])
def test_a_follower_on_its_way_is_nearer_than_a_new_pod(phase: WorkerPhase) -> None:
    """It has what a new pod waits for: a node, an image, libraries. Its state comes from where a new pod's would."""
    cluster = cluster_of()
    cluster.kill_pod(next(pod for pod in cluster.pods.values() if pod.worker.phase is WorkerPhase.FOLLOWING))

    def on_its_way() -> Pod | None:
        entry = next((f for f in cluster.status.followers if f.state != "InSync"), None)
        pod = cluster.pods.get(entry.pod) if entry is not None else None
        return pod if pod is not None and pod.worker.phase is phase and pod.holding is None else None

    go_on(cluster, lambda: on_its_way() is not None)
    pod = on_its_way()
    assert pod is not None
    rank = pod.rank
    assert rank is not None
    cluster.kill_pod(own(cluster, rank))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, rank).name == pod.name
    assert cluster.status.restarts == 1
    go_on(cluster, lambda: all_level(cluster))


def test_no_follower_outlives_the_job() -> None:
    cluster = cluster_of(steps=30)
    for _ in range(200):
        if cluster.reconcile().wake_after is None:
            break
        cluster.tick()
    assert cluster.status.phase is Phase.SUCCEEDED
    assert not cluster.living()
    assert cluster.status.followers == []


def test_a_move_to_a_replica_that_was_level_copies_nothing() -> None:
    cluster = cluster_of()
    cluster.tick(5.0)
    cluster.move_request = "1 now"
    go_on(cluster, lambda: cluster.status.migrations == 1)
    (incident,) = cluster.status.incidents
    assert incident.copied is not None
    assert (incident.copied.done, incident.copied.gradients) == (0, 0), "what a replica got in its life is no move's"
    assert incident.copied.digest is not None


def test_a_node_that_takes_no_follower_does_not_cost_the_replica_for_good() -> None:
    spec = job_spec(2, recovery={"hotStandby": True}, migration={"timeoutSeconds": 10})
    cluster = Cluster(spec, steps=4000, checkpoint_every=10000, nodes=("a", "b", "c"))
    go_on(cluster, lambda: all_level(cluster))
    cluster.move_request = "1 to=misspelt"
    go_on(cluster, lambda: cluster.status.followers[1].to == "misspelt")
    go_on(cluster, lambda: bool(cluster.status.moves) and cluster.status.moves[0].given_up is not None)
    go_on(cluster, lambda: all_level(cluster))
    assert cluster.status.followers[1].to is None
    assert len(cluster.living()) == 4
    assert (cluster.status.restarts, cluster.status.migrations) == (0, 0)


def test_a_follower_on_the_node_that_was_asked_for_stays_when_it_is_not_asked_for_any_more() -> None:
    spec = job_spec(2, recovery={"hotStandby": True})
    cluster = Cluster(spec, steps=4000, checkpoint_every=10000, nodes=("a", "b", "c"))
    go_on(cluster, lambda: all_level(cluster))
    cluster.move_request = "1 to=c"
    go_on(cluster, lambda: cluster.status.followers[1].node == "c")
    name = cluster.status.followers[1].pod
    cluster.status.moves.clear()
    for _ in range(20):
        cluster.reconcile()
        cluster.tick(0.5)
    assert name in cluster.pods


@pytest.mark.parametrize("why", ["cordoned", "asked"])
def test_a_follower_that_takes_a_place_is_not_removed_in_the_same_pass(why: str) -> None:
    spec = job_spec(2, recovery={"hotStandby": True})
    cluster = Cluster(spec, steps=400, checkpoint_every=1000, nodes=("a", "b", "c"))
    go_on(cluster, lambda: all_level(cluster))
    name = cluster.status.followers[1].pod
    cluster.kill_pod(own(cluster, 1))
    pods = cluster.look()
    if why == "cordoned":
        pods = tuple(replace(p, node_leaving="node b is cordoned") if p.name == name else p for p in pods)
    else:
        cluster.move_request = "1 to=c"
    made = cluster.reconcile(pods)
    assert name not in [a.name for a in made.actions if isinstance(a, DeletePod)]
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name == name
    assert cluster.status.steps_lost == 0
    go_on(cluster, lambda: all_level(cluster))


def promoted() -> tuple[Cluster, Pod]:
    """A cluster of whose rank 1 an old follower has just become the pod, and that pod."""
    cluster = cluster_of()
    for pod in cluster.pods.values():
        pod.created -= 3600
    follower = cluster.pods[cluster.status.followers[1].pod]
    cluster.kill_pod(own(cluster, 1))
    cluster.reconcile()
    assert cluster.status.serials["1"] == follower.serial
    return cluster, follower


def test_a_follower_that_took_a_place_is_known_at_once_and_may_miss_an_answer() -> None:
    cluster, follower = promoted()
    known = cluster.status.ranks[1]
    assert (known.pod, known.node, known.incarnation) == (follower.name, follower.node, follower.worker.incarnation)
    assert known.worker_restarts == 0
    seen = (replace(p, agent=None, unreachable_since=cluster.now) if p.name == follower.name else p for p in cluster.look())
    cluster.reconcile(tuple(seen))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1) is follower
    assert (cluster.status.restarts, cluster.status.steps_lost) == (1, 0)


def test_a_follower_that_took_a_place_and_is_gone_before_it_was_seen_there_is_replaced_by_another_pod() -> None:
    cluster, follower = promoted()
    del cluster.pods[follower.name]
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).serial == follower.serial + 1
    assert [i.pod for i in cluster.status.incidents] == ["sim-r1-1", follower.name]


@pytest.mark.parametrize("victims", [(0,), (1,), (0, 1)])
def test_a_worker_that_dies_on_a_gpu_costs_no_step(victims: tuple[int, ...]) -> None:
    """State goes with its process: its follower, which has it, takes the place when the next worker has nothing."""
    cluster = cluster_of()
    cluster.gpu = True
    followers = [f.pod for f in cluster.status.followers]
    for rank in victims:
        cluster.kill_worker(own(cluster, rank))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert [own(cluster, rank).name for rank in victims] == [followers[rank] for rank in victims]
    assert (cluster.status.steps_lost, cluster.status.restarts, cluster.status.migrations) == (0, len(victims), 0)
    assert set(cluster.losses.values()) == {1}
    go_on(cluster, lambda: all_level(cluster))
    assert len(cluster.living()) == 4


def test_a_hang_on_a_gpu_costs_no_step() -> None:
    cluster = cluster_of(hangTimeoutSeconds=60)
    cluster.gpu = True
    cluster.now += 61
    go_on(cluster, lambda: at_work(cluster, 2))
    assert [i.kind for i in cluster.status.incidents] == ["Hang"]
    assert (cluster.status.steps_lost, cluster.status.restarts) == (0, 1)


def test_a_follower_that_has_not_heard_that_its_source_died_on_a_gpu_is_told() -> None:
    cluster = cluster_of()
    cluster.gpu = True
    target = cluster.pods[cluster.status.followers[1].pod]
    target.deserted = True
    cluster.kill_worker(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1) is target
    assert cluster.status.steps_lost == 0


@pytest.mark.parametrize("why", ["not all can go on", "memory failed too often"])
def test_no_follower_takes_a_place_on_a_gpu_for_nothing(why: str) -> None:
    """Its pod has snapshots, and the next worker of its source starts where all the others do."""
    cluster = cluster_of(workerRestarts=50, backoffSeconds=0)
    cluster.gpu = True
    if why == "not all can go on":
        cluster.kill_worker(cluster.pods[cluster.status.followers[0].pod])
        cluster.kill_worker(own(cluster, 0))
    else:
        step = cluster.status.progress.step if cluster.status.progress is not None else 0
        cluster.status = cluster.status.model_copy(update={"restarts_without_progress": 5, "restart_step": step + 1})
    cluster.kill_worker(own(cluster, 1))
    go_on(cluster, lambda: at_work(cluster, 2))
    assert own(cluster, 1).name == "sim-r1-1"
    assert cluster.status.view is not None
    assert cluster.status.view.resume.step == 0
