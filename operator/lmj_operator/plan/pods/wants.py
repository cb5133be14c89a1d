"""What must be there: pod and worker of each rank, and the actions that bring it about."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lmj_api.view import View
from lmj_operator.plan.actions import Action, CreatePod, DeletePod, Drain, PutView, StartWorker
from lmj_operator.plan.failures.failures import Failure, Remedy
from lmj_operator.plan.membership.membership import identity, of_member
from lmj_operator.plan.observe.facts import ENDED, RankFacts
from lmj_operator.plan.observe.observed import PodObserved, PodPhase


@dataclass(frozen=True, slots=True)
class Want:
    """The pod and the worker that must be there for a rank."""

    serial: int
    incarnation: int
    replaced: bool = False
    """Another one than before, because of a failure."""


def wants(ranks: tuple[RankFacts, ...], failures: tuple[Failure, ...]) -> dict[int, Want]:
    """What each rank needs, by rank, after the remedies of ``failures``."""
    hit = {f.rank: f.remedy for f in failures}
    elsewhere = {f.rank for f in failures if f.next_node is not None}
    group = any(f.remedy is Remedy.GROUP for f in failures)
    made: dict[int, Want] = {}
    for facts in ranks:
        remedy = hit.get(facts.rank)
        if remedy is Remedy.POD:
            follower = _promoted(facts) if facts.rank not in elsewhere or _is_elsewhere(facts) else None
            made[facts.rank] = follower or Want(facts.next_serial, 1, replaced=True)
        elif remedy is Remedy.WORKER or (group and identity(facts) is not None):
            if facts.agent is not None and facts.agent.draining:  # it starts no worker any more
                made[facts.rank] = _promoted(facts) or Want(facts.next_serial, 1, replaced=True)
            else:
                made[facts.rank] = Want(facts.serial, facts.incarnation + 1, replaced=True)
        elif facts.returned or (facts.pod is not None and facts.pod.outdated):
            # Nobody's failure, so no restart. One that is back does not use its last pod's name: a view that is not over may know it.
            made[facts.rank] = Want(facts.next_serial, 1)
        else:
            made[facts.rank] = Want(max(facts.serial, 1), facts.incarnation)
    return made


def _is_elsewhere(facts: RankFacts) -> bool:
    """Whether its follower is on another node than its pod."""
    return facts.pod is None or facts.follower is None or facts.pod.node != facts.follower.node


def _promoted(facts: RankFacts) -> Want | None:
    """The follower's pod: its worker may have what the rank had; if not, it starts like a new pod's, only sooner."""
    pod = facts.follower
    if pod is None or facts.entry is None or pod.phase is not PodPhase.RUNNING or pod.agent is None:
        return None
    if pod.leaves or pod.agent.draining or pod.agent.worker.phase in ENDED:
        return None
    return Want(facts.entry.serial, max(pod.agent.worker.incarnation, 1), replaced=True)


def pod_actions(
    pods: tuple[PodObserved, ...],
    ranks: tuple[RankFacts, ...],
    wanted: dict[int, Want],
    made: Mapping[str, int],
    not_before: float,
    now: float,
    members: Collection[str] = (),
    held: Collection[int] = (),
) -> tuple[Action, ...]:
    """Remove pods that nobody wants, make missing ones, start their workers; replacements wait until ``not_before``.

    ``made``: as in the status. ``members``: the pods of the newest view; one of a rank that the job has no more leaves it first.
    ``held``: ranks whose pods are not made yet.
    """
    actions: list[Action] = []
    following = {(f.rank, f.entry.serial) for f in ranks if f.entry is not None}
    for pod in pods:
        if pod.rank is None:
            continue
        want = wanted.get(pod.rank)
        if want is None and pod.name in members:
            continue
        if want is None:
            actions.append(DeletePod(pod.name, f"the job has no rank {pod.rank}"))
        elif pod.serial < want.serial:
            if pod.leaves:
                actions.append(Drain(pod.name))  # it stayed for this
            actions.append(DeletePod(pod.name, f"replaced by serial {want.serial}"))
        elif want.serial < pod.serial <= made.get(str(pod.rank), 0) and (pod.rank, pod.serial) not in following:
            actions.append(DeletePod(pod.name, "it follows nobody any more"))
    for facts in ranks:
        want = wanted[facts.rank]
        if facts.pod is None or facts.pod.serial != want.serial:
            if now >= not_before and facts.rank not in held:
                actions.append(CreatePod(facts.rank, want.serial))
        elif facts.agent is not None and facts.agent.worker.incarnation < want.incarnation:
            first = want.incarnation == 1
            if first or now >= not_before:
                new = facts.rank if facts.agent.rank is None else None
                actions.append(StartWorker(facts.pod.name, want.incarnation, new))
    return tuple(actions)


def view_actions(ranks: tuple[RankFacts, ...], view: View) -> tuple[Action, ...]:
    """Tell ``view`` to every member that is not in it yet."""
    members = {m.rank: of_member(m) for m in view.members}
    return tuple(
        PutView(facts.pod.name, view)
        for facts in ranks
        if facts.pod is not None
        and facts.agent is not None
        and facts.worker is not None
        and facts.rank in members
        and identity(facts) == members[facts.rank]
        and min(facts.agent.newest_view, facts.worker.view) < view.number
    )
