"""A control plane without kubelets: etcd, an API server that keeps an audit log, the scheduler, and nodes faked by kwok."""

import json
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from cluster import packages
from cluster.api import Api
from cluster.binaries import Binaries, ensure_binaries
from cluster.controlplane import ControlPlane
from cluster.network import Network, choose_network
from cluster.pki import ADMIN, Pki, write_kubeconfig
from cluster.process import Process, wait_until

from lmj_api.schema import crd

NAMESPACE = "load"
CLAIM = "output"
OPERATOR = "operator"
PODS_A_NODE = 200

STAGES = Path(__file__).with_name("stages.yaml")
_SECONDS = 60.0
_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    # Its watches are long and end after the measurement: lists are what shows that they had to begin again.
    "rules": [{"level": "Metadata", "users": [OPERATOR]}, {"level": "None"}],
}


class AuditedControlPlane(ControlPlane):
    """As the test cluster's; its API server writes down the operator's calls, and its scheduler is not held back."""

    @property
    def audit(self) -> Path:
        """One JSON object a call of the operator."""
        return self.folder / "audit.log"

    def _environment(self, component: str) -> Mapping[str, str]:
        # What the server makes of jobs of a megabyte, a hundred thousand fields or ten thousand levels came to 10 GB before it was collected.
        return {"GOMEMLIMIT": "6GiB"} if component == "apiserver" else super()._environment(component)

    def _command(self, component: str, binaries: Binaries) -> Sequence[str | Path]:
        command = super()._command(component, binaries)
        if component == "apiserver":
            policy = self.folder / "audit.yaml"
            policy.write_text(yaml.safe_dump(_AUDIT))
            audit = [f"--audit-policy-file={policy}", f"--audit-log-path={self.audit}", "--audit-log-maxsize=4096"]
            # kwok's watches ask for what is there first. With an etcd that does not report progress (Debian's) the server would refuse them, and
            # kwok list all pods now and then instead.
            return [*command, *audit, "--feature-gates=WatchList=false"]
        if component == "scheduler":
            # 50 calls a second, its default, is two minutes for 4,000 pods.
            return [*command, "--kube-api-qps=1000", "--kube-api-burst=2000"]
        return command


