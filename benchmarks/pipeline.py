"""Step time of this pipeline against the alternatives, side by side in one run. ``--help`` tells the options."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

from group import Group
from report import goal, report

# Steps a quarter as long as those of the comparison, so that a checkpoint every 10 of them weighs four times as much.
SHORT = {"batch": 8, "micro_batches": 4}
OURS = "this pipeline"
FOREMOST = "torch 1F1B, Gloo"
TWICE = "two single processes at once"
ALTERNATIVES = {
    FOREMOST: ["torch_pipelining.py", "1f1b"],
    "torch interleaved zero-bubble, Gloo": ["torch_pipelining.py", "zb"],
    "naive RPC": ["naive.py"],
    TWICE: ["single.py"],
}
TINY = {"layers": 4, "hidden": 128, "vocabulary": 1000, "batch": 32, "length": 64}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each contender against torch 1F1B (default %(default)s)")
    parser.add_argument(
        "--other-rounds", type=int, default=2, help="the same against the other alternatives (default %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=1, help="steps in a turn (default %(default)s)")
    parser.add_argument("--checkpoint-rounds", type=int, default=4, help="pairs of 10 steps with and without a checkpoint")
    parser.add_argument("--tiny", action="store_true", help="a tiny model: tries the benchmark, proves nothing")
    options = parser.parse_args()
    if options.tiny:
        os.environ["BENCH_WORKLOAD"] = json.dumps(TINY)
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {text}", file=sys.stderr, flush=True)

    say("starting contenders, one after the other (BERT-base in each, 1 thread a process)")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as folder:
        groups: list[Group] = []
        rounds: list[dict[str, float]] = []
        try:
            for name, script, ranks in [("single process", "single.py", 1), (OURS, "ours.py", 2)]:
                groups.append(Group(name, script, ranks=ranks))
                say(f"{name}: warm-up step {groups[-1].run(1)[-1]:.2f} s")
            # One alternative at a time beside the two that it is compared with: all at once do not fit into 24 GB.
            for name, (script, *arguments) in ALTERNATIVES.items():
                groups.append(Group(name, script, *arguments))
                say(f"{name}: warm-up step {groups[-1].run(1)[-1]:.2f} s")
                for number in range(options.rounds if name == FOREMOST else options.other_rounds):
                    took = {g.name: statistics.mean(g.run(options.steps)) for g in groups}
                    rounds.append(took)
                    say(f"round {number + 1}: " + ", ".join(f"{name} {seconds:.2f}" for name, seconds in took.items()))
                groups.pop().close()
            for g in groups:
                g.close()
            workload = {"BENCH_WORKLOAD": json.dumps(TINY if options.tiny else SHORT)}
            plain = Group("without", "ours.py", environment=workload)
            groups.append(plain)
            saving = Group("with", "ours.py", environment=workload | {"BENCH_CHECKPOINT": folder})
            groups.append(saving)
            say("checkpoints: warm-up")
            plain.run(2)
            saving.run(10)
            pairs = []
            for number in range(options.checkpoint_rounds):
                # A B, then B A: a machine that gets slower must not count against one of them.
                took = {g.name: sum(g.run(10)) for g in ([plain, saving] if number % 2 == 0 else [saving, plain])}
                pairs.append(took["with"] / took["without"])
                say(f"checkpoints, pair {number + 1}/{options.checkpoint_rounds}: {pairs[-1]:.4f}")
        finally:
            for g in groups:
                g.close()

    def over(name: str, by: Callable[[dict[str, float]], float]) -> list[float]:
        return [took[name] / by(took) for took in rounds if name in took]

    def ideal(took: dict[str, float]) -> float:
        return took["single process"] / 2

    print("\nBERT-base, 2 stages, 1 thread each, batch 32 x 128, 8 micro-batches")
    print(f"{'contender':38}{'step, s (median)':>18}{'min to max':>18}{'x of ideal':>12}")
    for name in ["single process", OURS, *(name for name in ALTERNATIVES if name != TWICE)]:
        row = over(name, lambda took: 1.0)
        print(
            f"{name:38}{statistics.median(row):>18.2f}{f'{min(row):.2f} to {max(row):.2f}':>18}{statistics.median(over(name, ideal)):>12.3f}"
        )
    busy = statistics.median(over(TWICE, lambda took: took["single process"]))
    print(f"Two single processes at once: each takes {busy:.3f} times as long as one alone, for they share memory and caches.")
    print(f"Of the ideal of two busy cores this pipeline takes {statistics.median(over(OURS, ideal)) / busy:.3f}.")
    cost = (statistics.median(pairs) - 1) * 100
    goals = [
        goal("step time over the bubble-free ideal (single process / 2)", "<=", 1.06, statistics.median(over(OURS, ideal))),
        goal(
            "torch 1F1B's step time over this pipeline's", ">=", 1.08, statistics.median(over(FOREMOST, lambda took: took[OURS]))
        ),
        goal("a checkpoint every 10 steps (batch 8 x 128) costs", "<", 2.0, cost, "%"),
    ]
    return report("pipeline-tiny" if options.tiny else "pipeline", goals, {"rounds": rounds, "checkpoint": pairs})


if __name__ == "__main__":
    raise SystemExit(main())
