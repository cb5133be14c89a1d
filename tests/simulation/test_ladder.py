"""The failure ladder on the fake cluster: worker, pod, node, and the user's rules."""

import pytest
from planned import job_spec

from lmj_api.protocol import CUT_OFF, Exit, WorkerPhase
from lmj_api.status import Phase
from lmj_operator.plan import CreatePod

from .cluster import Cluster
from .pod import Pod
from .test_limits import at_step, rest


def made(recovery: dict[str, object], nodes: tuple[str, ...] = ("a", "b"), ranks: int = 2) -> Cluster:
    return Cluster(job_spec(ranks, recovery={"backoffSeconds": 0, **recovery}), nodes=nodes)


def running(cluster: Cluster) -> None:
    """Until a view runs, before it has made a step."""
    for _ in range(100):
        cluster.reconcile()
        if all(p.worker.phase is WorkerPhase.READY for p in cluster.living() if p.node) and len(cluster.living()) > 1:
            return
        cluster.tick()
    raise AssertionError(cluster.status.message)


def fail(cluster: Cluster, rank: int, code: int = -9, message: str = "killed by SIGKILL", *stderr: str) -> None:
    """The worker of ``rank`` ends, and the operator looks."""
    pod = pod_of(cluster, rank)
    cluster._exit(pod, code, message)
    pod.worker = pod.worker.model_copy(update={"exit": Exit(code=code, message=message, stderr=list(stderr))})
    cluster.reconcile()


def pod_of(cluster: Cluster, rank: int) -> Pod:
    return max((p for p in cluster.living() if p.rank == rank), key=lambda p: p.serial)


def test_a_worker_that_dies_again_and_again_costs_its_pod() -> None:
    cluster = made({"workerRestarts": 2, "avoidNode": {"failures": 100}})
    at_step(cluster, 3)
    seen = []
    for _ in range(6):
        fail(cluster, 1)
        cluster.reconcile()
        seen.append((pod_of(cluster, 1).name, cluster.status.ranks[1].worker_restarts))
        running(cluster)
    pods = ["sim-r1-1", "sim-r1-1", "sim-r1-2", "sim-r1-2", "sim-r1-2", "sim-r1-3"]
    assert seen == list(zip(pods, [1, 2, 0, 1, 2, 0], strict=True))
    told = [i.message for i in cluster.status.incidents]
    why = "the pod is replaced because 2 restarts of its worker brought no new step (recovery.workerRestarts 2)"
    assert told[2] == f"worker 3 of sim-r1-1 killed by SIGKILL; {why}"
    assert cluster.status.restarts == 6
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def test_a_new_step_begins_the_row_anew_for_all() -> None:
    cluster = made({"workerRestarts": 1, "avoidNode": {"failures": 100}})
    for step in (3, 6, 9):
        at_step(cluster, step)
        fail(cluster, 0)
        running(cluster)
        fail(cluster, 1)
        running(cluster)
    assert {p.serial for p in cluster.living()} == {1}
    fail(cluster, 0)
    cluster.reconcile()
    assert pod_of(cluster, 0).serial == 2


def test_nought_replaces_the_pod_at_once() -> None:
    cluster = made({"workerRestarts": 0})
    at_step(cluster, 3)
    fail(cluster, 1)
    cluster.reconcile()
    assert pod_of(cluster, 1).serial == 2


def cut_off(cluster: Cluster, rank: int) -> None:
    """A peer died before it had greeted the worker of ``rank``, to which nobody can connect since then."""
    fail(cluster, rank, CUT_OFF, "nobody can connect to this worker any more")


def test_who_is_cut_off_by_a_death_costs_no_restart_of_its_own() -> None:
    cluster = made({"maxRestarts": 3, "workerRestarts": 9, "avoidNode": {"failures": 1}})
    at_step(cluster, 3)
    for restarts in (1, 2, 3):
        fail(cluster, 1)
        row = cluster.status.restarts_without_progress
        cut_off(cluster, 0)
        assert "not counted as a restart" in cluster.status.message
        assert (cluster.status.restarts, cluster.status.restarts_without_progress) == (restarts, row)
        running(cluster)
        cluster.reconcile()
        cluster.tick()
        cluster.reconcile()
        assert cluster.status.phase is Phase.RUNNING
    assert [i.rank for i in cluster.status.incidents] == [1, 0] * 3
    assert {node.node for node in cluster.status.nodes} == {"b"}, "it says nothing of the node of rank 0"
    assert pod_of(cluster, 0).worker.incarnation == 4
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def test_who_is_cut_off_again_and_again_ends_the_budget() -> None:
    cluster = made({"maxRestarts": 3, "workerRestarts": 9, "avoidNode": {"failures": 9}})
    at_step(cluster, 3)
    cut_off(cluster, 0)
    assert cluster.status.restarts == 1, "no failure of another explains it"
    for restarts in (2, 3):
        cut_off(cluster, 0)
        assert cluster.status.restarts == restarts, "one failure explains it once"
    cut_off(cluster, 0)
    assert cluster.status.phase is Phase.FAILED


def test_who_is_cut_off_waits_for_what_its_cause_waits() -> None:
    cluster = made({"backoffSeconds": 8, "workerRestarts": 9, "avoidNode": {"failures": 9}})
    at_step(cluster, 3)
    fail(cluster, 1)
    running(cluster)
    fail(cluster, 1)
    waits = cluster.status.not_before
    assert waits is not None
    assert waits > cluster.now
    cut_off(cluster, 0)
    assert cluster.status.not_before == waits