class Plane:
    """Up while in a ``with`` block; nothing of it is left afterwards."""

    def __init__(self, nodes: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lmj-load-"))
        self._nodes = nodes
        self._kwok = Process("kwok", self.folder)
        self._network: Network | None = None
        self._parts: AuditedControlPlane | None = None

    def __enter__(self) -> "Plane":
        try:
            self._up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._kwok.stop()
        if self._parts is not None:
            self._parts.down()
        if self._network is not None:
            self._network.down()
        shutil.rmtree(self.folder)

    @property
    def kubeconfig(self) -> Path:
        """Of the operator."""
        return self.folder / "operator.kubeconfig"

    @property
    def admin(self) -> Path:
        """Of everything else."""
        assert self._parts is not None
        return self._parts.pki.kubeconfig(ADMIN)

    @property
    def audit(self) -> Path:
        """The operator's calls."""
        assert self._parts is not None
        return self._parts.audit

    def use(self) -> dict[str, float]:
        """CPU seconds of each part so far."""
        from operator_load.usage import cpu_seconds

        assert self._parts is not None
        parts = {name: self._parts.process(name) for name in ("etcd", "apiserver", "scheduler")} | {"kwok": self._kwok}
        return {name: cpu_seconds(pid) for name, process in parts.items() if (pid := process.pid()) is not None}

    def furnish(self, namespace: str) -> None:
        """Make a namespace with what the jobs in it need: an account for their pods, and the claim that they share."""
        api = Api(self.admin)
        api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        inside = f"/api/v1/namespaces/{namespace}"
        api.call("POST", f"{inside}/serviceaccounts", {"metadata": {"name": "default"}})
        bound = {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"}
        modes, size, volume = ["ReadWriteMany"], {"storage": "1Gi"}, f"{CLAIM}-{namespace}"
        claim: dict[str, Any] = {
            "metadata": {"name": CLAIM, "annotations": bound},
            "spec": {"accessModes": modes, "storageClassName": "", "volumeName": volume, "resources": {"requests": size}},
        }
        uid = api.call("POST", f"{inside}/persistentvolumeclaims", claim)["metadata"]["uid"]
        holder = {"kind": "PersistentVolumeClaim", "namespace": namespace, "name": CLAIM, "uid": uid}
        spec = {"accessModes": modes, "capacity": size, "hostPath": {"path": "/nowhere"}, "claimRef": holder}
        api.call("POST", "/api/v1/persistentvolumes", {"metadata": {"name": volume}, "spec": spec})
        state = {"status": {"phase": "Bound", "accessModes": modes, "capacity": size}}
        api.call("PATCH", f"{inside}/persistentvolumeclaims/{CLAIM}/status", state, "application/merge-patch+json")
        state = {"status": {"phase": "Bound"}}
        api.call("PATCH", f"/api/v1/persistentvolumes/{volume}/status", state, "application/merge-patch+json")

    def _up(self) -> None:
        packages.ensure(packages.CLUSTER)
        binaries = ensure_binaries()
        network = self._network = choose_network(f"load-{secrets.token_hex(3)}")
        pki = Pki(self.folder / "pki", f"https://{network.host}:6443")
        pki.make([network.host, network.api_service, "127.0.0.1"], [])
        self._let_in(pki)
        parts = self._parts = AuditedControlPlane(self.folder / "controlplane", network, pki)
        for component in ("etcd", "apiserver"):
            parts.start(component, binaries)
        api = Api(pki.kubeconfig(ADMIN))
        wait_until("the system's namespaces", lambda: _there(api, "/api/v1/namespaces/kube-system"), _SECONDS)
        self._furnish(api)
        parts.start("scheduler", binaries)
        self._kwok.start(
            [
                binaries.path("kwok"),
                f"--kubeconfig={pki.kubeconfig(ADMIN)}",
                f"--config={STAGES}",
                "--manage-all-nodes",
                f"--node-ip={network.host}",
                # Every address below 127 is this machine's own: the operator dials them, and one process answers for all.
                f"--cidr=127.{network.block}.128.0/17",
            ]
        )
        for number in range(self._nodes):
            api.call("POST", "/api/v1/nodes", _node(number))
        wait_until("the nodes", lambda: self._ready(api), _SECONDS, self._kwok.log, every=0.5)
        # The controllers would take this off a node that is ready.
        for number in range(self._nodes):
            patch = {"spec": {"taints": None}}
            api.call("PATCH", f"/api/v1/nodes/{_name(number)}", patch, "application/merge-patch+json")

    def _let_in(self, pki: Pki) -> None:
        token = secrets.token_hex(16)
        with (pki.folder / "tokens.csv").open("a") as tokens:
            tokens.write(f'{token},{OPERATOR},{OPERATOR},"system:masters"\n')
        write_kubeconfig(self.kubeconfig, pki.server, token, pki.ca)

    def _furnish(self, api: Api) -> None:
        """What jobs and pods need of the controllers, which do not run here."""
        api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd())
        self.furnish(NAMESPACE)
        jobs = "/apis/lmj.dev/v1alpha1/livemigrationjobs"
        wait_until("the jobs' resource", lambda: _there(api, jobs), _SECONDS)

    def _ready(self, api: Api) -> bool:
        self._kwok.check()
        nodes = api.get("/api/v1/nodes")["items"]
        return all(any(c["type"] == "Ready" and c["status"] == "True" for c in n["status"].get("conditions", [])) for n in nodes)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def python() -> str:
    """This interpreter."""
    return sys.executable


def _there(api: Api, path: str) -> bool:
    from cluster.api import ApiError

    try:
        return bool(json.dumps(api.get(path)))
    except ApiError:
        return False


def _name(number: int) -> str:
    return f"fake-{number:03d}"


def _node(number: int) -> dict[str, Any]:
    resources = {"cpu": "1k", "memory": "10Ti", "pods": str(PODS_A_NODE)}
    labels = {"kubernetes.io/hostname": _name(number), "kubernetes.io/os": "linux"}
    return {"metadata": {"name": _name(number), "labels": labels}, "status": {"allocatable": resources, "capacity": resources}}
