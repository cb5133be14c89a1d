"""The ways in which a rank gets into another process, each done once to a job that trains, and measured."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from killable import Killable, Ours, Torchrun
from move import AFTER, BEFORE, GROUP, LIVE, RESTART, Move, around, firsts, judge, unrest
from sizes import Size

from lmj_api.status import JobStatus
from lmj_operator.backend.local.store import RunStore
from lmj_trainer.checkpoint.write import MANIFEST

NEVER_SECONDS = 180.0
POLL_SECONDS = 0.05
QUIET_SECONDS = 6.0
"""After a move its old pod ends, and the new one gets ready to start its next worker: that is not part of the step before the next move."""
TRAINS = re.compile(r"^(\S+ \S+) INFO .*: view (\d+) trains from step (\d+) on; its update took ([\d.]+) s$", re.MULTILINE)
SENT = re.compile(r"handed over: sent (\d+) bytes of state and (\d+) of gradients")


def wait(job: Killable, what: str, holds: Callable[[], bool]) -> None:
    """Until ``holds``, looking at the job meanwhile. Raises RuntimeError when it takes too long."""
    deadline = time.monotonic() + NEVER_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{job.name}: {what}: not within {NEVER_SECONDS:g} s")
        time.sleep(POLL_SECONDS)
        job.look()


def settle(job: Killable) -> None:
    """Wait until nothing is left of what came before, and for as many steps as tell what one takes."""
    quiet = time.monotonic() + QUIET_SECONDS
    wait(job, "a first step", lambda: job.look() > 0)
    wait(job, "a quiet machine", lambda: time.monotonic() > quiet)
    target = job.look() + BEFORE + 1
    wait(job, f"step {target}", lambda: job.look() >= target)


def live(job: Ours, size: Size, stages: int, rank: int, number: int, way: str = LIVE) -> Move:
    """Move the rank, and see what it costs. Stopped for the copy, it pauses at the longest gap of all, not at the switch."""
    settle(job)
    store = RunStore(job.folder / ".lmj")
    begun, step = time.time(), request(job, rank, number)
    move = _measured(job, way, size, stages, rank, begun, step)
    moved = next(i for i in reversed(status_in(store).incidents) if i.kind == "Moved")
    logs = job.folder / "logs"
    move = replace(move, sent=sent(logs / f"{moved.pod}.log"), waited=waited(logs, step, firsts(job.seen)[step]))
    return move if way == LIVE else replace(move, pause=move.longest)


def request(job: Ours, rank: int, number: int) -> int:
    """Ask for the move of ``rank``, and wait for it; the step after which the group changed. ``number``: another for each request."""
    store = RunStore(job.folder / ".lmj")
    before = status_in(store).migrations
    store.write_request(f"{rank} {number}")
    wait(job, f"the move of rank {rank}", lambda: status_in(store).migrations > before)
    view = status_in(store).view
    assert view is not None
    return view.resume.step


def views(logs: Path) -> dict[int, int]:
    """The views that trained, by number, each with the step that it went on from."""
    found = [match for log in logs.glob("*.log") for match in TRAINS.findall(log.read_text())]
    return {int(view): int(step) for _, view, step, _ in found}


def waited(logs: Path, step: int, committed: float) -> float | None:
    """Seconds from the update of ``step``, which was ``committed`` then, to the first batch of the view that went on from it; None: they
    do not tell.
    """
    found = [match for log in logs.glob("*.log") for match in TRAINS.findall(log.read_text()) if int(match[2]) == step]
    newest = max((int(view) for _, view, _, _ in found), default=0)
    begins = [
        datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f").timestamp() - float(update)
        for at, view, _, update in found
        if int(view) == newest
    ]
    return max(begins) - committed if begins else None


def sent(log: Path) -> float | None:
    """Megabytes that the pod whose log this is sent for the move that ended it; None: it says nothing of it."""
    found = SENT.findall(log.read_text()) if log.exists() else []
    return sum(map(int, found[-1])) / 1e6 if found else None


def restart(job: Ours, size: Size, stages: int, rank: int) -> Move:
    """End the rank's pod as a cluster does where ranks do not move: it has time for a last checkpoint. Another takes its place, from that."""
    store = RunStore(job.folder / ".lmj")
    settle(job)
    pods = [entry.pod for entry in status_in(store).ranks]
    pod = pods[rank]
    assert pod is not None
    begun = time.time()
    os.kill(job.agent(pod), signal.SIGINT)  # at SIGTERM its rank would move first
    highest = job.look()
    wait(job, f"another pod of rank {rank}", lambda: [entry.pod for entry in status_in(store).ranks] != pods)
    wait(job, "new steps", lambda: job.look() > highest + 2 * AFTER)
    # Beside checkpoints there are folders of those who may write some.
    manifest = max((job.folder / "checkpoints").glob(f"*/{MANIFEST}"), key=lambda file: file.stat().st_mtime_ns)
    size_mb = sum(file.stat().st_size for file in manifest.parent.iterdir()) / 1e6
    return replace(_measured(job, RESTART, size, stages, rank, begun, None), sent=size_mb)


def group(job: Torchrun, size: Size, rank: int) -> Move:
    """End a worker just after a checkpoint, so that nothing has to be done again: all workers are started again."""
    settle(job)
    checkpoint, workers = job.folder / "checkpoint.pt", job.workers()
    newest = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
    wait(job, "a checkpoint", lambda: checkpoint.exists() and checkpoint.stat().st_mtime_ns > newest)
    highest, begun = job.look(), time.time()
    os.kill(workers[rank], signal.SIGTERM)
    wait(job, "new workers", lambda: len(job.workers()) == 2 and not set(job.workers().values()) & set(workers.values()))
    wait(job, "new steps", lambda: job.look() > highest + 2 * AFTER)
    move = _measured(job, GROUP, size, len(workers), rank, begun, None)
    return replace(move, sent=checkpoint.stat().st_size / 1e6)


def _measured(job: Killable, way: str, size: Size, stages: int, rank: int, begun: float, switch: int | None) -> Move:
    """Wait for the end of what was asked for at ``begun``."""
    wait(job, f"{AFTER} steps after the {way}", lambda: judge(job.seen, begun, switch) is not None)
    cost = judge(job.seen, begun, switch)
    assert cost is not None
    there = None if switch is None else around(job.seen, switch)
    return Move(way, size.name, stages, rank, **vars(cost), unrest=unrest(job.seen, begun), around=there)


def status_of(job: Ours) -> JobStatus:
    """What the job's runner wrote last."""
    return status_in(RunStore(job.folder / ".lmj"))


def status_in(store: RunStore) -> JobStatus:
    """The same, where the run keeps it. Raises RuntimeError when nothing is there."""
    status = store.read_status()
    if status is None:
        raise RuntimeError(f"{store.status_file} is not there")
    return status
