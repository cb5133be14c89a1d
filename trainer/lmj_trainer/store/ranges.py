"""Ranges of a file, several under way at a time."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from lmj_trainer.store.port import Piece

T = TypeVar("T")
R = TypeVar("R")


def ahead(ask: Callable[[T], R], places: Iterable[T], at_once: int) -> Iterator[R]:
    """What ``ask`` says of each of ``places``, in their order. No more are taken of them than are under way: so many are in memory."""
    left = iter(places)
    with ThreadPoolExecutor(at_once) as pool:
        asked = deque(pool.submit(ask, place) for place in itertools.islice(left, at_once))
        try:
            while asked:
                yield asked.popleft().result()
                asked.extend(pool.submit(ask, place) for place in itertools.islice(left, 1))
        finally:
            for each in asked:
                each.cancel()


def scatter(pieces: Iterable[memoryview], buffers: Sequence[memoryview]) -> None:
    """Copy ``pieces``, one after the other, into ``buffers``, which are as long together."""
    left = iter(buffers)
    space = memoryview(b"")
    for piece in pieces:
        while piece:
            space = space or next(left)
            count = min(len(space), len(piece))
            space[:count] = piece[:count]
            space, piece = space[count:], piece[count:]


def in_chunks(pieces: Iterable[Piece], size: int) -> Iterator[bytes]:
    """The content of ``pieces``, in parts of ``size`` bytes but for the last; of an empty one none."""
    held = bytearray()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while view:
            count = min(size - len(held), len(view))
            held += view[:count]
            view = view[count:]
            if len(held) == size:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


@contextlib.contextmanager
def copied(key: str, pieces: Callable[[], Iterable[memoryview]]) -> Iterator[Path]:
    """The content of the file ``key`` on this machine; it goes when nobody has it open any more."""
    with tempfile.NamedTemporaryFile(suffix=f"-{key.rpartition('/')[2]}") as file:
        for piece in pieces():
            file.write(piece)
        file.flush()
        yield Path(file.name)
