"""The plan, its status and a step's messages with up to 1,024 ranks: pure functions and a simulated cluster, no processes but two.

``--help`` tells the options.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import commit_messages
import rpc_cost
import view_calls
from full_status import full, size, stored
from planned import job_spec
from report import Goal, goal, report
from simulation.cluster import Cluster

from lmj_api.protocol import WorkerPhase
from lmj_api.status import JobStatus
from lmj_operator.plan import Observed, plan

STAGES = 4
REPLICAS = (2, 16, 64, 256)
SHARDS = 256
REPEATS = 25
START_ROUNDS = 8
MOST_PASSES = 50
CALLS = 5
"""A view is reported to all once in so many repeats."""
BEATS = 8
"""A second, with the silence that is usual."""


@dataclass(frozen=True)
class Measured:
    """With so many ranks."""

    ranks: int
    steady: float
    """Seconds of a processor for a pass while all is well, median."""
    change: float
    """The same of that pass, of those from a lost replica to the next view, which took longest."""
    passes: int
    """From a lost replica until the others train in the next view,"""
    seconds: float
    """and seconds of all of them together."""
    told: float
    """Seconds of the operator's processor to report that view to its members, and to read their answers."""
    actions: int
    """What they had done: pods made and agents told."""
    status: int
    """Bytes of the stored status while all is well,"""
    largest: int
    """and the most until all replicas train again."""
    view: int
    """Bytes of the view, as each member is told it."""
    answer: int
    """Bytes of what an agent answers, on the average."""
    commit: int
    """Messages that the leader takes and sends for a commit."""
    exchange: int
    """The same of a rank, for the sum of gradients over replicas."""


def _seconds(observed: Observed, now: float, repeats: int) -> float:
    """Of a processor, for a pass: it computes alone, so what others do on the machine matters little."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        plan(observed, now)
        times.append(time.process_time() - begin)
    return median(times)


def _cluster(replicas: int) -> Cluster:
    """A job that trains."""
    sizes = {"pipeline": {"stages": STAGES, "microBatches": SHARDS}, "training": {"batchSize": SHARDS}}
    spec = job_spec(STAGES, dataParallel={"shards": SHARDS, "replicas": replicas}, **sizes)
    cluster = Cluster(spec, steps=1_000_000, checkpoint_every=1000, nodes=tuple(f"node-{n}" for n in range(replicas)))
    for _ in range(START_ROUNDS):
        cluster.reconcile()
        cluster.tick()
    assert _train(cluster, replicas), cluster.status.message
    return cluster


def _train(cluster: Cluster, replicas: int) -> bool:
    """Whether so many do, in the newest view."""
    view = cluster.status.view
    members = {m.pod for m in view.members} if view is not None else set()
    there = [p for p in cluster.living() if p.name in members and p.worker.phase is WorkerPhase.RUNNING]
    return view is not None and len(there) == replicas * STAGES and all(p.worker.view == view.number for p in there)


def _bytes(status: JobStatus) -> int:
    return size(stored(status))


def measure(replicas: int, repeats: int = REPEATS) -> Measured:
    """A job of so many: at rest, and when one of them is lost."""
    cluster = _cluster(replicas)
    observed = cluster.observed()
    steady, rest, before = _seconds(observed, cluster.now, repeats), _bytes(cluster.status), cluster.status.view
    assert before is not None
    answers = [len(pod.agent.to_json()) for pod in observed.pods if pod.agent is not None]
    cluster.kill_pod(next(p for p in cluster.living() if p.rank == STAGES * (replicas - 1) + 1))
    cluster.tick()
    times: list[float] = []
    actions, largest = 0, rest
    state = next(pod.agent for pod in observed.pods if pod.agent is not None)
    while not _train(cluster, replicas - 1):
        times.append(_seconds(cluster.observed(), cluster.now, repeats))
        actions += len(cluster.reconcile().actions)
        largest = max(largest, _bytes(cluster.status))
        cluster.tick()
        assert len(times) < MOST_PASSES, cluster.status.message
    after = cluster.status.view
    assert after is not None
    for _ in range(MOST_PASSES):
        if _train(cluster, replicas):
            break
        cluster.reconcile()
        largest = max(largest, _bytes(cluster.status))
        cluster.tick()
    assert _train(cluster, replicas), cluster.status.message
    return Measured(
        ranks=replicas * STAGES,
        steady=steady,
        change=max(times),
        passes=len(times),
        seconds=sum(times),
        told=view_calls.measure(after, state, max(1, repeats // CALLS)),
        actions=actions,
        status=rest,
        largest=largest,
        view=len(before.to_json()),
        answer=round(sum(answers) / len(answers)),
        commit=commit_messages.commit(STAGES, replicas).all,
        exchange=commit_messages.exchange(replicas).all,
    )


def goals(measured: Sequence[Measured], full_bytes: int) -> list[Goal]:
    """What was to be reached. ``full_bytes``: of the largest status that there can be."""
    few, some, most = measured[0], measured[1], measured[-1]
    ranks = f"{most.ranks:,} ranks"
    return [
        goal(f"a pass with {ranks} while all is well, p50", "<=", 100, 1000 * most.steady, " ms"),
        goal(f"the longest pass of a view change with {ranks}, p50", "<=", 200, 1000 * most.change, " ms"),
        goal(
            f"time of a pass a rank, with {ranks} over {some.ranks}",
            "<=",
            2,
            (most.steady / most.ranks) / (some.steady / some.ranks),
        ),
        goal(f"passes from a lost replica to the next view, with {ranks} over {few.ranks}", "<=", 1, most.passes / few.passes),
        goal("pods made and agents told for that, a rank", "<=", 2, most.actions / most.ranks),
        goal("the largest status that there can be", "<=", 1024, full_bytes / 1024, " KiB"),
        goal("messages of a commit at the leader, a rank", "<=", 2, most.commit / most.ranks),
    ]


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0 when all goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS, help="times that a pass is made again to be measured")
    options = parser.parse_args(arguments)
    measured = []
    for replicas in REPLICAS:
        measured.append(measure(replicas, options.repeats))
        print(measured[-1], flush=True)
    cost = rpc_cost.measure()
    print(cost)
    largest = size(stored(full()))
    details = {
        "sizes": [asdict(each) for each in measured],
        "largest status": largest,
        "message": asdict(cost),
        "leader": [
            {"ranks": n, "commit": cost.of_step(n), "links": cost.of_second(n, BEATS)} for n in (each.ranks for each in measured)
        ],
    }
    return report("plan", goals(measured, largest), details)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
