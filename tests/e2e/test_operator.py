"""The operator on a real cluster: workers, nodes and an operator that die, and jobs that cannot run.

That a job trains to its end there as it does here, and what is left of one that is deleted: see ``test_quickstart``.
"""

import signal
from collections.abc import Iterator

import pytest
from cluster import Cluster
from cluster.images import BASE
from cluster_fixture import Target
from operator_jobs import KILL_WORKERS, ClusterJob, OperatorProcess, define, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def operator(cluster: Target, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    define(cluster)
    process = OperatorProcess(cluster.kubeconfig, tmp_path_factory.mktemp("operator") / "log", BASE)
    process.start()
    yield process
    process.kill(signal.SIGTERM)


@pytest.fixture
def job(cluster: Target, own_cluster: Cluster, operator: OperatorProcess) -> Iterator[ClusterJob]:
    environment = own_cluster.environment_mounts()
    trainer = {"name": "trainer", "env": environment.env, "volumeMounts": environment.volume_mounts}
    made = ClusterJob(cluster, operator, {"spec": {"volumes": environment.volumes, "containers": [trainer]}})
    made.volumes()
    yield made
    made.remove()


def test_a_killed_worker_comes_back_and_a_killed_operator_is_not_missed(job: ClusterJob, operator: OperatorProcess) -> None:
    job.spec["training"]["maxSteps"] = 600
    job.apply()
    job.wait_for_step(50)
    said = job.kubectl("exec", "-n", job.namespace, "tiny-r1-1", "--", "python", "-c", KILL_WORKERS)
    assert said.startswith("killed")
    wait_for("the incident", lambda: bool(job.status["incidents"]), job.describe)
    job.wait_for_phase("Running")
    before = job.pods()
    operator.kill()
    operator.start()
    wait_for("a status from the new operator", lambda: job.step > 0 and bool(job.status["incidents"]), job.describe)
    at = job.step
    job.wait_for_step(at + 50)
    assert job.pods() == before
    job.wait_for_phase("Succeeded")
    status = job.status
    assert (status["restarts"], status["stepsLost"]) == (1, 0), job.describe()
    assert [incident["kind"] for incident in status["incidents"]] == ["WorkerExited"]
    assert status["serials"] == {"0": 1, "1": 1}
    assert sorted(job.losses()) == list(range(1, 601))


def test_what_cannot_run_says_so_once(job: ClusterJob) -> None:
    job.spec["dataset"]["label"] = "sentiment"
    job.apply()
    job.wait_for_phase("Failed")
    status = job.status
    assert "sentiment" in status["message"]
    assert status["restarts"] == 0
    assert job.events().count("Failed") == 1


def test_a_pod_that_no_node_takes_waits_and_says_why(job: ClusterJob) -> None:
    job.spec["placement"] = {"nodeSelector": {"no": "such-node"}}
    job.apply()

    def waits() -> bool:
        return any(c["type"] == "PodsWaiting" and c["reason"] == "Unschedulable" for c in job.status.get("conditions", []))

    wait_for("the condition", waits, job.describe)
    assert job.status["phase"] == "Pending"
    assert "Unschedulable" in job.status["message"]
    assert job.status["restarts"] == 0


def test_a_rule_sends_a_rank_to_another_node_and_its_pods_stay_away(job: ClusterJob) -> None:
    job.spec["training"]["maxSteps"] = 100_000
    job.spec["training"]["epochs"] = 100_000
    job.spec["recovery"] = {"rules": [{"exitCodes": [137], "action": "NextNode"}]}
    job.apply()
    job.wait_for_step(20)
    node = next(rank["node"] for rank in job.status["ranks"] if rank["rank"] == 1)
    job.kubectl("exec", "-n", job.namespace, "tiny-r1-1", "--", "python", "-c", KILL_WORKERS)
    wait_for("a pod elsewhere", lambda: "tiny-r1-2" in job.pods() and "tiny-r1-1" not in job.pods(), job.describe)
    job.wait_for_phase("Running")
    at = job.step
    job.wait_for_step(at + 20)
    status = job.status
    assert status["ranks"][1]["node"] != node
    assert [(n["node"], n["reason"]) for n in status["nodes"]] == [(node, "recovery.rules[0] (exit code 137)")]
    assert f"node {node} is avoided" in status["incidents"][0]["message"]
    assert status["restarts"] == 1


def test_a_node_without_power_loses_its_rank_and_no_pod_stays_stuck_there(job: ClusterJob, own_cluster: Cluster) -> None:
    job.spec["training"]["maxSteps"] = 100_000
    job.spec["training"]["epochs"] = 100_000
    job.spec["recovery"] = {"nodeGoneSeconds": 5}
    job.apply()
    job.wait_for_step(20)
    node = next(rank["node"] for rank in job.status["ranks"] if rank["rank"] == 1)
    own_cluster.power_cut(node)
    try:
        wait_for("a pod elsewhere", lambda: "tiny-r1-2" in job.pods() and "tiny-r1-1" not in job.pods(), job.describe)
        job.wait_for_phase("Running")
        at = job.step
        job.wait_for_step(at + 20)
        ranks = job.status["ranks"]
        assert ranks[1]["node"] != node
        assert [rank["pod"] for rank in ranks] == ["tiny-r0-1", "tiny-r1-2"]
        assert [incident["kind"] for incident in job.status["incidents"]] == ["PodGone"]
    finally:
        own_cluster.power_on(node)


@pytest.mark.slow
def test_with_a_replica_neither_a_deleted_pod_nor_a_node_without_power_costs_a_step(
    job: ClusterJob, own_cluster: Cluster
) -> None:
    job.spec["training"]["maxSteps"] = 100_000
    job.spec["training"]["epochs"] = 100_000
    job.spec["checkpoint"] = {"everySteps": 100_000}
    job.spec["recovery"] = {"hotStandby": True, "nodeGoneSeconds": 5}
    job.apply()

    def in_sync() -> bool:
        followers = job.status.get("followers", [])
        return len(followers) == 2 and all(f["state"] == "InSync" for f in followers)

    def taken_over(view: int, rank: int, pod: str) -> None:
        def holds() -> bool:
            now = job.status["view"]
            return now["number"] > view and now["members"][rank]["pod"] == pod

        wait_for(f"{pod} as rank {rank}", holds, job.describe)
        job.wait_for_phase("Running")
        at = job.step
        job.wait_for_step(at + 20)

    wait_for("two followers in sync", in_sync, job.describe)
    for rank in (0, 1):
        assert job.status["followers"][rank]["node"] != job.status["ranks"][rank]["node"]
    before = job.status
    job.kubectl("delete", "pod", "-n", job.namespace, before["ranks"][0]["pod"], "--grace-period=0", "--force")
    taken_over(before["view"]["number"], 0, before["followers"][0]["pod"])

    wait_for("two followers in sync", in_sync, job.describe)
    before = job.status
    node = before["ranks"][1]["node"]
    own_cluster.power_cut(node)
    try:
        taken_over(before["view"]["number"], 1, before["followers"][1]["pod"])
        status = job.status
        assert status["stepsLost"] == 0, job.describe()
        for incident in status["incidents"]:
            print(incident["message"], "|", incident["recovery"], "|", incident["seconds"], "s")
    finally:
        own_cluster.power_on(node)
    losses = job.losses()
    assert sorted(losses) == list(range(1, max(losses) + 1))
