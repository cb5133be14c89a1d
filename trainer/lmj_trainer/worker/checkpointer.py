"""Checkpoints beside training: copied and written by a thread while the next step computes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lmj_api.manifest import LossScale, Manifest, ManifestFile
from lmj_api.names import checkpoint_name, part_file
from lmj_api.protocol import CheckpointInfo, CheckpointTrouble, EventKind
from lmj_trainer.checkpoint.leftovers import clear, sign
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.checkpoint.prune import remove
from lmj_trainer.checkpoint.tensors import write_tensors
from lmj_trainer.checkpoint.write import commit_manifest, folder_of
from lmj_trainer.errors import UserError
from lmj_trainer.state.host_copy import copy_beside
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.background import yield_to_compute
from lmj_trainer.worker.problem import Problem, Renewal
from lmj_trainer.worker.retention import Retention
from lmj_trainer.worker.throttle import Throttle

if TYPE_CHECKING:
    from lmj_api.spec import Checkpoint
    from lmj_api.topology import Topology
    from lmj_trainer.state.stage_state import StageState
    from lmj_trainer.store.port import Ref
    from lmj_trainer.transport.port import Transport
    from lmj_trainer.worker.control import Control

log = logging.getLogger(__name__)

_COPY_TIMEOUT = 300  # seconds for one pass over memory: far more than any machine that trains needs
_PROMISING_SECONDS = 60.0
"""For which a member that is to move, or a view that begins, waits for a checkpoint under way: what takes longer may hang."""
_ANSWER_SECONDS = 5.0
"""Storage that takes longer to say that it cannot is not there."""

_NOBODY = Owner("", "")

Look = Callable[[], tuple[list[CheckpointInfo], Collection[str]]]
"""The good checkpoints that a view builds on, and names of those that are not its run's to remove."""


@dataclass(frozen=True)
class ManifestFacts:
    """What the manifest says beside the files; rank 0's word counts."""

    job: str
    state_digest: str
    epoch: float
    seconds: float
    best: bool
    accuracy: float | None
    best_step: int | None
    best_score: float | None
    waited: int = 0
    loss_scale: LossScale | None = None


