"""Durable, atomic writes of files: after a crash at any point a file is the old one or the new one, never a mixture."""

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_STALE_SECONDS = 24 * 3600.0
"""A building site that nobody touched for so long is one of a process that died."""


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
        with contextlib.suppress(OSError):  # the error that led here matters more than a file left behind
            os.unlink(partial)
        raise
    sync_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Write ``content`` to ``path``, durably and atomically. Raises OSError; the old content is then still there."""
    with atomically(path) as partial:
        partial.write_bytes(content)


def write_all(file: IO[bytes], content: bytes | memoryview) -> None:
    """Write all of ``content`` to an unbuffered ``file``, which may take a part at a time."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def publish(site: Path, folder: Path) -> None:
    """Make what is in the folder ``site`` durable, then give it the name ``folder``, unless another process was faster."""
    for path in [*site.rglob("*"), site]:
        sync_file(path)
    site.chmod(0o755)
    try:
        site.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) and not folder.is_dir():
            raise
        return
    sync_folder(folder.parent)


def clear_sites(folder: Path, prefix: str, now: float) -> None:
    """Remove from ``folder`` what was begun under a name with ``prefix`` and is old: its process died."""
    for site in folder.glob(f"{prefix}*"):
        try:
            stale = now - site.stat().st_mtime > _STALE_SECONDS
        except OSError:  # its builder is done with it
            continue
        if stale:
            shutil.rmtree(site, ignore_errors=True)
