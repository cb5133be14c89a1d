"""From a worker's death to the next new step: this project's job against torchrun's, in turns. ``--help`` tells the options."""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

import costs
from ending import clean_up_when_told
from killable import Killable, Ours, Torchrun, born, proportional_mb
from progress import Say, progress
from report import goal, quantile, report
from steps import median_step

NEVER_SECONDS = 60.0
"""A trial that takes longer has failed; its job is started again."""
START_SECONDS = 180.0
POLL_SECONDS = 0.02
SETTLED = 5
"""New steps before the next trial."""
PAUSE_SECONDS = (0.5, 1.5)
"""Then as long, so that death comes anywhere within a step and between checkpoints."""


@dataclass(frozen=True)
class Trial:
    """What one SIGKILL cost."""

    contender: str
    rank: int
    seconds: float | None
    """From the signal to the end of the next step that was never done before; None: it did not come within ``NEVER_SECONDS``."""
    lost: int | None
    """Steps done again."""
    restarted: int
    """Worker processes that were started."""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"rank {self.rank}: not within {NEVER_SECONDS:g} s"
        return f"rank {self.rank}: {self.seconds:.3f} s, {self.lost} steps lost, {self.restarted} processes restarted"


def judge(seen: Collection[tuple[int, float]], killed: float, newborn: float) -> tuple[float, int] | None:
    """Seconds and steps lost, when a new step came after the ``newborn`` worker; None: not yet.

    Survivors may commit a step that the dead one had already prepared; what counts is the first that its successor took part in.
    """
    highest = max(step for step, at in seen if at < newborn)
    after = sorted((at, step) for step, at in seen if at >= newborn)
    ends = [at for at, step in after if step > highest]
    return (ends[0] - killed, max(0, highest + 1 - after[0][1])) if ends else None


def trial(job: Killable, rank: int) -> Trial:
    """Kill the worker of ``rank`` and see what comes."""
    before = job.workers()
    os.kill(before[rank], signal.SIGKILL)
    killed = time.time()
    fresh: dict[int, float] = {}
    while time.time() < killed + NEVER_SECONDS:
        time.sleep(POLL_SECONDS)
        now = job.workers()
        for pid in set(now.values()) - set(before.values()) - set(fresh):
            if (at := born(pid)) is not None:
                fresh[pid] = at
        job.look()
        if now.get(rank) in fresh and (found := judge(job.seen, killed, max(fresh.values()))) is not None:
            return Trial(job.name, rank, *found, len(fresh))
    return Trial(job.name, rank, None, None, len(fresh))


def settle(job: Killable, seconds: float) -> None:
    """Wait for new steps. Raises RuntimeError when none come."""
    deadline, goal_step = time.monotonic() + START_SECONDS, job.look() + SETTLED
    while job.look() < goal_step or len(job.workers()) < 2:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{job.name} does not train: no {SETTLED} new steps within {START_SECONDS:g} s")
        time.sleep(0.1)
    time.sleep(seconds)


def step_seconds(job: Killable) -> float:
    """Median time of a step, as far as it was not disturbed."""
    return median_step(job.seen)


def turn(job: Killable, trials: int, source: random.Random, say: Say) -> list[Trial]:
    """Start ``job``, kill a worker ``trials`` times, and stop it."""
    done: list[Trial] = []
    job.start()
    try:
        for number in range(trials):
            settle(job, source.uniform(*PAUSE_SECONDS))
            done.append(trial(job, source.randrange(2)))
            say(f"{job.name}: {number + 1}/{trials}, {done[-1]}")
            if done[-1].seconds is None:
                job.stop()
                job.start()
    finally:
        job.stop()
    return done


