"""Has planned faults happen to a job on a cluster, and waits until each is over."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

from cluster_fault_plan import NODE_KINDS, Fault, Kind
from cluster_injection import OVER_SECONDS, Injector
from faults import NEW_STEPS, newest_step
from operator_jobs import ClusterJob, wait_for


class Storm:
    """Has faults happen to a running job of two ranks."""

    def __init__(self, injector: Injector, job: ClusterJob, metrics: Path, say: Callable[[str], None]) -> None:
        self.injector, self.job, self.metrics, self.say = injector, job, metrics, say
        self.highest = 0
        """The newest step that was ever seen."""
        self.seconds: dict[Kind, list[float]] = {}
        """How long each was not over."""

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
                    self.injector.inject(kind, rank, fault.strength)
                self._wait(NEW_STEPS, fault)
                self.seconds.setdefault(fault.kind, []).append(time.monotonic() - began)
        finally:
            self.injector.repaired()

    def go_to_the_end(self, seconds: float) -> None:
        """Until the job trains no more. AssertionError: there was no new step for so many ``seconds``."""
        while self.job.status.get("phase") not in ("Succeeded", "Failed"):
            before, since = self.look(), time.monotonic()
            while self.look() == before and self.job.status.get("phase") not in ("Succeeded", "Failed"):
                assert time.monotonic() - since < seconds, f"no step after {before} for {seconds:g} s\n{self.job.describe()}"
                time.sleep(1)

    def look(self) -> int:
        """The newest step that there ever was, now."""
        self.highest = max(self.highest, newest_step(self.metrics))
        return self.highest

    def figures(self) -> str:
        """How long each kind took, for people."""
        lines = [
            f"{kind:80} {len(took):3d} times, {statistics.median(took):6.2f} s until {NEW_STEPS} new steps, at most {max(took):6.2f} s"
            for kind, took in sorted(self.seconds.items())
        ]
        return "\n".join(lines)

    def _parts(self, fault: Fault) -> list[tuple[Kind, int]]:
        if fault.pair is None:
            if fault.kind in {*NODE_KINDS, Kind.CONTROL_PLANE}:
                self.injector.repaired()  # the node before is back, which the API server has to say
            return [(fault.kind, fault.rank)]
        return [(fault.pair[0], fault.rank), (fault.pair[1], 1 - fault.rank)]

    def _wait(self, count: int, fault: Fault) -> None:
        goal = self.look() + count

        def there() -> bool:
            self.injector.check()
            return self.look() >= goal

        wait_for(f"step {goal} ({fault})", there, self.job.describe, OVER_SECONDS)
