"""Scale of the operator: jobs by the thousand on nodes faked with kwok, before a real API server. ``--help`` tells the options.

Not ``operator.py``: a file of that name beside the benchmarks would shadow the standard library's module for all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ending import clean_up_when_told
from operator_load.audit import READS, WRITES, kinds, writes_a_job
from operator_load.jobs import document, job_name
from operator_load.load import CALL_SECONDS, Load
from operator_load.plane import NAMESPACE, PODS_A_NODE, Plane
from operator_load.usage import cpu_seconds, resident_mb
from progress import progress
from report import goal, quantile, report

CHILDREN_BESIDE_PODS = 3
"""Service, NetworkPolicy, PodDisruptionBudget; the claim is one that all jobs share."""
START_SECONDS = 1800.0
SETTLE_SECONDS = 60.0
JOBS_PATH = f"/apis/lmj.dev/v1alpha1/namespaces/{NAMESPACE}/livemigrationjobs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs (default %(default)s)")
    parser.add_argument("--ranks", type=int, default=4, help="pods of each (default %(default)s)")
    parser.add_argument(
        "--idle", type=float, default=60.0, metavar="SECONDS", help="time to look at idle jobs (default %(default)g)"
    )
    parser.add_argument(
        "--faults", type=int, default=400, help="workers that exit, and pods that are deleted (default %(default)s)"
    )
    parser.add_argument("--a-second", type=float, default=5.0, help="faults a second (default %(default)g)")
    parser.add_argument("--profile", metavar="FILE", help="profile the operator with py-spy while jobs start")
    options = parser.parse_args()
    if os.geteuid() != 0 or sys.platform != "linux":
        print(
            "needs root on Linux: the API server gets a network of its own, and 127.0.0.0/8 must be this machine's",
            file=sys.stderr,
        )
        return 3
    clean_up_when_told()
    say = progress()
    with Plane(2 + options.jobs * options.ranks * 2 // PODS_A_NODE) as plane:
        load = Load(plane, options.jobs, options.ranks)
        try:
            say(f"control plane and kwok are up; {options.jobs} jobs of {options.ranks} pods")
            return measure(load, options, say)
        finally:
            load.stop()


@dataclass
class Started:
    """What it took until all jobs ran."""

    seconds: float
    cpu: float
    """Of the operator, in seconds."""
    others: dict[str, float]
    """CPU seconds of the API server and its like."""
    passes: float
    job_seconds: float
    """For which jobs ran already while others had yet to start: of all jobs together."""


def measure_start(load: Load, options: argparse.Namespace, base: float, say: Any) -> Started:
    pid, command = load.pid, ["py-spy", "record", "-p", str(load.pid), "-o", options.profile, "-f", "raw", "-r", "50"]
    profiler = subprocess.Popen(command) if options.profile else None
    begin, before = time.monotonic(), load.plane.use()
    bodies = [document(number, load.ranks) for number in range(load.jobs)]
    asyncio.run(load.send("POST", [JOBS_PATH] * load.jobs, bodies))
    say(f"all jobs are made; {load.running()} run")
    trained = Trained(load)
    wait(load, "all jobs to run", lambda: trained.look() == load.jobs, START_SECONDS, lambda: f"{load.running()} run", say)
    took, cpu = time.monotonic() - begin, cpu_seconds(pid) - base
    others = {name: round(used - before.get(name, 0.0), 1) for name, used in load.plane.use().items()}
    if profiler is not None:
        profiler.send_signal(2)
        profiler.wait(30)
    say(f"all run after {took:.0f} s; the operator used {cpu:.1f} s of CPU, the others {others}")
    return Started(took, cpu, others, load.metric("lmj_passes_total") or 0.0, trained.job_seconds)


def measure_faults(load: Load, options: argparse.Namespace, say: Any) -> tuple[list[float], list[float]]:
    """Seconds from workers' exits and pods' deletions to what the operator does."""
    count, pause = min(options.faults, load.jobs // 2), 1 / options.a_second
    exits = asyncio.run(worker_exits(load, [job_name(n) for n in range(count)], pause))
    say(f"exits: p50 {quantile(exits, 0.5):.3f}, p99 {quantile(exits, 0.99):.3f} s")
    wait(load, "all jobs to run again", lambda: load.running() == load.jobs, 120)
    deletions = asyncio.run(pod_deletions(load, [job_name(n) for n in range(count, 2 * count)], pause))
    say(f"deletions: p50 {quantile(deletions, 0.5):.3f}, p99 {quantile(deletions, 0.99):.3f} s")
    wait(load, "all jobs to run again", lambda: load.running() == load.jobs, 120)
    return exits, deletions


def measure(load: Load, options: argparse.Namespace, say: Any) -> int:
    load.start()
    wait(load, "the operator", lambda: load.metric("lmj_") is not None, 60)
    time.sleep(2)
    pid = load.pid
    base, empty = cpu_seconds(pid), resident_mb(pid)
    start = measure_start(load, options, base, say)

    settle(load, say)
    first = load.calls()
    begin_at, cpu = time.time(), cpu_seconds(pid)
    time.sleep(options.idle)
    idle_cpu = (cpu_seconds(pid) - cpu) / options.idle
    idle = load.calls(begin_at, begin_at + options.idle)
    say(f"idle: {len(idle)} calls, {idle_cpu * 100:.0f}% of a core, {resident_mb(pid):.0f} MB")

    # What those cost that ran already while others started is no cost of a start.
    start_net = start.cpu - idle_cpu / load.jobs * start.job_seconds
    exits, deletions = measure_faults(load, options, say)
    writes = writes_a_job(first)
    children = load.ranks + CHILDREN_BESIDE_PODS
    per_job = [writes[job_name(number)] for number in range(load.jobs)]
    goals = [
        goal("API calls for idle jobs, beyond the watches, in a minute", "<=", 0, len(idle) * 60 / options.idle),
        goal(f"writes of the job with the most ({children} children + 6)", "<=", children + 6, max(per_job)),
        goal("reads a job, from create to running", "<=", 1, sum(call.verb in READS for call in first) / load.jobs),
        # A second of a machine's processor is not another's, nor always its own: the API server does its part of the same work meanwhile.
        goal("operator CPU over the API server's, from create to running", "<=", 0.45, start_net / start.others["apiserver"]),
        goal("a worker's exit to its StartWorker, p99", "<=", 1.0, quantile(exits, 0.99), " s"),
        goal("a pod's deletion to the new pod's create, p99", "<=", 1.0, quantile(deletions, 0.99), " s"),
        goal("resident memory at its highest", "<=", 200, resident_mb(pid, peak=True), " MB"),
    ]
    details = {
        "jobs": load.jobs,
        "ranks": load.ranks,
        "seconds until all run": round(start.seconds, 1),
        "operator CPU seconds until all run": round(start.cpu, 2),
        "of these, for jobs that ran already": round(start.cpu - start_net, 2),
        "operator CPU a job, ms": round(start_net * 1000 / load.jobs, 1),
        "CPU seconds of the others until all run": start.others,
        "idle CPU, cores": round(idle_cpu, 3),
        "resident MB, empty and now": [round(empty, 1), round(resident_mb(pid), 1)],
        "passes a job until all run": round(start.passes / load.jobs, 1),
        "mean writes a job": sum(per_job) / load.jobs,
        "calls until idle": kinds(first),
        "calls while idle": kinds(idle),
        "exit seconds": [round(s, 4) for s in sorted(exits)],
        "deletion seconds": [round(s, 4) for s in sorted(deletions)],
        "event to action p99": round(quantile(exits + deletions, 0.99), 4),
    }
    return report("operator" if load.jobs >= 1000 else "operator-small", goals, details)


class Trained:
    """How long jobs have run, while others had yet to start."""

    def __init__(self, load: Load) -> None:
        self._load, self._running, self._at = load, load.running(), time.monotonic()
        self.job_seconds = 0.0

    def look(self) -> int:
        """Jobs that run now."""
        now, before = time.monotonic(), self._running
        self._running = self._load.running()
        self.job_seconds += (now - self._at) * (before + self._running) / 2
        self._at = now
        return self._running


async def worker_exits(load: Load, jobs: Sequence[str], pause: float) -> list[float]:
    """Seconds from a worker's exit, told by its agent, to the StartWorker that the agent gets."""

    async def one(job: str, wait_for: float) -> float:
        await asyncio.sleep(wait_for)
        return float((await asyncio.to_thread(load.ask_agents, f"exit?job={job}"))["seconds"])

    return list(await asyncio.gather(*(one(job, number * pause) for number, job in enumerate(jobs))))


