"""Snapshots in memory, beside training: copied at a step boundary, kept by the next rank too, and gone back to when a pod is lost."""

from __future__ import annotations

import itertools
import logging
import threading
from typing import TYPE_CHECKING

import torch

from lmj_api.protocol import Snapshots
from lmj_trainer.state.facts import Facts
from lmj_trainer.state.host_copy import copy_beside
from lmj_trainer.state.shelf import Shelf, digest_of
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.background import yield_to_compute
from lmj_trainer.worker.keeper import GO_ON, HAS, PIECE, Head, Keeper, Piece

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmj_api.topology import Topology
    from lmj_api.view import Resume
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.transport.port import Transport

log = logging.getLogger(__name__)

_COPY_TIMEOUT = 300  # seconds for one pass over memory: far more than any machine that trains needs


class MemorySnapshots:
    """One rank's snapshots, and those that it keeps for the rank before it. Methods are for the compute thread.

    One is begun only when every rank's newest is with its neighbour, by rank 0's word, and takes the place of the one before that. So at
    any instant there is a step of which each rank has a whole one, and its neighbour too.
    """

    def __init__(
        self,
        every: int | None,
        rank: int,
        topology: Topology,
        state: StageState,
        transport: Transport,
        shelves: tuple[int, int] | None,
        patience: float,
        warn: Callable[[str], None],
    ) -> None:
        """``every``: steps; None: no snapshots. ``shelves``: descriptors of the agent's files for the own ones and for the kept ones; None:
        memory that ends with this process. ``warn`` is told, in any thread, why one could not be taken.
        """
        self._every, self._rank, self._state, self._transport = every, rank, state, transport
        self._alone = topology.size == 1
        self._neighbour, self._before = topology.keeper(rank), topology.kept(rank)
        own, kept = shelves or (None, None)
        self._own = Shelf(own) if every is not None else None
        self._keeper = Keeper(Shelf(kept) if every is not None and not self._alone else None, transport, rank)
        self._patience, self._warn = patience, warn
        self._layout = digest_of(state.layout)
        if self._own is not None and self._own.layout not in (None, self._layout):
            # Of another stage, or beside other frozen weights: to this state it means nothing.
            self._own.forget(-1)
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        """The state may change."""
        self._copied.set()
        self._taken = threading.Event()
        """What it is copied from may be used for something else, be it the state or not."""
        self._taken.set()
        self._sent = True
        self._anew = True
        self._told: Snapshots | None = None

    @property
    def held(self) -> Snapshots | None:
        """What the operator is told."""
        return None if self._own is None else Snapshots(own=self._own.steps, kept=self._keeper.steps)

    def news(self) -> Snapshots | None:
        """What the operator is to be told while training goes on; None: nothing else than before, or it is changing now."""
        if not self._taken.is_set() or (held := self.held) == self._told:
            return None
        self._told = held
        return held

    @property
    def unsent(self) -> bool:
        """Whether the newest is not with the neighbour yet: none is begun before it is."""
        return self._own is None or not self._sent

    @property
    def empty(self) -> bool:
        """Whether this rank has none of its own, and its state is of memory: with the next rank's pod the last of its snapshots would go."""
        return self._own is not None and not self._anew and not self._own.steps

    def due(self, committed: int) -> bool:
        """Whether one is to be taken after ``committed`` steps."""
        return self._every is not None and committed % self._every == 0

    def join(self, view: int) -> None:
        """Before ``view`` is joined."""
        self._keeper.begin(view)

    def begin(self) -> None:
        """The view's training begins: the neighbour, who may be another than before, is offered the newest."""
        self._wait()
        self._numbers = itertools.count()
        self._sent = True
        if self._own is not None and self._own.steps:
            self._start(self._own.steps[0], None)

    def take(self, copy: Callable[[], torch.Tensor | None] | None = None) -> None:
        """Begin the snapshot of the state's step. ``copy``: waits for a copy of the state that somebody else makes, and returns it, or None."""
        if self._own is None:
            raise RuntimeError("a snapshot was asked for, and recovery.memorySnapshot is not set here")
        self._wait()
        self._start(self._state.step, copy or (lambda: self._state.saved), shared=copy is not None)

    def before_apply(self) -> None:
        """Wait until the copy is taken: the state is about to change."""
        _await(self._copied)

    def release(self) -> None:
        """Wait until nothing is read of anybody's copy any more."""
        _await(self._taken)

    def forget(self, after: int) -> None:
        """The view goes on from step ``after``; -1: from a state that did not come of any that is kept. Later ones are of what is done again."""
        self._wait()
        self._anew = after < 0
        if self._own is not None:
            self._own.forget(after)
        self._keeper.forget(after)

    def restore(self, resume: Resume) -> None:
        """Bring the state to the snapshot that the view names. Raises ViewBrokenError: it does not come."""
        if self._own is None:
            raise RuntimeError("the view goes on from a snapshot, and recovery.memorySnapshot is not set here")
        self._wait()
        view, step = self._transport.inbox.view, resume.step
        giving = None
        if self._before in resume.fetched:
            giving = threading.Thread(target=self._give, args=(step, self._before, view), name=f"give-{step}", daemon=True)
            giving.start()
        slot = self._fetch(step) if self._rank in resume.fetched else self._own.find(step)
        if slot is None:
            # One that was under way when the view was planned has taken its place. Nobody sends it: the next view is of what is here.
            raise ViewBrokenError(f"the snapshot of step {step} is not here any more")
        state, facts = self._state, self._own.facts(slot)
        state.fill(-1)
        state.forget_gradients()
        state.saved.copy_(self._own.values(slot))
        state.facts = facts
        state.fill(step)
        if giving is not None:
            giving.join()  # as long as its patience lasts
            self._transport.inbox.check()

    def _give(self, step: int, rank: int, view: int) -> None:
        try:
            self._keeper.give_back(step, rank, view, self._patience)
        except ViewBrokenError as error:
            self._transport.inbox.fail(view, f"rank {rank} did not take the snapshot of step {step}: {error}", error.rank)

    def _fetch(self, step: int) -> int:
        """The slot into which the snapshot of ``step`` came from the next rank. Raises ViewBrokenError."""
        assert self._own is not None
        inbox, source = self._transport.inbox, self._neighbour
        head = inbox.take(Kind.RESTORE, step, 0, source, self._patience)
        if head is None:
            raise ViewBrokenError(f"rank {source} has no snapshot of step {step}")
        if (head.layout, head.elements) != (self._layout, self._state.saved.numel()):
            raise ViewBrokenError(f"the snapshot of step {step} that rank {source} has is not of this job, stage or version")
        self._own.prepare(head.layout, head.elements)
        slot = self._own.clear()
        values = self._own.values(slot)
        for index in range(1, -(-head.elements // PIECE) + 1):
            piece = inbox.take(Kind.RESTORE, step, index, source, self._patience)
            values[piece.start : piece.start + len(piece.values)].copy_(piece.values)
            self._transport.send(source, Envelope(inbox.view, Kind.RESTORED, step, index, self._rank))
        self._own.complete(slot, step, head.facts)
        return slot

    def _start(self, step: int, copy: Callable[[], torch.Tensor | None] | None, *, shared: bool = False) -> None:
        facts = self._state.facts
        self._sent = False
        if copy is not None:
            self._taken.clear()
            if not shared:
                self._copied.clear()
        arguments = (self._transport.inbox.view, step, copy, facts)
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"snapshot-{step}", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        """Wait for the thread: it ends with its view at the latest."""
        if self._thread is not None:
            self._thread.join(self._patience)
            if self._thread.is_alive():
                raise TimeoutError(f"{self._thread.name} does not end within {self._patience:g} s")

    def _run(self, view: int, step: int, copy: Callable[[], torch.Tensor | None] | None, facts: Facts) -> None:
        yield_to_compute()
        try:
            slot = self._copy(step, copy, facts)
        except (OSError, RuntimeError) as error:
            slot, problem = None, f"rank {self._rank} has no room for it: {error}"
        else:
            problem = "it could not be copied"
        finally:
            self._copied.set()
            self._taken.set()
        try:
            if slot is not None:
                problem = self._send(view, step, slot) if not self._alone else GO_ON
        except ViewBrokenError as error:
            log.info("the snapshot of step %d is not with the neighbour: %s", step, error)
            return
        if problem == GO_ON:
            self._sent = True
        else:
            self._warn(
                f"the snapshot of step {step} in memory failed: {problem}; training goes on, and none is taken in this view"
            )

    def _copy(self, step: int, copy: Callable[[], torch.Tensor | None] | None, facts: Facts) -> int | None:
        """The slot that has the snapshot of ``step``; None: there is no copy to make it from. Raises OSError, RuntimeError: no memory."""
        assert self._own is not None
        slot = self._own.find(step)
        if slot is not None or copy is None:
            return slot
        self._own.prepare(self._layout, self._state.saved.numel())
        slot = self._own.clear()
        source = copy()
        if source is None:
            return None
        copy_beside(self._own.values(slot), source)
        self._own.complete(slot, step, facts)
        return slot

    def _send(self, view: int, step: int, slot: int) -> str:
        """Why the neighbour does not have it; GO_ON: it has it. Raises ViewBrokenError."""
        assert self._own is not None
        values = self._own.values(slot)
        answer = self._ask(view, step, Head(self._layout, len(values), self._own.facts(slot)))
        for start in range(0, len(values), PIECE):
            if answer != GO_ON:
                break
            answer = self._ask(view, step, Piece(start, values[start : start + PIECE]))
        return GO_ON if answer == HAS else answer

    def _ask(self, view: int, step: int, body: Head | Piece) -> str:
        """Send the next piece; the neighbour's answer. Raises ViewBrokenError, also when there is none for long."""
        index, target = next(self._numbers), self._neighbour
        self._transport.send(target, Envelope(view, Kind.SNAPSHOT, step, index, self._rank, body))
        answer: str = self._transport.inbox.take(Kind.KEPT, step, index, target, self._patience, view)
        return answer


def _await(event: threading.Event) -> None:
    if not event.wait(_COPY_TIMEOUT):
        raise TimeoutError(f"the state was not copied within {_COPY_TIMEOUT} s: is the machine out of memory?")
