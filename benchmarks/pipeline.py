"""Step time of this pipeline against what two busy cores can do and against the alternatives, in turns. ``rounds.py`` tells how it is judged."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from group import Group
from progress import Say, progress
from report import goal, report
from rounds import ALONE, BUSY, OURS, PEERS, Round, goals, table

# Steps a quarter as long as those of the comparison, so that a checkpoint every 10 of them weighs four times as much.
SHORT = {"batch": 8, "micro_batches": 4}
TINY = {"layers": 4, "hidden": 128, "vocabulary": 1000, "batch": 32, "length": 64}


def main() -> int:
    """Exit code 0 when all goals are met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=5, help="turns of all beside each of the alternatives (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=1, help="steps in a turn (default %(default)s)")
    parser.add_argument("--checkpoint-rounds", type=int, default=6, help="pairs of 10 steps with and without a checkpoint")
    parser.add_argument("--tiny", action="store_true", help="a tiny model: tries the benchmark, proves nothing")
    options = parser.parse_args()
    if options.tiny:
        os.environ["BENCH_WORKLOAD"] = json.dumps(TINY)
    say = progress()
    rounds = compare(options.rounds, options.steps, say)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as folder:
        pairs = checkpoints(options.checkpoint_rounds, TINY if options.tiny else SHORT, Path(folder), say)
    model = "A tiny BERT" if options.tiny else "BERT-base, batch 32 x 128, 8 micro-batches"
    print(f"\n{model}, 2 stages of 1 thread each; of each contender and peer {options.rounds} rounds\n{table(rounds)}")
    cost = goal("a checkpoint every 10 steps (batch 8 x 128) costs", "<", 2.0, (statistics.median(pairs) - 1) * 100, "%")
    name = "pipeline-tiny" if options.tiny else "pipeline"
    return report(name, [*goals(rounds), cost], {"rounds": rounds, "checkpoint": pairs})


def compare(number: int, steps: int, say: Say) -> list[Round]:
    """``number`` rounds beside each peer: one at a time, because all at once do not fit into 24 GB."""
    say("starting contenders, one after the other (1 thread a process)")
    rounds: list[Round] = []
    with Group("single processes", "single.py") as single, Group(OURS, "ours.py") as ours:
        warm_up(single, say)
        warm_up(ours, say)
        for peer, (script, *arguments) in PEERS.items():
            with Group(peer, script, *arguments) as other:
                warm_up(other, say)
                alone = single.one(steps)
                for turn in range(number):
                    turns = [(BUSY, single.mean), (OURS, ours.slowest), (peer, other.slowest)]
                    took = one_round(turn, number, turns, steps, say)
                    rounds.append(took | ({ALONE: alone} if turn == 0 else {}))
    return rounds


def one_round(turn: int, number: int, turns: Sequence[tuple[str, Callable[[int], float]]], steps: int, say: Say) -> Round:
    """Round ``turn`` of ``number``: seconds a step of each of ``turns``, which has a name and runs so many steps."""
    # First one way round, then the other: a machine that gets slower must not count against one of them.
    took = {name: run(steps) for name, run in (turns if turn % 2 == 0 else reversed(turns))}
    say(f"round {turn + 1}/{number}: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in took.items()))
    return took


def checkpoints(number: int, workload: dict[str, int], folder: Path, say: Say) -> list[float]:
    """Times of ten steps with a checkpoint over those without."""
    pairs = []
    environment = {"BENCH_WORKLOAD": json.dumps(workload)}
    with (
        Group("without", "ours.py", environment=environment) as plain,
        Group("with", "ours.py", environment=environment | {"BENCH_CHECKPOINT": str(folder)}) as saving,
    ):
        say("checkpoints: warm-up")
        plain.slowest(2)
        saving.slowest(10)
        for turn in range(number):
            both = [plain, saving] if turn % 2 == 0 else [saving, plain]
            took = {group.name: group.slowest(10) for group in both}
            pairs.append(took["with"] / took["without"])
            say(f"checkpoints, pair {turn + 1}/{number}: {pairs[-1]:.4f}")
    return pairs


def warm_up(group: Group, say: Say) -> None:
    """The first step, which makes what later ones find."""
    say(f"{group.name}: warm-up step {group.slowest(1):.2f} s")


if __name__ == "__main__":
    raise SystemExit(main())
