"""A real cluster whose network does not enforce NetworkPolicies: jobs say so, and those that demand it start when it does."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

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
def default(operator: Watched) -> Iterator[ClusterJob]:
    with job_of(operator) as made:
        yield made


@pytest.fixture
def demanding(operator: Watched) -> Iterator[ClusterJob]:
    """It starts no worker where its policy is not enforced."""
    with job_of(operator) as made:
        made.spec["network"] = {"policy": "Required"}
        yield made


@contextmanager
def job_of(operator: Watched) -> Iterator[ClusterJob]:
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


def test_by_default_a_job_says_that_its_policy_is_not_enforced_and_with_required_it_starts_when_it_is(
    default: ClusterJob, demanding: ClusterJob, enforced: Cluster
) -> None:
    # At once: each of them waits for the network, not for a processor.
    for job in (default, demanding):
        job.apply()
    default.wait_for_step(5)
    for job in (default, demanding):
        wait_for("the condition", partial(is_told, job, "True"), job.describe, FOUND_SECONDS)
    found = condition(default, NOT_ENFORCED)
    assert found["reason"] == "PortReached"
    assert found["message"].startswith(f"the operator reached port {PORT} of tiny-r"), found
    assert NOT_ENFORCED in default.events()
    status = demanding.status
    assert status["phase"] == "Pending", demanding.describe()
    assert status["message"].startswith(f"network.policy is Required, and the operator reached port {PORT} of tiny-r"), status
    assert status.get("view") is None
    assert {rank["state"] for rank in status["ranks"]} == {"Starting"}, "no worker was started"

    for name in enforced.node_names():
        enforced.forbid(name, PORT)
    demanding.wait_for_phase("Running", seconds=NOTICED_SECONDS + 120)
    demanding.wait_for_step(5)
    assert is_told(demanding, "False"), demanding.describe()
    wait_for("the network to be trusted", lambda: is_told(default, "False"), default.describe, NOTICED_SECONDS)
    assert condition(default, NOT_ENFORCED)["reason"] == "PortClosed"
    assert default.status["restarts"] == 0, default.describe()
