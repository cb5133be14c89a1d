"""A user's script here and under torchrun's elastic agents: a process killed, a node lost, and what it costs undisturbed. ``--help`` tells more.

Both run the same script of transformers' Trainer, unchanged, in turns: two nodes of one process with one thread each, over Gloo, a checkpoint
every ten steps. What counts is the next step that nobody had done before.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from ending import clean_up_when_told
from progress import Say, progress
from report import Goal, goal, report
from scripted import NODES, Line, Ours, Scripted, Torchrun

NEVER_SECONDS = 120.0
"""A trial that takes longer has failed; its job is started again."""
SETTLED = 12
"""Steps of both processes before the next trial: a checkpoint is among them."""
PAUSE_SECONDS = (6.0, 7.0)
"""Then as long, so that death comes anywhere within a step and between checkpoints. The Trainer tells its steps every five seconds at most: of
deaths
that come faster the job knows no step between them, and waits longer before each restart.
"""
POLL_SECONDS = 0.01
TURN = 50
"""Steps of a turn, where nobody is disturbed."""
PARTS = ("processes", "memory", "nodes", "undisturbed")


@dataclass(frozen=True)
class Trial:
    """What one death cost."""

    contender: str
    fault: str
    rank: int
    seconds: float | None
    """From the signal to the end of the next step that was never done before; None: it did not come within ``NEVER_SECONDS``."""
    lost: int | None
    """Steps done again."""

    def __str__(self) -> str:
        if self.seconds is None:
            return f"rank {self.rank}: not within {NEVER_SECONDS:g} s"
        return f"rank {self.rank}: {self.seconds:.2f} s, {self.lost} steps done again"


def process_dies(job: Scripted, rank: int) -> None:
    """SIGKILL of the script's process of ``rank``."""
    os.kill(job.pid(rank), signal.SIGKILL)


def node_dies(job: Scripted, rank: int) -> None:
    """SIGKILL of all that the node of ``rank`` runs."""
    job.lose(rank)


FAULTS: dict[str, Callable[[Scripted, int], None]] = {"processes": process_dies, "memory": process_dies, "nodes": node_dies}
"""``memory``: a process dies of a job that keeps its state after each step (``command.memory``)."""


def judge(lines: Sequence[Line], killed: float) -> tuple[float, int] | None:
    """Seconds and steps done again, when a new step came after the death at ``killed``; None: not yet.

    The first process may write a step down that the dead one had its part in: what counts is the first that processes did which were not there.
    """
    old = next(line.pid for line in reversed(lines) if line.time <= killed)
    highest = max(line.step for line in lines if line.time <= killed or line.pid == old)
    after = [line for line in lines if line.time > killed and line.pid != old]
    ends = [line.time for line in after if line.step > highest]
    return (ends[0] - killed, max(0, highest + 1 - after[0].step)) if ends else None


def trial(job: Scripted, fault: str, rank: int) -> Trial:
    """Have ``fault`` happen at ``rank``, and see what comes."""
    killed = time.time()
    FAULTS[fault](job, rank)
    while time.time() < killed + NEVER_SECONDS:
        time.sleep(POLL_SECONDS)
        if (found := judge(job.lines(), killed)) is not None:
            return Trial(job.name, fault, rank, *found)
    return Trial(job.name, fault, rank, None, None)


def turn(job: Scripted, fault: str, trials: int, source: random.Random, say: Say) -> tuple[list[Trial], list[float]]:
    """Start ``job``, have ``trials`` faults, and stop it. Also the seconds of steps that nobody disturbed."""
    done: list[Trial] = []
    job.start()
    try:
        for number in range(trials):
            job.whole(SETTLED)
            time.sleep(source.uniform(*PAUSE_SECONDS))
            done.append(trial(job, fault, source.randrange(NODES)))
            say(f"{job.name}, {fault}: {number + 1}/{trials}, {done[-1]}")
            if fault == "nodes":
                job.restore()
            if done[-1].seconds is None:
                job.stop()
                job.start()
        lines = job.lines()
    finally:
        job.stop()
    return done, [b.time - a.time for a, b in pairwise(lines) if a.pid == b.pid and b.step == a.step + 1]


def undisturbed(folder: Path, turns: int, say: Say) -> list[tuple[float, float]]:
    """Seconds a step of ours and of torchrun's, turn by turn: both are there all the time, and one of them trains."""
    ours, theirs = Ours(folder / "ours", TURN), Torchrun(folder / "torchrun", TURN)
    done: list[tuple[float, float]] = []
    try:
        for job in (ours, theirs):
            job.start()
        for job in (ours, theirs):
            job.wait("both processes", lambda job=job: job.waits(0))  # type: ignore[misc]
            say(f"{job.name}: warm-up, {job.turn(TURN):.4f} s a step")
        for number in range(1, turns + 1):
            step = TURN * (number + 1)
            # Each is first equally often.
            order = (ours, theirs) if number % 2 else (theirs, ours)
            took = {}
            for job in order:
                job.wait("its turn", lambda job=job, step=step: job.waits(step - TURN))  # type: ignore[misc]
                took[job.name] = job.turn(step)
            done.append((took[ours.name], took[theirs.name]))
            say(f"undisturbed: {number}/{turns}, {done[-1][0]:.4f} and {done[-1][1]:.4f} s a step")
    finally:
        ours.stop()
        theirs.stop()
    return done


