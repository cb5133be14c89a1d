"""What comes from Debian: packages are installed where they are missing, and only those whose programs were asked for."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from cluster.binaries import locked
from cluster.errors import ClusterError, Unavailable
from cluster.process import run, say

PACKAGES = {
    "chromium": "chromium",
    "conntrack": "conntrack",
    "containerd": "containerd",
    "debootstrap": "debootstrap",
    "dockerd": "docker.io",
    "etcd": "etcd-server",
    "host-local": "containernetworking-plugins",
    "ip": "iproute2",
    "iptables": "iptables",
    "npm": "npm",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
}
"""Program: the Debian package that brings it."""
CLUSTER = ("conntrack", "containerd", "etcd", "host-local", "ip", "iptables", "nsenter", "openssl", "runc")
"""What a cluster needs."""
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
LOCK_SECONDS = 300
"""How long another's installation is waited for."""
LOCK = Path("/run/lock/lmj-packages")
"""Our own follow each other: apt-get does not wait for another one that updates its lists."""


def find(program: str) -> Path | None:
    """Where it is: on PATH, or beside the CNI plugins, which are on nobody's. None: it is not installed."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(str, CNI_FOLDERS)])
    found = shutil.which(program, path=path)
    return Path(found) if found else None


def ensure(programs: Collection[str]) -> None:
    """Install the packages of those of ``programs`` that are missing, saying so. Raises Unavailable where that can't be done."""
    names = sorted({PACKAGES[program] for program in programs if find(program) is None})
    if not names:
        return
    if os.geteuid() != 0:
        raise Unavailable(f"missing: {', '.join(names)} (install them, as Debian packages: apt-get install {' '.join(names)})")
    if shutil.which("apt-get") is None:
        raise Unavailable(f"missing: {', '.join(names)} (these are the Debian names; install your system's packages)")
    with locked(LOCK):
        _install(sorted({PACKAGES[program] for program in programs if find(program) is None}))


def _install(names: list[str]) -> None:
    if not names:
        return
    say(f"installing Debian packages: {' '.join(names)}")
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists()
    if ours:  # Debian's packages would start etcd, containerd and Docker as services; nothing here wants those
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    apt = ["apt-get", "-qq", "-o", f"DPkg::Lock::Timeout={LOCK_SECONDS}"]
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        run([*apt, "update"], seconds=300, env=environment)
        run([*apt, "install", "-y", "--no-install-recommends", *names], seconds=900 + LOCK_SECONDS, env=environment)
    except ClusterError as error:
        raise Unavailable(f"could not install {' '.join(names)}: {error}") from error
    finally:
        if ours:
            policy.unlink(missing_ok=True)


def cni_folder() -> Path:
    """Where the CNI plugins are. Raises Unavailable when they are not installed."""
    plugin = find("host-local")
    if plugin is None:
        raise Unavailable("the CNI plugins are missing (Debian: apt-get install containernetworking-plugins)")
    return plugin.parent
