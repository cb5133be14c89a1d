"""Pods deleted, and nodes without power, on a cluster of plain processes: time to notice, to the next new step, and steps lost. ``--help``."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cluster import Cluster
from cluster.cluster import sweep
from cluster.images import BASE
from cluster_fixture import Target
from ending import clean_up_when_told
from jobs import job_document
from killable import born, proportional_mb
from operator_jobs import ClusterJob, OperatorProcess, wait_for
from progress import Say, progress
from report import goal, quantile, report
from steps import Steps, median_step

from lmj_api.spec import Recovery
from lmj_operator.plan.observe.times import epoch_seconds

NODES = 3
NEVER_SECONDS = 120.0
START_SECONDS = 240.0
POLL_SECONDS = 0.05
ASK_SECONDS = 0.25
"""Between two looks at the API server."""
SETTLED = 30
"""New steps before the next fault."""
PAUSE_SECONDS = (0.5, 2.0)
POD, NODE = "pod deleted", "node without power"
KINDS: dict[str, dict[str, Any]] = {"nothing": {}, "standby": {"standby": 1}, "replica": {"hotStandby": True}}
CRD = Path(__file__).parents[1] / "crds" / "lmj.dev_livemigrationjobs.yaml"


@dataclass(frozen=True)
class Trial:
    """What one fault cost. Seconds are from the fault."""

    fault: str
    kind: str
    rank: int
    noticed: float | None
    """Until the incident that the status reports; None: there was none."""
    by: str
    """Who noticed."""
    seconds: float | None
    """To the end of the next step that was never done before; None: it did not come within ``NEVER_SECONDS``."""
    lost: int | None
    """Steps done again."""
    started: float | None
    """From the notice to the first process of a pod that had to be made; None: none was."""
    recovery: str

    def __str__(self) -> str:
        if self.seconds is None or self.noticed is None:
            return f"rank {self.rank}: not within {NEVER_SECONDS:g} s"
        made = "" if self.started is None else f", a pod started in {self.started:.2f} s"
        costs = f"noticed in {self.noticed:.3f} s by {self.by}, {self.seconds:.3f} s, {self.lost} steps lost"
        return f"rank {self.rank}: {costs}{made}; {self.recovery}"


def judge(seen: Collection[tuple[int, float]], fault_at: float, resume: int) -> tuple[float, int] | None:
    """Seconds and steps lost of a fault, when a new step came in the view that went on from step ``resume``; None: not yet.

    A pod that is deleted is known to be gone before its processes are: the old view may go on for a while. So what tells the views apart is
    the step after ``resume``: the new one has done it last.
    """
    begun = max((at for step, at in seen if step == resume + 1), default=0.0)
    if begun <= fault_at:
        return None
    highest = max([resume, *(step for step, at in seen if at < begun)])
    ends = [at for step, at in seen if step > highest and at >= begun]
    return (min(ends) - fault_at, highest - resume) if ends else None


class Benchmark:
    """A cluster, an operator outside of it, and the jobs."""

    def __init__(self, own: Cluster, folder: Path, options: argparse.Namespace, say: Say) -> None:
        """``options``: those of :func:`arguments`."""
        self.own, self.source, self.silence, self.say = own, random.Random(options.seed), options.silence, say
        self.network = {"encryption": "Required"} if options.encryption else {}
        self.target = Target(own.kubeconfig, own, own.binaries().path("kubectl"))
        self.operator = OperatorProcess(own.kubeconfig, folder / "operator.log", BASE)

    def defined(self) -> bool:
        """Whether the API server serves jobs."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/livemigrationjobs.lmj.dev"
        conditions = (self.own.api.get(path).get("status") or {}).get("conditions") or []
        return any((c["type"], c["status"]) == ("Established", "True") for c in conditions)

    @contextmanager
    def job(self, recovery: dict[str, Any]) -> Iterator[ClusterJob]:
        """A job without end; it trains, and what ``recovery`` keeps ready is."""
        environment = self.own.environment_mounts()
        trainer = {"name": "trainer", "env": environment.env, "volumeMounts": environment.volume_mounts}
        template = {"metadata": {"labels": {}}, "spec": {"volumes": environment.volumes, "containers": [trainer]}}
        document = job_document(Path("out"))
        # Processes of all of this machine's pods are seen: a name that no other job has.
        document["metadata"]["name"] = f"bench-{os.getpid()}"
        made = ClusterJob(self.target, self.operator, template, document)
        try:
            made.volumes()
            made.spec["training"] |= {"maxSteps": 10_000_000, "epochs": 10_000_000}
            made.spec["checkpoint"] = {"everySteps": 50}
            budget = {"nodeGoneSeconds": 5, "maxRestarts": 1000, "backoffSeconds": 0.1}
            made.spec["recovery"] = {**budget, "silenceTimeoutSeconds": self.silence, **recovery}
            made.spec["network"] = self.network
            made.apply()
            yield made
        finally:
            made.remove()
            for folder in (f"data-{made.namespace}", f"output-{made.namespace}"):
                self.target.kubectl("delete", "persistentvolume", folder, "--ignore-not-found", "--wait=false")

    def status(self, job: ClusterJob) -> dict[str, Any]:
        path = f"/apis/lmj.dev/v1alpha1/namespaces/{job.namespace}/livemigrationjobs/{job.name}"
        return dict(self.own.api.get(path).get("status") or {})

    def nodes(self, job: ClusterJob) -> dict[str, str]:
        """The node of each pod."""
        items = self.own.api.get(f"/api/v1/namespaces/{job.namespace}/pods")["items"]
        return {item["metadata"]["name"]: item["spec"].get("nodeName", "") for item in items}

    def settle(self, job: ClusterJob, steps: Steps, recovery: dict[str, Any]) -> dict[str, Any]:
        """Wait until it trains, with a durable checkpoint and all that is kept ready; the status."""
        target = steps.look() + SETTLED
        found: dict[str, Any] = {}

        def ready() -> bool:
            found.clear()
            found.update(self.status(job))
            if found.get("phase") == "Failed":
                raise RuntimeError(job.describe())
            trains = found.get("phase") == "Running" and steps.look() >= target and found.get("checkpoint") is not None
            warm = sum(s["state"] == "Warm" for s in found.get("standbys", [])) >= recovery.get("standby", 0)
            in_sync = [f for f in found.get("followers", []) if f["state"] == "InSync"]
            return bool(trains and warm and (not recovery.get("hotStandby") or len(in_sync) == 2))

        wait_for("a job that is ready for a fault", ready, job.describe, START_SECONDS)
        time.sleep(self.source.uniform(*PAUSE_SECONDS))
        return self.status(job)

    def trial(self, job: ClusterJob, steps: Steps, fault: str, kind: str) -> Trial:
        """Let ``fault`` come over a rank, and see what follows."""
        status = self.settle(job, steps, KINDS[kind])
        rank, nodes = self.source.randrange(2), self.nodes(job)
        pods = [entry["pod"] for entry in status["ranks"]]
        node = nodes[pods[rank]]
        steps.look()
        fault_at = time.time()
        if fault == POD:
            body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
            self.own.api.call("DELETE", f"/api/v1/namespaces/{job.namespace}/pods/{pods[rank]}", body)
        else:
            self.own.power_cut(node)
        try:
            return self._watch(
                job, steps, Trial(fault, kind, rank, None, "", None, None, None, ""), fault_at, status["view"]["number"]
            )
        finally:
            if fault == NODE:
                self.own.power_on(node)

    def _watch(self, job: ClusterJob, steps: Steps, trial: Trial, fault_at: float, view: int) -> Trial:
        births: dict[str, float] = {}
        asked, incident = 0.0, None
        while time.time() < fault_at + NEVER_SECONDS:
            time.sleep(POLL_SECONDS)
            steps.look()
            for pod, pid in agents(job.name).items():
                if pod not in births and (at := born(pid)) is not None and at >= fault_at:
                    births[pod] = at
            if time.monotonic() - asked < ASK_SECONDS:
                continue
            asked, status = time.monotonic(), self.status(job)
            incident = incident or next((i for i in status.get("incidents", []) if epoch_seconds(i["time"]) >= fault_at), None)
            if incident is None or status.get("phase") != "Running":
                continue
            noticed = epoch_seconds(incident["time"])
            told = next((i for i in status["incidents"] if i["time"] == incident["time"]), incident)
            if told.get("recovery") is None or status["view"]["number"] <= view:
                continue
            found = judge(steps.seen, fault_at, status["view"]["resume"]["step"])
            if found is None:
                continue
            members = {entry["pod"] for entry in status["ranks"]}
            made = [at - noticed for pod, at in births.items() if pod in members]
            return Trial(
                trial.fault,
                trial.kind,
                trial.rank,
                noticed - fault_at,
                told["noticedBy"],
                *found,
                max(made, default=None),
                told["recovery"],
            )
        return trial

    def turn(self, kind: str, faults: tuple[str, ...], trials: int) -> tuple[list[Trial], dict[str, list[float]], float]:
        """All trials of a kind of job; memory of each sort of its pods at rest (MB a pod), and its median step."""
        with self.job(KINDS[kind]) as job:
            assert job.output is not None
            steps = Steps(job.output / job.spec["output"]["path"] / "metrics.jsonl")
            status = self.settle(job, steps, KINDS[kind])
            memory = self.memory(job, status)
            self.say(f"{kind}: {', '.join(f'a {sort} holds {statistics.mean(mb):.0f} MB' for sort, mb in memory.items())}")
            step, done = median_step(steps.seen), []
            for fault in faults:
                for number in range(trials):
                    done.append(self.trial(job, steps, fault, kind))
                    self.say(f"{kind}, {fault} {number + 1}/{trials}, {done[-1]}")
                    if done[-1].seconds is None:
                        self.say(job.describe()[-6000:])
                        return done, memory, step
            return done, memory, step

    def memory(self, job: ClusterJob, status: dict[str, Any]) -> dict[str, list[float]]:
        """Proportional memory of all processes of a pod, in MB, by what the pod is."""
        sorts = {
            "rank's pod": [entry["pod"] for entry in status["ranks"]],
            "standby": [entry["pod"] for entry in status.get("standbys", [])],
            "replica": [entry["pod"] for entry in status.get("followers", [])],
        }
        first = agents(job.name)
        return {
            sort: [round(sum(proportional_mb(pid) for pid in family(first[pod])), 1) for pod in pods]
            for sort, pods in sorts.items()
            if pods
        }


