"""What is wrong: pure looks at what was observed, each failure with its kind, its reason and its remedy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from signal import Signals

from lmj_api.protocol import CUT_OFF, USER_ERROR, WorkerPhase
from lmj_api.spec.recovery import Recovery, RuleAction
from lmj_api.status import IncidentKind
from lmj_api.view import View
from lmj_operator.plan.failures.rules import judge
from lmj_operator.plan.membership.membership import broken, joined, left
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import PodObserved, PodPhase

UNREACHABLE_SECONDS = 30.0
"""An agent that had a worker and does not answer for so long is taken for gone."""

ACCUSED_SECONDS = 3.0
"""The same, when a peer lost it too. An agent on a machine that is there may only be slow; of one whose machine takes no connection
nothing is waited for: two who do not see it are enough. One that its peers do see is left alone."""


_SIGNALLED = 128
"""An exit code of so much more than a signal's number says that it was that signal."""
_DARK = "its machine is off, or there is no way to it"


class Remedy(StrEnum):
    """What fixes a failure."""

    WORKER = "worker"
    """Another worker in the same pod."""
    POD = "pod"
    """Another pod."""
    GROUP = "group"
    """Another worker in every pod."""
    VIEW = "view"
    """The same members in another view."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure."""

    kind: IncidentKind
    rank: int
    pod: str
    message: str
    remedy: Remedy
    exit_code: int | None = None
    final: bool = False
    """A user's error: no restart fixes it."""
    noticed_by: str = "the operator"
    """As in :class:`lmj_api.status.Incident`."""
    blames_node: bool = False
    """It may be its node's fault: nobody wanted it, and it is not the whole group's."""
    next_node: str | None = None
    """Why the next pod has to avoid the node at once, in one clause; None: it has not."""
    disruption: str | None = None
    """What took its pod away, in one clause, where that was the cluster and not the pod itself: it uses up no budget."""
    peer: str | None = None
    """The pod to which its link broke, where it was that: then the node is avoided by this rank alone."""
    of_script: bool = False
    """The exit code is that of the user's script, which may be any."""

    @property
    def cut_off(self) -> bool:
        """Whether nobody can connect to its worker any more, because a peer died at a bad moment."""
        return self.kind == IncidentKind.WORKER_EXITED and self.exit_code == CUT_OFF and not self.of_script


def find_failures(
    job: str, ranks: tuple[RankFacts, ...], view: View | None, recovery: Recovery, now: float, *, scripts: bool = False
) -> tuple[Failure, ...]:
    """Failures of single ranks that were not acted on yet; ``view``: the newest. ``scripts``: workers end with the codes of a user's script."""
    accused = _accused(ranks, view, now)
    return tuple(
        failure
        for facts in ranks
        if (
            failure := _pod_failure(job, facts, accused.get(facts.rank), recovery, now)
            or _worker_failure(facts, recovery, now, scripts)
        )
    )


def _accused(ranks: tuple[RankFacts, ...], view: View | None, now: float) -> dict[int, bool]:
    """Ranks that a peer in ``view``, or their follower, lost, and whose pods are still those of that view; with each whether it is sure.

    A follower is not heard while a peer trains with the rank: its source also lets go of one that is too slow. What it alone says is
    sure where no peer could tell, and for as long as it may have to do with a machine that is lost now.
    """
    if view is None:
        return {}
    by_peers = {f.worker.lost_rank for f in ranks if f.worker is not None and left(f, view)}
    pods = {m.rank: m.pod for m in view.members}
    beats = sorted(
        ((f.worker.heartbeat, f.rank) for f in ranks if f.worker is not None and f.in_phase(WorkerPhase.RUNNING)), reverse=True
    )
    accused: dict[int, bool] = {}
    for facts in ranks:
        if facts.pod is None or facts.pod.name != pods.get(facts.rank):
            continue
        since = _lost_its_source(facts.follower)
        if facts.rank in by_peers:
            accused[facts.rank] = True
        elif since is not None:
            # Of the two newest signs of life one at least is a peer's.
            newest = next((beat for beat, rank in beats[:2] if rank != facts.rank), None)
            if newest is None or newest <= since:
                accused[facts.rank] = newest is None and now - since <= ACCUSED_SECONDS
    return accused


