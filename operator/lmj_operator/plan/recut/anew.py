"""Another cut where there is no training that it could follow: the ranks begin anew in it, from the newest checkpoint."""

from lmj_api.protocol import WorkerPhase
from lmj_operator.plan.plan import Plan
from lmj_operator.plan.scene import Scene
from lmj_operator.plan.status import status_of

ROOM_SECONDS = 10.0
"""A rank's pod that has no room for so long, and nobody trains without it: it may be why another cut was asked for."""

_AT_WORK = (WorkerPhase.RUNNING, WorkerPhase.COMPLETED)


def anew(scene: Scene) -> Plan | None:
    """Ranks of the cut that is wanted, in pods of higher serials; None: those that there are stay, and the next cut follows them.

    Pods are made in the next pass, when the serials are durable, and those of the cut before go.
    """
    observed = scene.observed
    cut = observed.wanted_cut
    if cut is None or not (scene.newest is None or _is_stuck(scene)):
        return None
    known, used = observed.status.serials, observed.status.made
    every = range(max(observed.spec.world_size, observed.spec.cut_into(cut).world_size))
    serials = {str(rank): max(known.get(str(rank), 0), used.get(str(rank), 0)) + 1 for rank in every}
    message = (
        f"begins anew in {cut}: {'nobody has trained yet' if scene.newest is None else 'a pod has no room, and nobody trains'}"
    )
    status = status_of(scene, observed.status.phase, message, serials={**known, **serials})
    blank = [r.model_copy(update={"pod": None, "incarnation": 0, "state": "NoPod"}) for r in status.ranks]
    return Plan(status.model_copy(update={"cut": cut, "ranks": blank}), message, (), 0.0)


def _is_stuck(scene: Scene) -> bool:
    """Whether a rank's pod has no room, nobody trains without it, and no replica has a state to go on from."""
    if any(f.in_phase(*_AT_WORK) for f in scene.ranks):
        return False
    waits = [f.pod.waits for f in scene.ranks if f.pod is not None and f.pod.waits_anywhere]
    if not any(wait is not None and scene.now - wait.since >= ROOM_SECONDS for wait in waits):
        return False
    holding = [f.rank for f in scene.ranks if f.worker is not None and f.worker.holding is not None]
    return not scene.observed.spec.topology.among(holding).present
