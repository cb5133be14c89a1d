"""The ledger of a stage's memory: which step the block holds, and how far the change to the next one has got.

The memory is a file without a name that the agent owns, so it outlives the worker. A worker may be killed between any two of its
instructions: each field is one aligned word that is written once it is true, so the next process that maps the memory knows what it finds.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import sys
from enum import IntEnum

HEADER = mmap.ALLOCATIONGRANULARITY
"""Bytes before what the ledger is about."""
_TEXT = 512
"""Where the text of the ledger begins, behind its words; it may be as long as the header has room."""
_POPULATE_WRITE = 23
"""``MADV_POPULATE_WRITE``, which Python has no name for."""


class Count(IntEnum):
    """Whole numbers, by their place."""

    LAYOUT = 0
    """Digest of what lies where; written last when the memory is made."""
    STEP = 1
    """Committed steps of the block; -1: it is no step's."""
    PREPARED = 2
    """The step whose gradients are complete: it means something only above STEP."""
    COMMIT = 3
    """The newest step that was committed. Above STEP: its update is under way."""
    DONE = 4
    """Groups of tensors that have this update."""
    UNDO = 5
    """One more than the group whose values before this update are in the undo area."""
    EVALUATED = 6
    """The newest step that was evaluated, or needed no evaluation; -1: none."""
    BEST_STEP = 7
    """Step of the best validation; -1: none."""
    WAITED = 8
    """Evaluations in a row of which none was better, and the step of the newest of them: see :func:`packed_wait`."""
    TEXT = 9
    """Bytes of the text; 0: there is none."""
    LOSS_SCALE = 10
    """That of Float16 training: see :class:`~lmj_trainer.state.loss_scale.LossScale`; 0: there is none."""


class Measure(IntEnum):
    """Numbers with a fraction, by their place."""

    COEFFICIENT = 16
    """What the gradients of COMMIT are multiplied by."""
    RATE = 17
    """Learning rate of COMMIT."""
    BEST_SCORE = 18
    """Accuracy of the best validation."""
    SECONDS = 19
    """Time of training so far."""


_WAIT_BITS = 20


def packed_wait(waited: int, counted: int) -> int:
    """Both numbers of early stopping in one word, so that they change at once: the evaluation of a step is counted once, or not yet."""
    return (counted + 1) << _WAIT_BITS | waited


def unpacked_wait(word: int) -> tuple[int, int]:
    """``(waited, counted)`` of :func:`packed_wait`."""
    return word & ((1 << _WAIT_BITS) - 1), (word >> _WAIT_BITS) - 1


class Ledger:
    """Words, and ``size`` bytes behind them. ``descriptor``: the agent's file; None: memory that ends with this process.

    What is in the file stays when it was written with the same ``layout``, a text that says what lies where.
    """

    def __init__(self, size: int, layout: str, descriptor: int | None = None) -> None:
        digest = hashlib.sha256(f"{size} {layout}".encode()).digest()[:7] + b"\0"
        total = HEADER + size
        self.kept = descriptor is not None and os.fstat(descriptor).st_size == total and os.pread(descriptor, 8, 0) == digest
        """Whether the memory holds what an earlier process left there."""
        if descriptor is not None and not self.kept:
            # Emptied first: what is left of another layout must not be taken for anything.
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, total)
        self.memory = mmap.mmap(-1 if descriptor is None else descriptor, total)
        words = memoryview(self.memory)[:HEADER]
        self.counts, self.measures = words.cast("q"), words.cast("d")
        if not self.kept:
            for count in (Count.STEP, Count.PREPARED, Count.COMMIT, Count.EVALUATED, Count.BEST_STEP):
                self.counts[count] = -1
            self.counts[Count.LAYOUT] = int.from_bytes(digest, "little")

    @property
    def text(self) -> str | None:
        """What was written last; None: nothing, or a process died while it wrote, or it was too long."""
        size = self.counts[Count.TEXT]
        return self.memory[_TEXT : _TEXT + size].decode() if 0 < size <= HEADER - _TEXT else None

    @text.setter
    def text(self, value: str | None) -> None:
        content = (value or "").encode()
        # What stands there meanwhile is neither the old one nor the new one.
        self.counts[Count.TEXT] = 0
        if 0 < len(content) <= HEADER - _TEXT:
            self.memory[_TEXT : _TEXT + len(content)] = content
            self.counts[Count.TEXT] = len(content)

    def populate(self) -> None:
        """Have all pages made now, where the system can (Linux 5.14): else each is when it is first written, in the middle of something."""
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                self.memory.madvise(_POPULATE_WRITE)
