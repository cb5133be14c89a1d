"""Step time of this pipeline against the alternatives, side by side in one run. ``--help`` tells the options."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

from group import Group
from report import goal, report

# Steps a quarter as long as those of the comparison, so that a checkpoint every 10 of them weighs four times as much.
SHORT = {"batch": 8, "micro_batches": 4}
TINY = {"layers": 4, "hidden": 128, "vocabulary": 1000, "batch": 32, "length": 64}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times that every contender has its turn (default %(default)s)")
    parser.add_argument("--steps", type=int, default=1, help="steps in a turn (default %(default)s)")
    parser.add_argument("--checkpoint-rounds", type=int, default=6, help="pairs of 10 steps with and without a checkpoint")
    parser.add_argument("--tiny", action="store_true", help="a tiny model: tries the benchmark, proves nothing")
    options = parser.parse_args()
    if options.tiny:
        os.environ["BENCH_WORKLOAD"] = json.dumps(TINY)
    started = time.monotonic()
    say = lambda text: print(f"{time.monotonic() - started:6.0f} s  {text}", file=sys.stderr, flush=True)  # noqa: E731

    say("starting contenders, one after the other (BERT-base in each, 1 thread a process)")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DISK")) as folder:
        groups: list[Group] = []
        try:
            for name, script, arguments, ranks in [
                ("single process", "single.py", [], 1),
                ("this pipeline", "ours.py", [], 2),
                ("torch 1F1B, Gloo", "torch_pipelining.py", ["1f1b"], 2),
                ("torch interleaved zero-bubble, Gloo", "torch_pipelining.py", ["zb"], 2),
                ("naive RPC", "naive.py", [], 2),
            ]:
                groups.append(Group(name, script, *arguments, ranks=ranks))
                say(f"{name}: warm-up step {groups[-1].run(1)[-1]:.2f} s")
            times: dict[str, list[float]] = {g.name: [] for g in groups}
            compared = list(groups)
            for number in range(options.rounds):
                for g in compared:
                    times[g.name].append(statistics.mean(g.run(options.steps)))
                say(f"round {number + 1}/{options.rounds}: " + ", ".join(f"{times[g.name][-1]:.2f}" for g in compared))
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

    single = times["single process"]
    ideal = {name: [t / (s / 2) for t, s in zip(row, single, strict=True)] for name, row in times.items()}
    print(f"\n{'BERT-base, 2 stages, 1 thread each, batch 32 x 128, 8 micro-batches':40}")
    print(f"{'contender':38}{'step, s (median)':>18}{'min to max':>16}{'x of ideal':>12}")
    for name, row in times.items():
        spread = f"{min(row):.2f} to {max(row):.2f}"
        print(f"{name:38}{statistics.median(row):>18.3f}{spread:>16}{statistics.median(ideal[name]):>12.3f}")
    ours = times["this pipeline"]
    against = [t / o for t, o in zip(times["torch 1F1B, Gloo"], ours, strict=True)]
    cost = (statistics.median(pairs) - 1) * 100
    goals = [
        goal("step time over the bubble-free ideal (single process / 2)", "<=", 1.06, statistics.median(ideal["this pipeline"])),
        goal("torch 1F1B's step time over this pipeline's", ">=", 1.08, statistics.median(against)),
        goal("a checkpoint every 10 steps (batch 8 x 128) costs", "<", 2.0, cost, "%"),
    ]
    return report("pipeline-tiny" if options.tiny else "pipeline", goals, {"seconds": times, "ideal": ideal, "checkpoint": pairs})


if __name__ == "__main__":
    raise SystemExit(main())
