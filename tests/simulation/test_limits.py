"""Budgets and time-outs of the plan, on the fake cluster."""

from dataclasses import replace

import pytest
from planned import job_spec

from lmj_api.protocol import WorkerPhase
from lmj_api.status import JobStatus, Phase
from lmj_operator.plan import DeletePod, Observed, Plan, PodObserved, PodPhase, PodWait, StartWorker, plan

from .cluster import Cluster


def at_step(cluster: Cluster, step: int) -> None:
    for _ in range(100):
        cluster.reconcile()
        if cluster.status.progress is not None and cluster.status.progress.step >= step:
            return
        cluster.tick()
    raise AssertionError(f"step {step} is not reached: {cluster.status.message}")


def rest(cluster: Cluster, passes: int = 400) -> Plan:
    for _ in range(passes):
        made = cluster.reconcile()
        if made.wake_after is None:
            return made
        cluster.tick()
    raise AssertionError(f"the job does not come to rest: {cluster.status.message}")


def test_the_budget_ends_the_job_with_the_last_reason() -> None:
    cluster = Cluster(job_spec(2, recovery={"maxRestarts": 2, "backoffSeconds": 0}))
    for _ in range(3):
        at_step(cluster, 3)
        cluster.kill_worker(cluster.living()[0])
        cluster.reconcile()
        cluster.tick()
    rest(cluster)
    assert cluster.status.phase is Phase.FAILED
    assert (
        cluster.status.message
        == "worker 3 of sim-r0-1 killed by SIGKILL; given up because recovery.maxRestarts 2 is used up, the last 3 of them on step 4"
    )
    assert not cluster.pods
    assert cluster.status.finished is not None


def test_restarts_without_progress_wait_longer_and_longer() -> None:
    cluster = Cluster(job_spec(1, recovery={"backoffSeconds": 4, "workerRestarts": 10}))
    waits = []
    for _ in range(4):
        while not cluster.pods or cluster.living()[0].worker.phase is not WorkerPhase.READY:
            cluster.reconcile()
            cluster.tick()
        cluster.kill_worker(cluster.living()[0])
        died, started = cluster.now, len(cluster.starts)
        while len(cluster.starts) == started:
            cluster.reconcile()
            cluster.tick()
        waits.append(round(cluster.now - died) - 1)
    assert waits == [0, 4, 8, 16]


def test_a_failure_is_counted_once_although_the_operator_dies_between_status_and_action() -> None:
    cluster = Cluster(job_spec(2))
    at_step(cluster, 3)
    cluster.kill_worker(cluster.living()[1])
    for _ in range(3):
        cluster.reconcile(first=0)
    assert cluster.status.restarts == 1
    assert len(cluster.status.incidents) == 1
    made = cluster.reconcile()
    assert StartWorker("sim-r1-1", 2) in made.actions
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def test_a_hang_restarts_every_worker_once() -> None:
    cluster = Cluster(job_spec(2, recovery={"hangTimeoutSeconds": 60}))
    at_step(cluster, 3)
    cluster.now += 61
    made = cluster.reconcile()
    assert {a for a in made.actions if isinstance(a, StartWorker)} == {StartWorker("sim-r0-1", 2), StartWorker("sim-r1-1", 2)}
    assert [i.kind for i in made.status.incidents] == ["Hang"]
    assert made.status.restarts == 1
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def test_a_worker_that_does_not_start_is_restarted() -> None:
    cluster = Cluster(job_spec(1, recovery={"startTimeoutSeconds": 20}))
    cluster.reconcile()
    cluster.reconcile()
    cluster.now += 21
    made = cluster.reconcile()
    assert made.actions == (StartWorker("sim-r0-1", 2),)
    assert [i.kind for i in made.status.incidents] == ["StartTimeout"]


