"""Ranks behind relays on a real cluster whose network keeps nobody out: who reaches their ports gets nothing, and ranks move."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import port_attacker
import pytest
from cluster import Cluster
from cluster.images import BASE
from operator_fixture import Watched
from operator_jobs import DEADLINE, ClusterJob, wait_for

import lmj
from lmj_operator.backend.kubernetes.labels import AGENT_PORT, OUTPUT, RELAY_PORT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

RAN = "ran"
"""A file beside the results: somebody's code ran in a rank's pod."""


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    with operator.job() as made:
        made.spec["network"] = {"encryption": "Required"}
        made.spec["training"] |= {"maxSteps": 100_000, "epochs": 100_000}
        made.spec["checkpoint"] = {"everySteps": 100_000}
        made.apply()
        made.wait_for_step(20)
        yield made


def impostor(job: ClusterJob, own: Cluster, addresses: list[str]) -> dict[str, Any]:
    """A pod with the labels of a rank's, that attacks what listens at ``addresses``."""
    mounts = own.environment_mounts()
    pod = job.get("pod/tiny-r1-1")
    python = pod["spec"]["containers"][0]["command"][0]
    container = {
        "name": "attacker",
        "image": BASE,
        "command": [python, "-c", Path(port_attacker.__file__).read_text(), f"{OUTPUT}/{RAN}", *addresses],
        "env": mounts.env,
        "volumeMounts": mounts.volume_mounts,
    }
    spec = {"restartPolicy": "Never", "containers": [container], "volumes": mounts.volumes}
    metadata = {"name": "tiny-r1-7", "namespace": job.namespace, "labels": pod["metadata"]["labels"]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def test_every_account_of_a_cluster_may_read_the_keys_of_its_tokens(job: ClusterJob) -> None:
    """By a role that Kubernetes itself binds: the chart needs none for it."""
    account = ["--as", f"system:serviceaccount:{job.namespace}:anybody", "--as-group", "system:serviceaccounts"]
    assert job.kubectl("auth", "can-i", "get", "/openid/v1/jwks", *account).strip() == "yes"
    assert json.loads(job.kubectl("get", "--raw", "/openid/v1/jwks", *account))["keys"]


def test_a_pod_with_the_job_s_labels_that_reaches_all_ports_gets_nothing(
    job: ClusterJob, operator: Watched, own_cluster: Cluster
) -> None:
    addresses = [pod["status"]["podIP"] for pod in job.get("pods")["items"]]
    assert len(addresses) == 2
    job.apply(impostor(job, own_cluster, addresses))
    uid = job.pods()["tiny-r1-7"]

    def is_over() -> bool:
        return job.get("pod/tiny-r1-7")["status"]["phase"] in ("Succeeded", "Failed")

    wait_for("the end of the attack", is_over, job.describe)
    said = job.kubectl("logs", "tiny-r1-7", "-n", job.namespace)
    assert job.get("pod/tiny-r1-7")["status"]["phase"] == "Succeeded", said
    found: dict[str, dict[str, list[str]]] = json.loads(said)
    for address in addresses:
        answers = {int(port): [bytes.fromhex(text) for text in texts] for port, texts in found[address].items()}
        print(address, {port: [len(text) for text in texts] for port, texts in answers.items()})
        assert {AGENT_PORT, RELAY_PORT} <= set(answers)
        # As a listener of TensorPipe answers, whatever is said to it: where it is.
        assert not [port for port, texts in answers.items() if any(b"127.0.0.1:" in text for text in texts)]
        # An agent speaks to nobody in the clear, and inside TLS it does nothing without a signature.
        clear, inside = answers[AGENT_PORT][: len(answers[AGENT_PORT]) // 2], answers[AGENT_PORT][len(answers[AGENT_PORT]) // 2 :]
        assert not [text for text in clear if text.startswith(b"HTTP/")]
        heads = {text.partition(b"\r\n")[0] for text in inside if text}
        assert heads <= {b"HTTP/1.1 400 Bad Request", b"HTTP/1.0 400 Bad Request", b"HTTP/1.1 401 Unauthorized"}, heads
        assert b"HTTP/1.1 401 Unauthorized" in heads
    assert job.output is not None
    assert not (job.output / RAN).exists()
    status = job.status
    assert (status["phase"], status["restarts"], status["incidents"], status["view"]["number"]) == ("Running", 0, [], 1), status
    job.wait_for_step(job.step + 20)

    with lmj.Client(kubeconfig=operator.target.kubeconfig, namespace=job.namespace) as client:
        for rank in (1, 0):
            assert client.migrate(job.name, [rank], timeout=DEADLINE).status.steps_lost == 0
    job.wait_for_step(job.step + 20)
    assert (job.status["restarts"], job.status["migrations"]) == (0, 2), job.describe()
    losses = job.losses()
    assert sorted(losses) == list(range(1, max(losses) + 1))
    assert job.pods()["tiny-r1-7"] == uid, "a pod that is not the job's is nobody's business"
