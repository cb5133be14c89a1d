"""Pods without a rank, kept warm for the next one that is lost: how many there are, and what happens to one that fails.

They never cost the job anything: one that fails is replaced, later and later, and is no restart; one is made only while the job trains,
for a rank that starts needs the node and the processor first.
"""

from dataclasses import dataclass
from typing import Any

from lmj_api.names import parse_pod_name, standby_name
from lmj_api.spec.recovery import Recovery
from lmj_api.status import Promotion, StandbyState, StandbyStatus
from lmj_operator.plan.actions import Action, CreatePod, DeletePod, EnlistPod
from lmj_operator.plan.failures.budget import backoff
from lmj_operator.plan.failures.failures import UNREACHABLE_SECONDS, describe_exit
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase

SERIALS = "s"
"""Their key in ``status.serials``."""

_ANSWERED = (StandbyState.WARMING, StandbyState.WARM, StandbyState.UNREACHABLE)


@dataclass(frozen=True, slots=True)
class Kept:
    """The standbys that there are to be, and what brings them about."""

    standbys: list[StandbyStatus]
    serial: int
    """Highest serial of any that was ever wanted."""
    actions: tuple[Action, ...]
    due: float | None
    """Seconds until the next is to be made."""

    @property
    def warm(self) -> int:
        """How many are warm."""
        return sum(standby.state is StandbyState.WARM for standby in self.standbys)


def keep_standbys(observed: Observed, promotions: list[Promotion], runs: bool, now: float) -> Kept:
    """As many as the spec wants, besides those in ``promotions``; ``runs``: the job trains."""
    job, recovery = observed.name, observed.spec.recovery
    taken = {promotion.pod for promotion in promotions}
    pods = {pod.name: pod for pod in observed.pods if pod.rank is None and pod.name not in taken}
    serial = max([observed.status.serials.get(SERIALS, 0), *(pod.serial for pod in pods.values())])
    kept: list[StandbyStatus] = []
    lost: list[StandbyStatus] = []
    for standby in observed.status.standbys:
        if standby.pod in taken:
            continue
        pod = pods.get(standby.pod)
        why = _lost(standby, pod, recovery, now)
        if why is None:
            kept.append(_seen(standby, pod))
        else:
            outdated = pod is not None and pod.outdated
            lost.append(standby.model_copy(update={"message": why, "failures": standby.failures + (not outdated)}))
    kept = _best(kept, recovery.standby)
    while len(kept) < recovery.standby:
        serial += 1
        kept.append(_successor(standby_name(job, serial), lost.pop(0) if lost else None, recovery, now))
    names = {standby.pod for standby in kept}
    wanted = [standby for standby in kept if standby.state is StandbyState.WANTED and standby.pod not in pods]
    waits = [(standby.not_before or 0.0) - now for standby in wanted if runs]
    actions: list[Action] = [DeletePod(name, "it is no standby any more") for name in pods if name not in names]
    actions += [CreatePod(None, _serial(s)) for s in wanted if runs and now >= (s.not_before or 0.0)]
    actions += [EnlistPod(p.name, p.rank, p.serial) for p in observed.pods if p.rank is not None and p.unlisted]
    return Kept(kept, serial, tuple(actions), min((seconds for seconds in waits if seconds > 0), default=None))


def dismiss_standbys(observed: Observed, reason: str) -> tuple[Action, ...]:
    """Remove them all."""
    return tuple(DeletePod(pod.name, reason) for pod in observed.pods if pod.rank is None)


def _best(standbys: list[StandbyStatus], count: int) -> list[StandbyStatus]:
    """``count`` of them, in their order: the warm ones stay."""
    ranked = sorted(standbys, key=lambda standby: standby.state is not StandbyState.WARM)[:count]
    return [standby for standby in standbys if standby in ranked]


def _successor(name: str, before: StandbyStatus | None, recovery: Recovery, now: float) -> StandbyStatus:
    if before is None:
        return StandbyStatus(pod=name)
    wait = backoff(recovery, before.failures)
    not_before = now + wait if wait else None
    return StandbyStatus(pod=name, message=before.message, failures=before.failures, not_before=not_before)


def _seen(standby: StandbyStatus, pod: PodObserved | None) -> StandbyStatus:
    """``standby`` as it is now."""
    if pod is None:
        return standby
    state = _state(standby, pod)
    changes: dict[str, Any] = {"node": pod.node, "state": state, "not_before": None}
    if state is StandbyState.WARM:
        changes |= {"failures": 0, "message": None}
    elif pod.waits is not None:
        changes |= {"message": f"{pod.waits.reason}: {pod.waits.message}"}
    return standby.model_copy(update=changes)


def _state(standby: StandbyStatus, pod: PodObserved) -> StandbyState:
    if pod.agent is not None:
        return StandbyState.WARM if pod.agent.warm else StandbyState.WARMING
    return StandbyState.UNREACHABLE if standby.state in _ANSWERED else StandbyState.PENDING


def _lost(standby: StandbyStatus, pod: PodObserved | None, recovery: Recovery, now: float) -> str | None:
    """Why ``standby`` is of no use any more; None: it is, or may still become so."""
    name = standby.pod
    if pod is None:
        return None if standby.state is StandbyState.WANTED else f"standby {name} is gone"
    if pod.phase is PodPhase.GONE:
        return f"standby {name} is gone: {pod.exit_message or f'its agent ended with {describe_exit(pod.exit_code)}'}"
    if pod.phase is PodPhase.TERMINATING or (pod.agent is not None and pod.agent.draining):
        return f"standby {name} is being deleted"
    if pod.outdated:
        return f"standby {name} was made from another template"
    if pod.agent is not None and pod.agent.rank is not None:
        return f"standby {name} became rank {pod.agent.rank} without being told"
    if pod.waits is not None or (pod.agent is not None and pod.agent.warm):
        return None
    silent = pod.phase is PodPhase.RUNNING and pod.agent is None and standby.state in _ANSWERED
    if silent and pod.unreachable_since is not None:
        limit = recovery.hang_timeout_seconds if pod.vouched else UNREACHABLE_SECONDS
        return f"standby {name} has not answered for {limit:g} s" if now - pod.unreachable_since > limit else None
    limit = recovery.start_timeout_seconds
    return f"standby {name} was not warm within {limit:g} s (recovery.startTimeoutSeconds)" if now - pod.created > limit else None


def _serial(standby: StandbyStatus) -> int:
    return parse_pod_name(standby.pod)[2]
