"""A cluster by name: up, down, its nodes' power and cables, images and volumes."""

import os
import shutil
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cluster import packages
from cluster.api import Api, ApiError
from cluster.binaries import DEFAULT_CACHE, Binaries, ensure_binaries, locked
from cluster.controlplane import COMPONENTS, ControlPlane
from cluster.environment import Environment, environment_mounts
from cluster.errors import ClusterError, Unavailable
from cluster.images import ensure_images
from cluster.network import MAX_NODES, Network, choose_network
from cluster.node import Node, node_name
from cluster.pki import ADMIN, Pki
from cluster.process import run, say, wait_until
from cluster.settings import FILE, Settings, load_settings, this_process

DEFAULT_RUN = Path(__file__).parent / ".build" / "run"
SHARED_CLASS = "shared"
"""StorageClass of the volumes that ``shared_volume`` makes."""
SMALL_MB = 32
"""Size of the disk that tests may fill."""

_NODES_OWN = ("/run", "/var/lib", "/var/log", "/var/run", "/proc", "/sys")


class Cluster:
    """A handle; all state is in files below ``run_folder``/NAME, so any process can pick up where another left."""

    def __init__(self, name: str = "dev", run_folder: Path = DEFAULT_RUN, cache: Path = DEFAULT_CACHE):
        if not name or not name.replace("-", "").isalnum() or not name.islower() or len(name) > 40:
            raise ClusterError(f"{name!r} is no name for a cluster: use up to 40 lower-case letters, digits and dashes")
        self.name = name
        self.folder = (run_folder / name).resolve()
        self._cache = cache

    # --- life ---------------------------------------------------------------------------------------------------------

    def up(self, nodes: int = 3, owned: bool = False) -> None:
        """Bring it up, or what is missing of it; returns when all nodes are Ready. ``owned``: ``sweep`` may remove it once this process is gone.

        Raises Unavailable where this machine can't run one, ClusterError with the log that explains it when it fails.
        """
        if os.geteuid() != 0 or not Path("/proc/self/ns").exists():
            raise Unavailable(
                "a cluster of namespaces needs root on Linux; set KUBECONFIG to use another (kind, minikube, a cloud's)"
            )
        if not 1 <= nodes <= MAX_NODES:
            raise ClusterError(f"{nodes} nodes: 1 to {MAX_NODES} are possible")
        if any(str(self.folder).startswith(f"{folder}/") for folder in _NODES_OWN):
            raise ClusterError(
                f"{self.folder}: nodes have their own {', '.join(_NODES_OWN)}; choose another folder for the cluster's state"
            )
        packages.ensure(packages.CLUSTER)
        binaries = self.binaries()
        images = ensure_images(binaries, self._cache)
        start = time.monotonic()
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._lock):
            settings = load_settings(self.folder) or self._choose(nodes, owned)
            if settings.nodes != nodes:
                raise ClusterError(f"cluster {self.name} is up with {settings.nodes} nodes; take it down first to have {nodes}")
            network = self._network()
            say(f"{self.name}: control plane on {network.host}, {nodes} nodes")
            network.up()
            pki = self._pki()
            pki.make([network.host, network.api_service, "127.0.0.1"], [node.name for node in self._nodes()])
            shutil.copy(pki.kubeconfig(ADMIN), self.kubeconfig)
            self._controlplane().up(binaries)
            self._mount_small_disk()
            with ThreadPoolExecutor(nodes) as pool:
                for done in [pool.submit(self._boot, node, binaries, images) for node in self._nodes()]:
                    done.result()
            for node in self._nodes():
                self.wait_ready(node.name)
            self._prepare()
            for component in COMPONENTS:
                self._controlplane().process(component).check()
        say(f"{self.name}: up in {time.monotonic() - start:.1f} s")

    def down(self) -> None:
        """Take all of it away: processes, links, rules, control groups, files. No error when there is nothing."""
        if not self.folder.exists():
            return
        start = time.monotonic()
        with locked(self._lock):
            if load_settings(self.folder) is not None:
                try:
                    with ThreadPoolExecutor(8) as pool:
                        list(pool.map(Node.remove, self._nodes()))
                finally:  # a node that does not go is no reason to leave the rest
                    self._controlplane().down()
                    self._network().down()
            if self.small_disk.is_mount():
                run(["umount", "--lazy", self.small_disk])
            shutil.rmtree(self.folder)
            self._lock.unlink(missing_ok=True)
        say(f"{self.name}: down in {time.monotonic() - start:.1f} s")

    def status(self) -> list[str]:
        """A line for each part: what it is and whether it runs."""
        settings = load_settings(self.folder)
        if settings is None:
            return [f"{self.name}: down"]
        plane = self._controlplane()

        lines = [f"{name:<20} {'running' if plane.process(name).pid() else 'stopped'}" for name in COMPONENTS]
        ready = self.ready_nodes() if self.api.ready() else None
        for node in self._nodes():
            power = "on" if node.first_process() else "off"
            state = "" if ready is None else (" Ready" if node.name in ready else " NotReady")
            lines.append(f"{node.name:<20} {power}{state}")
        return [*lines, f"{'kubeconfig':<20} {self.kubeconfig}"]

    # --- use ----------------------------------------------------------------------------------------------------------

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator."""
        return self.folder / "kubeconfig"

    @property
    def api(self) -> Api:
        """As an administrator."""
        return Api(self.kubeconfig)

    def binaries(self) -> Binaries:
        """kubectl, helm, kwok and the cluster's own programs."""
        return ensure_binaries(self._cache)

    def kubectl(self, *arguments: str, stdin: bytes | None = None, seconds: float = 60) -> str:
        """Output of kubectl as an administrator. Raises ClusterError with what it said when it fails."""
        return run([self.binaries().path("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments], stdin=stdin, seconds=seconds)

    def helm(self, *arguments: str, seconds: float = 120) -> str:
        """Output of helm as an administrator."""
        return run([self.binaries().path("helm"), f"--kubeconfig={self.kubeconfig}", *arguments], seconds=seconds)

    def node_names(self) -> list[str]:
        return [node.name for node in self._nodes()]

    def ready_nodes(self) -> list[str]:
        """Names of the nodes that the control plane calls Ready."""
        items = self.api.get("/api/v1/nodes")["items"]
        return [item["metadata"]["name"] for item in items if _condition(item, "Ready").get("status") == "True"]

    def wait_ready(self, name: str, ready: bool = True, seconds: float = 90) -> None:
        """Until the control plane calls a node Ready, or no longer does."""
        node = self._node(name)

        def there() -> bool:
            if ready:
                node.process.check()
            return (name in self.ready_nodes()) is ready

        wait_until(f"{name} {'Ready' if ready else 'NotReady'}", there, seconds, node.folder / "kubelet.log", every=0.2)

    def load_image(self, archive: Path) -> None:
        """Import a docker or OCI archive into every node that is on."""
        on = [node for node in self._nodes() if node.first_process() is not None]
        say(f"{self.name}: {archive.name} ({archive.stat().st_size / 1e6:.0f} MB) into {len(on)} nodes")
        with ThreadPoolExecutor(max(1, len(on))) as pool:
            list(pool.map(lambda node: node.load_image(archive), on))

    def environment_mounts(self) -> Environment:
        """This checkout and its Python for pods."""
        return environment_mounts()

    def shared_volume(self, name: str, size: str = "10Gi") -> Path:
        """A PersistentVolume on a folder that all nodes share (ReadWriteMany, class ``shared``), for one claim; returns the folder."""
        folder = self.folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)  # pods are not root, and a host folder takes no fsGroup
        spec = {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteMany", "ReadWriteOnce", "ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": SHARED_CLASS,
            "hostPath": {"path": str(folder), "type": "Directory"},
        }
        volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
        self.api.apply(f"/api/v1/persistentvolumes/{name}", volume)
        return folder

    @property
    def host(self) -> str:
        """This machine's address, as nodes and pods see it."""
        return self._network().host

    @property
    def small_disk(self) -> Path:
        """A file system of ``SMALL_MB`` that this machine and all nodes share, for a test to fill; pods reach it by a hostPath volume."""
        return self.folder / "small"

    # --- faults -------------------------------------------------------------------------------------------------------

    def power_cut(self, name: str) -> None:
        """A node is gone at once, all its pods with it, and nobody gets a goodbye."""
        self._node(name).power_cut()

    def power_on(self, name: str, seconds: float = 90) -> None:
        """The node boots again from its disk; returns when its kubelet has reported Ready again."""
        node = self._node(name)
        before = self._heartbeat(name)
        node.start(self.binaries())

        def back() -> bool:
            node.process.check()
            return self._heartbeat(name) != before and name in self.ready_nodes()

        wait_until(f"{name} Ready", back, seconds, node.folder / "kubelet.log", every=0.2)

    def link_down(self, name: str) -> None:
        """Pull a node's cable; its pods go on."""
        self._network().link_down(self._node(name).number)

    def link_up(self, name: str) -> None:
        """Plug it in again."""
        self._network().link_up(self._node(name).number)

    def mute(self, name: str) -> None:
        """Nothing that a node and its pods send arrives; they hear the others."""
        self._node(name).mute()

    def deafen(self, name: str) -> None:
        """Nothing arrives at a node and its pods; the others hear them."""
        self._node(name).deafen()

    def part(self, name: str, other: str) -> None:
        """Break the cable between two nodes only: each still has all others, and the control plane."""
        self._node(name).part(self._node(other).number)

    def forbid(self, name: str, port: int) -> None:
        """Nothing arrives at a node's pods on ``port``: of a policy the pods' network enforces that much until it is healed."""
        self._node(name).forbid(port)

    def heal(self, name: str) -> None:
        """The end of what was done to a node's traffic."""
        self._node(name).heal()

    def limit(self, rate: str) -> None:
        """Let no more than ``rate`` (``1gbit``) through the cable of any node, each way. Pods of one node do not use it."""
        for node in self._nodes():
            first = node.first_process()
            if first is not None:
                self._network().limit(node.number, first, rate)

    def received(self) -> dict[str, int]:
        """Bytes that came through its cable to each node."""
        return {node.name: self._network().received(node.number) for node in self._nodes()}

    def stop(self, component: str = "apiserver") -> None:
        """End one component of the control plane at once."""
        self._controlplane().stop(component)

    def start(self, component: str = "apiserver") -> None:
        """Start it again; an API server is ready when this returns."""
        self._controlplane().start(component, self.binaries())

    # --- inside -------------------------------------------------------------------------------------------------------

    def _boot(self, node: Node, binaries: Binaries, images: Iterable[Path]) -> None:
        if node.first_process() is None:
            node.start(binaries)
        have = node.images()
        for image in images:
            if f"docker.io/lmj/{image.stem}:1" not in have:
                node.load_image(image)

    def _mount_small_disk(self) -> None:
        """Before any node starts: a node begins with the mounts that are there, and sees none that comes later."""
        self.small_disk.mkdir(exist_ok=True)
        if not self.small_disk.is_mount():
            run(["mount", "-t", "tmpfs", "-o", f"size={SMALL_MB}m,mode=0777", "lmj-small", self.small_disk])

    def _prepare(self) -> None:
        """What a pod needs from the controllers, and the storage class."""
        provisioner = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "Immediate"}
        metadata = {"name": SHARED_CLASS, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
        kind = {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": metadata}
        self.api.apply(f"/apis/storage.k8s.io/v1/storageclasses/{SHARED_CLASS}", {**kind, **provisioner})

        def account() -> bool:
            try:
                return bool(self.api.get("/api/v1/namespaces/default/serviceaccounts/default"))
            except ApiError:
                return False

        wait_until("the default service account", account, 60, self._controlplane().process("controller-manager").log)

    def _heartbeat(self, name: str) -> str:
        try:
            return str(_condition(self.api.get(f"/api/v1/nodes/{name}"), "Ready").get("lastHeartbeatTime", ""))
        except ApiError:
            return ""

    def _choose(self, nodes: int, owned: bool) -> Settings:
        settings = Settings(choose_network(self.name).block, nodes, this_process() if owned else None)
        settings.save(self.folder)
        return settings

    def _need(self) -> Settings:
        settings = load_settings(self.folder)
        if settings is None:
            raise ClusterError(f"cluster {self.name} is not up (no {self.folder / 'cluster.json'})")
        return settings

    @property
    def _lock(self) -> Path:
        return self.folder.parent / f"{self.name}.lock"

    def _network(self) -> Network:
        return Network(self.name, self._need().block)

    def _pki(self) -> Pki:
        return Pki(self.folder / "pki", f"https://{self._network().host}:6443")

    def _controlplane(self) -> ControlPlane:
        return ControlPlane(self.folder / "controlplane", self._network(), self._pki())

    def _nodes(self) -> list[Node]:
        count, network, pki = self._need().nodes, self._network(), self._pki()
        numbers = range(1, count + 1)
        return [Node(number, count, self.name, self.folder / node_name(number), network, pki) for number in numbers]

    def _node(self, name: str) -> Node:
        for node in self._nodes():
            if node.name == name:
                return node
        raise ClusterError(f"there is no node {name!r} (nodes: {', '.join(self.node_names())})")


def sweep(run_folder: Path = DEFAULT_RUN) -> None:
    """Take down the clusters whose owner was killed before it could."""
    for file in sorted(run_folder.glob(f"*/{FILE}")):
        settings = load_settings(file.parent)
        if settings is not None and settings.abandoned:
            say(f"{file.parent.name}: left over by a process that is gone")
            Cluster(file.parent.name, run_folder).down()


def _condition(item: dict[str, Any], kind: str) -> dict[str, Any]:
    for condition in item.get("status", {}).get("conditions", []):
        if condition["type"] == kind:
            return dict(condition)
    return {}
