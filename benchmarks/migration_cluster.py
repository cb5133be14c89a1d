"""Ranks move between nodes whose cables carry 1 Gbit/s: the pause, beside that of stop-and-copy, and what encryption adds.

A cluster of plain processes: each node is a network namespace, and its cable is limited both ways. ``--help`` tells the options.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cluster import Cluster
from cluster.cluster import sweep
from cluster.images import BASE as IMAGE
from cluster_fixture import Target
from ending import clean_up_when_told
from jobs import job_document
from killable import CONTENDERS
from move import ENCRYPTED, EXPLANATION, LIVE, STOP, Cost, Move, around, judge, table, unrest
from operator_jobs import ClusterJob, OperatorProcess, define, wait_for
from progress import Say, progress
from report import Goal, goal, report
from sizes import BASE, HALF, Size
from steps import Steps

NODES = 3
START_SECONDS = 300.0
MOVE_SECONDS = 400.0
BEFORE = 6
"""Steps before a move: each takes seconds."""
AFTER = 2
NEAR = 2
"""Gaps before the switch that count for the pause: the steps that the follower takes with its source wait for the cable."""
LENGTH = 128
"""Tokens of a text."""


@contextmanager
def training(target: Target, operator: OperatorProcess, way: str, stages: int) -> Iterator[tuple[ClusterJob, Steps]]:
    """A job that never ends, and its steps."""
    assert target.own is not None
    environment = target.own.environment_mounts()
    paths = [str(CONTENDERS / "stop_and_copy")] if way == STOP else []
    env = [e if e["name"] != "PYTHONPATH" else {**e, "value": ":".join([*paths, e["value"]])} for e in environment.env]
    trainer = {"name": "trainer", "env": env, "volumeMounts": environment.volume_mounts}
    template = {"metadata": {"labels": {}}, "spec": {"volumes": environment.volumes, "containers": [trainer]}}
    document = job_document(Path("out"))
    document["metadata"]["name"] = f"bench-{os.getpid()}"
    job = ClusterJob(target, operator, template, document)
    try:
        job.volumes()
        assert job.output is not None
        write_texts(target.own.shared_volume(f"data-{job.namespace}", "1Gi") / "data.csv")
        job.spec.update(spec_of(job.spec, stages))
        job.spec["network"] = {"encryption": "Required" if way == ENCRYPTED else "Never"}
        # One stage alone has a volume for one node by default, and source and target are on two.
        job.spec["storage"]["output"]["accessMode"] = "ReadWriteMany"
        job.apply()
        yield job, Steps(job.output / job.spec["output"]["path"] / "metrics.jsonl")
    finally:
        job.remove()
        for folder in (f"data-{job.namespace}", f"output-{job.namespace}"):
            target.kubectl("delete", "persistentvolume", folder, "--ignore-not-found", "--wait=false")


def size_of(stages: int) -> Size:
    """BERT-base, of which each rank holds a half."""
    return BASE if stages == 2 else HALF


def spec_of(spec: dict[str, Any], stages: int) -> dict[str, Any]:
    """What of the small job's spec is other here."""
    size = size_of(stages)
    model = {"layers": size.layers, "hiddenSize": size.hidden, "heads": size.hidden // 64, "intermediateSize": 4 * size.hidden}
    return {
        "pipeline": {"stages": stages, "microBatches": 2},
        "model": {**spec["model"], "scratch": {**model, "vocabulary": size.vocabulary, "maxPositions": LENGTH}},
        "dataset": {**spec["dataset"], "maxLength": LENGTH, "splits": {"validationFraction": 0, "testFraction": 0.1}},
        "training": {"epochs": 10_000_000, "maxSteps": 10_000_000, "batchSize": 8, "learningRate": 1e-4, "threads": 1},
        "checkpoint": {"everySteps": 10_000_000},
    }


def write_texts(file: Path, rows: int = 500) -> None:
    """Texts of more tokens than are taken: all batches are of one length."""
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=4)) for _ in range(300)]
    lines = [f"{' '.join(source.choices(words, k=LENGTH))},{('negative', 'positive')[row % 2]}" for row in range(rows)]
    file.write_text("\n".join(["text,label", *lines]) + "\n")


def moved(target: Target, job: ClusterJob, steps: Steps, rank: int, way: str, stages: int) -> Move:
    """Move ``rank`` with ``lmj migrate``, and see what it costs."""
    assert target.own is not None
    quiet = steps.look() + BEFORE
    wait_for(f"step {quiet}", lambda: steps.look() >= quiet, job.describe, START_SECONDS)
    received, begun = target.own.received(), time.time()
    migrate(target, job, rank)
    switch = int(job.status["view"]["resume"]["step"])
    wait_for("steps after the move", lambda: _judged(steps, begun, switch) is not None, job.describe, MOVE_SECONDS)
    most = max(now - received[node] for node, now in target.own.received().items()) / 1e6
    cost = _judged(steps, begun, switch)
    assert cost is not None
    there = around(steps.seen, switch)
    move = Move(way, size_of(stages).name, stages, rank, **vars(cost), unrest=unrest(steps.seen, begun), sent=most, around=there)
    # Stopped for the copy, it pauses long before the switch.
    return Move(**{**asdict(move), "pause": move.longest}) if way == STOP else move


