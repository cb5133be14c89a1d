"""Replicas beside PyTorch's data parallel: step time, the death of one of four, and what a replica that joins costs. ``--help`` tells more."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import joins
import lost
from ending import clean_up_when_told
from group import Group
from joins import Join
from killable import Ours
from lost import Deaths
from progress import Say, progress
from report import Goal, goal, report
from rounds import Round

OURS = "two replicas of this pipeline"
PEERS = ("torchrun", "accelerate")
PARTS = ("steps", "deaths", "joins")
TINY = {"layers": 4, "hidden": 128, "vocabulary": 1000, "batch": 32, "length": 64}


def compare(rounds: int, say: Say) -> list[Round]:
    """Seconds a step of each contender, in turns; all have one thread a process and the same micro-batches."""
    done: list[Round] = []
    with (
        Group(OURS, "ours.py", "replicas") as ours,
        Group(PEERS[0], "ddp.py", PEERS[0]) as torchrun,
        Group(PEERS[1], "ddp.py", PEERS[1]) as accelerate,
    ):
        contenders = [ours, torchrun, accelerate]
        for each in contenders:
            say(f"{each.name}: warm-up step {each.slowest(1):.2f} s")
        for turn in range(rounds):
            # Each is first, second and last equally often: a machine that gets slower must not count against one of them.
            turns = contenders[turn % 3 :] + contenders[: turn % 3]
            done.append({each.name: each.slowest(1) for each in turns})
            say(f"round {turn + 1}/{rounds}: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in done[-1].items()))
    return done


def of_best(rounds: list[Round]) -> float:
    """Step times of the peer with the shorter median that this pipeline takes: the median of the rounds' quotients."""
    best = min(PEERS, key=lambda peer: statistics.median(took[peer] for took in rounds))
    return statistics.median(took[OURS] / took[best] for took in rounds)


def deaths(folder: Path, ours: int, torchrun: int, say: Say) -> tuple[Deaths, Deaths]:
    """Of this project's replicas and of torchrun's workers."""
    source = random.Random(0)
    mine = lost.ours(folder / "ours", ours, source, say)
    theirs = lost.torchrun(folder / "torchrun", Ours(folder / "ours").data(), torchrun, source, say)
    return mine, theirs


def judged(rounds: list[Round], died: tuple[Deaths, Deaths] | None, joined: list[Join]) -> list[Goal]:
    """The goals, for what was measured."""
    goals = []
    if rounds:
        goals.append(goal("step of two replicas over the better of DDP's two", "<=", 1.02, of_best(rounds)))
    if died is not None:
        ours, theirs = died
        took, bound = lost.median(ours.trials), round(ours.step + 0.5, 3)
        goals += [
            goal("one of four replicas killed: to the next new step, p50 (a step + 0.5 s)", "<=", bound, took, " s"),
            goal("torchrun's time over this project's, medians", ">=", 10, lost.median(theirs.trials) / took),
            goal("one of four replicas killed: committed steps lost", "<=", 0, sum(t.lost or 0 for t in ours.trials)),
            goal("steps recorded twice or not at all: samples of an epoch", "<=", 0, ours.again + ours.missing),
        ]
    if joined:
        cost = statistics.median(join.cost for join in joined)
        goals.append(goal("a replica joins: longest step meanwhile over the longest of as many before, p50", "<=", 1.1, cost))
    return goals


def show(rounds: list[Round], died: tuple[Deaths, Deaths] | None, joined: list[Join]) -> None:
    """For people."""
    if rounds:
        print("\nBERT-base, batch 32 x 128, 8 micro-batches, two processes of 1 thread each")
        for name in (OURS, *PEERS):
            row = [took[name] for took in rounds]
            print(f"{name:32}{statistics.median(row):>8.2f} s a step, {min(row):.2f} to {max(row):.2f}")
    if died is not None:
        print("\nthe quickstart's BERT in four processes, one of which dies")
        for name, each in zip(("this project, the pod is killed", "torchrun, the worker is killed"), died, strict=True):
            print(
                f"{name:34}{len(each.trials):>3} deaths, {lost.median(each.trials):.2f} s to the next new step (a step takes {each.step:.3f} s),"
                f" {sum(t.lost or 0 for t in each.trials)} steps lost"
            )
    for join in joined:
        print(f"BERT-base, a second replica joins: {join}")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="steps of each contender (default %(default)s)")
    parser.add_argument("--deaths", type=int, default=10, help="replicas killed (default %(default)s)")
    parser.add_argument("--torchrun", type=int, default=4, help="workers of torchrun killed (default %(default)s)")
    parser.add_argument("--joins", type=int, default=5, help="replicas that join (default %(default)s)")
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one (default all)")
    parser.add_argument("--tiny", action="store_true", help="steps of a tiny model: tries the benchmark, proves nothing")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    if sys.platform != "linux":
        print("needs Linux: processes are found in /proc", file=sys.stderr)
        return 3
    if options.tiny:
        os.environ["BENCH_WORKLOAD"] = json.dumps(TINY)
    clean_up_when_told()
    say = progress()
    parts = options.part or PARTS
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as temporary:
        folder = Path(temporary)
        rounds = compare(options.rounds, say) if "steps" in parts else []
        died = deaths(folder, options.deaths, options.torchrun, say) if "deaths" in parts else None
        joined = joins.measure(folder / "joins", options.joins, say) if "joins" in parts else []
    show(rounds, died, joined)
    details = {
        "rounds": rounds,
        "deaths": [asdict(each) for each in died or ()],
        "joins": [asdict(each) | {"ratio": each.ratio, "cost": each.cost} for each in joined],
    }
    whole = options.part is None and not options.tiny and min(options.rounds, options.deaths, options.joins) >= 4
    return report("replicas" if whole else "replicas-short", judged(rounds, died, joined), details)


if __name__ == "__main__":
    raise SystemExit(main())
