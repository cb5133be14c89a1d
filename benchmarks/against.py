"""Step time of this pipeline beside that of the same pipeline at another commit, in turns: has it become slower since?

python benchmarks/against.py BASE. How near a step is to what two busy cores can do changes by some percent from one hour to the next on a
shared machine; the quotient of two that take turns does not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

from checkout import checkout
from group import Group
from pipeline import TINY, one_round, warm_up
from progress import Say, progress
from report import Goal, goal, report
from rounds import BUSY, OURS, Round, of_ideal

WORST = 1.01
"""Step times of the base that a step may take."""


def main() -> int:
    """Exit code 0 when it has not become slower."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", help="a commit: of the last results, for one")
    parser.add_argument("--rounds", type=int, default=10, help="turns of all (default %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="a tiny model: tries the benchmark, proves nothing")
    options = parser.parse_args()
    if options.tiny:
        os.environ["BENCH_WORKLOAD"] = json.dumps(TINY)
    say = progress()
    before = f"the pipeline at {options.base}"
    with checkout(options.base) as code:
        rounds = compare(before, code, options.rounds, say)
    print("\n" + "\n".join(f"{name}: {of_ideal(rounds, name):.3f} times half of {BUSY} (median)" for name in (before, OURS)))
    name = "pipeline-against-tiny" if options.tiny else "pipeline-against"
    return report(name, [verdict(rounds, before)], {"base": options.base, "rounds": rounds})


def compare(before: str, code: Path, number: int, say: Say) -> list[Round]:
    """``number`` rounds of the pipeline of ``code``, of this one, and of two busy cores."""
    rounds: list[Round] = []
    with (
        Group("single processes", "single.py") as single,
        Group(before, "ours.py", code=code) as base,
        Group(OURS, "ours.py") as ours,
    ):
        for group in (single, base, ours):
            warm_up(group, say)
        for turn in range(number):
            turns = [(BUSY, single.mean), (before, base.slowest), (OURS, ours.slowest)]
            rounds.append(one_round(turn, number, turns, 1, say))
    return rounds


def verdict(rounds: list[Round], before: str) -> Goal:
    """No slower, but for what a median still varies by."""
    quotient = statistics.median(took[OURS] / took[before] for took in rounds)
    return goal(f"step time of this pipeline over that of {before}", "<=", WORST, quotient)


if __name__ == "__main__":
    raise SystemExit(main())