def _judged(steps: Steps, begun: float, switch: int) -> Cost | None:
    steps.look()
    return judge(steps.seen, begun, switch, AFTER, near=NEAR)


def migrate(target: Target, job: ClusterJob, rank: int) -> None:
    """``lmj migrate`` of the rank: returns when it has moved. Raises RuntimeError."""
    path = f"{target.kubectl_program.parent}:{os.environ['PATH']}"
    command = [sys.executable, "-m", "lmj_operator.cli.main", "migrate", job.name, "-n", job.namespace, "--rank", str(rank)]
    done = subprocess.run(
        command,
        env={**os.environ, "KUBECONFIG": str(target.kubeconfig), "PATH": path},
        stdout=subprocess.PIPE,
        text=True,
        timeout=MOVE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"lmj migrate ended with {done.returncode}:\n{job.describe()}")


def judged(moves: list[Move], rate: str) -> list[Goal]:
    """The goals, for what was measured."""
    of = {way: [m for m in moves if m.way == way] for way in (LIVE, ENCRYPTED)}
    pause = statistics.median(m.pause for m in of[LIVE])
    found = [
        goal("live move: steps done again, at most", "<=", 0, max(m.again for way in of for m in of[way])),
        goal(f"live move, a half of BERT-base, through {rate}: pause p50", "<=", 1, pause, " s"),
    ]
    if of[ENCRYPTED]:
        total = {way: statistics.median(m.total for m in of[way]) for way in of}
        found.append(goal("live move with encryption over one without, medians", "<=", 1.1, total[ENCRYPTED] / total[LIVE]))
    return found


def measured(options: argparse.Namespace, say: Say) -> list[Move]:
    """All moves, of both ways."""
    sweep()
    own, folder = Cluster(f"bench-{os.getpid()}"), Path(tempfile.mkdtemp())
    moves: list[Move] = []
    try:
        own.up(NODES, owned=True)
        own.limit(options.rate)
        target = Target(own.kubeconfig, own, own.binaries().path("kubectl"))
        define(target)
        operator = OperatorProcess(own.kubeconfig, folder / "operator.log", IMAGE)
        operator.start()
        try:
            # The first move in a job after the first takes some seconds more, whatever its way is: all that count are of such jobs.
            for place, (way, count) in enumerate([(LIVE, 1), *turns(options)]):
                with training(target, operator, way, options.stages) as (job, steps):
                    wait_for("a first step", lambda steps=steps: steps.look() > 0, job.describe, START_SECONDS)  # type: ignore[misc]
                    for number in range(count):
                        found = moved(target, job, steps, (number + 1) % options.stages, way, options.stages)
                        say(f"{way}{'' if place else ', to warm up'}, {found}")
                        if place:
                            moves.append(found)
        finally:
            operator.kill(signal.SIGTERM)
    finally:
        own.down()
        shutil.rmtree(folder, ignore_errors=True)
    return moves


def turns(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Jobs, one after the other: their way to move, and how often. Those with and without encryption take turns, because machines change."""
    half = [(LIVE, options.moves - options.moves // 2), (ENCRYPTED, options.encrypted - options.encrypted // 2)]
    rest = [(ENCRYPTED, options.encrypted // 2), (LIVE, options.moves // 2)]
    return [(way, count) for way, count in (*half, *rest, (STOP, options.stops)) if count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moves", type=int, default=4, help="live moves (default %(default)s)")
    parser.add_argument("--encrypted", type=int, default=4, help="live moves with encryption (default %(default)s)")
    parser.add_argument("--stops", type=int, default=1, help="moves by stop-and-copy (default %(default)s)")
    parser.add_argument(
        "--stages",
        type=int,
        choices=(1, 2),
        default=1,
        help="1: half of BERT-base alone, so that of two cores the target has one; 2: both halves (default %(default)s)",
    )
    parser.add_argument("--rate", default="1gbit", help="of each node's cable, as tc writes it (default %(default)s)")
    options = parser.parse_args()
    if os.geteuid() != 0 or sys.platform != "linux":
        print("needs root on Linux: nodes are namespaces of this machine", file=sys.stderr)
        return 3
    clean_up_when_told()
    say = progress()
    moves = measured(options, say)
    print(table([there for way in (LIVE, ENCRYPTED, STOP) if (there := [m for m in moves if m.way == way])]))
    print(EXPLANATION)
    print(f"a rank's weights and moments: {BASE.megabytes(2):.0f} MB; {NODES} nodes, whose cables carry {options.rate} each way.")
    print(
        "pause: here the longest of the gap at the switch and the two before. sent: through the cable of the node that got most."
    )
    whole = min(options.moves, options.encrypted) >= 4 and options.stops and options.rate == "1gbit" and options.stages == 1
    name = "migration-cluster" if whole else "migration-cluster-short"
    return report(
        name, judged(moves, options.rate), {"rate": options.rate, "stages": options.stages, "moves": [asdict(m) for m in moves]}
    )


if __name__ == "__main__":
    raise SystemExit(main())
