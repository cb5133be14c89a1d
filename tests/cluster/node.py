"""One node: a real kubelet, containerd and kube-proxy in namespaces of their own."""

import json
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import Binaries
from cluster.cgroups import make_cgroups, remove_cgroups
from cluster.errors import ClusterError
from cluster.images import PAUSE
from cluster.network import Network
from cluster.packages import cni_folder
from cluster.pki import PROXY, Pki
from cluster.process import Process, child_of, remains, run, started_at, tail, wait_until

_SCRIPT = Path(__file__).parent / "node.sh"
_SENT = ["iptables", "-t", "mangle", "-I", "POSTROUTING", "-o", "eth0"]
_HEARD = ["iptables", "-t", "raw", "-I", "PREROUTING", "-i", "eth0"]
"""Chains in which a node has no other rules than those of a fault."""
_END_SECONDS = 120
"""The kernel ends all processes of a node before its first one is gone; with a disk that others keep busy that takes its time."""


@dataclass(frozen=True)
class Node:
    """Node ``number`` (from 1) of ``count``. ``folder`` is its disk: images, volumes and logs survive a power cut there."""

    number: int
    count: int
    cluster: str
    folder: Path
    network: Network
    pki: Pki

    @property
    def name(self) -> str:
        return node_name(self.number)

    @property
    def process(self) -> Process:
        """The one outside the namespaces; the node's first process is its child."""
        return Process("node", self.folder)

    @property
    def cgroup(self) -> str:
        return f"lmj-{self.cluster}-{self.name}"

    def first_process(self) -> int | None:
        """Pid, as seen from this machine, of the node's pid 1; None when the node is off."""
        outer = self.process.pid()
        return None if outer is None else child_of(outer)

    def start(self, binaries: Binaries) -> None:
        """Power on, or leave it on. Returns when containerd answers; the kubelet registers the node a little later."""
        if self.first_process() is not None:
            return
        self._configure()
        # After a power cut the kernel still has the dead containers' groups, as on no real node, and kubelet would stumble over them for 10 s.
        remove_cgroups(self.cgroup)
        make_cgroups(self.cgroup)
        addresses: list[str | Path] = [self.network.node_address(self.number), self.network.host, binaries.path("kubelet").parent]
        files: list[str | Path] = [self.pki.kubeconfig(self.name), self.pki.kubeconfig(PROXY)]
        namespaces = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*namespaces, "bash", _SCRIPT, self.folder, self.name, *addresses, *files, self.network.pods]
        outer = self.process.start(command)
        first = wait_until(f"the first process of {self.name}", lambda: child_of(outer), 10, self.process.log, every=0.02)
        wait_until(f"the network of {self.name}", lambda: _own_network(first), 10, self.process.log, every=0.02)
        self.network.connect(self.number, first)
        socket = Path(f"/proc/{first}/root/run/containerd/containerd.sock")
        wait_until(f"containerd of {self.name}", lambda: self._alive() and socket.exists(), 60, self.folder / "containerd.log")

    def power_cut(self) -> None:
        """Cable first, then everything at once: nobody gets a goodbye."""
        if self.first_process() is not None:
            self.network.link_down(self.number)
        self._kill()

    def remove(self) -> None:
        """Power off and take away all that the node left."""
        self._kill()
        self.network.disconnect(self.number)
        remove_cgroups(self.cgroup)
        shutil.rmtree(self.folder, ignore_errors=True)

    def inside(self, command: Sequence[str], stdin: bytes | None = None, seconds: float = 120) -> str:
        """Output of a command in the node's namespaces. Raises ClusterError when the node is off or the command fails."""
        first = self.first_process()
        if first is None:
            raise ClusterError(f"{self.name} is off{tail(self.process.log)}")
        return run(["nsenter", f"--target={first}", "--mount", "--net", "--uts", "--pid", *command], stdin=stdin, seconds=seconds)

    def mute(self) -> None:
        """Nothing that the node sends arrives; it hears the others."""
        self.inside([*_SENT, "-j", "DROP"])

    def deafen(self) -> None:
        """Nothing arrives at the node; the others hear it."""
        self.inside([*_HEARD, "-j", "DROP"])

    def part(self, number: int) -> None:
        """Nothing passes between this node and node ``number``, their pods included. Both have every other node."""
        for there in (self.network.node_address(number), self.network.node_pods(number)):
            self.inside([*_SENT, "-d", there, "-j", "DROP"])
            self.inside([*_HEARD, "-s", there, "-j", "DROP"])

    def forbid(self, port: int) -> None:
        """Nothing arrives at the node's pods on ``port``, as where a network enforces a policy that does not allow it."""
        self.inside([*_HEARD, "-p", "tcp", "--dport", str(port), "-j", "DROP"])

    def heal(self) -> None:
        """All that the node sends and is sent arrives again."""
        if self.first_process() is not None:  # what went with the power is not there any more
            for chain in (_SENT, _HEARD):
                self.inside([word if word != "-I" else "-F" for word in chain[:5]])

    def load_image(self, archive: Path) -> None:
        """Import a docker or OCI archive, through standard input: the file may lie where the node has a folder of its own."""
        self.inside(["ctr", "--namespace", "k8s.io", "images", "import", "-"], stdin=archive.read_bytes(), seconds=600)

    def images(self) -> list[str]:
        """References of the images it has."""
        return self.inside(["ctr", "--namespace", "k8s.io", "images", "list", "--quiet"]).split()

    def _alive(self) -> bool:
        self.process.check()
        return True

    def _kill(self) -> None:
        first = self.first_process()
        if first is not None:
            os.kill(first, signal.SIGKILL)  # the kernel ends everything else in its pid namespace with it
        self.process.stop()
        if first is not None:
            # Its parent is gone, and the machine's first process takes a zombie away when it pleases, or never.
            try:
                wait_until(f"the end of {self.name}", lambda: started_at(first) is None, _END_SECONDS, every=0.02)
            except ClusterError as error:
                raise ClusterError(f"{error}; what is left of it:\n{remains(first)}") from error

    def _configure(self) -> None:
        (self.folder / "cni").mkdir(parents=True, exist_ok=True)
        (self.folder / "cni" / "10-bridge.conflist").write_text(json.dumps(_cni(self.network.node_pods(self.number))))
        (self.folder / "containerd.toml").write_text(_CONTAINERD.format(pause=PAUSE, cni=cni_folder()))
        (self.folder / "kubelet.json").write_text(json.dumps(_kubelet(self.cgroup, self.network.host, "/run/node/ca.crt")))
        shutil.copy(self.pki.ca, self.folder / "ca.crt")
        others = (number for number in range(1, self.count + 1) if number != self.number)
        routes = [f"{self.network.node_pods(number)} {self.network.node_address(number)}\n" for number in others]
        (self.folder / "routes").write_text("".join(routes))


def node_name(number: int) -> str:
    """Of node ``number``, from 1."""
    return f"node{number}"


def _own_network(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")
    except FileNotFoundError:
        return False


def _cni(pods: str) -> Mapping[str, object]:
    """A bridge with addresses from the node's range. It does not enforce NetworkPolicy."""
    addresses = {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False, "hairpinMode": True, "ipam": addresses}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}],
    }


def _kubelet(cgroup: str, dns: str, authority: str) -> Mapping[str, object]:
    """Short periods, so that tests see a dead node soon."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}, "x509": {"clientCAFile": authority}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "failCgroupV1": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 8,
        "resolvConf": "",
        "clusterDNS": [dns],
        "clusterDomain": "cluster.local",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi"},
        "volumePluginDir": "/run/node/plugins",
    }


_CONTAINERD = """version = 2
root = "/run/node/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/run/node/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{cni}"
    conf_dir = "/run/node/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""
