"""Pods of the next cut: made, started, and replaced when they are lost, at nobody's cost."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lmj_api.cut import Cut
from lmj_api.names import pod_name
from lmj_api.protocol import USER_ERROR, WorkerPhase
from lmj_api.spec.recovery import Recovery
from lmj_api.status import RecutFollower, RecutStatus
from lmj_api.topology import Topology
from lmj_operator.plan.actions import Action, CreatePod, DeletePod, StartWorker
from lmj_operator.plan.failures.budget import backoff
from lmj_operator.plan.moves.moved import FOLLOWER_SECONDS
from lmj_operator.plan.observe.facts import ENDED
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase
from lmj_operator.plan.pods.following import is_lost


@dataclass(frozen=True, slots=True)
class Successor:
    """The pod of one rank of the next cut."""

    entry: RecutFollower
    pod: PodObserved | None = None
    actions: tuple[Action, ...] = ()
    final: str | None = None
    """Why no pod of this cut can ever start, by its user's mistake."""


def successors(
    observed: Observed, topology: Topology, recut: RecutStatus, made: Mapping[str, int], handing: bool, now: float
) -> list[Successor]:
    """Those of all ranks of ``topology``, as ``recut`` knows them. ``made``: as in the status; what is new in an entry is acted on in the next
    pass.

    ``handing``: those that train were told to hand over.
    """
    known = {entry.rank: entry for entry in recut.followers}
    pods = {pod.name: pod for pod in observed.apart}
    result = []
    for rank in topology.ranks:
        used = max(observed.status.serials.get(str(rank), 0), made.get(str(rank), 0))
        entry = known.get(rank)
        if entry is None:
            result.append(Successor(_entry(observed.name, rank, used + 1, now)))
        else:
            pod = pods.get(entry.pod)
            if handing and _has_taken_over(entry, pod, now):
                result.append(Successor(entry, pod))
            else:
                result.append(_brought_on(observed.name, entry, pod, used, recut.cut, observed.spec.recovery, now))
    return result


def without_overtaken(recut: RecutStatus, serials: Mapping[str, int]) -> RecutStatus:
    """``recut`` without pods that are older than the one that a rank has by now, which was replaced: serials of a rank's pods only grow."""
    kept = [entry for entry in recut.followers if entry.serial > serials.get(str(entry.rank), 0)]
    return recut if len(kept) == len(recut.followers) else recut.model_copy(update={"followers": kept})


def _entry(job: str, rank: int, serial: int, now: float, failures: int = 0, not_before: float = 0.0) -> RecutFollower:
    name = pod_name(job, rank, serial)
    return RecutFollower(rank=rank, serial=serial, pod=name, since=now, failures=failures, not_before=not_before)


def _brought_on(
    job: str, entry: RecutFollower, pod: PodObserved | None, used: int, cut: Cut, recovery: Recovery, now: float
) -> Successor:
    """``used``: the highest serial that was ever used for the rank."""
    if pod is None and entry.state == "Pending":
        make = (CreatePod(entry.rank, entry.serial, cut=cut),) if now >= entry.not_before else ()
        return Successor(entry, None, make)
    failures = entry.failures + 1
    wait = now + backoff(recovery, failures)
    if (final := _final(pod)) is not None:
        return Successor(entry, pod, final=final)
    if pod is None or is_lost(pod, entry, recovery, now):
        gone = (DeletePod(pod.name, "it is lost before it took over"),) if pod is not None else ()
        fresh = _entry(job, entry.rank, used + 1, now, failures, wait)
        return Successor(fresh.model_copy(update={"source": entry.source}), None, gone)
    agent = pod.agent
    copied = agent.worker.copied if agent is not None and agent.worker.phase is WorkerPhase.FOLLOWING else None
    waits = f"{pod.waits.reason}: {pod.waits.message}" if pod.waits is not None else None
    entry = entry.model_copy(update={"node": pod.node, "copied": copied, "message": waits})
    if entry.state == "Pending":
        entry = entry.model_copy(update={"state": "Starting"})
    if agent is None:
        return Successor(entry, pod)
    worker = agent.worker
    if worker.incarnation < entry.incarnation:
        start = (StartWorker(pod.name, entry.incarnation),) if now >= entry.not_before else ()
        return Successor(entry, pod, start)
    if worker.phase in ENDED:
        return again(Successor(entry, pod), recovery, now)
    if worker.phase is WorkerPhase.READY and entry.state in ("Copying", "InSync"):
        # A stream that ends may have cost training time, as of one who cannot keep up: the next one comes later and later.
        return Successor(entry.model_copy(update={"state": "Starting", "failures": failures, "not_before": wait}), pod)
    return Successor(entry, pod)


def again(each: Successor, recovery: Recovery, now: float) -> Successor:
    """``each`` with another worker in its pod."""
    failures = each.entry.failures + 1
    number = each.pod.agent.worker.incarnation if each.pod is not None and each.pod.agent is not None else each.entry.incarnation
    wait = now + backoff(recovery, failures)
    changes = {"state": "Starting", "incarnation": number + 1, "failures": failures, "not_before": wait}
    return replace(each, entry=each.entry.model_copy(update=changes))


def is_silent(each: Successor, recovery: Recovery, now: float) -> bool:
    """Whether its worker has not shown a sign of life for as long as counts as a hang."""
    worker = each.pod.agent.worker if each.pod is not None and each.pod.agent is not None else None
    return worker is not None and now - max(worker.heartbeat, worker.since) > recovery.hang_timeout_seconds


def _has_taken_over(entry: RecutFollower, pod: PodObserved | None, now: float) -> bool:
    """Whether its streams have just ended because it takes over: those that train are about to say that they have left the view."""
    worker = pod.agent.worker if pod is not None and pod.agent is not None else None
    ready = worker is not None and worker.phase is WorkerPhase.READY and worker.holding is not None
    return ready and worker is not None and entry.state == "InSync" and now - worker.since < FOLLOWER_SECONDS


def _final(pod: PodObserved | None) -> str | None:
    """Why ``pod``, or its worker, ended by a user's mistake: more stages than layers, for example. None: it did not."""
    if pod is None:
        return None
    if pod.phase is PodPhase.GONE and pod.exit_code == USER_ERROR:
        return pod.exit_message or f"pod {pod.name} ended with exit code {USER_ERROR}"
    ended = pod.agent.worker.exit if pod.agent is not None and pod.agent.worker.phase is WorkerPhase.EXITED else None
    return ended.message if ended is not None and ended.code == USER_ERROR else None