def _lost_its_source(follower: PodObserved | None) -> float | None:
    """Since when the worker of ``follower`` has lost whom it followed; None: it has not."""
    worker = follower.agent.worker if follower is not None and follower.agent is not None else None
    lost = worker is not None and worker.phase is WorkerPhase.READY and worker.lost is not None
    return worker.since if worker is not None and lost else None


def _pod_failure(job: str, facts: RankFacts, sure: bool | None, recovery: Recovery, now: float) -> Failure | None:
    """``sure``: as of :func:`_accused`; None: nobody accuses it."""
    pod = facts.pod
    if pod is None:
        if not facts.seen:
            return None
        # A pod that was seen and is not there is the one that the status names.
        name = facts.known.pod or f"{job}, rank {facts.rank}"
        return Failure(IncidentKind.POD_GONE, facts.rank, name, f"pod {name} is gone", Remedy.POD)
    if pod.phase is PodPhase.GONE:
        final = pod.exit_code == USER_ERROR
        message = pod.exit_message or f"its agent ended with {describe_exit(pod.exit_code)}"
        text = message if final else f"pod {pod.name} is gone: {message}"
        failure = Failure(IncidentKind.POD_GONE, facts.rank, pod.name, text, Remedy.POD, pod.exit_code, final, blames_node=True)
        return replace(_judged(failure, recovery, pod.exit_message or ""), disruption=pod.disrupted)
    taken = pod.disrupted or pod.node_leaving
    if pod.phase is PodPhase.TERMINATING:
        text = f"pod {pod.name} is being deleted{f' because {taken}' if taken is not None else ''}"
        return Failure(IncidentKind.POD_GONE, facts.rank, pod.name, text, Remedy.POD, disruption=taken)
    if pod.agent is None and not pod.waits_anywhere:
        had_worker = facts.known.pod == pod.name and facts.known.incarnation > 0
        silent = recovery.hang_timeout_seconds if pod.vouched else UNREACHABLE_SECONDS
        accused = sure is not None
        if sure and had_worker and pod.dark:
            text = f"the machine of {pod.name} takes no connection, and its peers lost it"
            by = "its peers and the operator"
            return Failure(
                IncidentKind.POD_GONE, facts.rank, pod.name, text, Remedy.POD, noticed_by=by, blames_node=True, disruption=_DARK
            )
        if accused:
            silent = min(silent, ACCUSED_SECONDS)
        limit = silent if had_worker else recovery.start_timeout_seconds
        since = pod.created if pod.unreachable_since is None or not had_worker else pod.unreachable_since
        if now - since > limit:
            kind = IncidentKind.POD_GONE if had_worker else IncidentKind.START_TIMEOUT
            also = ", and its peers lost it" if accused and had_worker else ""
            why = f" ({pod.waits.reason}: {pod.waits.message})" if pod.waits is not None else ""
            text = f"the agent of {pod.name} has not answered for {limit:g} s{also}{why}"
            by = "its peers and the operator" if also else "the operator"
            taken = pod.disrupted or (_DARK if pod.dark else None) if had_worker else None
            return Failure(kind, facts.rank, pod.name, text, Remedy.POD, noticed_by=by, blames_node=True, disruption=taken)
    return None


