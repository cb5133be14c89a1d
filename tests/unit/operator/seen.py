"""What a backend may have seen of a rank, for tests of the plan's parts. The job is ``j``; times are what a test says."""

from dataclasses import replace
from typing import Any

from planned import job_spec

from lmj_api.protocol import AgentState, Holding, WorkerPhase, WorkerState
from lmj_api.status import FollowerStatus, JobStatus, MoveStatus, RankStatus
from lmj_api.view import Member, Resume, View
from lmj_operator.plan import Observed, PodObserved, PodPhase
from lmj_operator.plan.observe.facts import RankFacts


def pod(
    rank: int | None, serial: int, worker: WorkerState | None = None, *, agent: dict[str, Any] | None = None, **more: Any
) -> PodObserved:
    """A running pod; ``worker``, or what else ``agent`` says: its agent answers."""
    name = f"j-s-{serial}" if rank is None else f"j-r{rank}-{serial}"
    answer = None
    if worker is not None or agent is not None:
        answer = AgentState.model_validate(
            {"pod": name, "rank": rank, "started": 1.0, "worker": worker or WorkerState(), **(agent or {})}
        )
    seen = PodObserved(name=name, rank=rank, serial=serial, phase=PodPhase.RUNNING, created=1.0, agent=answer)
    return replace(seen, **more)


def worker(phase: WorkerPhase = WorkerPhase.RUNNING, **more: Any) -> WorkerState:
    """The first of its pod, in view 3 and at step 8."""
    values = {"incarnation": 1, "phase": phase, "view": 3, "address": "a", "holding": Holding(step=8), **more}
    return WorkerState.model_validate(values)


def facts(rank: int, seen: PodObserved | None, **more: Any) -> RankFacts:
    """Of a rank whose pod is ``seen``, and was known before."""
    serial = seen.serial if seen is not None else 1
    known = RankStatus(rank=rank, pod=f"j-r{rank}-{serial}", state="Running", incarnation=1)
    values = {"serial": serial, "seen": True, "incarnation": 1, "known": known, "next_serial": serial + 1, **more}
    return RankFacts(rank=rank, pod=seen, **values)


def view(*pods: PodObserved, number: int = 3) -> View:
    """Of the first worker of each."""
    members = [Member(rank=i, pod=p.name, incarnation=1, address="a") for i, p in enumerate(pods)]
    return View(number=number, members=members, resume=Resume(step=0), reason="r")


def observed(*pods: PodObserved, status: JobStatus | None = None, ranks: int = 2) -> Observed:
    """The job with these pods."""
    return Observed("j", job_spec(ranks), status or JobStatus(), pods)


def move(**more: Any) -> MoveStatus:
    """Of rank 1, which leaves its first pod, on node-1."""
    return MoveStatus.model_validate({"rank": 1, "serial": 1, "node": "node-1", "reason": "r", "since": 1.0, **more})


def follower(**more: Any) -> FollowerStatus:
    """Of rank 1: its second pod."""
    return FollowerStatus.model_validate({"rank": 1, "serial": 2, "pod": "j-r1-2", "state": "Copying", **more})
