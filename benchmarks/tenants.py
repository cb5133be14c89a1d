"""Tenants who want to stop the operator, and one who only wants a job: a thousand hostile jobs before a real API server.

A quarter of them each: as large as an API server takes; patterns that are slow to match, with rules that fail again and again; restarts
without a pause; agents who lie. Pods are faked with kwok. ``--help`` tells the options.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ending import clean_up_when_told
from operator_load import hostile_jobs
from operator_load.audit import Call, kinds
from operator_load.bare_pod import bare_pod
from operator_load.hostile_jobs import RANKS, TENANTS
from operator_load.load import Load
from operator_load.neighbour import LONGEST, Neighbour
from operator_load.plane import NAMESPACE, PODS_A_NODE, Plane
from operator_load.probe import Answer, Probe
from operator_load.usage import cpu_seconds, resident_mb
from progress import Say, progress
from report import Goal, goal, quantile, report

from lmj_api.names import parse_pod_name

JOBS, SAMPLES = 1000, 240
"""The 99th percentile of so many samples is not the highest of them."""
TINY_JOBS, TINY_SAMPLES = 40, 10
PAUSE_SECONDS = 1.0
"""Between two jobs of the neighbour."""
CHANGE_SECONDS = 2.0
"""Between two changes of large objects, each of which the operator hears of in full. An API server takes up to 2 s for one: with more of
them the neighbour waits for it alone."""
SETTLE_SECONDS, LONGEST_SETTLE_SECONDS = 90.0, 300.0
"""Between the last hostile job and the first of the neighbour's that is judged, at least and at most. The last of them have their first
restarts, which are free, and the API server and what is in the kubelets' place work off what they were sent: until so many"""
BARE_PODS, BARE_SECONDS = 5, 0.25
"""pods that no operator has made start, one after another, each within so many seconds. With no job they take 0.02, and a job 1.1."""
BARE_PAUSE_SECONDS = 2.0
"""Between two such pods under siege. What is late of them is not late because of the operator."""
SLOWEST = 30
"""Calls of the operator that are told one by one."""
AT_ONCE = 4
"""Hostile jobs that are made: an API server works for seconds on the largest, and gives up those that wait for half a minute."""
START_SECONDS = 60.0
_MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class Measured:
    """What a run has shown."""

    idle: list[float]
    """Seconds until each of the neighbour's jobs ran, with no other job,"""
    flood: list[float]
    """while the hostile ones were made,"""
    siege: list[float]
    """and while all of them were there."""
    answers: list[Answer]
    """Of the operator to the probe, from the first hostile job on."""
    unanswered: list[str]
    pods: dict[str, float]
    """Of each hostile job that has any: pods that were made for a rank in a second, from its first to the end."""
    resident: float
    """MB, at its highest."""


def pods_a_second(calls: Iterable[Call], end: float) -> dict[str, float]:
    """Of each hostile job the pods that were made for each of its ranks in a second, from the first of them to ``end``."""
    made: dict[str, list[float]] = {}
    for call in calls:
        if (call.verb, call.resource) == ("create", "pods") and call.code < 300:
            made.setdefault(parse_pod_name(call.name)[0], []).append(call.at)
    return {
        job: len(times) / RANKS[kind] / max(1.0, end - min(times))
        for job, times in made.items()
        if (kind := job.partition("-")[0]) in RANKS
    }


def goals(found: Measured) -> list[Goal]:
    """What was to be reached."""
    stop = 1000 * max((answer.stop for answer in found.answers), default=0.0)
    late = sum(seconds >= LONGEST for seconds in found.siege)
    slower = quantile(found.siege, 0.99) / quantile(found.idle, 0.99)
    return [
        goal("resident memory at its highest", "<", 256, found.resident, " MB"),
        goal("longest time that the loop answered nothing, waits for a processor apart", "<=", 50, stop, " ms"),
        goal("questions without an answer", "<=", 0, len(found.unanswered)),
        goal("start of another tenant's job, p99, over that with no other job", "<=", 2, slower),
        goal(f"jobs of the other tenant that did not start within {LONGEST:g} s", "<=", 0, late),
        goal("pods made for a rank in a second, of the job with the most", "<=", 1, max(found.pods.values(), default=0.0)),
    ]


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    parts = {"p50": 0.5, "p99": 0.99, "highest": 1.0}
    return {name: round(quantile(seconds, part), 4) for name, part in parts.items()} | {"samples": len(seconds)}