def _worker_failure(facts: RankFacts, recovery: Recovery, now: float, script: bool) -> Failure | None:
    worker, pod = facts.worker, facts.pod
    if worker is None or pod is None:
        return None
    if worker.phase is WorkerPhase.EXITED:
        code = worker.exit.code if worker.exit else None
        why = worker.exit.message if worker.exit else ""
        final = code == USER_ERROR and not script
        ended = _script_exit(code) if script else describe_exit(code)
        how = why if why and code is not None and code < 0 else f"ended with {ended}{f': {why}' if why else ''}"
        text = why if final else f"worker {worker.incarnation} of {pod.name} {how}"
        blames = code != CUT_OFF or script
        failure = Failure(
            IncidentKind.WORKER_EXITED,
            facts.rank,
            pod.name,
            text,
            Remedy.WORKER,
            code,
            final,
            "its agent",
            blames_node=blames,
            of_script=script,
        )
        return _judged(failure, recovery, why, worker.exit.stderr if worker.exit else ())
    if worker.phase is WorkerPhase.DRAINED and pod.outdated:
        return None  # as it was to
    if worker.phase is WorkerPhase.DRAINED:
        text, taken = f"pod {pod.name} was drained", pod.disrupted or pod.node_leaving
        return Failure(IncidentKind.POD_GONE, facts.rank, pod.name, text, Remedy.POD, noticed_by="its agent", disruption=taken)
    limit = recovery.start_timeout_seconds
    if worker.phase is WorkerPhase.STARTING and worker.incarnation > 0 and now - worker.since > limit:
        text = f"worker {worker.incarnation} of {pod.name} was not ready within {limit:g} s (recovery.startTimeoutSeconds)"
        return Failure(IncidentKind.START_TIMEOUT, facts.rank, pod.name, text, Remedy.WORKER, blames_node=True)
    return None


def _judged(failure: Failure, recovery: Recovery, message: str, stderr: Sequence[str] = ()) -> Failure:
    """``failure`` as the user's rules want it; ``message`` and ``stderr``: what the exit said."""
    verdict = judge(recovery.rules, failure.exit_code, message, stderr)
    if verdict is None:
        return failure
    text = f"{failure.message}; {verdict.action} by {verdict.rule}"
    match verdict.action:
        case RuleAction.FAIL:
            return replace(failure, message=text, final=True)
        case RuleAction.RETRY:
            # What would have been restarted without the rule needs no word on it.
            return replace(failure, message=text if failure.final else failure.message, final=False)
        case RuleAction.NEXT_NODE:
            return replace(failure, message=text, final=False, remedy=Remedy.POD, next_node=verdict.rule)


def find_hang(
    ranks: tuple[RankFacts, ...], view: View | None, not_before: float, recovery: Recovery, now: float
) -> Failure | None:
    """A view whose members are all there and none has made progress for ``hangTimeoutSeconds``, be it that they never joined."""
    if view is None or not joined(ranks, view):
        return None
    members = {m.rank for m in view.members}
    beats = {f.rank: max(f.worker.heartbeat, f.worker.since) for f in ranks if f.worker is not None and f.rank in members}
    if not beats or now - max(*beats.values(), not_before, 0.0) <= recovery.hang_timeout_seconds:
        return None
    rank = min(beats, key=lambda r: (beats[r], r))
    limit = recovery.hang_timeout_seconds
    text = f"no progress in view {view.number} for {limit:g} s (recovery.hangTimeoutSeconds)"
    return Failure(
        IncidentKind.HANG, rank, next(f.pod.name for f in ranks if f.rank == rank and f.pod is not None), text, Remedy.GROUP
    )


def find_stuck(
    ranks: tuple[RankFacts, ...], view: View | None, pods: tuple[PodObserved, ...], recovery: Recovery, now: float
) -> tuple[Failure, ...]:
    """Workers that stay in a view which lost a member, for ``hangTimeoutSeconds`` after their last sign of progress."""
    if view is None or not broken(view, pods):
        return ()
    limit = recovery.hang_timeout_seconds
    return tuple(
        Failure(
            IncidentKind.HANG,
            f.rank,
            f.pod.name,
            f"worker {f.worker.incarnation} of {f.pod.name} did not leave view {view.number} within {limit:g} s"
            " (recovery.hangTimeoutSeconds)",
            Remedy.WORKER,
            noticed_by="its peers",
            blames_node=True,
        )
        for f in ranks
        if f.pod is not None
        and f.worker is not None
        and f.in_phase(WorkerPhase.RUNNING)
        and now - max(f.worker.heartbeat, f.worker.since) > limit
    )


def _script_exit(code: int | None) -> str:
    """As :func:`describe_exit`, with the signal that a launcher's exit code stands for: it ends as a shell would say it."""
    number = code - _SIGNALLED if code is not None else 0
    return f"{describe_exit(code)} ({Signals(number).name})" if number in set(Signals) else describe_exit(code)


def describe_exit(code: int | None) -> str:
    """``signal 9`` or ``exit code 1``."""
    if code is None:
        return "an unknown exit code"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
