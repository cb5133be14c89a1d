"""The turn: all have left the view, and the next one is of the pods of the next cut."""

from dataclasses import dataclass, replace

from lmj_api.protocol import Holding, WorkerPhase
from lmj_api.status import Incident, IncidentKind, RecutStatus
from lmj_api.topology import FIRST, Topology
from lmj_api.view import Member, View
from lmj_operator.plan.actions import Action, LeaveView
from lmj_operator.plan.failures.budget import in_row
from lmj_operator.plan.failures.incidents import newest as newest_incidents
from lmj_operator.plan.membership.choice import attainable
from lmj_operator.plan.membership.common_step import common_step
from lmj_operator.plan.membership.membership import Membership, identity, left, runs
from lmj_operator.plan.moves.moved import FOLLOWER_SECONDS, handing_over
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import Observed
from lmj_operator.plan.observe.times import rfc3339
from lmj_operator.plan.recut.cuts import cut_into
from lmj_operator.plan.recut.pods import without_overtaken
from lmj_operator.plan.report.report import step_seconds
from lmj_operator.plan.scene import Scene, leaving, scene_of


@dataclass(frozen=True, slots=True)
class Turn:
    """Whether the next cut takes over now."""

    scene: Scene | None = None
    """What is left to be looked at when it has; None: it has not."""
    choice: Membership | None = None
    """Its first view."""
    wait: float | None = None
    """Seconds for which those of the next cut are waited for; None: nobody is."""
    actions: tuple[Action, ...] = ()


NO_TURN = Turn()


def turned(scene: Scene) -> Turn:
    """The next cut takes over once those that train have left their view for it, and it has the step that they have."""
    observed, view, recut = scene.observed, scene.newest, scene.observed.status.recut
    if recut is not None and without_overtaken(recut, observed.status.serials) is not recut:
        return NO_TURN
    if recut is None or view is None or recut.cut != observed.wanted_cut or leaving(observed) or runs(scene.ranks, view):
        return NO_TURN
    gone = [f.worker.holding for f in scene.ranks if left(f, view) and f.worker is not None]
    held = [holding for holding in gone if holding is not None]
    if not held or not handing_over(scene.ranks, view):
        return NO_TURN
    step = max(holding.step for holding in held)
    after = scene_of(cut_into(_as_stored(observed, recut), recut.cut, recut.cut), scene.now)
    choice = _choice(after, view, step)
    if choice is not None:
        return Turn(_told(after, scene, choice), choice)
    since = scene.left_since
    late = since is None or scene.now - since >= FOLLOWER_SECONDS
    if late or since is None or not any(_may_be_at(f, step) for f in after.ranks):
        return NO_TURN
    # They hear it from their sources too, but for one that was told late.
    follows = [f.pod.name for f in after.ranks if f.pod is not None and f.in_phase(WorkerPhase.FOLLOWING)]
    return Turn(wait=since + FOLLOWER_SECONDS - scene.now, actions=tuple(LeaveView(pod, view.number) for pod in follows))


def _as_stored(observed: Observed, recut: RecutStatus) -> Observed:
    """``observed`` as it will be once it is stored that the pods of ``recut`` are the ranks' own."""
    serials = {str(entry.rank): entry.serial for entry in recut.followers}
    status = observed.status.model_copy(
        update={
            "cut": recut.cut,
            "recut": None,
            "serials": {**observed.status.serials, **serials},
            "followers": [],
            "joins": [],
            "moves": [],
            "stragglers": [],
        }
    )
    return replace(observed, status=status)


def _choice(after: Scene, view: View, step: int) -> Membership | None:
    """The first view of the next cut, which goes on from ``step``; None: too few of its replicas can."""
    spec = after.observed.spec
    ready = spec.topology.among([f.rank for f in after.ranks if f.in_phase(WorkerPhase.READY) and identity(f) is not None])
    there = [replica for replica in ready.present if attainable(ready, replica, after.ranks) == step]
    if len(there) < max(1, spec.data_parallel.min_replicas):
        return None
    topology = _of(spec.topology, there)
    ranks = [after.ranks[rank] for rank in topology.ranks]
    present = [found for f in ranks if (found := identity(f)) is not None]
    members = [Member(rank=rank, pod=pod, incarnation=worker, address=address) for rank, pod, worker, address in present]
    holdings = [f.worker.holding if f.worker is not None else None for f in ranks]
    snapshots = [f.worker.snapshots if f.worker is not None else None for f in ranks]
    first = after.ranks[FIRST].agent
    tries = in_row(after.observed.status, after.step)
    resume, start = common_step(topology, holdings, first.checkpoints if first is not None else [], tries, snapshots)
    if not resume.goes_on or resume.step != step:
        return None
    reason = f"the layers are in {spec.pipeline.cut} now; {start}"
    made = View(number=view.number + 1, members=members, cut=spec.pipeline.cut, resume=resume, reason=reason)
    return Membership(made, True, reason)


def _of(topology: Topology, replicas: list[int]) -> Topology:
    return topology.among([rank for replica in replicas for rank in topology.ranks_of(replica)])


def _may_be_at(facts: RankFacts, step: int) -> bool:
    """Whether the rank has ``step``, or may have it once it has left those that it follows."""
    held: Holding | None = facts.worker.holding if facts.worker is not None else None
    return held is not None and held.step in (step - 1, step) and facts.in_phase(WorkerPhase.READY, WorkerPhase.FOLLOWING)


def _told(after: Scene, before: Scene, choice: Membership) -> Scene:
    """``after``, with what is recorded of the turn."""
    status, view, made = before.observed.status, before.newest, choice.view
    assert view is not None
    assert made is not None
    leader = view.members[0]
    old, new = before.observed.spec.pipeline.cut, after.observed.spec.pipeline.cut
    incident = Incident(
        time=rfc3339(after.now),
        kind=IncidentKind.RECUT,
        rank=leader.rank,
        pod=leader.pod,
        node=next((rank.node for rank in status.ranks if rank.pod == leader.pod), None),
        message=f"recut from {old} to {new} at step {made.resume.step}",
        view=view.number,
        step=made.resume.step,
        step_seconds=step_seconds(status.progress, before.observed.spec.training),
    )
    incidents = newest_incidents([*before.changes.get("incidents", status.incidents), incident])
    return replace(after, step=max(after.step, before.step), changes=before.changes).changed(incidents=incidents)
