"""Followers: a second pod of a rank that keeps its state, ready to take its place."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lmj_api.names import pod_name
from lmj_api.protocol import WorkerPhase
from lmj_api.spec.recovery import Recovery
from lmj_api.status import FollowerStatus
from lmj_api.view import Member
from lmj_operator.plan.actions import Action, CreatePod, DeletePod, Follow, LeaveView, StartWorker
from lmj_operator.plan.failures.budget import backoff
from lmj_operator.plan.failures.failures import UNREACHABLE_SECONDS
from lmj_operator.plan.observe.facts import ENDED, RankFacts, in_sync
from lmj_operator.plan.observe.observed import PodObserved, PodPhase


@dataclass(frozen=True, slots=True)
class Following:
    """All followers, and what is to be done for them."""

    entries: tuple[FollowerStatus, ...]
    made: dict[str, int]
    """As in the status."""
    actions: tuple[Action, ...]
    due: tuple[float, ...]
    """Seconds until something is due."""


def follow(
    job: str,
    ranks: tuple[RankFacts, ...],
    made: dict[str, int],
    wanted: Mapping[int, str | None],
    recovery: Recovery,
    now: float,
    kept: Collection[int] = (),
    *,
    stateless: bool = False,
) -> Following:
    """The followers of ranks ``wanted``, one each, on the node that is named with it (None: any); others go, but not those of ranks ``kept``.

    A new entry is acted on in the next pass, when it is durable. ``stateless``: a follower has nothing to copy, and is in sync once it is ready.
    """
    entries: list[FollowerStatus] = []
    actions: list[Action] = []
    due: list[float] = []
    numbers = dict(made)
    for facts in ranks:
        entry = facts.entry
        told = facts.agent.follower if facts.agent is not None else None
        if facts.rank not in wanted:
            if told is not None and facts.pod is not None and facts.rank not in kept:
                actions.append(Follow(facts.pod.name, None))
            continue
        if entry is None or entry.serial <= facts.serial:
            # None yet, or it has become the rank's own.
            if facts.in_phase(WorkerPhase.RUNNING):
                entries.append(_entry(job, facts, wanted[facts.rank]).model_copy(update={"since": now}))
                numbers[str(facts.rank)] = facts.next_serial
            continue
        after, more = _next(job, facts, entry, wanted[facts.rank], recovery, now, stateless)
        if _stands(after) != _stands(entry):
            after = after.model_copy(update={"since": now})
        entries.append(after)
        if after.serial != entry.serial:
            numbers[str(facts.rank)] = after.serial
        actions += more
        if after.not_before > now:
            due.append(after.not_before - now)
    known = {facts.entry.rank: facts.entry for facts in ranks if facts.entry is not None}
    if any(_stands(entry) != _stands(known.get(entry.rank)) for entry in entries):
        due.append(0.0)  # what is stored now is acted on in the next pass: a step of the job may be long
    return Following(tuple(entries), numbers, tuple(actions), tuple(due))


def _stands(entry: FollowerStatus | None) -> tuple[int, str, int] | None:
    """How far the follower is."""
    return None if entry is None else (entry.serial, entry.state, entry.incarnation)


def _entry(job: str, facts: RankFacts, node: str | None, failures: int = 0, not_before: float = 0.0) -> FollowerStatus:
    name = pod_name(job, facts.rank, facts.next_serial)
    return FollowerStatus(rank=facts.rank, serial=facts.next_serial, pod=name, to=node, failures=failures, not_before=not_before)


def _next(
    job: str, facts: RankFacts, entry: FollowerStatus, node: str | None, recovery: Recovery, now: float, stateless: bool
) -> tuple[FollowerStatus, tuple[Action, ...]]:
    """``entry`` as it is to be, on ``node`` if that is one, else on any, and what brings it on."""
    pod = facts.follower
    if node is not None and entry.to != node and (pod is None or pod.node != node):
        return _entry(job, facts, node), (DeletePod(pod.name, f"another follows on {node}"),) if pod is not None else ()
    if node is None and entry.to is not None and (pod is None or pod.node is None):
        # No node has taken it, and the one that was asked for may never.
        gone = (DeletePod(pod.name, f"it need not follow on {entry.to} any more"),) if pod is not None else ()
        return _entry(job, facts, None), gone
    if pod is None and entry.state == "Pending":
        return entry, (CreatePod(entry.rank, entry.serial, node=entry.to),) if now >= entry.not_before else ()
    failures = entry.failures + 1
    wait = now + backoff(recovery, failures)
    if pod is None or is_lost(pod, entry, recovery, now) or _hangs(facts, pod, recovery, now):
        gone = (DeletePod(pod.name, "the follower is lost"),) if pod is not None else ()
        return _entry(job, facts, node, failures, wait), gone
    agent = pod.agent
    copied = agent.worker.copied if agent is not None and agent.worker.phase is WorkerPhase.FOLLOWING else None
    entry = entry.model_copy(update={"node": pod.node, "copied": copied})
    if agent is None:
        return entry.model_copy(update={"state": "Starting"}) if entry.state == "Pending" else entry, ()
    worker = agent.worker
    if worker.incarnation < entry.incarnation:
        start = (StartWorker(pod.name, entry.incarnation),) if now >= entry.not_before else ()
        return entry.model_copy(update={"state": "Starting"}), start
    if worker.phase in ENDED:
        again = {"state": "Starting", "incarnation": worker.incarnation + 1, "failures": failures, "not_before": wait}
        return entry.model_copy(update=again), ()
    if stateless:
        return entry.model_copy(update={"state": "InSync" if in_sync(pod, stateless=True) else "Starting"}), ()
    left = _let_go(facts, pod)
    if left is not None:
        return entry.model_copy(update={"state": "Copying"}), (left,)
    if in_sync(pod) and worker.phase is WorkerPhase.FOLLOWING:
        return entry.model_copy(update={"state": "InSync", "failures": 0}), ()
    if worker.phase is WorkerPhase.READY and entry.state in ("Copying", "InSync"):
        # A stream that ends may have cost training time, as of one who cannot keep up: the next one comes later and later.
        return entry.model_copy(update={"state": "Starting", "failures": failures, "not_before": wait}), ()
    state = "Copying" if worker.phase is WorkerPhase.FOLLOWING else "Starting"
    actions: tuple[Action, ...] = ()
    source = facts.agent
    ready = worker.phase is WorkerPhase.READY and now >= entry.not_before
    if ready and worker.address is not None and facts.in_phase(WorkerPhase.RUNNING):
        me = Member(rank=entry.rank, pod=pod.name, incarnation=worker.incarnation, address=worker.address)
        if source is not None and facts.pod is not None and source.follower != me:
            actions = (Follow(facts.pod.name, me),)
    return entry.model_copy(update={"state": state}), actions


def _let_go(facts: RankFacts, pod: PodObserved) -> LeaveView | None:
    """What ends the following of a worker in ``pod`` whose source has let go of it: one that was stopped, or cut off, hears it from nobody."""
    source, worker = facts.agent, pod.agent.worker if pod.agent is not None else None
    if worker is None or worker.phase is not WorkerPhase.FOLLOWING or source is None or not facts.in_phase(WorkerPhase.RUNNING):
        return None
    if source.follower is not None or source.handover >= source.worker.view:
        return None  # it is followed, or tells its follower itself to take over
    return LeaveView(pod.name, source.worker.view)


def _hangs(facts: RankFacts, pod: PodObserved, recovery: Recovery, now: float) -> bool:
    """Whether its worker was told that its source has let go of it, and does not leave."""
    worker = pod.agent.worker if pod.agent is not None else None
    silent = worker is not None and now - max(worker.heartbeat, worker.since) > recovery.hang_timeout_seconds
    return silent and _let_go(facts, pod) is not None


def is_lost(pod: PodObserved, entry: FollowerStatus, recovery: Recovery, now: float) -> bool:
    """Whether there is to be another in the place of ``pod``, that of ``entry``."""
    if pod.phase in (PodPhase.GONE, PodPhase.TERMINATING) or pod.outdated:
        return True
    if pod.node_leaving is not None or pod.misplaced is not None or pod.leaves:
        return True
    if pod.agent is None:
        if pod.waits_anywhere:
            return False
        # One that starts may be slow to listen, but its machine takes connections.
        silent = pod.dark or entry.state not in ("Pending", "Starting")
        since = pod.unreachable_since if silent and pod.unreachable_since is not None else pod.created
        return now - since > (UNREACHABLE_SECONDS if silent else recovery.start_timeout_seconds)
    worker = pod.agent.worker
    return worker.phase is WorkerPhase.STARTING and worker.incarnation > 0 and now - worker.since > recovery.start_timeout_seconds
