"""Durable, atomic writes: after a crash at any point a file is the old one or the new one, never a mixture.

The order of a checkpoint: each rank puts its file in place with :func:`atomically`, and when all have, one of them calls
:func:`commit_manifest`. The manifest's rename is the moment at which the checkpoint exists.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from lmj_api.manifest import Manifest
from lmj_api.names import checkpoint_name
from lmj_api.run import Run

MANIFEST = "manifest.json"
"""File name of a checkpoint's manifest."""


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable (renames and removals reach the disk only with their folder)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the content of the file at ``path`` durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomically(path: Path) -> Iterator[Path]:
    """Give a path beside ``path`` to write to; on leaving, its content is made durable and takes the name ``path``.

    When the body raises, the name keeps its old content and what was written is removed.
    """
    # No two writers have one: process ids repeat between pods, and an older view's may wake while its successor writes.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        yield partial
        sync_file(partial)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):  # the reason for being here matters more than the litter
            os.unlink(partial)
        raise
    sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, durably and atomically. Raises OSError; the old content is then still there."""
    with atomically(path) as partial:
        partial.write_bytes(content)


def make_folder(root: Path, step: int, view: int, run: Run | None = None) -> Path:
    """The folder for the checkpoint of ``step`` by ``view`` of ``run`` in ``root``; made, durably, if it is not there. Any rank may."""
    folder = root / checkpoint_name(step, view, run)
    made = [path for path in root.parents if not path.exists()]
    os.makedirs(folder, exist_ok=True)
    # The name of root itself, too, and of what is above it, where this is the first.
    for parent in (root, root.parent, *(path.parent for path in made)):
        sync_folder(parent)
    return folder


def commit_manifest(folder: Path, manifest: Manifest) -> None:
    """Make ``folder`` a checkpoint: its files are all in place, now the manifest is written, durably and atomically.

    Raises ValueError when the folder's name or a file's size is not what the manifest says, OSError when a file is missing.
    """
    if folder.name != (own := checkpoint_name(manifest.step, manifest.view, manifest.run)):
        raise ValueError(f"{folder} is not the folder of step {manifest.step} and view {manifest.view}: that is {own}")
    if not manifest.files:
        raise ValueError(f"{folder}: a manifest without files is no checkpoint")
    for file in manifest.files:
        size = (folder / file.name).stat().st_size
        if size != file.size:
            raise ValueError(f"{folder / file.name} has {size} bytes, the manifest says {file.size}")
    write_atomically(folder / MANIFEST, (manifest.to_json() + "\n").encode())
