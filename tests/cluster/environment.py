"""This checkout and its Python inside a pod: folders of this machine mounted over the small base image, so that none needs torch in it."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("crds", "operator", "trainer")
"""Folders of the checkout that hold packages."""


@dataclass(frozen=True)
class Environment:
    """What a pod template needs to run ``python`` as it runs here. All mounts are read-only."""

    python: Path
    folders: tuple[Path, ...]
    checkout: Path = CHECKOUT

    @property
    def volumes(self) -> list[dict[str, Any]]:
        """For ``spec.volumes``."""
        return [
            {"name": _name(n), "hostPath": {"path": str(folder), "type": "Directory"}} for n, folder in enumerate(self.folders)
        ]

    @property
    def volume_mounts(self) -> list[dict[str, Any]]:
        """For ``spec.containers[].volumeMounts``."""
        return [{"name": _name(n), "mountPath": str(folder), "readOnly": True} for n, folder in enumerate(self.folders)]

    @property
    def env(self) -> list[dict[str, str]]:
        """For ``spec.containers[].env``."""
        path = f"{self.python.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return [
            {"name": "PATH", "value": path},
            # The environment may be linked from another checkout, and then finds that one's packages.
            {"name": "PYTHONPATH", "value": ":".join(str(self.checkout / folder) for folder in PACKAGES)},
            {"name": "PYTHONDONTWRITEBYTECODE", "value": "1"},
            {"name": "HOME", "value": "/tmp"},
        ]


def environment_mounts(prefix: Path = Path(sys.prefix), checkout: Path = CHECKOUT) -> Environment:
    """The folders that the Python of the virtual environment ``prefix`` needs: itself (also where a link leads to it, as in a work tree that
    shares it), the interpreter's (wherever a chain of links leads), the checkout, and /usr for the shared libraries, which are then
    those that the interpreter was made for."""
    python = prefix / "bin" / "python"
    wanted = [Path("/usr"), checkout, prefix, prefix.resolve(), *_homes(python)]
    folders: list[Path] = []
    for folder in wanted:
        if not any(folder == other or other in folder.parents for other in folders):
            folders.append(folder)
    return Environment(python, tuple(folders), checkout)


def _homes(python: Path) -> list[Path]:
    """The folder above ``bin`` at each step of the links from ``python`` to the real interpreter."""
    homes = []
    step = python
    while step.is_symlink():
        step = Path(os.path.normpath(step.parent / step.readlink()))
        homes.append(step.parent.parent)
    return [*homes, python.resolve().parent.parent]


def _name(number: int) -> str:
    return f"environment-{number}"
