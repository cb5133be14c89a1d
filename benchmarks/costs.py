"""What being ready for a failure costs while nothing fails: snapshots in memory with checkpoints, a standby, a replica."""

from __future__ import annotations

import json
import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from killable import FOREVER, Ours
from procfs import family, memory_mb, processor_seconds, threads
from progress import Say
from report import Goal, goal, report
from steps import repeated

CYCLE = 10
"""Steps between two checkpoints on the disk; a snapshot in memory is taken after each step."""
STEPS = CYCLE
"""Steps of a turn: whole cycles, so that each turn has its part of the checkpoints wherever it begins."""
START_SECONDS = 120.0
TURN_SECONDS = 120.0
PIN_SECONDS = 0.005
"""How often new threads are looked for. A thread begins on the core of the one that made it."""
SPARE, BUSY = "a core to spare", "no core to spare"
BUSY_EVERY = 3
"""Rounds for one without a core to spare: the goal is about the others, of which a shared machine needs many for one percent."""
BARE, KEPT = "neither", "both"
# What a copy costs beside a step goes by the tokens of a batch: here some 2,000. The larger the batch, the less it costs.
MODEL = {
    "model.scratch.layers": 4,
    "model.scratch.hiddenSize": 256,
    "model.scratch.intermediateSize": 1024,
    "training.batchSize": 96,
    "recovery.silenceTimeoutSeconds": 60,  # who is stopped for a turn acknowledges nothing once its buffers are full
}
ARMS: Mapping[str, Mapping[str, object]] = {
    BARE: {**MODEL, "checkpoint.everySteps": FOREVER},
    KEPT: {**MODEL, "checkpoint.everySteps": CYCLE, "recovery.memorySnapshot.everySteps": 1},
}
REST_SECONDS = 20.0


@dataclass(frozen=True)
class Turn:
    """A job's steps while the other job was stopped."""

    arm: str
    mode: str
    step: float
    """Seconds a step, mean over the turn."""
    processor: float
    """Seconds of processor time a step, of all of the job's processes."""


@dataclass(frozen=True)
class Rest:
    """A pod while nothing happens to it, training apart."""

    sort: str
    resident_mb: float
    proportional_mb: float
    processor: float
    """Seconds of processor time a minute."""

    def __str__(self) -> str:
        memory = f"{self.resident_mb:.0f} MB resident ({self.proportional_mb:.0f} MB with shared pages by parts)"
        return f"{self.sort}: {memory}, {self.processor:.1f} s of processor time a minute"


