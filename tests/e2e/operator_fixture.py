"""An operator behind the proxy, for tests that count its calls or disturb them; its jobs come with volumes, and go."""

import copy
import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster.calls import Call
from cluster.faults import Rule
from cluster.images import BASE
from cluster.proxy import Proxy, in_thread
from cluster_fixture import Target
from operator_jobs import ClusterJob, OperatorProcess, define, wait_for


@dataclass(frozen=True)
class Watched:
    """An operator, and the proxy that all its calls go through."""

    target: Target
    own: Cluster
    proxy: Proxy
    process: OperatorProcess

    def writes(self, since: int, *jobs: ClusterJob) -> list[Call]:
        """Its writes for ``jobs`` from the ``since``-th call on (calls of other users do not pass the proxy)."""
        namespaces = {job.namespace for job in jobs}
        return [call for call in self.proxy.calls[since:] if call.write is not None and call.target.namespace in namespaces]

    @contextmanager
    def job(self, stages: int = 2) -> Iterator[ClusterJob]:
        """A small job that is not applied yet, in a namespace of its own."""
        environment = self.own.environment_mounts()
        trainer = {"name": "trainer", "env": environment.env, "volumeMounts": environment.volume_mounts}
        template = {"metadata": {"labels": {}}, "spec": {"volumes": environment.volumes, "containers": [trainer]}}
        made = ClusterJob(self.target, self.process, template)
        made.spec["pipeline"]["stages"] = stages
        try:
            made.volumes()
            yield made
        finally:
            made.remove()
            # One that no claim took would be taken by another job's.
            forget_volumes(self.target, made.namespace)


def forget_volumes(target: Target, namespace: str) -> None:
    """Delete the volumes that were made for the namespace's job."""
    volumes = [f"{name}-{namespace}" for name in ("data", "output", "late")]
    target.kubectl("delete", "persistentvolumes", *volumes, "--ignore-not-found", "--wait=false")


@contextmanager
def watched_operator(
    target: Target, own: Cluster, folder: Path, *, rules: Sequence[Rule] = (), seed: int = 0
) -> Iterator[Watched]:
    """An operator that runs until the end of the block."""
    define(target)
    with in_thread(Proxy.before(target.kubeconfig, rules=rules, seed=seed)) as proxy:
        process = OperatorProcess(proxy.kubeconfig(folder / "kubeconfig"), folder / "log", BASE)
        process.start()
        try:
            yield Watched(target, own, proxy, process)
        finally:
            process.kill(signal.SIGTERM)


def condition(job: ClusterJob, kind: str) -> dict[str, Any]:
    """A condition of the job; empty when there is none of this type."""
    return next((dict(c) for c in job.status.get("conditions", []) if c["type"] == kind), {})


def generation(job: ClusterJob) -> int:
    return int(job.get("lmj/tiny")["metadata"]["generation"])


def refusal(job: ClusterJob, **spec: Any) -> str:
    """What kubectl says when the job with these fields of its spec changed is applied, which must be refused.

    ``training={"seed": 1}`` changes one field of the part and leaves the others.
    """
    document = copy.deepcopy(job.document)
    for name, value in spec.items():
        part = document["spec"].get(name)
        document["spec"][name] = {**part, **value} if isinstance(part, dict) and isinstance(value, dict) else value
    command = [str(job.target.kubectl_program), f"--kubeconfig={job.target.kubeconfig}", "apply", "-f", "-"]
    done = subprocess.run(command, input=json.dumps(document), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0, f"{spec} was accepted: {done.stdout}"
    return done.stderr


def wait_until_followed(job: ClusterJob) -> None:
    """Until the operator has taken up the newest spec, in its status and in every condition."""

    def followed() -> bool:
        thing = job.get("lmj/tiny")
        status = thing.get("status") or {}
        told = [status.get("observedGeneration"), *(c.get("observedGeneration") for c in status.get("conditions", []))]
        return set(told) == {thing["metadata"]["generation"]}

    wait_for("the status of the newest spec", followed, job.describe, 30)


def wait_for_words(job: ClusterJob, words: str) -> None:
    """Until the job says that a pod waits because of what the kubelet says in these words."""

    def told() -> bool:
        found = condition(job, "PodsWaiting")
        return found.get("status") == "True" and words in found["message"]

    wait_for(f"the kubelet's words: {words}", told, job.describe, 90)


@pytest.fixture(scope="module")
def operator(
    request: pytest.FixtureRequest, cluster: Target, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    """One for each module that has none of its own."""
    name = str(request.module.__name__).rpartition(".")[2].removeprefix("test_")
    with watched_operator(cluster, own_cluster, tmp_path_factory.mktemp(name)) as running:
        yield running
