"""The two images every node has, written as archives that ``ctr images import`` reads: pause, and a base with a shell."""

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cluster.binaries import Binaries, locked
from cluster.errors import ClusterError, Unavailable
from cluster.process import run, say

PAUSE = "docker.io/lmj/pause:1"
BASE = "docker.io/lmj/base:1"
"""A shell and the usual small programs (busybox). With the environment's mounts it has the host's /usr, and so Python."""

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n"


def ensure_images(binaries: Binaries, cache: Path) -> tuple[Path, Path]:
    """The archives of pause and base, made once. Raises Unavailable when busybox can be had from nowhere."""
    folder = cache / f"images-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"
    pause, base = folder / "pause.tar", folder / "base.tar"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(cache / "images.lock"):
        if not pause.exists():
            write_archive(pause, PAUSE, _tar([_file("pause", binaries.path("pause").read_bytes(), 0o755)]), ["/pause"])
        if not base.exists():
            with tempfile.TemporaryDirectory(prefix="busybox-") as scratch:
                write_archive(base, BASE, _tar(_base_files(_busybox(Path(scratch)))), ["/bin/sh"])
    return pause, base


def write_archive(out: Path, reference: str, rootfs: bytes, entrypoint: list[str]) -> None:
    """Write a docker archive of one layer (an uncompressed tar) to ``out``, whole or not at all."""
    layer = hashlib.sha256(rootfs).hexdigest()
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(run(["uname", "-m"]).strip(), "amd64")
    config = json.dumps(
        {
            "architecture": machine,
            "os": "linux",
            "config": {"Entrypoint": entrypoint, "Env": [_PATH]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        }
    ).encode()
    name = hashlib.sha256(config).hexdigest()
    manifest = json.dumps([{"Config": f"{name}.json", "RepoTags": [reference], "Layers": [f"{layer}/layer.tar"]}]).encode()
    members = [_file(f"{name}.json", config), _file(f"{layer}/layer.tar", rootfs), _file("manifest.json", manifest)]
    unfinished = out.with_suffix(".new")
    unfinished.write_bytes(_tar(members))
    unfinished.rename(out)


_Member = tuple[tarfile.TarInfo, bytes]


def _file(name: str, data: bytes, mode: int = 0o644) -> _Member:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), mode
    return info, data


def _folder(name: str, mode: int = 0o755) -> _Member:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, mode
    return info, b""


def _link(name: str, target: str) -> _Member:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
    return info, b""


def _tar(members: Iterable[_Member]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _base_files(busybox: Path) -> list[_Member]:
    """Merged /usr as on today's distributions, so that the host's /usr can be mounted over it whole."""
    applets = run([busybox, "--list"]).split()
    folders = ["usr", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "etc", "root", "home", "proc", "sys", "dev", "run", "var"]
    return [
        *(_folder(name) for name in folders),  # /root too is open: an interpreter may be mounted below it, and pods are not root
        _folder("tmp", 0o1777),
        *(_link(name, f"usr/{name}") for name in ("bin", "sbin", "lib", "lib64")),
        _file("usr/bin/busybox", busybox.read_bytes(), 0o755),
        *(_link(f"usr/bin/{applet}", "busybox") for applet in applets if applet != "busybox"),
        _file("etc/passwd", _ACCOUNTS.encode()),
        _file("etc/group", b"root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"),
    ]


def _busybox(scratch: Path) -> Path:
    """A static busybox: the host's, else the one in Debian's package, taken out without installing it."""
    on_path = shutil.which("busybox")
    if on_path and "not a dynamic" in _ldd(on_path):
        return Path(on_path)
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Unavailable("a static busybox is missing (Debian: apt-get install busybox-static)")
    say("taking busybox from Debian's busybox-static")
    try:
        run(["sh", "-c", 'cd "$1" && apt-get download -q busybox-static && dpkg -x *.deb .', "sh", scratch], seconds=300)
    except ClusterError as error:
        raise Unavailable(f"could not get Debian's busybox-static: {error}") from error
    return next(path for path in (scratch / "bin/busybox", scratch / "usr/bin/busybox") if path.exists())


def _ldd(program: str) -> str:
    return run(["sh", "-c", 'ldd "$1" 2>&1 || true', "sh", program])