class Contender:
    """A job that is stopped as a whole, processes and all, while another has its turn."""

    def __init__(self, arm: str, folder: Path) -> None:
        self.arm = arm
        self.job = Ours(folder, ARMS[arm])

    @property
    def processes(self) -> list[int]:
        """Operator first, then agents and workers: who watches is stopped before those that are watched."""
        assert self.job.process is not None
        return family(self.job.process.pid)

    def start(self) -> None:
        self.job.start()
        deadline = time.monotonic() + START_SECONDS
        while self.job.look() < 2 * CYCLE:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job with {self.arm} does not train within {START_SECONDS:g} s")
            time.sleep(0.1)
        self.pause()

    def pause(self) -> None:
        for pid in self.processes:
            _signal(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in reversed(self.processes):
            _signal(pid, signal.SIGCONT)

    def turn(self, mode: str) -> Turn:
        """Seconds of a step over ``STEPS`` of them. The first after the pause began before it and is no part of it."""
        before = self.job.look()
        workers = list(self.job.workers().values())
        with placed(mode, self.processes, workers):
            self.go_on()
            first, last = before + 2, before + 2 + STEPS
            self._reach(first)
            used = processor_seconds(self.processes)
            self._reach(last)
            used = processor_seconds(self.processes) - used
            self.pause()
        ends = dict(self.job.seen)
        return Turn(self.arm, mode, (ends[last] - ends[first]) / STEPS, used / STEPS)

    def _reach(self, step: int) -> None:
        deadline = time.monotonic() + TURN_SECONDS
        while self.job.look() < step:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job with {self.arm} is not at step {step} within {TURN_SECONDS:g} s")
            time.sleep(0.02)

    def stop(self) -> None:
        if self.job.process is not None:
            self.go_on()
            self.job.stop()
        if again := repeated(self.job.seen):
            raise RuntimeError(f"{again} steps of the job with {self.arm} were done again: it was disturbed")


@contextmanager
def placed(mode: str, processes: Iterable[int], workers: Iterable[int]) -> Iterator[None]:
    """``SPARE``: the compute threads of all workers share the first core, all else has the second. ``BUSY``: everything may run anywhere."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    known: set[int] = set()
    computing = set(workers)

    def place(those: Iterable[int]) -> None:
        for pid in those:
            for thread in threads(pid):
                if thread not in known:
                    known.add(thread)
                    where = set(cores) if mode == BUSY else {cores[0] if thread in computing else cores[1]}
                    with suppress(ProcessLookupError):
                        os.sched_setaffinity(thread, where)

    place(processes)
    over = threading.Event()

    def go_on() -> None:
        os.sched_setaffinity(threading.get_native_id(), {cores[1]})
        while not over.wait(PIN_SECONDS):
            place(computing)

    keeper = threading.Thread(target=go_on, daemon=True)
    if mode == SPARE:
        keeper.start()
    try:
        yield
    finally:
        over.set()
        if mode == SPARE:
            keeper.join()


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def snapshots(folder: Path, rounds: int, say: Say) -> list[Turn]:
    """Turns of both jobs, one after the other; who begins changes with each round. Each third round has both modes."""
    contenders = [Contender(arm, folder / arm) for arm in ARMS]
    done: list[Turn] = []
    try:
        for contender in contenders:
            contender.start()
        for number in range(rounds):
            for mode in (SPARE, BUSY) if number % BUSY_EVERY == 0 else (SPARE,):
                done += [contender.turn(mode) for contender in (contenders if number % 2 == 0 else contenders[::-1])]
                costs = done[-2:] if number % 2 == 0 else done[:-3:-1]
                say(f"{number + 1}/{rounds}, {mode}: {' and '.join(f'{t.step:.3f} s with {t.arm}' for t in costs)}")
    finally:
        for contender in contenders:
            contender.stop()
    return done


def shares(turns: Iterable[Turn], mode: str) -> list[float]:
    """What a step takes more with both than with neither, as a part of it, round by round."""
    of = {arm: [t.step for t in turns if (t.arm, t.mode) == (arm, mode)] for arm in ARMS}
    return [kept / bare - 1 for bare, kept in zip(of[BARE], of[KEPT], strict=True)]


def at_rest(folder: Path, say: Say) -> list[Rest]:
    """A rank's pod, a warm standby and replicas in sync of the quickstart's job, while it trains."""
    found: list[Rest] = []
    for name, field, sets in (
        ("standby", "standbys", {"recovery.standby": 1}),
        ("replica", "followers", {"recovery.hotStandby": "true"}),
    ):
        job = Ours(folder / name, sets)
        job.start()
        try:
            pods = _ready(job, field)
            sorts = {name: pods, f"rank's pod beside a {name}": [rank["pod"] for rank in _status(job)["ranks"]]}
            processes = {sort: [family(job.agent(pod)) for pod in each] for sort, each in sorts.items()}
            before = {sort: [processor_seconds(pids) for pids in each] for sort, each in processes.items()}
            time.sleep(REST_SECONDS)
            for sort, each in processes.items():
                used = [processor_seconds(pids) - was for pids, was in zip(each, before[sort], strict=True)]
                memory = [memory_mb(pids) for pids in each]
                means = [statistics.mean(values) for values in zip(*memory, strict=True)]
                found.append(Rest(sort, means[0], means[1], statistics.mean(used) * 60 / REST_SECONDS))
                say(str(found[-1]))
        finally:
            job.stop()
    return found


def _ready(job: Ours, field: str) -> list[str]:
    """Pods of the status's ``field`` once all are warm, or in sync."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        job.look()
        kept = _status(job).get(field, [])
        if kept and all(entry["state"] in ("Warm", "InSync") for entry in kept):
            return [entry["pod"] for entry in kept]
        if time.monotonic() > deadline:
            raise RuntimeError(f"no {field} that are ready within {START_SECONDS:g} s: {kept}")
        time.sleep(0.2)


def _status(job: Ours) -> dict[str, Any]:
    try:
        return dict(json.loads((job.folder / ".lmj" / "status.json").read_text()))
    except FileNotFoundError:
        return {}


def table(turns: list[Turn]) -> tuple[list[Goal], dict[str, float]]:
    """Print what snapshots cost; the goals, and the medians."""
    print(
        f"\na snapshot in memory after each step and one on disk after every {CYCLE}, beside a job with neither; in turns of {STEPS} steps"
    )
    names = ("step, neither", "step, both", "cost, median", "lowest", "highest", "processor time a step")
    print(f"{'':18}" + "".join(f"{name:>24}" if name.startswith("proc") else f"{name:>15}" for name in names))
    medians = {}
    for mode in (SPARE, BUSY):
        each = shares(turns, mode)
        medians[mode] = statistics.median(each)
        steps = {arm: statistics.median(t.step for t in turns if (t.arm, t.mode) == (arm, mode)) for arm in ARMS}
        used = {arm: statistics.median(t.processor for t in turns if (t.arm, t.mode) == (arm, mode)) for arm in ARMS}
        cells = [f"{steps[BARE]:.3f} s", f"{steps[KEPT]:.3f} s", *(f"{x:+.1%}" for x in (medians[mode], min(each), max(each)))]
        print(f"{mode:18}" + "".join(f"{cell:>15}" for cell in cells) + f"{used[BARE]:.3f} and {used[KEPT]:.3f} s".rjust(24))
    print("a core to spare: the compute threads of both ranks share one core, all other threads of the job have the other one;")
    print("  a rank that waits for its copy then leaves the core to the other")
    print("no core to spare: one compute thread a core, and all other threads in between")
    goals = [
        goal("a snapshot every step and a disk checkpoint every 10, with a core to spare", "<=", 2, 100 * medians[SPARE], "%")
    ]
    return goals, medians


def measure(rounds: int, rest: bool, say: Say) -> int:
    """Measure all, print it, and write the results; ``rounds``: turns of each job in each mode. The exit code."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as temporary:
        folder = Path(temporary)
        turns = snapshots(folder, rounds, say)
        pods = at_rest(folder, say) if rest else []
    goals, medians = table(turns)
    if pods:
        print("at rest, beside the quickstart's job, which trains as fast as it can:")
    for pod in pods:
        print(f"  {pod}")
    details = {
        "turns": [asdict(t) for t in turns],
        "medians": medians,
        "rest": [asdict(r) for r in pods],
        "steps of a turn": STEPS,
    }
    return report("recovery-costs" if rounds >= 6 and pods else "recovery-costs-short", goals, details)
