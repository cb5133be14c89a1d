"""Standbys on a real cluster: one takes the place of a pod that is deleted, and of one whose node has no power."""

from collections.abc import Iterator

import pytest
from cluster import Cluster
from operator_fixture import Watched
from operator_jobs import ClusterJob, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    """A job without end that has a warm standby, ``tiny-s-1``."""
    with operator.job() as made:
        made.spec["training"] |= {"maxSteps": 100_000, "epochs": 100_000}
        made.spec["recovery"] = {"standby": 1, "nodeGoneSeconds": 5}
        made.apply()
        wait_until_warm(made, "tiny-s-1")
        yield made


def wait_until_warm(job: ClusterJob, name: str) -> None:
    def warm() -> bool:
        return any(s["pod"] == name and s["state"] == "Warm" for s in job.status.get("standbys", []))

    wait_for(f"{name} is warm", warm, job.describe)


def goes_on_in(job: ClusterJob, pods: list[str], before: int) -> None:
    """Training goes on with ``pods`` as ranks, past the step ``before``."""
    wait_for(f"ranks in {pods}", lambda: [rank.get("pod") for rank in job.status["ranks"]] == pods, job.describe)
    job.wait_for_phase("Running")
    job.wait_for_step(before + 20)
    wait_for("the cost of the incident", lambda: job.status["incidents"][-1].get("seconds") is not None, job.describe)
    incident = job.status["incidents"][-1]
    assert incident["kind"] == "PodGone"
    assert "runs in the standby tiny-s-1 now" in incident["recovery"]
    print(f"{incident['message']}: {incident['seconds']:.2f} s to the next new step, {incident['stepsLost']} steps done again")


def labels(job: ClusterJob, pod: str) -> dict[str, str]:
    return dict(job.get(f"pod/{pod}")["metadata"]["labels"])


@pytest.mark.slow
def test_a_deleted_pod_costs_no_pod_start(job: ClusterJob) -> None:
    assert labels(job, "tiny-s-1")["lmj.dev/role"] == "standby"
    assert "lmj.dev/rank" not in labels(job, "tiny-s-1")
    budget = "poddisruptionbudget/tiny-trainers"
    wait_for("a budget of two ranks", lambda: job.get(budget)["status"].get("expectedPods") == 2, job.describe)
    before = job.step
    job.kubectl("delete", "pod", "-n", job.namespace, "tiny-r1-1", "--grace-period=0", "--force", "--wait=false")
    goes_on_in(job, ["tiny-r0-1", "tiny-s-1"], before)
    wait_for("its labels", lambda: labels(job, "tiny-s-1").get("lmj.dev/rank") == "1", job.describe)
    assert labels(job, "tiny-s-1")["lmj.dev/role"] == "member"
    assert "tiny-r1-2" not in job.pods()
    wait_until_warm(job, "tiny-s-2")
    wait_for("a budget of two ranks", lambda: job.get(budget)["status"].get("expectedPods") == 2, job.describe)
    assert job.kubectl("get", "lmj", "-n", job.namespace, "-o", "wide").splitlines()[0].split().count("STANDBYS") == 1
    job.kubectl("delete", "lmj", job.name, "-n", job.namespace)
    job.wait_until_gone()


@pytest.mark.slow
def test_a_node_without_power_costs_no_pod_start(job: ClusterJob, own_cluster: Cluster) -> None:
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in job.get("pods")["items"]}
    assert len(set(nodes.values())) == 3, "each has a node of its own"
    before = job.step
    own_cluster.power_cut(nodes["tiny-r1-1"])
    try:
        goes_on_in(job, ["tiny-r0-1", "tiny-s-1"], before)
        assert job.status["ranks"][1]["node"] == nodes["tiny-s-1"]
    finally:
        own_cluster.power_on(nodes["tiny-r1-1"])


@pytest.mark.slow
def test_an_operator_that_is_killed_as_a_pod_is_deleted_gives_the_standby_to_one_rank(job: ClusterJob, operator: Watched) -> None:
    before = job.step
    job.kubectl("delete", "pod", "-n", job.namespace, "tiny-r0-1", "--grace-period=0", "--force", "--wait=false")
    operator.process.kill()
    operator.process.start()
    goes_on_in(job, ["tiny-s-1", "tiny-r1-1"], before)
    assert job.status["promotions"] == [{"pod": "tiny-s-1", "rank": 0, "serial": 2}]
    assert job.status["restarts"] == 1