def seconds(trials: list[Trial], fault: str) -> list[float]:
    """A trial that never came back counts as long as it was waited for: at least so long it took."""
    return [NEVER_SECONDS if t.seconds is None else t.seconds for t in trials if t.fault == fault]


def judged(ours: list[Trial], theirs: list[Trial], took: list[tuple[float, float]]) -> list[Goal]:
    """The goals, for what was measured."""
    goals = []
    if mine := seconds(ours, "processes"):
        ratio = statistics.median(seconds(theirs, "processes")) / statistics.median(mine)
        goals.append(goal("process killed: torchrun's time to the next new step over this project's, medians", ">=", 4, ratio))
    if mine := seconds(ours, "memory"):
        # A script that has no such memory dies in the same way whichever part it is for.
        other = seconds(theirs, "processes") + seconds(theirs, "memory")
        ratio = statistics.median(other) / statistics.median(mine)
        goals.append(goal("the same with command.memory, medians", ">=", 8, ratio))
        again = [t.lost for t in ours if t.fault == "memory" and t.lost is not None]
        goals.append(goal("with command.memory: steps done again, the most", "<=", 1, max(again, default=0)))
    if mine := seconds(ours, "nodes"):
        goals.append(goal("node lost: to the next new step, p50", "<=", 5, statistics.median(mine), " s"))
    if ours:
        goals.append(goal("faults without a new step within two minutes", "<=", 0, sum(t.seconds is None for t in ours)))
    if took:
        ratio = statistics.median(mine / other for mine, other in took)
        goals.append(goal("undisturbed: step time over torchrun's, p50 of the turns", "<=", 1.01, ratio))
    return goals


def show(trials: list[Trial]) -> None:
    """For people."""
    if not trials:
        return
    print("\na small BERT by transformers' Trainer, two nodes of one process each, a checkpoint every ten steps")
    print(f"{'contender':34}{'fault':>12}{'trials':>8}{'never':>8}{'p50, s':>10}{'longest':>10}{'done again':>12}")
    for contender in dict.fromkeys(t.contender for t in trials):
        for fault in FAULTS:
            done = [t for t in trials if (t.contender, t.fault) == (contender, fault)]
            if done:
                took, again = seconds(done, fault), [t.lost for t in done if t.lost is not None]
                never = sum(t.seconds is None for t in done)
                cells = f"{fault:>12}{len(done):>8}{never:>8}{statistics.median(took):>10.2f}{max(took):>10.2f}"
                print(f"{contender:34}{cells}{statistics.mean(again) if again else 0:>12.1f}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each contender and fault (default %(default)s)")
    parser.add_argument("--ours", type=int, default=4, help="faults in a turn of this project's (default %(default)s)")
    parser.add_argument("--torchrun", type=int, default=2, help="faults in a turn of torchrun's (default %(default)s)")
    parser.add_argument(
        "--turns", type=int, default=10, help="turns of each round where nobody is disturbed (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="decides which ranks die, and when (default %(default)s)")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one (default all)")
    parser.add_argument("--only", choices=("ours", "torchrun"), help="only this contender: tries the benchmark, proves nothing")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < NODES:
        print("needs Linux, where processes are found in /proc, and two cores", file=sys.stderr)
        return 3
    clean_up_when_told()
    say, source = progress(), random.Random(options.seed)

    parts = options.part or PARTS
    ours: list[Trial] = []
    theirs: list[Trial] = []
    steps: dict[str, list[float]] = {"ours": [], "torchrun": []}
    took: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as temporary:
        folder = Path(temporary)
        for fault in [fault for fault in FAULTS if fault in parts]:
            for number in range(options.rounds):
                say(f"{fault}: round {number + 1}/{options.rounds}")
                place = folder / f"{fault}-{number}"
                if options.only != "torchrun":
                    # Where a process dies all go on, as under torchrun; where a node is lost, what is left.
                    job = Ours(place / "ours", least=1 if fault == "nodes" else NODES, memory=fault == "memory")
                    trials, between = turn(job, fault, options.ours, source, say)
                    ours, steps["ours"] = ours + trials, steps["ours"] + between
                if options.only != "ours" and not (fault == "memory" and "processes" in parts):
                    trials, between = turn(Torchrun(place / "torchrun"), fault, options.torchrun, source, say)
                    theirs, steps["torchrun"] = theirs + trials, steps["torchrun"] + between
        if "undisturbed" in parts and options.only is None:
            for number in range(options.rounds):
                # Started again each time: where a process has its memory is luck that lasts as long as it lives.
                took += undisturbed(folder / f"undisturbed-{number}", options.turns, say)
    show([*ours, *theirs])
    medians = {name: round(statistics.median(each), 4) for name, each in steps.items() if each}
    print(f"median step where faults are: {medians}")
    if options.only is not None:
        return 0
    details = {
        "trials": [asdict(t) for t in [*ours, *theirs]],
        "undisturbed": [{"ours": mine, "torchrun": other} for mine, other in took],
        "step seconds": medians,
        "seed": options.seed,
    }
    whole = options.part is None and min(options.rounds * options.torchrun, options.turns) >= 6
    return report("script" if whole else "script-short", judged(ours, theirs, took), details)


if __name__ == "__main__":
    raise SystemExit(main())
