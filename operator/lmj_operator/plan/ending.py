"""The end of a job: when it has come, and what is left to do then."""

from dataclasses import replace

from lmj_api.cut import Cut
from lmj_api.protocol import DELIVERY_SECONDS, PUSH_SECONDS, WorkerPhase
from lmj_api.spec.lifecycle import CleanPodPolicy
from lmj_api.status import Phase
from lmj_operator.plan.actions import DeletePod
from lmj_operator.plan.observe.facts import ENDED
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase
from lmj_operator.plan.plan import CHANGING_SECONDS, Plan
from lmj_operator.plan.report.conditions import PUBLISHED, with_condition
from lmj_operator.plan.report.publishing import publication
from lmj_operator.plan.report.report import leader
from lmj_operator.plan.scene import Scene
from lmj_operator.plan.status import status_of

COMPLETION_GRACE_SECONDS = 10.0
"""When one rank has completed, the outputs are on disk: the others get so long to say the same."""


def completed(scene: Scene) -> Plan | None:
    """A worker completes when all outputs are on disk (rank 0 wrote them and told the others): no death after that matters."""
    if scene.left_since is None or not any(f.in_phase(WorkerPhase.COMPLETED) for f in scene.ranks):
        return None
    members = {m.rank for m in scene.newest.members} if scene.newest is not None else set()
    # Who is on its way into the view has nothing to say of its end.
    others = [f for f in scene.ranks if f.rank in members and f.agent is not None and not f.in_phase(*ENDED)]
    left = scene.left_since + COMPLETION_GRACE_SECONDS - scene.now
    if others and left > 0:
        status = status_of(scene, scene.observed.status.phase, f"{_ending(scene)}; the last ranks leave")
        return Plan(status, status.message, (), min(left, CHANGING_SECONDS), left)
    delivering = _delivering(scene)
    scripts = scene.observed.spec.strategy.stateless
    plan = end(scene, Phase.SUCCEEDED, _ending(scene) if scripts else f"{_ending(scene)}; the model is saved")
    if delivering is not None:
        status = status_of(scene, scene.observed.status.phase, f"{_ending(scene)}; the model is saved, and {_told(scene)}")
        plan = Plan(status, status.message, (), min(delivering, CHANGING_SECONDS), delivering)
    if scene.observed.spec.output.hub is None:
        return plan
    said = publication(scene.observed.spec.output, leader(scene.ranks, scene.newest).agent, delivering is not None)
    return replace(plan, status=with_condition(plan.status, PUBLISHED, *said, scene.observed.generation, scene.now))


def _told(scene: Scene) -> str:
    hub = scene.observed.spec.output.hub
    return f"pushed to {hub.repository}" if hub is not None else "rank 0 tells output.trackers the rest"


def _delivering(scene: Scene) -> float | None:
    """For how many seconds at most it may still be done with the results what is to be done; None: nobody waits for that."""
    first = leader(scene.ranks, scene.newest)
    if not scene.observed.spec.output.delivers or first.pod is None or first.pod.phase is PodPhase.GONE:
        return None
    if first.agent is not None and (first.agent.delivered or not first.in_phase(WorkerPhase.COMPLETED)):
        return None
    limit = DELIVERY_SECONDS if scene.observed.spec.output.hub is None else PUSH_SECONDS + DELIVERY_SECONDS
    left = (scene.left_since or scene.now) + limit - scene.now
    return left if left > 0 else None


def _ending(scene: Scene) -> str:
    """How training ended."""
    if scene.observed.spec.strategy.stateless:
        return "the script has ended"
    told = (f.worker.progress for f in scene.ranks if f.worker is not None)
    return next((at.stopped for at in told if at is not None and at.stopped is not None), "trained to the end")


def expired(scene: Scene) -> Plan | None:
    """The end of a job whose time is over."""
    limit, started = scene.observed.spec.active_deadline_seconds, scene.observed.status.started
    if limit is None or started is None or scene.now - started < limit:
        return None
    return end(scene, Phase.FAILED, f"active for longer than {limit} s (activeDeadlineSeconds)")


def end(scene: Scene, phase: Phase, message: str) -> Plan:
    """The end, in ``phase`` and for the reason ``message``."""
    status = status_of(scene, phase, message, finished=scene.now)
    after = clean_up(Observed(scene.observed.name, scene.observed.spec, status, scene.observed.every_pod))
    return Plan(status, message, after.actions, CHANGING_SECONDS)


def clean_up(observed: Observed) -> Plan:
    """After the end: remove the pods that the policy does not keep."""
    policy = observed.spec.clean_pod_policy
    reason = "the job is deleted" if observed.deleted else f"the job has {observed.status.phase.value.lower()}"
    every = observed.deleted or policy is CleanPodPolicy.ALL
    status = observed.status
    gone = [p for p in observed.pods if every or _is_spare(p, status.cut) or _counts_as_running(p, policy)]
    if not observed.deleted:  # nobody reads it any more, and there may be nothing left to write it to
        status = status.model_copy(update={"observed_generation": observed.generation})
    return Plan(status, reason, tuple(DeletePod(p.name, reason) for p in gone), CHANGING_SECONDS if gone else None)


def _is_spare(pod: PodObserved, cut: Cut | None) -> bool:
    """Whether no rank has run in ``pod``: of the newest ``cut``, that is."""
    return pod.rank is None or pod.cut not in (None, cut)


def _counts_as_running(pod: PodObserved, policy: CleanPodPolicy) -> bool:
    return policy is CleanPodPolicy.RUNNING and pod.phase in (PodPhase.PENDING, PodPhase.RUNNING)
