"""Has planned faults happen to a job on a cluster, and waits until each is over."""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from cluster import Cluster
from cluster.api import ApiError
from cluster_fault_plan import NODE_KINDS, Fault, Kind
from faults import NEW_STEPS, newest_step
from operator_jobs import ClusterJob, OperatorProcess, wait_for

OVER_SECONDS = 120.0
"""A fault that is not over by then is one too many."""


class Storm:
    """Has faults happen to a running job of two ranks. The name of the job must be one that no other on this machine has."""

    def __init__(
        self, own: Cluster, job: ClusterJob, operator: OperatorProcess, metrics: Path, say: Callable[[str], None]
    ) -> None:
        self.own, self.job, self.operator, self.metrics, self.say = own, job, operator, metrics, say
        self.highest = 0
        """The newest step that was ever seen."""
        self.seconds: dict[Kind, list[float]] = {}
        """How long each was not over."""
        self._requests = 0
        self._repairs: list[threading.Thread] = []
        self._failed: list[BaseException] = []

    def go_through(self, faults: list[Fault], steps: int) -> None:
        """All ``faults``, one after the other. AssertionError: one is not over in time, or the job of ``steps`` steps ends before."""
        try:
            for number, fault in enumerate(faults, 1):
                self._wait(NEW_STEPS + fault.steps, fault)
                time.sleep(fault.pause)
                at = self.look()
                assert at < steps - 2, f"only {number - 1} faults before the job's end: it needs more steps"
                self.say(f"step {at:5d}  fault {number}/{len(faults)}: {fault}")
                began = time.monotonic()
                for kind, rank in self._parts(fault):
                    self.inject(kind, rank, fault.strength)
                self._wait(NEW_STEPS, fault)
                self.seconds.setdefault(fault.kind, []).append(time.monotonic() - began)
        finally:
            self._repaired()

    def look(self) -> int:
        """The newest step that there ever was, now."""
        self.highest = max(self.highest, newest_step(self.metrics))
        return self.highest

    def inject(self, kind: Kind, rank: int, strength: float) -> None:
        """Do it, and see to it that what goes by itself is over some time."""
        match kind:
            case Kind.WORKER:
                self._signal_worker(rank, signal.SIGKILL)
            case Kind.HANG:
                self._signal_worker(rank, signal.SIGSTOP)
            case Kind.STOP:
                pid = self._signal_worker(rank, signal.SIGSTOP)
                self._later(0.2 + 2.5 * strength, lambda: _signal(pid, signal.SIGCONT))
            case Kind.AGENT:
                _signal(agents(self.job.name).get(self._pod(rank)), signal.SIGKILL)
            case Kind.DELETED:
                body = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
                with suppress(ApiError):  # it is gone already: two at once
                    self.own.api.call("DELETE", f"{self._pods}/{self._pod(rank)}", body)
            case Kind.EVICTED:
                self._evict(rank)
            case Kind.POWER:
                node = self._node(rank)
                self.own.power_cut(node)
                self._later(2 + 4 * strength, lambda: self.own.power_on(node, 180))
            case Kind.PARTITION:
                node = self._node(rank)
                self.own.link_down(node)
                self._later(0.5 + 6 * strength, lambda: self.own.link_up(node))
            case Kind.OPERATOR:
                self.operator.kill()
                time.sleep(strength)
                self.operator.start()
            case Kind.DISK:
                filler = self.own.small_disk / "filler"
                fill(filler)
                self._later(0.5 + 3 * strength, lambda: filler.unlink(missing_ok=True))
            case Kind.MOVE:
                self._requests += 1
                request = f"lmj.dev/migrate={rank} {self._requests}"
                self.job.kubectl("annotate", "lmj", "-n", self.job.namespace, self.job.name, "--overwrite", request)
            case Kind.TWO:
                raise ValueError("two at once are two faults")

    def status(self) -> dict[str, Any]:
        path = f"/apis/lmj.dev/v1alpha1/namespaces/{self.job.namespace}/livemigrationjobs/{self.job.name}"
        return dict(self.own.api.get(path).get("status") or {})

    def figures(self) -> str:
        """How long each kind took, for people."""
        lines = [
            f"{kind:46} {len(took):3d} times, {statistics.median(took):6.2f} s until {NEW_STEPS} new steps, at most {max(took):6.2f} s"
            for kind, took in sorted(self.seconds.items())
        ]
        return "\n".join(lines)

    def _parts(self, fault: Fault) -> list[tuple[Kind, int]]:
        if fault.pair is None:
            if fault.kind in NODE_KINDS:
                self._repaired()  # the node before is back
            return [(fault.kind, fault.rank)]
        return [(fault.pair[0], fault.rank), (fault.pair[1], 1 - fault.rank)]

    def _wait(self, count: int, fault: Fault) -> None:
        goal = self.look() + count

        def there() -> bool:
            if self._failed:
                raise self._failed[0]
            return self.look() >= goal

        wait_for(f"step {goal} ({fault})", there, self.job.describe, OVER_SECONDS)

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        def run() -> None:
            time.sleep(seconds)
            try:
                what()
            except BaseException as error:  # noqa: BLE001
                self._failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self._repairs.append(thread)

    def _repaired(self) -> None:
        """Wait for all that was to be over some time. Raises what a repair raised."""
        for thread in self._repairs:
            thread.join(240)
            assert not thread.is_alive(), "what was taken away is not back"
        self._repairs.clear()
        if self._failed:
            raise self._failed[0]

    def _evict(self, rank: int) -> None:
        """As ``kubectl drain`` does it: again while the budget refuses."""

        def evicted() -> bool:
            pod = self._pod(rank)
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.job.namespace}}
            try:
                self.own.api.call("POST", f"{self._pods}/{pod}/eviction", body)
            except ApiError as error:
                if error.status not in (404, 429):
                    raise
                return False
            return True

        wait_for(f"the eviction of rank {rank}", evicted, self.job.describe, OVER_SECONDS)

    def _pod(self, rank: int) -> str:
        return str(self.status()["ranks"][rank]["pod"])

    def _node(self, rank: int) -> str:
        found: list[str] = []

        def known() -> bool:
            with suppress(ApiError):
                node = self.own.api.get(f"{self._pods}/{self._pod(rank)}")["spec"].get("nodeName")
                found.extend([node] if node else [])
            return bool(found)

        wait_for(f"the node of rank {rank}", known, self.job.describe, OVER_SECONDS)
        return found[0]

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{self.job.namespace}/pods"

    def _signal_worker(self, rank: int, number: signal.Signals) -> int | None:
        agent = agents(self.job.name).get(self._pod(rank))
        pid = None if agent is None else worker_of(agent)
        _signal(pid, number)
        return pid


def _signal(pid: int | None, number: signal.Signals) -> None:
    """None, or one that is gone: the other of two at once took it."""
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def fill(file: Path) -> None:
    """Write ``file`` until there is no room on its disk."""
    with suppress(OSError), file.open("ab", buffering=0) as opened:
        while True:
            opened.write(bytes(4096))


def agents(job: str) -> dict[str, int]:
    """Process id of the agent of each pod of ``job`` on this machine's nodes: their processes are seen from here."""
    found = {}
    for folder in Path("/proc").iterdir():
        words = _words(int(folder.name)) if folder.name.isdigit() else []
        if words[1:4] == ["-m", "lmj_trainer", "agent"] and "--pod" in words and words[words.index("--pod") + 1].startswith(job):
            found[words[words.index("--pod") + 1]] = int(folder.name)
    return found


def worker_of(agent: int) -> int | None:
    """Process id of the worker of an agent; None: it has none now."""
    return next((pid for pid in _children(agent) if _words(pid)[3:4] == ["worker"]), None)


def _children(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            yield from map(int, file.read_text().split())


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []
