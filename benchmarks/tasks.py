"""One process that trains, beside ``transformers.Trainer`` on the same model, rows and threads, in turns; adapters beside training in full.

The Trainer is started as its users start it, and once more with the settings of the allocator that this project gives its workers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path

from group import MEMORY
from progress import Say, progress
from report import Goal, goal, report
from task_jobs import BERT, LLAMA, LLAMA_FULL, Result, Work, Workshop

OURS, TRAINER, TUNED = "this project", "transformers.Trainer", "the same, with the settings"
Pair = dict[str, Result]


def main() -> int:
    """Exit code 0 when all goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of all with each model (default %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="tiny models: tries the benchmark, proves nothing")
    options = parser.parse_args()
    say = progress()
    threads = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as folder:
        workshop = Workshop(Path(folder), threads, options.tiny)
        pairs = {work: turns(workshop, work, options.rounds, say) for work in (BERT, LLAMA)}
        full = workshop.ours(LLAMA_FULL)
        say(f"{LLAMA_FULL.name}: {_words(full)}")
    adapters = [pair[OURS] for pair in pairs[LLAMA]]
    print(f"\none process, {threads} threads, batches of rows of 128 tokens, {options.rounds} turns of each\n{table(pairs)}")
    for work, each in pairs.items():
        print(f"{work.name}: samples a second over Trainer's with the settings: {_speed(each, TUNED):.3f}")
    details = {
        "threads": threads,
        "turns": {
            work.name: [{name: asdict(result) for name, result in pair.items()} for pair in each] for work, each in pairs.items()
        },
        "full": asdict(full),
    }
    return report("tasks-tiny" if options.tiny else "tasks", goals(pairs, adapters, full), details)


def turns(workshop: Workshop, work: Work, rounds: int, say: Say) -> list[Pair]:
    """``rounds`` trainings by each way, one right after the other; which begins changes with each round."""
    pairs = []
    ways: dict[str, Callable[[Work], Result]] = {
        OURS: workshop.ours,
        TRAINER: workshop.trainer,
        TUNED: partial(workshop.trainer, settings=MEMORY),
    }
    for number in range(rounds):
        order = [*ways][number % len(ways) :] + [*ways][: number % len(ways)]
        took = {name: ways[name](work) for name in order}
        pairs.append(took)
        say(f"{work.name}, {number + 1}/{rounds}: " + "; ".join(f"{name}: {_words(result)}" for name, result in took.items()))
    return pairs


def goals(pairs: dict[Work, list[Pair]], adapters: list[Result], full: Result) -> list[Goal]:
    """What was to be reached."""
    found = []
    for work, each in pairs.items():
        found.append(goal(f"{work.name}: samples a second over Trainer's", ">=", 1.0, _speed(each, TRAINER)))
    found.append(
        goal(
            "adapters: highest memory over that of training in full",
            "<",
            1.0,
            _median(r.peak_mb for r in adapters) / full.peak_mb,
        )
    )
    sizes = _median(r.checkpoint_mb or 0.0 for r in adapters) / (full.checkpoint_mb or 0.0)
    return [*found, goal("adapters: size of a checkpoint over that of training in full", "<=", 0.05, sizes)]


def table(pairs: dict[Work, list[Pair]]) -> str:
    """What each took, for people."""
    lines = [f"{'':28}{'':30}{'step, median':>14}{'to first step':>15}{'memory':>11}{'checkpoint':>12}"]
    for work, each in pairs.items():
        for name in each[0]:
            of = [pair[name] for pair in each]
            step, first = f"{_median(r.step for r in of):.3f} s", f"{_median(r.first for r in of):.1f} s"
            sizes = [r.checkpoint_mb for r in of if r.checkpoint_mb is not None]
            size = f"{_median(sizes):.1f} MB" if sizes else ""
            memory = f"{_median(r.peak_mb for r in of):.0f} MB"
            lines.append(f"{work.name:28}{name:30}{step:>14}{first:>15}{memory:>11}{size:>12}")
    return "\n".join(lines)


def _speed(turns: list[Pair], other: str) -> float:
    """Samples a second of this project over those of ``other`` within a turn."""
    return _median(pair[other].step / pair[OURS].step for pair in turns)


def _words(result: Result) -> str:
    return f"a step {result.step:.3f} s, the first after {result.first:.1f} s, {result.peak_mb:.0f} MB"


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


if __name__ == "__main__":
    raise SystemExit(main())
