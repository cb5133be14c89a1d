"""The chart, installed with helm for a test: the operator is a pod, with the chart's rights and its own account."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import Cluster

CHECKOUT = Path(__file__).parents[2]
CHART = str(CHECKOUT / "charts" / "lmj")
NAMESPACE = "lmj-system"
CRD = "livemigrationjobs.lmj.dev"


@dataclass(frozen=True)
class Installed:
    """The release ``lmj``."""

    own: Cluster

    def said(self) -> str:
        """The operator's log."""
        return self.own.kubectl("--namespace", NAMESPACE, "logs", "deployment/lmj", "--tail=-1")

    def refused(self) -> list[str]:
        """What it was refused, as its log says. A kubelet may be, for a moment: it asks for a pod's claim before it is known to need it."""
        return [line for line in self.said().splitlines() if "forbidden" in line and "system:node:" not in line]


@contextmanager
def installed_chart(own: Cluster) -> Iterator[Installed]:
    """``helm install``; at the end nothing is left of it, the definition and all jobs included."""
    # One that was not helm's own would be in its way.
    _remove_definition(own)
    options = ("--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "120s")
    try:
        own.helm("install", "lmj", CHART, *options, seconds=150)
        yield Installed(own)
    finally:
        print(own.kubectl("--namespace", NAMESPACE, "describe", "pods"))
        operators = ("--selector", "app.kubernetes.io/component=operator")  # none when the test uninstalled it
        print(own.kubectl("--namespace", NAMESPACE, "logs", *operators, "--tail=50", "--ignore-errors"))
        own.helm("uninstall", "lmj", "--namespace", NAMESPACE, "--ignore-not-found", "--wait", seconds=150)
        _remove_definition(own)
        own.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=60s", seconds=90)


def _remove_definition(own: Cluster) -> None:
    own.kubectl("delete", "crd", CRD, "--ignore-not-found", "--timeout=60s", seconds=90)
