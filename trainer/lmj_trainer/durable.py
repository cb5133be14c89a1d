"""Durable, atomic writes of files: after a crash at any point a file is the old one or the new one, never a mixture."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO


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


def write_all(file: IO[bytes], content: bytes | memoryview) -> None:
    """Write all of ``content`` to an unbuffered ``file``, which may take a part at a time."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
