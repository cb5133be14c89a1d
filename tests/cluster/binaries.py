"""The programs of a cluster: built once from pinned Go modules, and cached by the digest of what pins them."""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import ClusterError, Unavailable
from cluster.process import say, tail

GO = Path(__file__).parent / "go"
DEFAULT_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lmj" / "cluster"
BUILD_SECONDS = 3600.0


@dataclass(frozen=True)
class Module:
    """What is built at once: programs of a folder with a go.mod, which names their packages in its ``tool`` lines."""

    name: str
    programs: tuple[str, ...]
    needed: bool = True
    """By every cluster; else it is built when it is asked for."""
    source: str = ""
    """The folder; left out: that of the name."""

    @property
    def folder(self) -> Path:
        return GO / (self.source or self.name)

    @property
    def packages(self) -> list[str]:
        """Go packages of the programs."""
        tools = re.search(r"^tool (\((.*?)^\)|\S+$)", (self.folder / "go.mod").read_text(), re.DOTALL | re.MULTILINE)
        return [
            package for package in (tools[1].strip("()").split() if tools else []) if package.rpartition("/")[2] in self.programs
        ]

    @functools.cache  # noqa: B019 - there are five
    def digest(self) -> str:
        """Of everything that decides what comes out: versions, sums, our own sources."""
        hasher = hashlib.sha256()
        for file in sorted(self.folder.rglob("*")):
            if file.is_file():
                hasher.update(f"{file.relative_to(self.folder)}\0".encode() + file.read_bytes())
        return hasher.hexdigest()[:16]


MODULES = (
    Module("helm", ("helm",), source="tools"),  # the first: unit tests of the chart wait for it
    Module("tools", ("dns", "pause")),
    Module("kubernetes", ("kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet")),
    Module("load", ("kwok",), needed=False, source="tools"),
    Module("storage", ("versitygw",), needed=False),
)
PROGRAMS = tuple(sorted(program for module in MODULES for program in module.programs))


def kubernetes_version() -> str:
    """The pinned version, such as ``v1.34.4``."""
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (GO / "kubernetes" / "go.mod").read_text())
    if found is None:
        raise ClusterError(f"{GO / 'kubernetes' / 'go.mod'} does not name k8s.io/kubernetes")
    return found[1]


@dataclass(frozen=True)
class Binaries:
    """Where the built programs are."""

    cache: Path

    def path(self, program: str) -> Path:
        """Of one program, which is built if it is not there. Raises KeyError for one that nothing is known of, Unavailable without Go."""
        for module in MODULES:
            if program in module.programs:
                return _built(module, self.cache) / program
        raise KeyError(program)


def ensure_binaries(cache: Path = DEFAULT_CACHE) -> Binaries:
    """Build what every cluster needs and the cache lacks (10 minutes of one core from nothing, then never again). Raises Unavailable
    without Go.
    """
    for module in MODULES:
        if module.needed:
            _built(module, cache)
    return Binaries(cache)


def _built(module: Module, cache: Path) -> Path:
    folder = cache / f"{module.name}-{module.digest()}"
    if folder.is_dir():
        return folder
    if shutil.which("go") is None:
        raise Unavailable("Go is not on PATH; the cluster's programs are built with it once (https://go.dev/dl)")
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"{module.name}.lock", f"who builds {', '.join(module.programs)} already"):
        if not folder.is_dir():
            unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _build(module, unfinished, cache / f"{module.name}.log")
            missing = [program for program in module.programs if not (unfinished / program).is_file()]
            if missing:
                raise ClusterError(f"go build made no {', '.join(missing)}{tail(cache / f'{module.name}.log')}")
            unfinished.rename(folder)
    return folder


def _build(module: Module, out: Path, log: Path) -> None:
    """``go build`` with a line of progress every 10 s."""
    say(f"building {', '.join(module.programs)} (once; cached in {out.parent})")
    version = kubernetes_version()
    stamp = {"gitVersion": version, "gitMajor": version.removeprefix("v").split(".")[0], "gitMinor": version.split(".")[1]}
    flags = " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{name}={value}" for name, value in stamp.items())])
    command = ["nice", "go", "build", "-v", "-trimpath", "-buildvcs=false", "-ldflags", flags, "-o", f"{out}/", *module.packages]
    start = said = time.monotonic()
    packages = 0
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            cwd=module.folder,
            env={**os.environ, "CGO_ENABLED": "0"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as build,
    ):
        assert build.stdout is not None
        deadline = threading.Timer(BUILD_SECONDS, build.kill)
        deadline.start()
        for line in build.stdout:
            file.write(line)
            packages += 1
            if time.monotonic() - said > 10:
                said = time.monotonic()
                say(f"{module.name}: {packages} packages, {said - start:.0f} s")
        code = build.wait()
        deadline.cancel()
    if code != 0:
        raise ClusterError(f"go build in {module.folder}: exit code {code}{tail(log)}")
    say(f"{module.name}: built in {time.monotonic() - start:.0f} s")


@contextmanager
def locked(file: Path, holder: str = "") -> Iterator[None]:
    """Hold an exclusive lock on ``file``: two at once do one thing after the other where they must. Says that it waits for ``holder``."""
    with file.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if holder:
                say(f"waiting for {holder}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
