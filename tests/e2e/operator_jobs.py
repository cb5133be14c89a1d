"""Jobs on a cluster: the operator as a process, a namespace for each test, and its volumes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from cluster_fixture import Target
from jobs import job_document, write_data

CRD = Path(__file__).parents[2] / "crds" / "lmj.dev_livemigrationjobs.yaml"
DEADLINE = 300.0
KINDS = "pods,services,networkpolicies,poddisruptionbudgets,livemigrationjobs"
KILL_WORKERS = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    if b"worker" in open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0"):
        os.kill(int(pid), signal.SIGKILL)
        print("killed", pid)
"""


def wait_for(what: str, holds: Callable[[], bool], describe: Callable[[], str], seconds: float = DEADLINE) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {seconds:g} s\n{describe()}")
        time.sleep(0.2)


def define(target: Target) -> None:
    """Have the cluster know jobs. (``kubectl wait`` fails at a definition that is so new that it has no conditions yet.)"""
    target.kubectl("apply", "--server-side", "-f", str(CRD))

    def established() -> bool:
        crd = json.loads(target.kubectl("get", "crd", "livemigrationjobs.lmj.dev", "-o", "json"))
        conditions = (crd.get("status") or {}).get("conditions") or []
        return any((c["type"], c["status"]) == ("Established", "True") for c in conditions)

    wait_for("the definition in force", established, lambda: str(CRD), 60)


class OperatorProcess:
    """The operator, outside of the cluster."""

    def __init__(self, kubeconfig: Path, log: Path, image: str, env: Mapping[str, str] | None = None) -> None:
        """``env``: beside this process's."""
        self._arguments = kubeconfig, log, image, env
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.listen = f"127.0.0.1:{free.getsockname()[1]}"
        self.log = log
        self._environment = {**os.environ, "KUBECONFIG": str(kubeconfig), **(env or {})}
        self._command = [sys.executable, "-m", "lmj_operator.cli.main", "operator", "--listen", self.listen]
        self._command += ["--trainer-image", image, "--image-pull-policy", "IfNotPresent", "--grace-seconds", "120"]
        self.keys = log.parent / "agent-keys"
        """Those of its twin too, and of each that comes after it."""
        self._command += ["--agent-keys", str(self.keys)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, env=self._environment, stdout=log, stderr=log)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)
            self._process = None

    def send(self, number: signal.Signals) -> None:
        """A signal after which it lives."""
        assert self._process is not None
        self._process.send_signal(number)

    def twin(self) -> "OperatorProcess":
        """Another one for the same cluster, with the same log; not started."""
        return OperatorProcess(*self._arguments)

    def said(self) -> str:
        """Its log."""
        return self.log.read_text()


class Operator(Protocol):
    """Whoever runs the jobs."""

    def said(self) -> str:
        """Its log."""
        ...


class ClusterJob:
    """A job in a namespace of its own: the small one, unless another document is given."""

    def __init__(
        self, target: Target, operator: Operator, template: dict[str, Any] | None, document: dict[str, Any] | None = None
    ) -> None:
        self.target, self.operator = target, operator
        self.namespace = f"lmj-{uuid.uuid4().hex[:8]}"
        self.kubectl("create", "namespace", self.namespace)
        self.document = document or job_document(Path("out"))
        self.name: str = self.document["metadata"]["name"]
        self.document["metadata"]["namespace"] = self.namespace
        self.spec: dict[str, Any] = self.document["spec"]
        if template is not None:
            self.spec["template"] = template
        self.output: Path | None = None

    def volumes(self) -> None:
        """A claim with the data, and a folder of this machine for the output."""
        own = self.target.own
        assert own is not None
        data = own.shared_volume(f"data-{self.namespace}", "1Gi")
        write_data(data / "data.csv")
        self.output = own.shared_volume(f"output-{self.namespace}", "2Gi")
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": self.namespace},
            "spec": {
                "accessModes": ["ReadOnlyMany"],
                "storageClassName": "shared",
                "volumeName": f"data-{self.namespace}",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        self.apply(claim)
        # Two gigabytes: no other volume of the class that is free is as large.
        self.spec["storage"] = {"output": {"size": "2Gi", "storageClassName": "shared"}, "data": {"claimName": "data"}}

    def apply(self, document: dict[str, Any] | None = None) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(document or self.document).encode())

    def kubectl(self, *arguments: str, stdin: bytes | None = None) -> str:
        return self.target.kubectl(*arguments, stdin=stdin)

    def secret(self, name: str, content: Mapping[str, str]) -> None:
        """Make a Secret in the job's namespace, or change the one that is there."""
        metadata = {"name": name, "namespace": self.namespace}
        self.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": dict(content)})

    def get(self, what: str) -> Any:
        return json.loads(self.kubectl("get", what, "-n", self.namespace, "-o", "json"))

    @property
    def status(self) -> dict[str, Any]:
        return dict(self.get(f"lmj/{self.name}").get("status") or {})

    @property
    def step(self) -> int:
        return int((self.status.get("progress") or {}).get("step", 0))

    def pods(self) -> dict[str, str]:
        """Name and uid of each."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.get("pods")["items"]}

    def events(self) -> list[str]:
        return [event["reason"] for event in self.get("events")["items"] if event["involvedObject"]["kind"] == "LiveMigrationJob"]

    def losses(self) -> dict[int, float]:
        assert self.output is not None
        file = self.output / self.spec["output"]["path"] / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return {line["step"]: line["loss"] for line in lines if line.get("loss") is not None}

    def wait_for_phase(self, *phases: str, seconds: float = DEADLINE) -> None:
        def there() -> bool:
            phase = self.status.get("phase")
            if phase == "Failed" and "Failed" not in phases:
                raise AssertionError(f"the job failed\n{self.describe()}")
            return phase in phases

        wait_for(f"phase {' or '.join(phases)}", there, self.describe, seconds)

    def wait_for_step(self, step: int) -> None:
        wait_for(f"step {step}", lambda: self.step >= step, self.describe)

    def left(self) -> list[str]:
        """What is there of the job (claims apart)."""
        found = self.kubectl("get", KINDS, "-n", self.namespace, "-o", "name").split()
        return [name for name in found if self.name in name]

    def wait_until_gone(self) -> None:
        wait_for("nothing left", lambda: not self.left(), lambda: f"left: {self.left()}\n{self.describe()}")

    def describe(self) -> str:
        """All that helps to see why."""
        parts = [self.kubectl("describe", "lmj,pods", "-n", self.namespace)]
        for name in self.pods():
            logs = subprocess.run(
                [str(self.target.kubectl_program), f"--kubeconfig={self.target.kubeconfig}", "logs", "-n", self.namespace, name],
                capture_output=True,
                text=True,
                check=False,
            )
            parts.append(f"--- {name}\n{(logs.stdout + logs.stderr)[-3000:]}")
        return "\n".join([*parts, f"--- operator\n{self.operator.said()[-5000:]}"])

    def remove(self) -> None:
        self.kubectl("delete", "namespace", self.namespace, "--wait=false")