def test_a_node_on_which_all_fails_is_avoided_and_an_operator_that_starts_anew_knows_it() -> None:
    cluster = made({"workerRestarts": 1, "avoidNode": {"failures": 2, "withinSeconds": 100}})
    at_step(cluster, 3)
    assert pod_of(cluster, 1).node == "b"
    fail(cluster, 1)
    assert cluster.status.nodes[0].avoided_since is None
    running(cluster)
    # The operator dies before it acts: what it stored is all that its successor has.
    pod = pod_of(cluster, 1)
    cluster.kill_worker(pod)
    cluster.reconcile(first=0)
    made_by_successor = cluster.reconcile()
    assert CreatePod(1, 2, ("b",)) in made_by_successor.actions
    assert "not on b" in str(CreatePod(1, 2, ("b",)))
    assert pod_of(cluster, 1).node == "a"
    [bad] = cluster.status.nodes
    assert (bad.node, len(bad.times), bad.avoided_since is not None) == ("b", 2, True)
    assert "node b is avoided: 2 failures there in " in cluster.status.incidents[-1].message
    assert rest(cluster).status.phase is Phase.SUCCEEDED


def test_failures_long_ago_or_with_steps_between_do_not_count() -> None:
    cluster = made({"avoidNode": {"failures": 2, "withinSeconds": 50}}, ranks=2)
    at_step(cluster, 3)
    fail(cluster, 1)
    at_step(cluster, 6)
    fail(cluster, 1)
    assert len(cluster.status.nodes[0].times) == 1, "steps were made in between"
    running(cluster)
    cluster.now += 51
    fail(cluster, 1)
    assert len(cluster.status.nodes[0].times) == 1, "the one before was too long ago"
    assert cluster.status.nodes[0].avoided_since is None


def test_one_machine_has_no_node_to_avoid() -> None:
    cluster = made({"workerRestarts": 0, "avoidNode": {"failures": 1}}, nodes=("localhost",))
    at_step(cluster, 3)
    fail(cluster, 1)
    assert cluster.status.nodes == []
    assert rest(cluster).status.phase is Phase.SUCCEEDED


@pytest.mark.parametrize("early", [0.0, 0.9, 9.0])
def test_when_no_other_node_takes_the_pod_a_bad_one_does(early: float) -> None:
    """``early``: the API server says when a pod was made, in whole seconds and by its own clock."""
    cluster = made({"workerRestarts": 0, "avoidNode": {"failures": 1, "fallbackSeconds": 20}}, nodes=("a", "b"))
    at_step(cluster, 3)
    fail(cluster, 0)
    cluster.reconcile()
    running(cluster)
    fail(cluster, 1)
    cluster.reconcile()
    assert [n.node for n in cluster.status.nodes if n.avoided_since is not None] == ["a", "b"]
    assert pod_of(cluster, 1).node is None
    pod_of(cluster, 1).created -= early
    while pod_of(cluster, 0).node is None or pod_of(cluster, 1).node is None:
        cluster.tick()
        cluster.reconcile()
        assert cluster.now < 1_000_100, cluster.status.message
    restarts = cluster.status.restarts
    assert not any(n.avoided_since for n in cluster.status.nodes)
    assert rest(cluster).status.phase is Phase.SUCCEEDED
    assert cluster.status.restarts == restarts, "a pod that no node took is nobody's failure"


def test_a_rule_ends_the_job_at_once() -> None:
    cluster = made({"rules": [{"logPattern": "disk quota", "action": "Fail"}]})
    at_step(cluster, 3)
    fail(cluster, 1, 1, "ValueError", "OSError: disk quota exceeded", "ValueError")
    assert cluster.status.phase is Phase.FAILED
    assert cluster.status.message == (
        "worker 1 of sim-r1-1 ended with exit code 1: ValueError; Fail by recovery.rules[0] (/disk quota/)"
    )
    assert cluster.status.restarts == 0


def test_a_rule_restarts_a_users_error() -> None:
    cluster = made({"rules": [{"exitCodes": [2], "action": "Retry"}]})
    at_step(cluster, 3)
    fail(cluster, 1, 2, "the share with the data was not there")
    assert cluster.status.phase is Phase.RECOVERING
    assert cluster.status.incidents[-1].message == (
        "the share with the data was not there; Retry by recovery.rules[0] (exit code 2)"
    )
    assert cluster.starts[-1] == ("sim-r1-1", 2)
    assert rest(cluster).status.phase is Phase.SUCCEEDED
    assert cluster.status.restarts == 1


@pytest.mark.parametrize("what", ["worker", "pod"])
def test_a_rule_sends_to_the_next_node(what: str) -> None:
    cluster = made({"rules": [{"exitCodes": [137], "action": "NextNode"}]})
    at_step(cluster, 3)
    if what == "worker":
        fail(cluster, 1)
    else:
        cluster.kill_pod(pod_of(cluster, 1))
        cluster.reconcile()
    cluster.reconcile()
    assert pod_of(cluster, 1).name == "sim-r1-2"
    assert pod_of(cluster, 1).node == "a"
    assert cluster.status.nodes[0].reason == "recovery.rules[0] (exit code 137)"
    assert "node b is avoided: recovery.rules[0] (exit code 137)" in cluster.status.incidents[-1].message
    assert rest(cluster).status.phase is Phase.SUCCEEDED
