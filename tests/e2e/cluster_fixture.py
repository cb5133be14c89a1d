"""The ``cluster`` of the end-to-end tests: a conftest imports it. One for the whole session.

``$KUBECONFIG`` names a cluster to use (kind, minikube, a cloud's); without it one is started where root and Go are
there, and removed at the end.
Tests that cut power or need this checkout inside pods ask for ``own_cluster``, which is never a foreign one.
"""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cluster import Cluster, Unavailable
from cluster.cluster import sweep

NODES = 3


@dataclass(frozen=True)
class Target:
    """A cluster to test on. ``own`` is the handle of the one started here, None for a foreign one."""

    kubeconfig: Path
    own: Cluster | None
    kubectl_program: Path

    def kubectl(self, *arguments: str, stdin: bytes | None = None, seconds: float = 60) -> str:
        """Output of kubectl. Raises CalledProcessError when it fails."""
        command = [str(self.kubectl_program), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(command, input=stdin, check=True, timeout=seconds, stdout=subprocess.PIPE).stdout.decode()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Target]:
    """The one that ``$KUBECONFIG`` names, else our own; skips with the plain reason where there is neither."""
    given = os.environ.get("KUBECONFIG")
    if given:
        yield Target(Path(given), None, Path("kubectl"))
        return
    sweep()
    own = Cluster(f"test-{os.getpid()}")
    try:
        own.up(NODES, owned=True)
        yield Target(own.kubeconfig, own, own.binaries().path("kubectl"))
    except Unavailable as reason:
        pytest.skip(f"no cluster here: {reason}")
    finally:
        own.down()


@pytest.fixture(scope="session")
def own_cluster(cluster: Target) -> Cluster:
    """The cluster started here; skips when the tests run on a foreign one."""
    if cluster.own is None:
        pytest.skip("needs this project's own cluster, and KUBECONFIG names another")
    return cluster.own
