"""A real cluster whose network does not enforce NetworkPolicies: jobs say so, and those that demand it start when it does."""

from collections.abc import Iterator

import pytest
from cluster import Cluster
from operator_fixture import Watched, condition
from operator_jobs import ClusterJob, wait_for

from lmj_api.canary import PORT
from lmj_operator.backend.kubernetes.canaries import SETTLE_SECONDS, SOON_SECONDS
from lmj_operator.plan.report.conditions import NOT_ENFORCED

pytestmark = pytest.mark.e2e

FOUND_SECONDS = 60 + SETTLE_SECONDS
NOTICED_SECONDS = 60 + 2 * SOON_SECONDS
"""A pass is made every 30 s at least, and what is due then is knocked at."""


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    with operator.job() as made:
        made.spec["training"] |= {"maxSteps": 100_000, "epochs": 100_000}
        made.spec["checkpoint"] = {"everySteps": 100_000}
        yield made


@pytest.fixture
def enforced(own_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose nodes are healed in the end."""
    yield own_cluster
    for name in own_cluster.node_names():
        own_cluster.heal(name)


def is_told(job: ClusterJob, holds: str) -> bool:
    return condition(job, NOT_ENFORCED).get("status") == holds


def test_by_default_a_job_trains_and_says_that_its_policy_is_not_enforced(job: ClusterJob, enforced: Cluster) -> None:
    job.apply()
    job.wait_for_step(5)
    wait_for("the condition", lambda: is_told(job, "True"), job.describe, FOUND_SECONDS)
    found = condition(job, NOT_ENFORCED)
    assert found["reason"] == "PortReached"
    assert found["message"].startswith(f"the operator reached port {PORT} of tiny-r"), found
    assert NOT_ENFORCED in job.events()
    for name in enforced.node_names():
        enforced.forbid(name, PORT)
    wait_for("the network to be trusted", lambda: is_told(job, "False"), job.describe, NOTICED_SECONDS)
    assert condition(job, NOT_ENFORCED)["reason"] == "PortClosed"
    assert job.status["restarts"] == 0, job.describe()


def test_with_required_nothing_starts_until_it_is(job: ClusterJob, enforced: Cluster) -> None:
    job.spec["network"] = {"policy": "Required"}
    job.apply()
    wait_for("the condition", lambda: is_told(job, "True"), job.describe, FOUND_SECONDS)
    status = job.status
    assert status["phase"] == "Pending", job.describe()
    assert status["message"].startswith(f"network.policy is Required, and the operator reached port {PORT} of tiny-r"), status
    assert status.get("view") is None
    assert {rank["state"] for rank in status["ranks"]} == {"Starting"}, "no worker was started"
    for name in enforced.node_names():
        enforced.forbid(name, PORT)
    job.wait_for_phase("Running", seconds=NOTICED_SECONDS + 120)
    job.wait_for_step(5)
    assert is_told(job, "False"), job.describe()
