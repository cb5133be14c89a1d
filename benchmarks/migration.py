"""A rank moves to another pod while training goes on: what that costs, beside the ways that restart something. ``--help`` tells the options."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from ending import clean_up_when_told
from goodput import Loss, goodput, loss
from killable import Killable, Ours, StopAndCopy, Torchrun
from move import EXPLANATION, GROUP, LIVE, RESTART, STOP, Move, table
from progress import Say, progress
from report import Goal, goal, report
from sizes import BASE, FOUR, LARGE, ONE, TINY, Size
from ways import QUIET_SECONDS, group, live, request, restart, settle, wait

PARTS = ("sizes", "ways", "goodput")
BESIDE_SECONDS = 20.0
"""Of undisturbed training before and after a move, for its goodput."""
OFTENER = 3
"""So many times as often ranks move where moves are compared with each other or with restarts: of three moves, milliseconds are the
machine's.
"""
EVERY_SECONDS = 60.0
"""How often ranks move in the goal of goodput."""
TORCHRUN_EVERY = 25
"""Steps between its checkpoints: it is ended after one."""

Key = tuple[str, str, int]
"""Way, size, stages."""
Job = TypeVar("Job", bound=Killable)


@contextmanager
def running(job: Job) -> Iterator[Job]:
    job.start()
    try:
        yield job
    finally:
        job.stop()


def sizes(folder: Path, models: list[Size], moves: int, note: Callable[[Move], None]) -> None:
    """Jobs of one stage: of two cores the target has one of its own."""
    for size in models:
        with running(Ours(folder / f"{size.name}-1", {**size.sets, "pipeline.stages": 1})) as job:
            for number in range(moves * (OFTENER if size in (ONE, FOUR) else 1)):
                note(live(job, size, 1, 0, number))


def ways(folder: Path, moves: int, restarts: int, note: Callable[[Move], None]) -> None:
    """All contenders, at the size of BERT-base in two processes."""
    sets = BASE.sets
    with running(Ours(folder / "ours", sets)) as job:
        for number in range(moves * OFTENER):
            note(live(job, BASE, 2, (number + 1) % 2, number))
        for number in range(restarts):
            note(restart(job, BASE, 2, (number + 1) % 2))
    data = job.data()
    with running(StopAndCopy(folder / "stopping", sets)) as stopping:
        for number in range(restarts):
            note(live(stopping, BASE, 2, (number + 1) % 2, number, STOP))
    with running(Torchrun(folder / "torchrun", data, {**sets, "checkpoint.everySteps": TORCHRUN_EVERY})) as theirs:
        for number in range(restarts):
            note(group(theirs, BASE, (number + 1) % 2))


def long_run(folder: Path, stages: int, rounds: int, say: Say) -> list[Loss]:
    """Moves with quiet times between them."""
    never = 10_000_000
    done: list[Loss] = []
    with running(
        Ours(folder / f"long-{stages}", {**BASE.sets, "pipeline.stages": stages, "checkpoint.everySteps": never})
    ) as job:
        settle(job)
        for number in range(rounds):
            until(job, time.time() + BESIDE_SECONDS)
            begin = time.time()
            request(job, (number + 1) % stages, number)
            end = until(job, time.time() + QUIET_SECONDS)
            until(job, end + BESIDE_SECONDS)
            done.append(loss(job.seen, begin, end, BESIDE_SECONDS))
            took = f"{done[-1].lost:.2f} s of training in {done[-1].seconds:.0f} s, at {done[-1].usual:.3f} steps/s"
            say(f"{stages} stages, move {number + 1}/{rounds} took {took}")
    return done


def until(job: Ours, end: float) -> float:
    """Wait until a step is done after ``end``, which is returned."""
    wait(job, "a next step", lambda: max(at for _, at in job.seen) > end)
    return end


def judged(done: dict[Key, list[Move]], kept: dict[int, float]) -> list[Goal]:
    """The goals, for what was measured. ``kept``: goodput by number of stages."""
    pause = {key: statistics.median(m.pause for m in moves) * 1000 for key, moves in done.items()}
    # A shared machine's steps differ by a third from one minute to the next: of a step of seconds that is more than all that is judged here.
    waits = {key: statistics.median(m.standstill for m in moves) * 1000 for key, moves in done.items()}
    # Other pauses are compared with no less than what steps differ by anyhow: a shorter pause is not seen.
    seen = {key: max(pause[key], statistics.median(m.unrest for m in moves) * 1000, 1.0) for key, moves in done.items()}
    moves = [m for (way, _, _), group in done.items() if way == LIVE for m in group]
    goals = []
    if moves:
        goals.append(goal("live move: steps done again, at most", "<=", 0, max(m.again for m in moves)))
    if (LIVE, BASE.name, 1) in pause:
        goals.append(goal("live move, BERT-base, the target has a core: pause p50", "<=", 50, waits[LIVE, BASE.name, 1], " ms"))
    if {(LIVE, ONE.name, 1), (LIVE, FOUR.name, 1)} <= pause.keys():
        ratio = waits[LIVE, FOUR.name, 1] / max(waits[LIVE, ONE.name, 1], 1.0)
        goals.append(goal("pause with 4 times the state over that with 1, medians", "<=", 1.3, ratio))
    for way in (RESTART, GROUP):
        if (way, BASE.name, 2) in pause:
            ratio = pause[way, BASE.name, 2] / seen[LIVE, BASE.name, 2]
            goals.append(goal(f"pause of {way} over the live move's, medians", ">=", 20, ratio))
    if 1 in kept:
        goals.append(goal("goodput with a move a minute, the target has a core", ">=", 99, kept[1] * 100, "%"))
    return goals


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--moves",
        type=int,
        default=3,
        help="live moves of each size, where they are compared three times as many (default %(default)s)",
    )
    parser.add_argument("--restarts", type=int, default=4, help="of each way beside them (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="moves with quiet times between them, for the goodput (default %(default)s)"
    )
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one (default all)")
    parser.add_argument("--large", action="store_true", help="the size of BERT-large too (16 GB of memory, minutes)")
    return parser.parse_args()


def show(done: dict[Key, list[Move]], megabytes: dict[str, float], kept: dict[int, float]) -> None:
    """For people: the table of moves, and the goodput."""
    if done:
        print(table(done.values()))
        print(EXPLANATION)
        print(
            f"MB of weights and moments: {', '.join(f'{name} {mb:.0f}' for name, mb in megabytes.items())}; half of it a stage of two."
        )
        print("stages 1: on two cores the target has one of its own; 2: source, target and the other rank share them.")
        print("stop and copy: the same program, but training waits until the target has the state; its pause is the longest gap.")
        print("torchrun's worker ends just after a checkpoint, so that it has nothing to do again.")
    for stages, part in kept.items():
        cores = (
            "the target has a core of its own" if stages == 1 else f"{stages} stages and the target share {os.cpu_count()} cores"
        )
        print(f"goodput at BERT-base with a move a minute, {cores}: {part:.1%}")


def main() -> int:
    options = arguments()
    if sys.platform != "linux":
        print("needs Linux: processes are found in /proc", file=sys.stderr)
        return 3
    clean_up_when_told()
    say = progress()
    done: dict[Key, list[Move]] = {}
    losses: dict[int, list[Loss]] = {}
    models = [TINY, ONE, FOUR, BASE, *([LARGE] if options.large else [])]

    def note(move: Move) -> None:
        done.setdefault((move.way, move.size, move.stages), []).append(move)
        say(f"{move.way}, {move.size}: {move}")

    parts = options.part or PARTS
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as temporary:
        folder = Path(temporary)
        if "sizes" in parts:
            sizes(folder, models, options.moves, note)
        if "ways" in parts:
            ways(folder, options.moves, options.restarts, note)
        if "goodput" in parts:
            losses = {1: long_run(folder, 1, options.rounds, say), 2: long_run(folder, 2, -(-options.rounds // 2), say)}

    megabytes = {size.name: round(size.megabytes(1), 1) for size in models}
    kept = {stages: goodput(all_of_them, EVERY_SECONDS) for stages, all_of_them in losses.items()}
    show(done, megabytes, kept)
    details = {
        "moves": [asdict(m) for moves in done.values() for m in moves],
        "MB": megabytes,
        "goodput": {stages: [asdict(each) for each in all_of_them] for stages, all_of_them in losses.items()},
    }
    whole = options.moves >= 3 and options.restarts >= 2 and options.rounds >= 3 and options.part is None
    return report("migration" if whole else "migration-short", judged(done, kept), details)


if __name__ == "__main__":
    raise SystemExit(main())
