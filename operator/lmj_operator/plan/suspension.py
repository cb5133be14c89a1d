"""A job that stops, rests, and goes on."""

from lmj_api.protocol import WorkerPhase
from lmj_api.status import Phase
from lmj_operator.plan.actions import DeletePod, Drain
from lmj_operator.plan.ending import end
from lmj_operator.plan.failures.failures import find_failures
from lmj_operator.plan.observe.facts import ENDED, RankFacts
from lmj_operator.plan.plan import CHANGING_SECONDS, Plan
from lmj_operator.plan.pods.standbys import dismiss_standbys
from lmj_operator.plan.report.report import checkpoint
from lmj_operator.plan.scene import Scene
from lmj_operator.plan.status import status_of

SUSPEND_SECONDS = 300.0
"""Longest time for the last checkpoint of a suspension."""

LAST_CHECKPOINT = "takes a last checkpoint"
"""Message of a suspension."""

_SAVES = (WorkerPhase.RUNNING, WorkerPhase.DRAINED)


def suspend(scene: Scene) -> Plan:
    """Ask all to take a last checkpoint; when nobody runs any more, remove the pods."""
    observed, now = scene.observed, scene.now
    if not observed.pods and observed.status.phase in (Phase.PENDING, Phase.SUSPENDING):
        saved = checkpoint(observed, scene.ranks, scene.newest)
        again = f"goes on from step {saved.step if saved is not None else 0}"
        at = f"stopped; {'starts the script again' if observed.spec.strategy.stateless else again}"
        status = status_of(scene, Phase.SUSPENDED, at)
        blank = [r.model_copy(update={"pod": None, "incarnation": 0}) for r in status.ranks]
        return Plan(status.model_copy(update={"ranks": blank}), at, (), None)
    final = next(
        (
            f
            for f in find_failures(
                observed.name,
                scene.ranks,
                scene.newest,
                observed.spec.recovery,
                now,
                scripts=observed.spec.strategy.stateless,
            )
            if f.final
        ),
        None,
    )
    if final is not None:
        return end(scene, Phase.FAILED, final.message)
    # What a view for the last checkpoint fixed is over, and its cost known, before the job rests.
    mended = scene.newest is not None and all(
        f.in_phase(*_SAVES) and f.worker is not None and f.worker.view == scene.newest.number for f in scene.ranks
    )
    status = status_of(scene, Phase.SUSPENDING, LAST_CHECKPOINT, runs=mended)
    since = status.phase_since if status.phase_since is not None else now
    left = since + SUSPEND_SECONDS - now
    if all(_has_left(f) for f in scene.ranks) or left < 0:
        return Plan(
            status, status.message, tuple(DeletePod(p.name, "the job is suspended") for p in observed.pods), CHANGING_SECONDS
        )
    drains = tuple(Drain(f.pod.name) for f in scene.ranks if f.pod is not None and f.agent is not None and not f.agent.draining)
    actions = (*drains, *dismiss_standbys(observed, "the job is being suspended"))
    return Plan(status, status.message, actions, CHANGING_SECONDS, left)


def _has_left(facts: RankFacts) -> bool:
    """Only a running worker has anything to save, and it has not left before it says so."""
    agent = facts.agent
    if agent is None or agent.worker.incarnation == 0 or agent.worker.phase in ENDED:
        return True
    return agent.draining and agent.worker.phase is not WorkerPhase.RUNNING


def stay(scene: Scene) -> Plan:
    """Suspended: no pods."""
    pods = scene.observed.pods
    status = status_of(scene, Phase.SUSPENDED, scene.observed.status.message)
    actions = tuple(DeletePod(p.name, "the job is suspended") for p in pods)
    return Plan(status, "suspended", actions, CHANGING_SECONDS if pods else None)


def wake(scene: Scene) -> Plan:
    """Out of suspension: pods of higher serials. They are made in the next pass, when the serials are durable."""
    serials = {**scene.observed.status.serials, **{str(f.rank): f.next_serial for f in scene.ranks}}
    how = "starts the script again" if scene.observed.spec.strategy.stateless else "resumes from its newest checkpoint"
    status = status_of(scene, Phase.PENDING, how, serials=serials, started=scene.now, not_before=None, nodes=[])
    return Plan(status, status.message, (), 0.0)
