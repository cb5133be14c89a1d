"""A shelf: the last two snapshots of one rank's state, in memory that outlives the worker.

Each lies in a slot of its own, and a slot's step is written last: a process that maps the shelf after a death at any instant finds of each slot
either a whole snapshot or none.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from enum import IntEnum

import torch
from torch import Tensor

from lmj_trainer.state.facts import Facts
from lmj_trainer.state.ledger import HEADER, packed_wait, unpacked_wait
from lmj_trainer.state.loss_scale import LossScale

SLOTS = 2
"""The newest, and the one before it, which counts until the newest is everywhere."""
_FIRST, _WORDS = 8, 16
"""Words before the first slot's, and of each slot."""


class _Word(IntEnum):
    """Of a slot."""

    STEP = 0
    """Committed steps of the snapshot; -1: there is none."""
    EVALUATED = 1
    BEST_STEP = 2
    BEST_SCORE = 3
    """A number with a fraction, as SECONDS."""
    SECONDS = 4
    WAITED = 5
    """As of the ledger, and so is LOSS_SCALE."""
    LOSS_SCALE = 6


def digest_of(layout: str) -> int:
    """A number for a text that says what lies where: states of one number can be copied into each other."""
    return int.from_bytes(hashlib.sha256(layout.encode()).digest()[:7], "little")


class Shelf:
    """Slots 0 and 1, each of ``elements`` float32: weights and moments, flat. Not for several threads at once."""

    def __init__(self, descriptor: int | None = None) -> None:
        """``descriptor``: the agent's file, with what an earlier worker left there; None: memory that ends with this process."""
        self._descriptor = descriptor
        self.layout: int | None = None
        """Digest of what lies where in a snapshot; None: the shelf is empty."""
        self.elements = 0
        self._counts: memoryview[int] | None = None
        self._measures: memoryview[float] | None = None
        self._values: Tensor | None = None
        if descriptor is not None and os.fstat(descriptor).st_size >= HEADER:
            layout, elements = (int.from_bytes(os.pread(descriptor, 8, at), "little") for at in (0, 8))
            if layout != 0 and os.fstat(descriptor).st_size == _size(elements):
                self._map(layout, elements)

    def prepare(self, layout: int, elements: int) -> None:
        """Have slots for snapshots of ``layout``; those of another one go. Raises OSError when there is no room."""
        if (self.layout, self.elements) == (layout, elements):
            return
        self.layout = None
        self._counts, self._measures, self._values = None, None, None
        if self._descriptor is not None:
            # Emptied first: what is left of another layout must not be taken for anything.
            os.ftruncate(self._descriptor, 0)
            os.ftruncate(self._descriptor, _size(elements))
        self._map(layout, elements)
        for slot in range(SLOTS):
            self._set(slot, _Word.STEP, -1)
        assert self._counts is not None
        self._counts[1] = elements
        self._counts[0] = layout

    def _map(self, layout: int, elements: int) -> None:
        memory = mmap.mmap(-1 if self._descriptor is None else self._descriptor, _size(elements))
        words = memoryview(memory)[:HEADER]
        self._counts, self._measures = words.cast("q"), words.cast("d")
        self._values = torch.frombuffer(memory, dtype=torch.float32, offset=HEADER)
        self.layout, self.elements = layout, elements

    @property
    def steps(self) -> list[int]:
        """Steps of the snapshots that are whole, newest first."""
        return sorted((step for slot in range(SLOTS) if (step := self._step(slot)) >= 0), reverse=True)

    def find(self, step: int) -> int | None:
        """The slot that has the snapshot of ``step``."""
        return next((slot for slot in range(SLOTS) if self._step(slot) == step), None)

    def values(self, slot: int) -> Tensor:
        """What lies in ``slot``, float32 ``[elements]``: a view, for reading and for writing. Raises RuntimeError when the shelf is empty."""
        if self._values is None:
            raise RuntimeError("there is nothing on the shelf: prepare it first")
        return self._values[slot * self.elements : (slot + 1) * self.elements]

    def facts(self, slot: int) -> Facts:
        """What the rank remembered beside its tensors."""
        if self._counts is None or self._measures is None:
            raise RuntimeError("there is nothing on the shelf: prepare it first")
        counts, measures, at = self._counts, self._measures, _FIRST + slot * _WORDS
        best = counts[at + _Word.BEST_STEP]
        accuracy = None if best < 0 else measures[at + _Word.BEST_SCORE]
        wait = unpacked_wait(counts[at + _Word.WAITED])
        scale = LossScale.unpacked(counts[at + _Word.LOSS_SCALE])
        evaluated = counts[at + _Word.EVALUATED]
        return Facts(measures[at + _Word.SECONDS], evaluated, None if best < 0 else best, accuracy, *wait, scale)

    def clear(self) -> int:
        """A slot to write into, which counts no more: one that has nothing, else the older. The newest snapshot is never touched."""
        slot = min(range(SLOTS), key=self._step)
        self._set(slot, _Word.STEP, -1)
        return slot

    def complete(self, slot: int, step: int, facts: Facts) -> None:
        """All of ``step``'s snapshot is in ``slot``: it counts from now on."""
        if self._measures is None:
            raise RuntimeError("there is nothing on the shelf: prepare it first")
        at = _FIRST + slot * _WORDS
        self._set(slot, _Word.EVALUATED, facts.evaluated)
        self._set(slot, _Word.BEST_STEP, -1 if facts.best_step is None else facts.best_step)
        self._measures[at + _Word.BEST_SCORE] = 0.0 if facts.best_score is None else facts.best_score
        self._measures[at + _Word.SECONDS] = facts.seconds
        self._set(slot, _Word.WAITED, packed_wait(facts.waited, facts.counted))
        self._set(slot, _Word.LOSS_SCALE, 0 if facts.loss_scale is None else facts.loss_scale.packed())
        self._set(slot, _Word.STEP, step)

    def forget(self, after: int) -> None:
        """Snapshots of steps ``after`` the given one are of work that is done again: they go."""
        for slot in range(SLOTS):
            if self._step(slot) > after:
                self._set(slot, _Word.STEP, -1)

    def _step(self, slot: int) -> int:
        return -1 if self.layout is None or self._counts is None else self._counts[_FIRST + slot * _WORDS + _Word.STEP]

    def _set(self, slot: int, word: _Word, value: int) -> None:
        if self._counts is None:
            raise RuntimeError("there is nothing on the shelf: prepare it first")
        self._counts[_FIRST + slot * _WORDS + word] = value


def _size(elements: int) -> int:
    return HEADER + SLOTS * 4 * elements
