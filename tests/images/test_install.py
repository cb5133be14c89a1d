"""The chart, installed with the real image: the operator comes up, has its rights, does its work, and leaves no job stuck."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from chart_fixture import CHART, NAMESPACE, installed_chart
from cluster import Cluster
from cluster.process import wait_until

from images.build import CHECKOUT

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def installed(own_cluster: Cluster, operator_image: Path) -> Iterator[Cluster]:
    own_cluster.load_image(operator_image)
    with installed_chart(own_cluster):
        yield own_cluster


def phase(cluster: Cluster, name: str) -> str:
    return cluster.kubectl("get", "lmj", name, "--output", "jsonpath={.status.phase}")


def impossible(name: str) -> bytes:
    """A job that pods can't run (two stages without a shared volume): the operator has to say so, which takes a watch, a status and an event."""
    job = yaml.safe_load((CHECKOUT / "examples" / "quickstart.yaml").read_text())
    job["metadata"]["name"] = name
    job["spec"].pop("storage", None)
    return json.dumps(job).encode()


def log_of(cluster: Cluster) -> str:
    return cluster.kubectl("--namespace", NAMESPACE, "logs", "deployment/lmj", "--tail=-1")


def test_install_upgrade_and_uninstall(installed: Cluster) -> None:
    assert "Succeeded" in installed.helm("test", "lmj", "--namespace", NAMESPACE, "--timeout", "60s")

    installed.kubectl("apply", "--filename", "-", stdin=impossible("first"))
    wait_until("the operator's answer", lambda: phase(installed, "first") == "Failed", 30)
    assert "storage.output" in installed.kubectl("get", "lmj", "first", "--output", "jsonpath={.status.message}")
    wait_until("an event", lambda: "storage.output" in installed.kubectl("describe", "lmj", "first"), 30)
    assert "forbidden" not in log_of(installed)

    only = ("--set", "watch.namespaces={default}")
    installed.helm("upgrade", "lmj", CHART, "--namespace", NAMESPACE, "--wait", "--timeout", "120s", *only, seconds=150)
    assert "Succeeded" in installed.helm("test", "lmj", "--namespace", NAMESPACE, "--timeout", "60s")
    installed.kubectl("apply", "--filename", "-", stdin=impossible("second"))
    wait_until("the operator's answer, with fewer rights", lambda: phase(installed, "second") == "Failed", 30)
    assert "forbidden" not in log_of(installed)

    installed.helm("uninstall", "lmj", "--namespace", NAMESPACE, "--wait", seconds=150)
    # The definition and the jobs are kept, and a job goes when it is told to although no operator is there.
    assert phase(installed, "first") == "Failed"
    installed.kubectl("delete", "lmj", "first", "second", "--timeout=30s")


def test_a_right_that_is_missing_is_named(installed: Cluster) -> None:
    role = json.loads(installed.kubectl("get", "clusterrole", f"{NAMESPACE}-lmj", "--output", "json"))
    role["rules"] = [rule for rule in role["rules"] if rule["resources"] != ["pods"]]
    installed.kubectl("apply", "--filename", "-", stdin=json.dumps(role).encode())
    with pytest.raises(Exception, match="failed"):
        installed.helm("test", "lmj", "--namespace", NAMESPACE, "--timeout", "60s")
    assert "not allowed in the cluster: create pods" in installed.kubectl("--namespace", NAMESPACE, "logs", "lmj-test")
