"""Who knows of a commit, and in which order, of two ranks in this process: whenever rank 0 dies, its memory has what others know."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from lmj_api.protocol import Progress
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.transport.envelope import Envelope, Kind
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker.trainer import Trainer

from .pair import SECONDS, eventually
from .small_job import start, view
from .test_hand_over import Pair

STEP = 3
"""Its commit is looked at."""


def recorded(job: LiveMigrationJob) -> int:
    return len((Path(job.spec.output.path) / "metrics.jsonl").read_text().splitlines())


def run(pair: Pair) -> list[threading.Thread]:
    """One view, which is broken in the end."""

    def go(trainer: Trainer) -> None:
        with pytest.raises(ViewBrokenError):
            trainer.run(view(1, start(), 2))

    threads = [threading.Thread(target=go, args=(trainer,)) for trainer in pair.trainers]
    for thread in threads:
        thread.start()
    return threads


def leave(pair: Pair, *ranks: int) -> None:
    for rank in ranks:
        pair.trainers[rank]._transport.inbox.supersede(2, "a newer view")


def test_the_follower_then_the_ledger_then_the_file_then_the_others(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(job, monkeypatch)
    first = pair.trainers[0]
    told, sends = first._source.committed, first._transport.send
    assert first._recorder is not None
    records = first._recorder.step
    seen: list[tuple[str, int, int]] = []

    def look(what: str) -> None:
        committed = first._state.committed
        seen.append((what, recorded(pair.job), committed[0] if committed is not None else 0))

    def tells(coefficient: float, rate: float, line: str | None, *, first: bool, last: bool) -> None:
        if pair.step == STEP - 1:
            assert first
            assert line is not None
            look("the follower")
        told(coefficient, rate, line, first=first, last=last)

    def send(rank: int, envelope: Envelope) -> None:
        if envelope.kind is Kind.COMMIT and envelope.step == STEP - 1:
            look("the others")
            leave(pair, 0, 1)
        sends(rank, envelope)

    def record(progress: Progress, now: float) -> None:
        if progress.step == STEP:
            look("the file")
        records(progress, now)

    monkeypatch.setattr(first._recorder, "step", record)
    monkeypatch.setattr(first._source, "committed", tells)
    monkeypatch.setattr(first._transport, "send", send)
    for thread in run(pair):
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert seen == [("the follower", STEP - 1, STEP - 1), ("the file", STEP - 1, STEP), ("the others", STEP, STEP)]


def test_a_rank_0_that_gives_the_step_up_says_so_to_all(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has said that it is prepared waits for the answer, and its follower with it."""
    pair = Pair(job, monkeypatch)
    abandoned: list[int] = []
    for rank, trainer in enumerate(pair.trainers):
        monkeypatch.setattr(trainer._source, "abandoned", lambda rank=rank: abandoned.append(rank))
    second = pair.trainers[1]
    take = second._group.take

    def waits(kind: Kind, step: int, *others: Any, **options: Any) -> Any:
        if kind is Kind.COMMIT and step == STEP - 1 and options:
            leave(pair, 0)
        return take(kind, step, *others, **options)

    gradients = pair.trainers[0].strategy.gradients

    def late(step: int, *others: Any) -> Any:
        losses = gradients(step, *others)
        if step == STEP - 1:
            eventually(lambda: pair.trainers[0]._transport.inbox._broken is not None)
        return losses

    monkeypatch.setattr(second._group, "take", waits)
    monkeypatch.setattr(pair.trainers[0].strategy, "gradients", late)
    threads = run(pair)
    # Of the second rank's view nothing has been heard yet, so it can know it from rank 0 alone.
    eventually(lambda: sorted(abandoned) == [0, 1])
    leave(pair, 1)
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    assert pair.trainers[1]._state.step == STEP - 1
