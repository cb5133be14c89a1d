"""The chart, installed with the real image: the operator comes up, has its rights, does its work, and leaves no job stuck."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from chart_fixture import CHART, NAMESPACE, Installed, installed_chart
from cluster import Cluster
from cluster.admission import pods_with_environment
from cluster.process import wait_until
from cluster_fixture import Target
from operator_jobs import wait_for
from quickstart_jobs import quickstart_job

from images.build import CHECKOUT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def installed(own_cluster: Cluster, operator_image: Path) -> Iterator[Installed]:
    own_cluster.load_image(operator_image)
    with installed_chart(own_cluster) as made:
        yield made


def phase(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("get", "lmj", name, "--output", "jsonpath={.status.phase}")


def impossible(name: str) -> bytes:
    """A job that pods can't run (two stages without a shared volume): the operator has to say so, which takes a watch, a status and an event."""
    job = yaml.safe_load((CHECKOUT / "examples" / "quickstart.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"].pop("storage", None)
    return json.dumps(job).encode()


def test_install_upgrade_and_uninstall(installed: Installed) -> None:
    own = installed.own
    assert "Succeeded" in own.helm("test", "lmj", "--namespace", NAMESPACE, "--timeout", "60s")

    own.kubectl("apply", "--filename", "-", stdin=impossible("first"))
    wait_until("the operator's answer", lambda: phase(own, "first") == "Failed", 30)
    assert "storage.output" in own.kubectl("get", "lmj", "first", "--output", "jsonpath={.status.message}")
    wait_until("an event", lambda: "storage.output" in own.kubectl("describe", "lmj", "first"), 30)
    assert installed.refused() == []

    only = ("--set", "watch.namespaces={default}")
    own.helm("upgrade", "lmj", CHART, "--namespace", NAMESPACE, "--wait", "--timeout", "120s", *only, seconds=150)
    assert "Succeeded" in own.helm("test", "lmj", "--namespace", NAMESPACE, "--timeout", "60s")
    own.kubectl("apply", "--filename", "-", stdin=impossible("second"))
    wait_until("the operator's answer, with fewer rights", lambda: phase(own, "second") == "Failed", 30)
    assert installed.refused() == []

    own.helm("uninstall", "lmj", "--namespace", NAMESPACE, "--wait", seconds=150)
    # The definition and the jobs are kept, and a job goes when it is told to although no operator is there.
    assert phase(own, "first") == "Failed"
    own.kubectl("delete", "lmj", "first", "second", "--timeout=30s")


def test_the_quickstart_runs_to_its_end(installed: Installed, cluster: Target) -> None:
    """The trainer's image is tried on its own (it is too large for three nodes); here its pods run this checkout."""
    own = installed.own
    trainer = pods_with_environment(own.api, own.environment_mounts(), ["lmj-trainer"])
    with trainer, quickstart_job(cluster, installed, own) as job:
        job.apply_file()
        job.wait_for_phase("Succeeded", seconds=600)
        wait_for("the workload gone", lambda: job.left() == ["livemigrationjob.lmj.dev/quickstart"], job.describe)
        assert (job.results / "model" / "model.safetensors").is_file()
        assert installed.refused() == []


def test_a_right_that_is_missing_is_named(installed: Installed) -> None:
    own = installed.own
    role = json.loads(own.kubectl("get", "clusterrole", f"{NAMESPACE}-lmj", "--output", "json"))
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["pods"]]
    own.kubectl("apply", "--filename", "-", stdin=json.dumps(role).encode())
    with pytest.raises(Exception, match="failed"):
        own.helm("test", "lmj", "--namespace", NAMESPACE, "--timeout", "60s")
    assert "not allowed in the cluster: create pods" in own.kubectl("--namespace", NAMESPACE, "logs", "lmj-test")
