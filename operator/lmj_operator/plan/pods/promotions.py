"""Standbys that become a rank's pod: which, for which rank, and how the rest of the plan sees them, which is as any other pod.

A promotion is stored before the pod hears of it. From then on the pod is, in everything that the plan looks at, the rank's pod of the
promotion's serial, whatever its name says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lmj_api.status import MoveStatus, NodeFailures, Promotion
from lmj_operator.plan.failures.nodes import avoided
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.lists import few
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase
from lmj_operator.plan.pods.wants import Want


@dataclass(frozen=True, slots=True)
class Taken:
    """What is known and wanted of the ranks once standbys have taken the places that they can."""

    ranks: tuple[RankFacts, ...]
    wanted: dict[int, Want]
    promotions: tuple[Promotion, ...] = ()
    """The new ones."""

    @property
    def reason(self) -> str:
        """One clause for each."""
        return few([f"standby {c.pod} takes over as rank {c.rank}" for c in self.promotions], "; ")


def with_promotions(observed: Observed) -> Observed:
    """``observed`` with each promoted standby as the pod of its rank."""
    promotions = {promotion.pod: promotion for promotion in observed.status.promotions}
    if not promotions:
        return observed
    pods = tuple(
        replace(pod, rank=promotions[pod.name].rank, serial=promotions[pod.name].serial) if pod.name in promotions else pod
        for pod in observed.pods
    )
    return replace(observed, pods=pods)


def take_standbys(
    observed: Observed,
    ranks: tuple[RankFacts, ...],
    wanted: dict[int, Want],
    nodes: Sequence[NodeFailures],
    not_before: float,
    now: float,
) -> Taken:
    """Give each rank whose pod would have to be made one that is warm, as long as there are any; replacements wait until ``not_before``.

    ``nodes``: as in the status.
    """
    spares = [pod for pod in observed.pods if _is_spare(observed, pod)]
    topology = observed.spec.topology
    own_nodes = {placed.stage for placed in observed.spec.placement.stages if placed.node_selector}
    moving = {m.rank: m for m in observed.status.moves if m.strategy == "Checkpoint"}
    after, wants = list(ranks), dict(wanted)
    promotions: list[Promotion] = []
    for facts in ranks:
        # A stage that may run on some nodes alone cannot be had from a pod that was put anywhere.
        if now < not_before or not spares or topology.stage(facts.rank) in own_nodes or not _is_vacant(facts, wanted[facts.rank]):
            continue
        entry = moving.get(facts.rank)
        bad = avoided(nodes, facts.rank)
        able = [s for s in spares if s.node not in bad and (entry is None or observed.one_node or _suits(s, entry))]
        if not able:
            continue
        pod = min(able, key=lambda spare: (spare.node == _node(facts), spare.serial))
        spares.remove(pod)
        # Another pod may have been made with the serial that was wanted, and not been seen yet.
        serial = max(wanted[facts.rank].serial, facts.next_serial)
        promotions.append(Promotion(pod=pod.name, rank=facts.rank, serial=serial))
        taken = replace(pod, rank=facts.rank, serial=serial)
        after[facts.rank] = replace(facts, serial=serial, pod=taken, seen=True, incarnation=1, next_serial=serial + 1)
        wants[facts.rank] = Want(serial, 1, replaced=wanted[facts.rank].replaced)
    return Taken(tuple(after), wants, tuple(promotions))


def kept_promotions(observed: Observed, wanted: dict[int, Want], new: tuple[Promotion, ...]) -> list[Promotion]:
    """All promotions, without those of pods that were replaced and are gone."""
    there = {pod.name for pod in observed.pods}
    old = [c for c in observed.status.promotions if c.rank in wanted and (c.serial >= wanted[c.rank].serial or c.pod in there)]
    return [*old, *new]


def _is_spare(observed: Observed, pod: PodObserved) -> bool:
    """Whether ``pod`` answers just now that it is warm, is no rank's, and is to stay."""
    agent = pod.agent
    if (
        pod.rank is not None
        or pod.phase is not PodPhase.RUNNING
        or agent is None
        or pod.outdated
        or pod.name not in _names(observed)
    ):
        return False
    return agent.warm and agent.rank is None and not agent.draining


def _suits(spare: PodObserved, entry: MoveStatus) -> bool:
    """Whether ``spare`` is where the rank that moves is to be."""
    stays = spare.node_leaving is None and spare.misplaced is None
    return stays and spare.node != entry.node and (entry.to is None or spare.node == entry.to)


def _names(observed: Observed) -> set[str]:
    return {standby.pod for standby in observed.status.standbys}


def _is_vacant(facts: RankFacts, want: Want) -> bool:
    """Whether the pod that is wanted is not there, or cannot start and another of its kind could not either."""
    pod = facts.pod
    if facts.follower is not None and facts.follower.serial == want.serial:
        return False  # the follower takes the place
    return pod is None or pod.serial != want.serial or (pod.phase is PodPhase.PENDING and pod.waits is not None)


def _node(facts: RankFacts) -> str | None:
    return facts.pod.node if facts.pod is not None else facts.known.node