def test_an_agent_that_stays_silent_is_replaced() -> None:
    cluster = Cluster(job_spec(2), steps=1000)
    at_step(cluster, 3)
    cluster.pods["sim-r1-1"].reachable = False
    for _ in range(29):
        cluster.tick()
        cluster.reconcile()
    assert cluster.status.restarts == 0
    for _ in range(3):
        cluster.tick()
        cluster.reconcile()
    assert cluster.status.restarts == 1
    assert set(cluster.pods) == {"sim-r0-1", "sim-r1-2"}


def test_the_deadline_ends_the_job() -> None:
    cluster = Cluster(job_spec(1, activeDeadlineSeconds=30), steps=1000)
    assert rest(cluster).status.message == "active for longer than 30 s (activeDeadlineSeconds)"
    assert cluster.status.phase is Phase.FAILED


def test_a_broken_link_makes_one_view_and_counts_once() -> None:
    cluster = Cluster(job_spec(2))
    at_step(cluster, 7)
    cluster.break_link(cluster.pods["sim-r1-1"])
    rest(cluster)
    assert cluster.status.phase is Phase.SUCCEEDED
    assert [(i.kind, i.steps_lost) for i in cluster.status.incidents] == [("ViewDropped", 0)]
    assert cluster.status.view is not None
    assert cluster.status.view.number == 2
    assert cluster.starts == [("sim-r0-1", 1), ("sim-r1-1", 1)], "both kept their process"


@pytest.mark.parametrize("victim", ["worker", "pod"])
def test_no_death_after_completion_matters(victim: str) -> None:
    cluster = Cluster(job_spec(2), steps=6)
    while not cluster.exported:
        cluster.reconcile()
        cluster.tick()
    second = cluster.pods["sim-r1-1"]
    (cluster.kill_worker if victim == "worker" else cluster.kill_pod)(second)
    assert rest(cluster).status.phase is Phase.SUCCEEDED
    assert cluster.status.restarts == 0
    assert not cluster.living()


@pytest.mark.parametrize(("policy", "left"), [("All", 0), ("Running", 0), ("None", 2)])
def test_the_policy_says_which_pods_stay(policy: str, left: int) -> None:
    cluster = Cluster(job_spec(2, cleanPodPolicy=policy), steps=3)
    rest(cluster)
    assert len(cluster.pods) == left


def test_a_pod_of_an_unknown_rank_is_removed() -> None:
    parts = {"pipeline": {"stages": 1, "microBatches": 2}, "dataParallel": {"shards": 2, "replicas": 2}}
    cluster = Cluster(job_spec(1, **parts))
    for _ in range(2):  # rank 0's pod is made before the other's
        cluster.reconcile()
    cluster.scale(1)
    made = cluster.reconcile()
    assert DeletePod("sim-r1-1", "the job has no rank 1") in made.actions


def test_suspension_waits_for_the_last_checkpoint() -> None:
    cluster = Cluster(job_spec(2))
    at_step(cluster, 7)
    cluster.interrupted = True
    rest(cluster)
    assert cluster.status.phase is Phase.SUSPENDED
    assert cluster.checkpoints[-1] == 8
    assert cluster.status.message == "stopped; goes on from step 8"
    assert all(p.phase is PodPhase.RUNNING for p in cluster.look())


def test_a_pod_that_its_peers_lost_too_is_replaced_at_once() -> None:
    cluster = Cluster(job_spec(2))
    at_step(cluster, 7)
    cluster.cut_power(cluster.pods["sim-r1-1"])
    cut = cluster.now
    while "sim-r1-2" not in cluster.pods:
        cluster.tick()
        cluster.reconcile()
    assert cluster.now - cut <= 3
    [incident] = cluster.status.incidents
    assert incident.kind == "PodGone"
    assert incident.message == "the machine of sim-r1-1 takes no connection, and its peers lost it"
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def test_a_pod_that_its_peers_lost_gets_time_to_answer_while_its_machine_is_there() -> None:
    cluster = Cluster(job_spec(2))
    at_step(cluster, 7)
    pod = cluster.pods["sim-r1-1"]
    pod.reachable = False
    cluster.break_link(cluster.pods["sim-r0-1"])
    cluster.pods["sim-r0-1"].worker = cluster.pods["sim-r0-1"].worker.model_copy(update={"lost_rank": 1})
    for _ in range(3):
        cluster.tick()
        cluster.reconcile()
        assert "sim-r1-2" not in cluster.pods
    for _ in range(2):
        cluster.tick()
        cluster.reconcile()
    assert "sim-r1-2" in cluster.pods
    [incident] = cluster.status.incidents
    assert incident.message == "the agent of sim-r1-1 has not answered for 3 s, and its peers lost it"