def _slowest(calls: Iterable[Call], begin: float) -> list[list[object]]:
    """Those that the API server had for longest from ``begin`` on: when one of the neighbour's starts is late, they may say why."""
    longest = sorted((call for call in calls if call.at >= begin), key=lambda call: -call.seconds)[:SLOWEST]
    return [[round(call.at - begin, 1), round(call.seconds, 2), call.verb, call.resource, call.name] for call in longest]


async def _make_all(load: Load) -> None:
    jobs = range(load.jobs)
    paths = [f"/apis/lmj.dev/v1alpha1/namespaces/{hostile_jobs.namespace(n)}/livemigrationjobs" for n in jobs]
    # A few at a time: a thousand of them as text are hundreds of megabytes here.
    for first in range(0, load.jobs, 50):
        batch = jobs[first : first + 50]
        await load.send("POST", paths[first : first + 50], [hostile_jobs.document(n) for n in batch], at_once=AT_ONCE)


async def _change_large(load: Load) -> None:
    """Change one large object after another, until cancelled: the operator hears of each in full."""
    random = Random(0)
    large = [number for number in range(load.jobs) if hostile_jobs.name(number).startswith("size")]
    while True:
        number = random.choice(large)
        path = f"/apis/lmj.dev/v1alpha1/namespaces/{hostile_jobs.namespace(number)}/livemigrationjobs/{hostile_jobs.name(number)}"
        change = {"metadata": {"annotations": {"changed": str(random.random())}}}
        await load.send("PATCH", [path], [change], _MERGE)
        await asyncio.sleep(CHANGE_SECONDS)


async def _bare_pods(load: Load) -> list[float]:
    return [await bare_pod(load.api) for _ in range(BARE_PODS)]


async def _settled(load: Load) -> list[list[float]]:
    """Wait until what the operator depends on has worked off the hostile jobs; what was seen of it."""
    begin, seen = time.monotonic(), list[list[float]]()
    await asyncio.sleep(SETTLE_SECONDS)
    while time.monotonic() - begin < LONGEST_SETTLE_SECONDS:
        seen.append(await _bare_pods(load))
        if max(seen[-1]) <= BARE_SECONDS:
            break
        await asyncio.sleep(PAUSE_SECONDS)
    return seen


async def _bare_beside(load: Load, found: list[tuple[float, float]]) -> None:
    """Start bare pods, now and then, until cancelled; when each was made, and how long it took, goes into ``found``."""
    while True:
        at = time.time()
        found.append((at, await bare_pod(load.api)))
        await asyncio.sleep(BARE_PAUSE_SECONDS)


async def _besieged(load: Load, neighbour: Neighbour, samples: int, say: Say) -> tuple[list[float], list[float], dict[str, Any]]:
    """Starts of the neighbour's jobs while the hostile ones are made, and while they are there; and what is known of bare pods."""
    making = asyncio.create_task(_make_all(load))
    flood = await neighbour.starts(PAUSE_SECONDS, lambda _: not making.done())
    await making
    say(f"all hostile jobs are made; meanwhile the neighbour's started within {_spread(flood)}")
    beside, tasks = list[tuple[float, float]](), [asyncio.create_task(_change_large(load))]
    try:
        settling = await _settled(load)
        say(f"what the operator depends on has settled; bare pods started within {settling[-1:]}")
        begin = time.time()
        tasks.append(asyncio.create_task(_bare_beside(load, beside)))
        siege = await neighbour.starts(PAUSE_SECONDS, lambda number: number < samples)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    say(f"under siege they started within {_spread(siege)}")
    under = [[round(at - begin, 1), round(seconds, 3)] for at, seconds in beside]
    return flood, siege, {"before the siege": settling, "under siege, at": under, "siege began": begin}