def row(trials: list[Trial]) -> str:
    """A line of the table."""
    lost = [t.lost for t in trials if t.lost is not None]
    cells = [
        str(len(trials)),
        str(sum(t.seconds is None for t in trials)),
        f"{_median(trials):.3f}",
        f"{quantile(_seconds(trials), 0.99):.3f}",
        f"{statistics.mean(lost):.1f}, {max(lost)}" if lost else "-",
        f"{statistics.mean(t.restarted for t in trials):.1f}",
    ]
    return f"{trials[0].contender:26}" + "".join(f"{cell:>12}" for cell in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4, help="turns of each contender (default %(default)s)")
    parser.add_argument("--ours", type=int, default=6, help="workers killed in a turn of this project's (default %(default)s)")
    parser.add_argument("--torchrun", type=int, default=2, help="workers killed in a turn of torchrun's (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides which workers die, and when (default %(default)s)")
    parser.add_argument(
        "--only", choices=("kills", "costs"), help="only deaths, or only what being ready for them costs (default both)"
    )
    parser.add_argument(
        "--cost-rounds", type=int, default=24, help="turns with snapshots and checkpoints, and without (default %(default)s)"
    )
    parser.add_argument("--no-rest", action="store_true", help="leave out what a standby and a replica cost at rest")
    options = parser.parse_args()
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        print("needs Linux, where processes are found in /proc, and two cores", file=sys.stderr)
        return 3
    clean_up_when_told()
    say = progress()
    codes = [] if options.only == "costs" else [kills(options, say)]
    codes += [] if options.only == "kills" else [costs.measure(options.cost_rounds, not options.no_rest, say)]
    return max(codes)


def kills(options: argparse.Namespace, say: Say) -> int:
    """Kill workers in turns, print what it cost, and write the results; the exit code."""
    source = random.Random(options.seed)
    ours_done: list[Trial] = []
    torch_done: list[Trial] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as temporary:
        folder = Path(temporary)
        ours = Ours(folder / "ours")
        say("the quickstart's model, two processes each, one contender at a time")
        ours.start()
        try:
            settle(ours, PAUSE_SECONDS[1])
            warm = [round(proportional_mb(pid), 1) for pid in ours.fork_servers()]
        finally:
            ours.stop()
        if len(warm) != 2:
            raise RuntimeError(f"{len(warm)} of 2 pods have a fork server")
        say(f"fork servers at rest: {' and '.join(f'{mb:.0f}' for mb in warm)} MB")
        torchrun = Torchrun(folder / "torchrun", ours.data())
        for number in range(options.rounds):
            say(f"round {number + 1}/{options.rounds}")
            ours_done += turn(ours, options.ours, source, say)
            torch_done += turn(torchrun, options.torchrun, source, say)
        step, their_step = step_seconds(ours), step_seconds(torchrun)

    print("\nthe quickstart's BERT, batch 32, a checkpoint every 50 steps; a random worker of two is killed")
    names = ("trials", "never", "p50, s", "p99, s", "lost, max", "restarted")
    print(f"{'contender':26}" + "".join(f"{name:>12}" for name in names))
    print(row(ours_done))
    print(row(torch_done))
    print(f"a step takes {step:.3f} s here and {their_step:.3f} s there")
    print(f"kept for the next worker, at rest: {' and '.join(f'{mb:.0f}' for mb in warm)} MB (shared pages count their part)")
    median = _median(ours_done)
    goals = [
        goal("worker killed: trials without a new step within a minute", "<=", 0, sum(t.seconds is None for t in ours_done)),
        goal("worker killed: steps lost, at most", "<=", 0, max(t.lost or 0 for t in ours_done)),
        goal("worker killed: to the next new step, p50 (a step + 0.3 s)", "<=", round(step + 0.3, 3), median, " s"),
        goal("torchrun's time over this project's, medians", ">=", 10, _median(torch_done) / median),
    ]
    details = {
        "trials": [asdict(t) for t in [*ours_done, *torch_done]],
        "seed": options.seed,
        "p99 seconds": [round(quantile(_seconds(done), 0.99), 4) for done in (ours_done, torch_done)],
        "step seconds": [round(step, 4), round(their_step, 4)],
        "fork servers MB": warm,
    }
    return report("recovery" if len(ours_done) >= 20 and len(torch_done) >= 6 else "recovery-short", goals, details)


def _seconds(trials: list[Trial]) -> list[float]:
    """A trial that never came back counts as long as it was waited for: at least so long it took."""
    return [NEVER_SECONDS if t.seconds is None else t.seconds for t in trials]


def _median(trials: list[Trial]) -> float:
    return statistics.median(_seconds(trials))


if __name__ == "__main__":
    raise SystemExit(main())
