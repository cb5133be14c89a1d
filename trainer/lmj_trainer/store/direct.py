"""The content of a large file on its way to the disk, past the page cache where the file system can do that.

Through the cache a gigabyte takes the kernel one to two and a half seconds of processor time (measured), which the step that computes beside
a checkpoint lacks, and drives from memory what is read again. Past it, it takes a twentieth of a second.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from lmj_trainer.durable import write_all
from lmj_trainer.store.port import Piece

_ROOM = 4 << 20
"""Bytes of a write past the cache: such a write has to begin and end at whole blocks, in memory and in the file."""
_DIRECT = getattr(os, "O_DIRECT", 0)


def write_pieces(path: Path, pieces: Iterable[Piece]) -> None:
    """Write ``pieces`` one after the other into the file at ``path``, which is replaced."""
    # It goes with its last view: closed by hand, it would refuse while the traceback of an error has one.
    view = memoryview(mmap.mmap(-1, _ROOM))
    with path.open("wb", buffering=0) as file:
        held = 0
        for piece in pieces:
            left = memoryview(piece)
            while left:
                count = min(len(left), _ROOM - held)
                view[held : held + count] = left[:count]
                left, held = left[count:], held + count
                if held == _ROOM:
                    _write_past(file, view)
                    held = 0
        _set(file, 0)
        write_all(file, view[:held])


def _write_past(file: IO[bytes], content: memoryview) -> None:
    begin = file.tell()
    try:
        _set(file, _DIRECT)
        write_all(file, content)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # This file system cannot, or not with blocks of this size.
        _set(file, 0)
        write_all(file, content[file.tell() - begin :])


def _set(file: IO[bytes], direct: int) -> None:
    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    if flags & _DIRECT != direct:
        fcntl.fcntl(file, fcntl.F_SETFL, flags & ~_DIRECT | direct)