class Checkpointer:
    """Takes one checkpoint at a time. Parameters do not change before the next commit, so the copy overlaps the next step's compute."""

    def __init__(
        self,
        root: Ref,
        kept: Checkpoint,
        state: StageState,
        transport: Transport,
        control: Control,
        owner: Owner = _NOBODY,
        claim: Callable[[], None] = lambda: None,
    ) -> None:
        """``kept``: which stay, and at what rate they are written. ``owner``: whose they are. What older views left of them by half goes after
        the next. ``claim``: called before each is committed, on rank 0, by the thread that writes; may raise UserError.
        """
        self._owner, self._claim = owner, claim
        self._root, self._state = root, state
        self._transport, self._control = transport, control
        self._copy: torch.Tensor | None = None
        self._throttle = Throttle(kept.bandwidth_mbps)
        self._copied = threading.Event()
        self._copied.set()
        self._whole = False
        self._thread: threading.Thread | None = None
        self._late: tuple[int, float] | None = None
        self._step: int | None = None
        self._promising_until = 0.0
        self._awaited = False
        self.problem: str | None = None
        """Why the newest could not be written, on every rank; None: it was, or is under way, or its view broke."""
        self.renewal = Renewal()
        """When another is begun because the store refused the newest (rank 0)."""
        self._retention = Retention(root, kept.keep, owner, kept.keep_every)
        self._look: Look | None = None
        self._failed: set[str] = set()

    @property
    def known(self) -> list[CheckpointInfo]:
        """Checkpoints that this worker knows to be good, for pruning (rank 0). For the compute thread."""
        if self._look is not None:
            look, self._look = self._look, None
            self._retention.begin(*look())
        return self._retention.known

    def begin(self, look: Look) -> None:
        """A view begins on rank 0. ``look`` is called when what it finds is asked for."""
        self._retention.begin([], ())
        self._look = look

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is under way."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def saving(self) -> int | None:
        """The step of the one that is under way; None: none is."""
        return self._step if self.busy else None

    @property
    def promising(self) -> bool:
        """Whether a checkpoint is under way, and not for so long that storage may hang."""
        return self.busy and time.monotonic() < self._promising_until

    def hurry(self) -> None:
        """Have this rank's part of the one under way written as fast as can be: somebody waits."""
        self._throttle.hurry()

    def settled(self, seconds: float) -> bool:
        """Whether none is under way any more, within ``seconds``."""
        self.hurry()
        if self._thread is not None:
            self._thread.join(seconds)
        return not self.busy

    def settle(self) -> None:
        """Wait for the checkpoint under way while it is promising."""
        if self._thread is not None and self.promising:
            self._thread.join(self._promising_until - time.monotonic())

    def start(
        self,
        rank: int,
        topology: Topology,
        patience: float,
        facts: ManifestFacts | None,
        attempt: int = 0,
        *,
        awaited: bool = False,
    ) -> None:
        """Begin the checkpoint of the state's step. ``facts`` on rank 0 only, which writes the manifest when all parts are there.

        ``attempt``: times that it was tried already in this view. ``awaited``: somebody waits for it, and has it tried again.
        """
        self.wait(patience)
        view, step = self._transport.inbox.view, self._state.step
        self.problem = None
        now = time.monotonic()
        # Others wait for a message of the rank that waits: with a third of their patience left over they still have two.
        self._promising_until = now + min(_PROMISING_SECONDS, patience / 3)
        self._throttle.begin()
        if awaited:
            self.hurry()
        else:
            patience += self._throttle.longest(self._state.saved.nbytes)
        self._late = step, now + patience
        self._step = step
        self._awaited = awaited
        self._copied.clear()
        self._whole = False
        arguments = (view, step, attempt, rank, topology, patience, facts, self.known)
        self._thread = threading.Thread(target=self._run, args=arguments, name=f"checkpoint-{step}", daemon=True)
        self._thread.start()

    def complain(self) -> None:
        """Tell (once) of a checkpoint that is under way for longer than its patience: storage that hangs reports no error."""
        if self._late is not None and self.busy and time.monotonic() > self._late[1]:
            step, self._late = self._late[0], None
            self._warn(step, Problem(f"it is not written yet: is {self._root} reachable?"))

    def copied(self) -> torch.Tensor | None:
        """The copy of the state whose checkpoint was begun last, once it is taken; None: there was no memory for it. Any thread may.

        It stays as it is until the next checkpoint is begun.
        """
        self.before_apply()
        return self._copy if self._whole else None

    def before_apply(self) -> None:
        """Wait until the copy is taken: the state is about to change."""
        if not self._copied.wait(_COPY_TIMEOUT):
            raise TimeoutError(f"the state was not copied within {_COPY_TIMEOUT} s: is the machine out of memory?")

    def wait(self, timeout: float) -> None:
        """Wait for the checkpoint under way. Raises TimeoutError after ``timeout`` seconds."""
        if not self.settled(timeout) and self._thread is not None:
            raise TimeoutError(f"{self._thread.name} is not written after {timeout:g} s: is {self._root} reachable?")

    def _run(
        self,
        view: int,
        step: int,
        attempt: int,
        rank: int,
        topology: Topology,
        patience: float,
        facts: ManifestFacts | None,
        known: list[CheckpointInfo],
    ) -> None:
        part: ManifestFile | None = None
        problem: Problem | None = None
        started = time.time()
        writes = rank in topology.writers
        try:
            if writes:
                part = self._write(view, step, topology.part(rank))
        except (OSError, RuntimeError) as error:
            # RuntimeError: no memory for the copy. Training goes on; what is durable stays.
            problem = Problem.of(f"rank {rank} could not write", error)
        finally:
            self._copied.set()
        try:
            if facts is None:
                if writes:
                    payload = {
                        "part": None if part is None else part.to_json(),
                        "problem": None if problem is None else vars(problem),
                    }
                    self._transport.send(topology.leader, Envelope(view, Kind.PART, step, attempt, rank, payload))
                # Rank 0 waits for the others first, for as long.
                self.problem = self._transport.inbox.take(Kind.DURABLE, step, attempt, topology.leader, 2 * patience, view)
                return
            parts = [part]
            for other in [writer for writer in topology.writers if writer != rank]:
                file, wrong = self._part(view, step, attempt, other, patience)
                parts.append(file)
                problem = problem or wrong
        except ViewBrokenError as error:
            log.info("checkpoint of step %d given up: %s", step, error)
            return
        if not problem:
            problem = self._commit(view, step, [p for p in parts if p is not None], facts, started, known)
        self.renewal.came(problem)
        if problem:
            self._warn(step, problem)
        answers = not problem or self._discard(view, step)
        self.problem = problem.text if problem else ""
        for other in topology.followers:
            self._transport.send(other, Envelope(view, Kind.DURABLE, step, attempt, rank, self.problem))
        # Not before: what an older view, cut off, finishes until then is a checkpoint. After a failure too, because the disk may be full.
        if answers:
            self._clear(view)

    def _write(self, view: int, step: int, part: int) -> ManifestFile:
        """The file of ``part``, which is this rank's. Raises OSError or RuntimeError."""
        yield_to_compute()
        saved = self._state.saved
        if self._copy is None:
            self._copy = torch.empty_like(saved, device="cpu")
        copy_beside(self._copy, saved)
        self._whole = True
        self._copied.set()
        folder = folder_of(self._root, step, view, self._owner.run)
        sign(folder, self._owner)
        return write_tensors(folder / part_file(part), self._state.tensors(self._copy), self._state.frozen, self._throttle.wrote)

    def _part(
        self, view: int, step: int, attempt: int, other: int, patience: float
    ) -> tuple[ManifestFile | None, Problem | None]:
        """The file that ``other`` wrote, or why it wrote none. Raises ViewBrokenError."""
        inbox = self._transport.inbox
        try:
            payload = inbox.take(Kind.PART, step, attempt, other, patience, view)
        except ViewBrokenError:
            inbox.check()
            if inbox.view != view:
                raise
            # The view holds; what does not answer is the other's storage.
            return None, Problem(f"rank {other} has not written its part within {patience:g} s")
        file, problem = payload["part"], payload["problem"]
        return (
            None if file is None else ManifestFile.model_validate_json(file),
            None if problem is None else Problem(**problem),
        )

    def _warn(self, step: int, problem: Problem) -> None:
        trouble = CheckpointTrouble(step=step, since=time.time(), error=problem.text, refused=problem.refused)
        goes = "it is tried again" if self._awaited else "training goes on"
        self._control.emit(EventKind.WARNING, f"checkpoint of step {step} failed: {problem.text}; {goes}", trouble=trouble)

    def _clear(self, view: int) -> None:
        try:
            gone = clear(self._root, view, self._owner)
        except OSError as error:
            log.warning("half-written checkpoints of older views in %s are not removed yet: %s", self._root, error)
        else:
            for name in gone:
                log.info("%s was half-written when its view ended: removed", name)

    def _discard(self, view: int, step: int) -> bool:
        """What was written of it goes, because a disk that is full would stay so. False: storage does not answer now. A call to a bucket may
        take a minute then, and others wait for this checkpoint's end, so no more are made.
        """
        self._failed.add(checkpoint_name(step, view, self._owner.run))
        for name in sorted(self._failed):
            began = time.monotonic()
            try:
                remove(self._root, [name])
            except OSError as error:
                log.info("%s is not removed yet: %s", name, error)
                if time.monotonic() - began > _ANSWER_SECONDS:
                    return False
            else:
                self._failed.discard(name)
        return True

    def _commit(
        self, view: int, step: int, files: list[ManifestFile], facts: ManifestFacts, started: float, known: list[CheckpointInfo]
    ) -> Problem | None:
        """Make it a checkpoint: None, or why it is none. ``known``: those of its view when it was begun."""
        run = self._owner.run if self._owner.run.known else None
        name = checkpoint_name(step, view, run)
        manifest = Manifest(run=run, view=view, step=step, files=files, **vars(facts))
        size = sum(file.size for file in files)
        try:
            if over := self._retention.over(manifest):
                self._transport.inbox.supersede(*over)
                return Problem(over[1])
            self._claim()
            commit_manifest(self._root / name, manifest)
        except UserError as error:
            return Problem(str(error))
        except (OSError, ValueError) as error:
            return Problem.of("its manifest could not be written", error)
        now = time.time()
        info = CheckpointInfo(name=name, step=step, size=size, best=facts.best, time=now)
        removed: list[str] = []
        try:
            removed = self._retention.add(manifest, info, known)
        except OSError as error:
            self._control.emit(EventKind.WARNING, f"old checkpoints could not be removed: {error}")
        message = f"step {step}, {size / 1e6:.1f} MB in {now - started:.1f} s"
        self._control.emit(EventKind.CHECKPOINTED, message, checkpoint=info, removed=removed)
        return None