def test_a_pod_that_its_peers_see_is_left_alone() -> None:
    cluster = Cluster(job_spec(2), steps=1000)
    at_step(cluster, 7)
    cluster.pods["sim-r1-1"].reachable = False
    for _ in range(20):
        cluster.tick()
        seen = tuple(replace(pod, dark=pod.agent is None) for pod in cluster.look())  # the operator's own network is cut
        assert cluster.reconcile(seen).actions == ()
    assert cluster.status.restarts == 0
    cluster.pods["sim-r1-1"].reachable = True
    cluster.tick()
    cluster.reconcile()
    assert cluster.status.phase is Phase.RUNNING


@pytest.mark.parametrize("ahead", [-10.0, 0.0, 0.05, 10.0])
def test_the_cause_of_a_view_that_was_left_may_show_whatever_the_agents_clocks_say(ahead: float) -> None:
    """Its peer is heard of before its own agent is: one failure, and not two."""
    cluster = Cluster(job_spec(2), steps=1000)
    cluster.ahead = {"node": ahead}
    at_step(cluster, 3)
    first, second = (cluster.pods[name] for name in ("sim-r0-1", "sim-r1-1"))
    running = second.worker
    cluster.break_link(first)
    for _ in range(3):
        cluster.now += 0.25
        second.worker = running
        cluster.reconcile()
        assert cluster.status.restarts == 0
    cluster.kill_worker(second)
    for _ in range(5):
        cluster.reconcile()
        cluster.tick()
    assert [i.kind for i in cluster.status.incidents] == ["WorkerExited"]


@pytest.mark.parametrize("ahead", [-20.0, 0.0, 20.0])
def test_the_last_ranks_may_say_that_they_completed_whatever_the_agents_clocks_say(ahead: float) -> None:
    cluster = Cluster(job_spec(2), steps=6)
    cluster.ahead = {"node": ahead}
    while not cluster.exported:
        cluster.reconcile()
        cluster.tick()
    cluster.pods["sim-r1-1"].worker = cluster.pods["sim-r1-1"].worker.model_copy(update={"phase": WorkerPhase.RUNNING})
    for _ in range(10):
        assert cluster.reconcile().status.phase is not Phase.SUCCEEDED
        cluster.now += 1.0
    assert cluster.reconcile().status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_pod_whose_start_is_kept_up_says_why_and_is_replaced_only_where_another_may_start(elsewhere: bool) -> None:
    spec = job_spec(1, recovery={"startTimeoutSeconds": 20})
    begun = plan(Observed("sim", spec, JobStatus()), 0.0).status
    wait = PodWait("FailedMount", "the disk is attached to another node", 0.0, elsewhere=elsewhere)
    pod = PodObserved("sim-r0-1", 0, 1, PodPhase.PENDING, 0.0, "node-1", waits=wait)
    late = plan(Observed("sim", spec, begun, (pod,)), 19.0).status
    told = next(c for c in late.conditions if c.type == "PodsWaiting")
    assert (told.status, told.reason) == ("True", "FailedMount")
    assert told.message == "pod sim-r0-1: the disk is attached to another node"
    assert late.incidents == []
    over = plan(Observed("sim", spec, late, (pod,)), 21.0).status
    assert [(i.kind, i.message) for i in over.incidents] == (
        [("StartTimeout", f"the agent of sim-r0-1 has not answered for 20 s (FailedMount: {wait.message})")] if elsewhere else []
    )
