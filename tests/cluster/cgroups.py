"""The control groups of one node: a folder in every hierarchy of version 1, or one folder of version 2."""

import time
from pathlib import Path

from cluster.errors import ClusterError

_ROOT = Path("/sys/fs/cgroup")


def make_cgroups(name: str) -> None:
    """Folders called ``name`` in which a kubelet can make its own."""
    if (_ROOT / "cgroup.controllers").exists():
        controllers = (_ROOT / "cgroup.controllers").read_text().split()
        wanted = [controller for controller in controllers if controller in ("cpu", "cpuset", "memory", "pids", "io", "hugetlb")]
        (_ROOT / name).mkdir(exist_ok=True)
        for folder in (_ROOT, _ROOT / name):
            (folder / "cgroup.subtree_control").write_text(" ".join(f"+{controller}" for controller in wanted))
        return
    for hierarchy in _hierarchies():
        folder = hierarchy / name
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):  # a new cpuset is empty, and nothing can run in it
            if (folder / setting).exists():
                (folder / setting).write_text((hierarchy / setting).read_text())


def remove_cgroups(name: str, seconds: float = 15) -> None:
    """Remove the folders called ``name`` and all below. Raises ClusterError when processes are left in them at the deadline."""
    deadline = time.monotonic() + seconds
    for root in [_ROOT / name, *(hierarchy / name for hierarchy in _hierarchies())]:
        while root.is_dir():
            try:
                for folder in [*sorted((path for path in root.rglob("*") if path.is_dir()), reverse=True), root]:
                    folder.rmdir()
            except OSError as error:  # the kernel takes a moment to let go of the last process
                if time.monotonic() > deadline:
                    raise ClusterError(f"control group {root} can't be removed: {error}") from error
                time.sleep(0.05)


def _hierarchies() -> list[Path]:
    """Of version 1, also where an empty version 2 hierarchy is mounted beside them."""
    return [
        path for path in sorted(_ROOT.iterdir()) if path.is_dir() and not path.is_symlink() and (path / "release_agent").exists()
    ]
