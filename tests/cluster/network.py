"""Addresses and links of one cluster: a bridge on this machine, one veth pair a node, a /16 that nothing else here uses.

In 10.K.0.0/16: nodes have 10.K.0.0/24 (this machine is .1), services 10.K.64.0/18, node n's pods 10.K.(128+n).0/24.
"""

import hashlib
import ipaddress
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cluster.binaries import locked
from cluster.errors import ClusterError
from cluster.process import run

MAX_NODES = 100
_CHOICES = range(201, 251)
_LOCK = Path(tempfile.gettempdir()) / "lmj-cluster-network.lock"


@dataclass(frozen=True)
class Network:
    """The network of the cluster ``name``; ``block`` is the second number of its addresses."""

    name: str
    block: int

    @property
    def bridge(self) -> str:
        return f"lmj{_short(self.name)}"

    @property
    def host(self) -> str:
        """This machine's address as nodes and pods see it; the API server and DNS listen there."""
        return f"10.{self.block}.0.1"

    @property
    def loopback(self) -> str:
        """An address of this machine alone, for what pods must not reach (etcd has no authentication here)."""
        return f"127.{self.block}.0.1"

    @property
    def services(self) -> str:
        return f"10.{self.block}.64.0/18"

    @property
    def api_service(self) -> str:
        """The first service address: ``kubernetes.default``."""
        return f"10.{self.block}.64.1"

    @property
    def pods(self) -> str:
        return f"10.{self.block}.128.0/17"

    def node_address(self, number: int) -> str:
        return f"10.{self.block}.0.{10 + number}"

    def node_pods(self, number: int) -> str:
        return f"10.{self.block}.{128 + number}.0/24"

    def link(self, number: int) -> str:
        """This machine's end of a node's cable."""
        return f"{self.bridge}n{number}"

    def up(self) -> None:
        """Make the bridge, or leave it as it is."""
        if not exists(self.bridge):
            run(["ip", "link", "add", self.bridge, "type", "bridge"])
            run(["ip", "addr", "add", f"{self.host}/24", "dev", self.bridge])
        run(["ip", "link", "set", self.bridge, "up"])
        # Where Docker runs here too, bridged packets pass the firewall, and its default there is to drop.
        if not self._rule("-C"):
            self._rule("-I")

    def down(self) -> None:
        """Take all links, routes and rules away. No error for what is gone already."""
        for entry in json.loads(run(["ip", "-j", "link", "show"])):
            if entry["ifname"].startswith(f"{self.bridge}n"):
                remove_link(entry["ifname"])
        if exists(self.bridge):
            run(["ip", "link", "del", self.bridge])  # its routes go with it
        while self._rule("-D"):
            pass

    def connect(self, number: int, pid: int) -> None:
        """Plug a cable into the network namespace of process ``pid``, which names its end eth0 and finds it there."""
        self.disconnect(number)
        link = self.link(number)
        run(["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
        run(["ip", "link", "set", link, "master", self.bridge, "up"])
        run(["ip", "route", "replace", self.node_pods(number), "via", self.node_address(number)])

    def disconnect(self, number: int) -> None:
        """Remove a node's cable."""
        remove_link(self.link(number))

    def link_up(self, number: int) -> None:
        run(["ip", "link", "set", self.link(number), "up"])

    def link_down(self, number: int) -> None:
        """Pull the cable: nothing gets in or out, and nobody is told."""
        run(["ip", "link", "set", self.link(number), "down"])

    def limit(self, number: int, pid: int, rate: str) -> None:
        """Let no more than ``rate`` (as tc writes it: ``1gbit``) through a node's cable, each way; ``pid``: a process of the node."""
        shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "20ms"]
        run(["tc", "qdisc", "replace", "dev", self.link(number), *shape])
        run(["nsenter", "--target", str(pid), "--net", "tc", "qdisc", "replace", "dev", "eth0", *shape])

    def received(self, number: int) -> int:
        """Bytes that came through a node's cable to it, since it was plugged in."""
        return int(Path(f"/sys/class/net/{self.link(number)}/statistics/tx_bytes").read_text())

    def _rule(self, action: str) -> bool:
        rule = ["FORWARD", "-i", self.bridge, "-o", self.bridge, "-j", "ACCEPT", "-m", "comment", "--comment", self.bridge]
        return subprocess.run(["iptables", "-w", "10", action, *rule], capture_output=True, check=False).returncode == 0


def choose_network(name: str) -> Network:
    """A network with a block that no address or route of this machine touches, its bridge made at once so that it stays ours."""
    with locked(_LOCK):
        Network(name, _CHOICES[0]).down()  # whatever is left of one of that name whose state is gone
        used = _used()
        for block in _CHOICES:
            if not any(ipaddress.ip_network(f"10.{block}.0.0/16").overlaps(other) for other in used):
                network = Network(name, block)
                network.up()
                return network
    raise ClusterError(
        f"no free block among 10.{_CHOICES[0]}.0.0/16 to 10.{_CHOICES[-1]}.0.0/16: are clusters left over? (ip link)"
    )


def _used() -> list[ipaddress.IPv4Network]:
    routes = [entry["dst"] for entry in json.loads(run(["ip", "-j", "-4", "route", "show"]))]
    return [ipaddress.IPv4Network(destination, strict=False) for destination in routes if destination != "default"]


def remove_link(name: str) -> None:
    """Take a link away, unless it is gone. The kernel takes one away too, some time after the namespace of its other end is over."""
    try:
        run(["ip", "link", "del", name])
    except ClusterError:
        if exists(name):
            raise


def exists(link: str) -> bool:
    """Whether this machine has a network link of that name."""
    return Path(f"/sys/class/net/{link}").exists()


def _short(name: str) -> str:
    """Link names have 15 characters at most; two clusters' names must not meet."""
    return hashlib.sha256(name.encode()).hexdigest()[:6]