def agents(job: str) -> dict[str, int]:
    """Process id of the agent of each pod of ``job`` on this machine's nodes: their processes are seen from here."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        except OSError:
            continue
        if words[1:4] == ["-m", "lmj_trainer", "agent"] and "--pod" in words and words[words.index("--pod") + 1].startswith(job):
            found[words[words.index("--pod") + 1]] = int(folder.name)
    return found


def family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children = chain.from_iterable(file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    return [pid, *chain.from_iterable(family(int(child)) for child in children)]


def row(trials: list[Trial]) -> str:
    """A line of the table."""
    noticed, back = _seconds(trials, "noticed"), _seconds(trials, "seconds")
    lost = [t.lost for t in trials if t.lost is not None]
    started = [t.started for t in trials if t.started is not None]
    cells = [
        str(len(trials)),
        str(sum(t.seconds is None for t in trials)),
        f"{statistics.median(noticed):.2f}",
        f"{quantile(noticed, 0.99):.2f}",
        f"{statistics.median(back):.2f}",
        f"{quantile(back, 0.99):.2f}",
        f"{statistics.mean(lost):.1f}, {max(lost)}" if lost else "-",
        f"{statistics.median(started):.2f}" if started else "-",
    ]
    return f"{trials[0].fault + ', ' + trials[0].kind:30}" + "".join(f"{cell:>12}" for cell in cells)


def judged(done: list[Trial]) -> list[Any]:
    """The goals, for what was measured."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in done:
        groups.setdefault((trial.fault, trial.kind), []).append(trial)
    goals = [goal("trials without a new step within two minutes", "<=", 0, sum(t.seconds is None for t in done))]
    for (fault, kind), trials in groups.items():
        back, noticed = statistics.median(_seconds(trials, "seconds")), statistics.median(_seconds(trials, "noticed"))
        started = [t.started for t in trials if t.started is not None]
        name = f"{fault}, {kind}"
        if fault == NODE and kind != "nothing":
            goals.append(goal(f"{name}: noticed, p50", "<=", 1, noticed, " s"))
        if kind != "nothing":
            goals.append(goal(f"{name}: to the next new step, p50", "<=", 3, back, " s"))
        elif fault == POD and started:
            bound = round(statistics.median(started) + 5, 2)
            goals.append(goal(f"{name}: to the next new step, p50 (a pod's start + 5 s)", "<=", bound, back, " s"))
        if kind == "replica":
            goals.append(goal(f"{name}: steps lost, at most", "<=", 0, max(t.lost or 0 for t in trials)))
    return goals


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--trials", type=int, default=3, help="faults of each sort for each kind of job (default %(default)s; 20 for the p99)"
    )
    parser.add_argument("--fault", choices=("pod", "node"), help="only this one (default both)")
    parser.add_argument("--kind", choices=tuple(KINDS), action="append", help="only jobs with this kept ready (default all)")
    parser.add_argument(
        "--silence",
        type=float,
        default=Recovery().silence_timeout_seconds,
        metavar="SECONDS",
        help="recovery.silenceTimeoutSeconds (default %(default)g, as without)",
    )
    parser.add_argument("--encryption", action="store_true", help="jobs with network.encryption: Required")
    parser.add_argument("--seed", type=int, default=0, help="decides which rank, and when (default %(default)s)")
    return parser.parse_args()