def measure(load: Load, samples: int, say: Say) -> tuple[Measured, dict[str, Any]]:
    """All of a run, and what else is to be known of it."""
    load.start()
    begin = time.monotonic()
    while load.metric("lmj_") is None:
        if time.monotonic() - begin > START_SECONDS:
            raise RuntimeError(f"the operator did not start within {START_SECONDS:g} s\n{load.operator.log.read_text()[-3000:]}")
        load.pid  # noqa: B018 - raises when it is gone
        time.sleep(0.2)
    neighbour = Neighbour(load.api)
    # The first one waits for what an operator and its API server do once.
    asyncio.run(neighbour.starts(PAUSE_SECONDS, lambda number: number < 1))
    idle = asyncio.run(neighbour.starts(PAUSE_SECONDS, lambda number: number < samples))
    bare = asyncio.run(_bare_pods(load))
    say(f"with no other job the neighbour's start within {_spread(idle)}, bare pods within {_spread(bare)}")
    pid, at, cpu, others = load.pid, time.time(), cpu_seconds(load.pid), load.plane.use()
    with Probe(pid, load.port, load.plane.folder) as probe:
        flood, siege, pods_beside = asyncio.run(_besieged(load, neighbour, samples, say))
    assert load.pid == pid, "the operator has ended"
    end = time.time()
    calls = load.calls(at, end)
    pods = pods_a_second(calls, end)
    found = Measured(idle, flood, siege, probe.answers, probe.failed, pods, resident_mb(pid, peak=True))
    worst = sorted(probe.answers, key=lambda answer: -answer.stop)[:10]
    details = {
        "jobs": dict(Counter(hostile_jobs.name(number).partition("-")[0] for number in range(load.jobs))),
        "seconds under siege": round(end - at, 1),
        "starts": {"idle": _spread(idle), "flood": _spread(flood), "siege": _spread(siege)},
        "start seconds, one after another": {"idle": [round(s, 3) for s in idle], "siege": [round(s, 3) for s in siege]},
        "start seconds of bare pods": {"idle": bare, **pods_beside},
        "slowest calls under siege, at": _slowest(calls, pods_beside["siege began"]),
        "answers": _spread([answer.stop for answer in probe.answers]),
        "longest, at": [
            [round(answer.at - at, 2), *(round(part, 4) for part in (answer.seconds, answer.stop, answer.ran, answer.stolen))]
            for answer in worst
        ],
        "pods a rank and second": _spread(list(found.pods.values()) or [0.0]),
        "operator CPU seconds": round(cpu_seconds(pid) - cpu, 1),
        "CPU seconds of the others": {name: round(used - others.get(name, 0.0), 1) for name, used in load.plane.use().items()},
        "calls": kinds(calls),
    }
    return found, details


def main() -> int:
    """Exit code: 0 when all goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS, help="hostile jobs (default %(default)s)")
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help="jobs of the neighbour, with and without them (default %(default)s)"
    )
    parser.add_argument("--tiny", action="store_true", help="few of both: tries the benchmark, proves nothing")
    parser.add_argument("--keep-log", type=Path, metavar="FILE", help="where the operator's log goes at the end")
    options = parser.parse_args()
    if os.geteuid() != 0 or sys.platform != "linux":
        print(
            "needs root on Linux: the API server gets a network of its own, and 127.0.0.0/8 must be this machine's",
            file=sys.stderr,
        )
        return 3
    if options.tiny:
        options.jobs, options.samples = TINY_JOBS, TINY_SAMPLES
    clean_up_when_told()
    say = progress()
    pods = sum(RANKS[hostile_jobs.name(number).partition("-")[0]] for number in range(options.jobs))
    with Plane(4 + pods * 2 // PODS_A_NODE) as plane:
        for namespace in TENANTS:
            plane.furnish(namespace)
        load = Load(plane, options.jobs, max(RANKS.values()), (NAMESPACE, *TENANTS))
        try:
            say(f"control plane and kwok are up; {options.jobs} hostile jobs")
            found, details = measure(load, options.samples, say)
        finally:
            load.stop()
            if options.keep_log and load.operator.log.exists():
                options.keep_log.write_bytes(load.operator.log.read_bytes())
    whole = options.jobs >= JOBS and options.samples >= SAMPLES
    return report("tenants" if whole else "tenants-tiny", goals(found), details)


if __name__ == "__main__":
    sys.exit(main())