async def pod_deletions(load: Load, jobs: Sequence[str], pause: float) -> list[float]:
    """Seconds from the API server's answer to a deletion by force until it gets the create of the next pod.

    With a grace period a pod goes on until its agent hears of it, from a kubelet that is not there.
    """
    done, body = [], {"gracePeriodSeconds": 0}
    for job in jobs:
        [(begin, took)] = await load.send("DELETE", [f"/api/v1/namespaces/{NAMESPACE}/pods/{job}-r0-1"], [body])
        done.append((f"{job}-r0-2", begin))
        await asyncio.sleep(max(0.0, pause - took))
    deadline = time.monotonic() + CALL_SECONDS
    while True:
        made = {
            call.name: call.at for call in load.calls() if (call.verb, call.resource) == ("create", "pods") and call.code < 300
        }
        if all(name in made for name, _ in done):
            return [made[name] - begin for name, begin in done]
        if time.monotonic() > deadline:
            raise RuntimeError(f"{sum(name not in made for name, _ in done)} pods were not made again within {CALL_SECONDS:g} s")
        await asyncio.sleep(1)


def wait(load: Load, what: str, holds: Any, seconds: float, state: Any = None, say: Any = None) -> None:
    """Until ``holds``. Raises RuntimeError after ``seconds``, ClusterError when a process ended."""
    begin = said = time.monotonic()
    while not holds():
        load.pid  # noqa: B018 - raises when it is gone
        now = time.monotonic()
        if now - begin > seconds:
            raise RuntimeError(f"{what}: not within {seconds:g} s\n{load.operator.log.read_text()[-3000:]}")
        if say is not None and now - said > 10:
            said = now
            say(state())
        time.sleep(0.5)


def settle(load: Load, say: Any) -> None:
    """Until the operator has written nothing for ten seconds: what it put off is done."""
    begin = time.monotonic()
    while time.monotonic() - begin < SETTLE_SECONDS:
        last = max((call.at for call in load.calls() if call.verb in WRITES), default=0.0)
        if time.time() - last > 15:
            return
        time.sleep(2)
    say(f"it still writes after {SETTLE_SECONDS:g} s")


if __name__ == "__main__":
    raise SystemExit(main())
