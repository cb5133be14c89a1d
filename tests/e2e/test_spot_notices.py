"""A cloud takes a node away, and says so shortly before: ranks leave it in time. The cloud is a server at this machine's address."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest
from cluster import Cluster
from metadata_server import Metadata
from operator_fixture import Watched
from operator_jobs import ClusterJob, wait_for

from .undisturbed_fixture import Undisturbed

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

NOTICE_SECONDS = 30.0
"""What GCP and Azure give at least; AWS gives two minutes."""
STEPS = 2000
"""They take longer than that."""


@pytest.fixture
def clouds(own_cluster: Cluster) -> Iterator[Metadata]:
    """The metadata services of all nodes."""
    server = Metadata(own_cluster.host, own_cluster.node_names())
    yield server
    server.close()


@pytest.fixture
def job(operator: Watched, clouds: Metadata) -> Iterator[ClusterJob]:
    with operator.job() as made:
        trainer = made.spec["template"]["spec"]["containers"][0]
        node = {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        trainer["env"] = [*trainer["env"], node, {"name": "LMJ_METADATA_URL", "value": f"{clouds.address}/$(NODE)"}]
        made.spec["migration"] = {"spotNotices": "AWS"}
        made.spec["recovery"] = {"nodeGoneSeconds": 5}
        yield made


def test_a_rank_leaves_a_node_before_the_cloud_takes_it(
    job: ClusterJob, clouds: Metadata, own_cluster: Cluster, undisturbed_of: Callable[[int], Undisturbed]
) -> None:
    """Without a taint, a cordon or a signal: the node's power goes after 30 s, whatever runs there."""
    job.spec["training"]["maxSteps"] = STEPS
    job.apply()
    job.wait_for_step(20)
    node = next(rank["node"] for rank in job.status["ranks"] if rank["rank"] == 1)
    goes = time.time() + NOTICE_SECONDS
    at = datetime.fromtimestamp(goes, UTC).isoformat()
    clouds.machines[node].instance_action = {"action": "terminate", "time": at}

    def left() -> bool:
        ranks = job.status["ranks"]
        return all(rank.get("node") not in (None, node) for rank in ranks) and job.status["phase"] == "Running"

    wait_for(f"ranks off {node}", left, job.describe, NOTICE_SECONDS)
    print(f"off {node} {goes - time.time():.1f} s before it goes")
    try:
        time.sleep(max(0.0, goes - time.time()))
        own_cluster.power_cut(node)
        job.wait_for_phase("Succeeded")
    finally:
        own_cluster.power_on(node)
    status = job.status
    assert (status["stepsLost"], status["restarts"]) == (0, 0), job.describe()
    assert status["migrations"] >= 1
    told = [event["message"] for event in job.get("events")["items"] if event["reason"] == "Migrating"]
    why = f"rank 1 leaves {node} because node {node} is about to be taken away: EC2 is to terminate it at {at}"
    assert any(message.startswith(why) for message in told), told
    assert job.losses() == undisturbed_of(STEPS).job.losses()
