"""Standbys in the plan, on the fake cluster: a promotion is stored before it is used, is used once, and costs nobody else anything."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from planned import job_spec

from lmj_api.names import parse_pod_name
from lmj_api.protocol import WorkerPhase
from lmj_api.status import JobStatus, Phase, Promotion, StandbyState
from lmj_operator.backend.local.adopt import adopt
from lmj_operator.plan import CreatePod, DeletePod, EnlistPod, PodObserved, PodPhase, PodWait, StartWorker, plan

from .cluster import JOB, Cluster
from .pod import Pod

FIRST = "sim-s-1"


def warm_cluster(standbys: int = 1, ranks: int = 2, **recovery: object) -> Cluster:
    """One that trains and whose standbys are warm."""
    cluster = Cluster(job_spec(ranks, recovery={"standby": standbys, **recovery}), steps=1000)
    go(cluster, lambda: cluster.status.warm_standbys == standbys and cluster.status.phase is Phase.RUNNING)
    return cluster


def go(cluster: Cluster, until: Callable[[], bool], passes: int = 100) -> None:
    for _ in range(passes):
        cluster.reconcile()
        if until():
            return
        cluster.tick()
    raise AssertionError(f"not within {passes} passes: {cluster.status.phase}: {cluster.status.message}")


def runs_again(cluster: Cluster, view: int) -> None:
    go(
        cluster,
        lambda: cluster.status.phase is Phase.RUNNING and cluster.status.view is not None and cluster.status.view.number == view,
    )


def gets_on(cluster: Cluster) -> None:
    """A new step is done: the next restart need not wait."""
    go(cluster, lambda: cluster.status.progress is not None and cluster.status.progress.step > cluster.status.restart_step)


def pod_of(cluster: Cluster, rank: int) -> str | None:
    return cluster.status.ranks[rank].pod


def test_none_is_made_unless_wanted_and_none_before_the_job_trains() -> None:
    cluster = Cluster(job_spec(2))
    go(cluster, lambda: cluster.status.phase is Phase.RUNNING)
    assert (cluster.status.standbys, "s" in cluster.status.serials) == ([], False)
    cluster = Cluster(job_spec(2, recovery={"standby": 2}))
    while cluster.status.phase is not Phase.RUNNING:
        made = cluster.reconcile()
        if made.status.phase is not Phase.RUNNING:
            assert not [a for a in made.actions if isinstance(a, CreatePod) and a.rank is None]
        cluster.tick()
    assert [s.pod for s in cluster.status.standbys] == ["sim-s-1", "sim-s-2"]


def test_a_claim_is_in_the_status_of_the_pass_that_uses_it() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    made = cluster.plan()
    assert made.status.promotions == [Promotion(pod=FIRST, rank=1, serial=2)]
    assert made.status.serials == {"0": 1, "1": 2, "s": 2}
    assert StartWorker(FIRST, 1, 1) in made.actions
    assert not [action for action in made.actions if isinstance(action, CreatePod)]
    assert made.reason.endswith(f"standby {FIRST} takes over as rank 1")
    assert [s.pod for s in made.status.standbys] == ["sim-s-2"]


def test_it_becomes_the_rank_and_another_standby_follows() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    runs_again(cluster, 2)
    assert pod_of(cluster, 1) == FIRST
    assert cluster.pods[FIRST].listed
    assert cluster.status.incidents[-1].recovery is not None
    assert f"rank 1 runs in the standby {FIRST} now" in cluster.status.incidents[-1].recovery
    go(cluster, lambda: cluster.status.warm_standbys == 1)
    assert [s.pod for s in cluster.status.standbys] == ["sim-s-2"]
    assert cluster.status.restarts == 1


def test_a_worker_that_dies_in_it_is_restarted_in_it() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    runs_again(cluster, 2)
    gets_on(cluster)
    cluster.kill_worker(cluster.pods[FIRST])
    made = cluster.reconcile()
    assert StartWorker(FIRST, 2) in made.actions
    cluster.tick()
    runs_again(cluster, 3)
    assert (pod_of(cluster, 1), cluster.status.steps_lost) == (FIRST, cluster.status.incidents[0].steps_lost)


def test_the_operator_dies_between_the_claim_and_its_use() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    cluster.reconcile(first=0)
    for _ in range(2):
        made = cluster.reconcile(first=0)
        assert StartWorker(FIRST, 1, 1) in made.actions
        assert (made.status.restarts, len(made.status.promotions), len(made.status.incidents)) == (1, 1, 1)
    runs_again(cluster, 2)
    assert pod_of(cluster, 1) == FIRST


def test_two_ranks_are_lost_and_one_standby_is_there() -> None:
    cluster = warm_cluster(ranks=3)
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    cluster.kill_pod(cluster.pods["sim-r2-1"])
    made = cluster.reconcile()
    assert StartWorker(FIRST, 1, 1) in made.actions
    assert CreatePod(2, 2) in made.actions
    cluster.tick()
    runs_again(cluster, 2)
    assert (pod_of(cluster, 1), pod_of(cluster, 2)) == (FIRST, "sim-r2-2")


@pytest.mark.parametrize("vanishes", [False, True])
def test_it_dies_at_the_moment_of_the_claim(vanishes: bool) -> None:
    cluster = warm_cluster(backoffSeconds=3)
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    before = cluster.look()
    cluster.kill_pod(cluster.pods[FIRST])
    if vanishes:
        del cluster.pods[FIRST]
    cluster.reconcile(before)
    assert cluster.status.promotions == [Promotion(pod=FIRST, rank=1, serial=2)]
    made = cluster.reconcile()
    assert made.status.incidents[-1].pod == FIRST
    assert made.status.restarts == 2
    runs_again(cluster, 2)
    assert pod_of(cluster, 1) in ("sim-r1-3", "sim-s-2")


def test_it_falls_silent_at_the_moment_of_the_claim() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    before = cluster.look()
    cluster.pods[FIRST].reachable = False
    cluster.reconcile(before)
    cluster.tick()
    cluster.tick(31)
    made = cluster.reconcile()
    # Not only after startTimeoutSeconds: it had answered.
    assert made.status.incidents[-1].message == f"the agent of {FIRST} has not answered for 30 s"
    runs_again(cluster, 2)


@pytest.mark.parametrize("state", ["cold", "unreachable", "draining", "unknown"])
def test_one_that_is_not_ready_is_not_taken(state: str) -> None:
    cluster = warm_cluster()
    standby = cluster.pods[FIRST]
    match state:
        case "cold":
            standby.warm = False
        case "unreachable":
            standby.reachable = False
        case "draining":
            standby.draining = True
        case "unknown":
            cluster.pods = {name: pod for name, pod in cluster.pods.items() if pod is not standby}
            cluster.pods["sim-s-9"] = Pod("sim-s-9", None, 9, cluster.now, standby=True, warm=True, listed=False)
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    made = cluster.reconcile()
    assert CreatePod(1, 2) in made.actions
    assert made.status.promotions == []


def test_one_that_is_warm_by_now_takes_the_place_of_a_pod_that_cannot_start() -> None:
    cluster = warm_cluster()
    cluster.pods[FIRST].warm = False
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    cluster.reconcile()
    wait = PodWait("Unschedulable", "no node has room", cluster.now)
    pods = tuple(
        replace(pod, phase=PodPhase.PENDING, agent=None, waits=wait) if pod.name == "sim-r1-2" else pod for pod in cluster.look()
    )
    assert cluster.plan(pods).status.promotions == []
    cluster.pods[FIRST].warm = True
    pods = tuple(next((p for p in pods if p.name == "sim-r1-2" and p.name == pod.name), pod) for pod in cluster.look())
    made = cluster.reconcile(pods)
    assert made.status.promotions == [Promotion(pod=FIRST, rank=1, serial=3)]
    assert DeletePod("sim-r1-2", "replaced by serial 3") in made.actions
    assert made.status.restarts == 1


def test_the_back_off_of_restarts_holds_for_standbys() -> None:
    cluster = warm_cluster(backoffSeconds=8)
    for rank in (0, 1):
        cluster.kill_pod(next(p for p in cluster.living() if p.rank == rank))
        cluster.reconcile()
    # The second failure came without a new step: it waits, and the standby (made only while the job trains) is not there.
    assert len(cluster.status.promotions) == 1
    assert cluster.status.not_before == cluster.now + 8


def test_a_stage_with_nodes_of_its_own_is_not_had_from_a_standby() -> None:
    cluster = warm_cluster()
    cluster.spec = job_spec(2, recovery={"standby": 1}, placement={"stages": [{"stage": 1, "nodeSelector": {"gpu": "a"}}]})
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    assert cluster.reconcile().status.promotions == []


def test_one_on_another_node_is_preferred() -> None:
    cluster = warm_cluster(standbys=2)
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    pods = tuple(replace(pod, node="other") if pod.name == "sim-s-2" else pod for pod in cluster.look())
    assert cluster.plan(pods).status.promotions == [Promotion(pod="sim-s-2", rank=1, serial=2)]


def test_one_that_dies_again_and_again_waits_longer_and_longer_and_costs_nothing() -> None:
    cluster = warm_cluster(backoffSeconds=4)
    waits = []
    for serial in range(2, 6):
        cluster.kill_pod(next(p for p in cluster.living() if p.standby))
        died = cluster.now
        go(cluster, lambda serial=serial: f"sim-s-{serial}" in cluster.pods)  # type: ignore[misc]
        waits.append(round(cluster.now - died))
    assert waits == [0, 4, 8, 16]
    status = cluster.status
    assert (status.restarts, status.incidents, status.view and status.view.number, status.phase) == (0, [], 1, Phase.RUNNING)
    assert status.standbys[0].message == "standby sim-s-4 is gone: its agent ended with signal 9"
    go(cluster, lambda: cluster.status.warm_standbys == 1)
    assert (cluster.status.standbys[0].failures, cluster.status.standbys[0].message) == (0, None)


def test_one_that_is_to_be_made_later_is_due_although_nobody_will_tell_of_it() -> None:
    """On a cluster a job at which nothing changes is not looked at before something is due."""
    cluster = warm_cluster(backoffSeconds=4)
    for serial in (2, 3):
        cluster.kill_pod(next(p for p in cluster.living() if p.standby))
        go(cluster, lambda serial=serial: f"sim-s-{serial}" == cluster.status.standbys[0].pod)  # type: ignore[misc]
    later = cluster.status.standbys[0].not_before
    assert later is not None
    cluster.tick(0.5)
    assert cluster.plan().due_after == pytest.approx(later - cluster.now)


def test_one_that_does_not_get_warm_is_replaced() -> None:
    cluster = warm_cluster(startTimeoutSeconds=60)
    cluster.pods[FIRST].warm = False
    cluster.now += 61
    made = cluster.reconcile()
    assert made.status.standbys[0].message == f"standby {FIRST} was not warm within 60 s (recovery.startTimeoutSeconds)"
    assert DeletePod(FIRST, "it is no standby any more") in made.actions


def test_one_that_falls_silent_is_replaced_and_told_as_unreachable_until_then() -> None:
    cluster = warm_cluster()
    cluster.pods[FIRST].reachable = False
    cluster.tick(10)
    cluster.reconcile()
    assert cluster.status.standbys[0].state is StandbyState.UNREACHABLE
    cluster.tick(31)
    cluster.reconcile()
    assert [s.pod for s in cluster.status.standbys] == ["sim-s-2"]


def test_one_that_waits_for_a_node_is_no_news_of_the_job() -> None:
    cluster = warm_cluster()
    wait = PodWait("Unschedulable", "no node has room", cluster.now)

    def pods() -> tuple[PodObserved, ...]:
        return tuple(replace(p, phase=PodPhase.PENDING, agent=None, waits=wait) if p.name == FIRST else p for p in cluster.look())

    cluster.now += 10_000
    for pod in cluster.pods.values():
        pod.worker = pod.worker.model_copy(update={"heartbeat": cluster.now})
    made = cluster.reconcile(pods())
    assert made.status.message == "view 1 trains"
    assert not [c for c in made.status.conditions if c.type == "PodsWaiting"]
    assert (made.status.standbys[0].pod, made.status.standbys[0].message) == (FIRST, "Unschedulable: no node has room")


def test_fewer_are_wanted_and_the_warm_ones_stay() -> None:
    cluster = warm_cluster(standbys=3)
    cluster.pods[FIRST].warm = False
    cluster.spec = job_spec(2, recovery={"standby": 2})
    made = cluster.reconcile()
    assert [s.pod for s in made.status.standbys] == ["sim-s-2", "sim-s-3"]
    assert DeletePod(FIRST, "it is no standby any more") in made.actions


def test_a_claim_is_forgotten_when_its_pod_is_replaced_and_gone() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    runs_again(cluster, 2)
    gets_on(cluster)
    cluster.kill_pod(cluster.pods[FIRST])
    runs_again(cluster, 3)
    assert cluster.status.promotions == [Promotion(pod="sim-s-2", rank=1, serial=3)]


def test_labels_are_set_until_they_are() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    cluster.reconcile()
    for _ in range(2):
        made = cluster.plan()
        assert EnlistPod(FIRST, 1, 2) in made.actions
    cluster.apply(EnlistPod(FIRST, 1, 2))
    assert not [a for a in cluster.plan().actions if isinstance(a, EnlistPod)]


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_an_ended_job_has_none_whatever_is_kept_of_its_pods(policy: str) -> None:
    cluster = Cluster(job_spec(2, recovery={"standby": 1}, cleanPodPolicy=policy))
    go(cluster, lambda: cluster.status.phase is Phase.SUCCEEDED)
    cluster.reconcile()
    assert (cluster.status.standbys, cluster.status.warm_standbys) == ([], 0)
    assert FIRST not in cluster.pods
    assert bool(cluster.pods) is (policy == "None")


def test_a_suspended_job_has_none_and_gets_others_when_it_goes_on() -> None:
    cluster = warm_cluster()
    cluster.interrupted = True
    made = cluster.reconcile()
    assert DeletePod(FIRST, "the job is being suspended") in made.actions
    go(cluster, lambda: cluster.status.phase is Phase.SUSPENDED and not cluster.pods)
    assert cluster.status.standbys == []
    cluster.interrupted = False
    go(cluster, lambda: cluster.status.warm_standbys == 1)
    assert [s.pod for s in cluster.status.standbys] == ["sim-s-2"]


def test_a_deleted_job_has_none() -> None:
    cluster = warm_cluster()
    made = plan(replace(cluster.observed(), deleted=True), cluster.now)
    assert {a.name for a in made.actions if isinstance(a, DeletePod)} == set(cluster.pods)


def test_a_command_that_was_killed_leaves_none_and_names_the_pod_that_was_rank_0() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r0-1"])
    runs_again(cluster, 2)
    adopted = adopt(JobStatus.model_validate_json(cluster.status.to_json()), JOB, cluster.now)
    assert (adopted.standbys, adopted.warm_standbys, adopted.incidents[-1].pod) == ([], 0, FIRST)
    assert parse_pod_name(FIRST) == ("sim", None, 1)


def test_a_member_that_is_told_its_rank_twice_stays_what_it_is() -> None:
    cluster = warm_cluster()
    cluster.kill_pod(cluster.pods["sim-r1-1"])
    cluster.reconcile()
    cluster.apply(StartWorker(FIRST, 1, 1))
    assert cluster.pods[FIRST].worker.phase is WorkerPhase.STARTING
    assert cluster.starts.count((FIRST, 1)) == 1
