"""The control plane: etcd, the API server, the controllers, the scheduler and DNS, as processes of this machine."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.api import Api
from cluster.binaries import Binaries
from cluster.errors import ClusterError
from cluster.network import Network
from cluster.pki import ADMIN, CONTROLLER_MANAGER, DNS, SCHEDULER, Pki
from cluster.process import Process, wait_until

API_PORT = 6443
COMPONENTS = ("etcd", "apiserver", "controller-manager", "scheduler", "dns")
"""In the order in which they are started."""


@dataclass(frozen=True)
class ControlPlane:
    """State, logs and pids are in ``folder``."""

    folder: Path
    network: Network
    pki: Pki

    def process(self, component: str) -> Process:
        """Of one of COMPONENTS. Raises ClusterError for another name."""
        if component not in COMPONENTS:
            raise ClusterError(f"there is no component {component!r} (components: {', '.join(COMPONENTS)})")
        return Process(component, self.folder)

    def up(self, binaries: Binaries) -> None:
        """Start what does not run; returns when the API server is ready. The others catch up by themselves."""
        for component in COMPONENTS:
            self.start(component, binaries)

    def start(self, component: str, binaries: Binaries) -> None:
        """Start one component, or leave it running; waits until etcd and the API server answer."""
        process = self.process(component)
        process.start(self._command(component, binaries), self._environment(component))
        if component == "apiserver":
            api = Api(self.pki.kubeconfig(ADMIN))

            def ready() -> bool:
                process.check()
                return api.ready()

            wait_until("the API server", ready, 90, process.log, every=0.2)

    def stop(self, component: str) -> None:
        """End one component at once and wait until it is gone, so that its port is free."""
        self.process(component).stop(signal.SIGKILL)

    def down(self) -> None:
        """End all of them, last started first."""
        for component in reversed(COMPONENTS):
            self.stop(component)

    def _environment(self, component: str) -> Mapping[str, str]:
        """Variables of a component beyond those of this process."""
        return {}

    def _command(self, component: str, binaries: Binaries) -> Sequence[str | Path]:
        pki, network = self.pki, self.network
        listen, peers = f"http://{network.loopback}:2379", f"http://{network.loopback}:2380"
        own = f"--bind-address={network.host}"
        if component == "etcd":
            # A lost disk is a lost test cluster anyway: don't wait for it.
            urls = [f"--listen-client-urls={listen}", f"--advertise-client-urls={listen}", f"--listen-peer-urls={peers}"]
            return ["etcd", f"--data-dir={self.folder}/data", "--unsafe-no-fsync", *urls]
        if component == "apiserver":
            return [
                binaries.path("kube-apiserver"),
                own,
                f"--etcd-servers={listen}",
                f"--advertise-address={network.host}",
                f"--secure-port={API_PORT}",
                f"--tls-cert-file={pki.folder}/apiserver.crt",
                f"--tls-private-key-file={pki.folder}/apiserver.key",
                f"--client-ca-file={pki.ca}",
                f"--kubelet-client-certificate={pki.folder}/kubelet-client.crt",
                f"--kubelet-client-key={pki.folder}/kubelet-client.key",
                f"--token-auth-file={pki.folder}/tokens.csv",
                "--authorization-mode=Node,RBAC",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={pki.folder}/service-accounts.key",
                f"--service-account-signing-key-file={pki.folder}/service-accounts.key",
                f"--service-cluster-ip-range={network.services}",
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
                "--enable-admission-plugins=NodeRestriction",
                # Beta, and so off by default: tests have it put this checkout into the pods of images that nobody built.
                "--feature-gates=MutatingAdmissionPolicy=true",
                "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
                "--profiling=false",
            ]
        if component == "controller-manager":
            return [
                binaries.path("kube-controller-manager"),
                own,
                f"--kubeconfig={pki.kubeconfig(CONTROLLER_MANAGER)}",
                f"--service-account-private-key-file={pki.folder}/service-accounts.key",
                f"--root-ca-file={pki.ca}",
                "--use-service-account-credentials=true",
                "--node-monitor-period=1s",
                "--pvclaimbinder-sync-period=1s",
                "--node-monitor-grace-period=8s",
                "--leader-elect=false",
            ]
        if component == "scheduler":
            return [binaries.path("kube-scheduler"), own, f"--kubeconfig={pki.kubeconfig(SCHEDULER)}", "--leader-elect=false"]
        zone = f"kubernetes cluster.local {{\n  kubeconfig {pki.kubeconfig(DNS)} lmj\n  ttl 1\n }}"
        (self.folder / "Corefile").write_text(f"cluster.local:53 {{\n bind {network.host}\n errors\n {zone}\n}}\n")
        return [binaries.path("dns"), "-conf", self.folder / "Corefile"]