def show(faults: tuple[str, ...], done: list[Trial], memory: dict[str, dict[str, list[float]]], steps: dict[str, float]) -> None:
    """For people: a row for each fault and kind, memory, and the time of a step."""
    print(f"\na small BERT on {NODES} nodes, a checkpoint every 50 steps; a random rank of two is hit; seconds from the fault")
    names = ("trials", "never", "noticed p50", "p99", "new step p50", "p99", "lost, max", "pod start")
    print(f"{'':30}" + "".join(f"{name:>13}" if " p50" in name else f"{name:>12}" for name in names))
    for fault in faults:
        for kind in memory:
            if here := [t for t in done if (t.fault, t.kind) == (fault, kind)]:
                print(row(here))
    for kind, sorts in memory.items():
        print(
            f"memory with {kind}: "
            + ", ".join(f"{sort} {' and '.join(f'{mb:.0f}' for mb in values)} MB" for sort, values in sorts.items())
        )
    print(f"a step takes {' / '.join(f'{step * 1000:.0f}' for step in steps.values())} ms with {' / '.join(steps)}")


def main() -> int:
    options = arguments()
    if os.geteuid() != 0 or sys.platform != "linux":
        print("needs root on Linux: nodes are namespaces of this machine", file=sys.stderr)
        return 3
    clean_up_when_told()
    say = progress()
    faults = {"pod": (POD,), "node": (NODE,), None: (POD, NODE)}[options.fault]
    done: list[Trial] = []
    memory: dict[str, dict[str, list[float]]] = {}
    steps: dict[str, float] = {}
    sweep()
    own, folder = Cluster(f"bench-{os.getpid()}"), Path(tempfile.mkdtemp())
    try:
        own.up(NODES, owned=True)
        bench = Benchmark(own, folder, options, say)
        bench.target.kubectl("apply", "--server-side", "-f", str(CRD))
        wait_for("the definition in force", bench.defined, lambda: str(CRD), 60)
        bench.operator.start()
        try:
            for kind in options.kind or KINDS:
                trials, memory[kind], steps[kind] = bench.turn(kind, faults, options.trials)
                done += trials
        finally:
            bench.operator.kill(signal.SIGTERM)
    finally:
        own.down()
        shutil.rmtree(folder, ignore_errors=True)

    show(faults, done, memory, steps)
    details = {
        "trials": [asdict(t) for t in done],
        "seed": options.seed,
        "silence seconds": options.silence,
        "encryption": options.encryption,
        "memory MB": memory,
        "step seconds": steps,
    }
    whole = options.trials >= 3 and options.kind is None
    name = {"pod": "recovery-pods", "node": "recovery-nodes", None: "recovery-cluster"}[options.fault]
    encrypted = "-encrypted" if options.encryption else ""
    return report(name + encrypted + ("" if whole else "-short"), judged(done), details)


def _seconds(trials: list[Trial], field: str) -> list[float]:
    """What never came counts as long as it was waited for: at least so long it took."""
    return [NEVER_SECONDS if (value := getattr(t, field)) is None else float(value) for t in trials]


if __name__ == "__main__":
    raise SystemExit(main())
