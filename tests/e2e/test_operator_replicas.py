"""Replicas on a real cluster: scaled by kubectl, drained, without power, without room."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from operator_fixture import Watched
from operator_jobs import ClusterJob, wait_for
from test_migration import drained
from test_replicas import SHARDS, Replicated

pytestmark = pytest.mark.e2e

ENDLESS = {"maxSteps": 100_000, "epochs": 100_000, "schedule": "Constant", "warmupRatio": 0}


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    """A job of two replicas without end, not applied yet."""
    with operator.job(stages=1) as made:
        made.spec["pipeline"]["microBatches"] = SHARDS
        made.spec["dataParallel"] = {"shards": SHARDS, "replicas": 2}
        made.spec["training"] |= ENDLESS
        made.spec["checkpoint"] = {"everySteps": 100_000}
        made.spec["recovery"] = {"nodeGoneSeconds": 5}
        yield made


def wait_until(job: ClusterJob, replicas: int, *members: int) -> None:
    """Until so many train, and go on; with ``members``: these ranks."""

    def train() -> bool:
        status = job.status
        ranks = [m["rank"] for m in (status.get("view") or {}).get("members", [])]
        return status.get("phase") == "Running" and status.get("replicas") == replicas and ranks == list(members or ranks)

    wait_for(f"{replicas} replicas", train, job.describe)
    job.wait_for_step(job.step + 10)


def assert_as_one(job: ClusterJob, folder: Path) -> None:
    """No step is lost, and the losses so far are those of one replica on this machine."""
    assert job.status["stepsLost"] == 0, job.describe()
    losses = job.losses()
    assert sorted(losses) == list(range(1, max(losses) + 1))
    alone = Replicated(folder)
    sets = [f"training.maxSteps={max(losses)}", "training.epochs=100000", "training.schedule=Constant", "training.warmupRatio=0"]
    done = alone.run("--plain", *(word for text in sets for word in ("--set", text)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses == alone.losses()


@pytest.mark.slow
def test_kubectl_scales_and_drains_a_job_that_trains(job: ClusterJob, tmp_path: Path) -> None:
    job.apply()
    wait_until(job, 2)
    for replicas in (3, 2):
        job.kubectl("scale", f"lmj/{job.name}", "-n", job.namespace, f"--replicas={replicas}")
        wait_until(job, replicas)
        assert job.kubectl("get", f"lmj/{job.name}", "-n", job.namespace, "-o", "jsonpath={.status.replicas}") == str(replicas)
    assert sorted(job.pods()) == ["tiny-r0-1", "tiny-r1-1"]
    assert (job.status["restarts"], [i["kind"] for i in job.status["incidents"]]) == (0, ["Scaled", "Scaled"])
    node = job.status["ranks"][1]["node"]
    with drained(job, node) as end:
        moves(job, 1, node)
        assert "drained" in end()
    wait_until(job, 2)
    assert job.status["restarts"] == 0
    assert_as_one(job, tmp_path)


def moves(job: ClusterJob, rank: int, node: str) -> None:
    """Until ``rank`` runs on another node."""
    wait_for("another node", lambda: job.status["ranks"][rank]["node"] not in (node, None), job.describe)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_without_power_takes_one_replica(job: ClusterJob, own_cluster: Cluster, tmp_path: Path, rank: int) -> None:
    job.apply()
    wait_until(job, 2)
    ranks = job.status["ranks"]
    node = ranks[rank]["node"]
    assert node != ranks[1 - rank]["node"], "replicas are spread over nodes"
    own_cluster.power_cut(node)
    try:
        wait_until(job, 1, 1 - rank)
        incident = job.status["incidents"][-1]
        print(incident["message"], "|", incident["recovery"], "|", incident["seconds"], "s")
        wait_until(job, 2)
    finally:
        own_cluster.power_on(node)
    assert job.status["ranks"][rank]["node"] != node
    assert_as_one(job, tmp_path)


@pytest.mark.slow
def test_a_replica_that_finds_no_room_is_not_waited_for(job: ClusterJob, own_cluster: Cluster) -> None:
    here = {"labelSelector": {"matchLabels": {"lmj.dev/job": job.name}}, "topologyKey": "kubernetes.io/hostname"}
    job.spec["template"]["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [here]}}
    job.spec["dataParallel"]["replicas"] = 4
    job.apply()
    wait_until(job, 3)
    told: Callable[[], bool] = lambda: any(c["type"] == "PodsWaiting" and c["status"] == "True" for c in job.status["conditions"])  # noqa: E731
    wait_for("the condition", told, job.describe)
    job.kubectl("scale", f"lmj/{job.name}", "-n", job.namespace, "--replicas=3")
    wait_for("no pod that waits", lambda: len(job.pods()) == 3, job.describe)
    wait_until(job, 3)
    assert job.status["restarts"] == 0
