"""Ranks in threads of which one is killed, or moves to another worker, between two steps; the others keep what they have."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

import pytest

from lmj_api.protocol import Evaluation, EventKind, Holding
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Member, Resume
from lmj_operator.plan.membership.common_step import common_step
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.trainer import Trainer

from .pair import eventually
from .small_job import Line, follow, make, start
from .test_replicas import Workers

SECONDS = 60.0
OTHERS_SECONDS = 10.0
"""For which the others may go on when one has left the view."""


class Killed(BaseException):
    """The worker is gone, wherever it was."""


class InTurn:
    """A stage whose forward passes are alone: they draw dropout from the generator of the process, which each of them seeds."""

    def __init__(self, stage: Any, turn: threading.Lock) -> None:
        self.stage, self.turn = stage, turn

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stage, name)

    def __call__(self, *arguments: Any) -> Any:
        with self.turn:
            return self.stage(*arguments)


class Disturbed(Workers):
    """All ranks of a job, each with memory that outlives its worker. To be closed."""

    def __init__(self, job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
        self.memories = [os.memfd_create(f"rank-{rank}") for rank in range(job.spec.world_size)]
        self._numbers, self._turn = itertools.count(1), threading.Lock()
        super().__init__(job, monkeypatch)
        self.heard = list(self.lines)
        """Lines of all workers that there ever were."""

    def close(self) -> None:
        for memory in self.memories:
            os.close(memory)

    def made(self, rank: int) -> Trainer:
        return self._worker(rank, self.lines[rank], self.memories[rank])

    def _worker(self, rank: int, line: Line, memory: int | None) -> Trainer:
        trainer = make(self.job, line, rank, self.network, f"rank-{rank}-{next(self._numbers)}", memory)
        strategy: Any = trainer.strategy
        strategy._stage = InTurn(strategy._stage, self._turn)
        return trainer

    @property
    def evaluated(self) -> dict[int, Evaluation]:
        """What was told of each step."""
        told = (details["evaluation"] for line in self.heard for _, details in line.of(EventKind.EVALUATED))
        return {evaluation.step: evaluation for evaluation in told}

    def kill(self, victim: int, step: int) -> Resume:
        """View 1, in which the worker of rank ``victim`` is killed when it has taken ``step``, and the next one maps its memory: where the
        plan has all go on.
        """

        def dies() -> None:
            for trainer in self.trainers:
                trainer._transport.inbox.supersede(2, f"the worker of rank {victim} was killed")
            raise Killed

        self.lines[victim].on = at_step({step: dies})
        ends = self._left()
        assert [rank for rank, end in enumerate(ends) if isinstance(end, Killed)] == [victim], ends
        self.trainers[victim]._transport.close()
        self.lines[victim] = Line()
        self.heard.append(self.lines[victim])
        self.trainers[victim] = self.made(victim)
        resume, _ = common_step(self.job.spec.topology, [trainer._state.holding for trainer in self.trainers], [])
        assert (resume.step, resume.checkpoint) == (step, None)
        return resume

    def move(self, victim: int, step: int) -> Resume:
        """View 1, in which another worker begins to follow rank ``victim`` after ``step`` and takes its place: where all go on."""
        line, old, source = Line(), self.lines[victim], self.trainers[victim]._source
        taker = self._worker(victim, line, None)
        thread = follow(taker, line)

        def asks() -> None:
            old.follow(Member(rank=victim, pod="next", incarnation=1, address=taker._transport.address))

        def hands_over() -> None:
            eventually(lambda: source.in_sync)  # while nothing is trained
            old.handover = 1

        old.on = at_step({step: asks, step + 1: hands_over})
        assert [str(end) for end in self._left()] == [f"the next view has other members, from step {step + 2} on"] * len(
            self.lines
        )
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert line.events[-1][0] is EventKind.LOST_PEER
        assert line.events[-1][2]["holding"] == Holding(step=step + 2)
        taker._transport.feed.listen(None)
        self.lines[victim], self.trainers[victim] = line, taker
        self.heard.append(line)
        return Resume(step=step + 2)

    def _left(self) -> list[BaseException | None]:
        """A first view, which all leave: how each does."""
        now = self.view(1, start())
        with ThreadPoolExecutor(len(self.trainers)) as pool:
            futures = [pool.submit(trainer.run, now) for trainer in self.trainers]
            wait(futures, SECONDS, FIRST_EXCEPTION)
            wait(futures, OTHERS_SECONDS)
            for trainer in self.trainers:
                trainer._transport.inbox.supersede(2, "another rank has left")
            ends = [future.exception(SECONDS) for future in futures]
        assert all(isinstance(end, ViewBrokenError | Killed) for end in ends), ends
        return ends


def at_step(calls: dict[int, Callable[[], None]]) -> Callable[[EventKind, dict[str, Any]], None]:
    """Call what is said for a step when the rank has taken it."""

    def heard(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.COMMITTED and (call := calls.get(details["progress"].step)) is not None:
            call()

    return heard
