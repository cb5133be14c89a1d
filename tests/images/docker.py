"""A Docker to build with: the one that runs here, else our own daemon, which leaves iptables and bridges alone and ends with the block."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster import packages
from cluster.binaries import locked
from cluster.errors import ClusterError, Unavailable
from cluster.process import Process, run, wait_until

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmj" / "docker"
"""Layers stay here from one build to the next; remove the folder to have the room back."""
START_SECONDS = 60


def say(line: str) -> None:
    """One line of progress."""
    print(f"images: {line}", flush=True)


@dataclass(frozen=True)
class Docker:
    """The docker command, bound to one daemon. ``ours``: it was started here, so nothing is known of registries or bridges."""

    host: str | None
    ours: bool

    def __call__(self, *words: str | Path, seconds: float = 120, stdin: bytes | None = None) -> str:
        """What the command says. Raises ClusterError with its complaint."""
        return run([*self.command(), *words], seconds=seconds, stdin=stdin, env={"DOCKER_BUILDKIT": "0"})

    def command(self) -> Sequence[str]:
        """The words that every docker command begins with."""
        return ["docker", *(["--host", self.host] if self.host else [])]

    def has(self, image: str) -> bool:
        """Whether the daemon has the image."""
        return bool(self("images", "--quiet", image).strip())

    def size(self, image: str) -> int:
        """Bytes of all layers of an image."""
        return int(self("image", "inspect", "--format", "{{.Size}}", image))


@contextmanager
def docker(cache: Path = CACHE) -> Iterator[Docker]:
    """A Docker that works. Raises Unavailable, with what to do, where there is none and none can be started."""
    theirs = Docker(None, ours=False)
    if shutil.which("docker") and _answers(theirs):
        yield theirs
        return
    if os.geteuid() != 0:
        raise Unavailable(
            "no Docker daemon answers (docker info); start yours, or run this as root on Debian, where one is started"
        )
    packages.ensure(("debootstrap", "dockerd"))
    cache.mkdir(parents=True, exist_ok=True)
    # Two daemons must not share one store.
    with locked(cache.with_name(f"{cache.name}.lock")), tempfile.TemporaryDirectory(prefix="lmj-docker-") as scratch:
        folder = Path(scratch)
        ours = Docker(f"unix://{folder}/docker.sock", ours=True)
        daemon = Process("dockerd", folder)
        say(f"starting dockerd for this build (layers in {cache})")
        daemon.start(_daemon(folder, cache, ours))
        try:
            wait_until("dockerd", lambda: daemon.check() or _answers(ours), START_SECONDS, daemon.log)
            yield ours
        finally:
            daemon.stop(signal.SIGTERM, seconds=60)
            _unmount_below(folder)


def _daemon(folder: Path, cache: Path, docker: Docker) -> list[str | Path]:
    """It starts a containerd of its own under its exec root, so no other daemon on the machine is touched."""
    command: list[str | Path] = ["dockerd", "--host", str(docker.host), "--data-root", cache, "--exec-root", folder / "exec"]
    command += ["--pidfile", folder / "docker.pid", "--bridge", "none", "--iptables=false", "--ip6tables=false"]
    return command


def _unmount_below(folder: Path) -> None:
    """dockerd leaves the mount of its network namespace behind."""
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in sorted((each for each in places if Path(each).is_relative_to(folder)), reverse=True):
        run(["umount", place])


def _answers(docker: Docker) -> bool:
    try:
        return bool(docker("info", "--format", "{{.ServerVersion}}", seconds=20).strip())
    except ClusterError:
        return False
