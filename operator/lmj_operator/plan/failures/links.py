"""Links between two pods that break while both are well, and which of the two moves when the same one breaks again and again.

A cable may be broken between two nodes only: the operator reaches both, and another view of the same pods breaks as the one before.
"""

from collections.abc import Sequence
from dataclasses import replace

from lmj_api.status import Incident, IncidentKind
from lmj_api.view import View
from lmj_operator.plan.failures.failures import Failure, Remedy
from lmj_operator.plan.membership.membership import joined, left
from lmj_operator.plan.observe.facts import RankFacts, in_sync

DROP_GRACE_SECONDS = 1.0
"""A member that dropped the view reports a broken peer before the peer's agent does: wait so long for the cause to show."""

LINK_VIEWS = 3
"""With so many views in a row that one link broke, without a new step, one of its two ranks moves."""


def find_dropped(
    ranks: tuple[RankFacts, ...], view: View | None, since: float | None, now: float
) -> tuple[Failure | None, float | None]:
    """A view that a member left although all live: ``(failure, None)``, or ``(None, seconds)`` while the cause may still show.

    ``since``: when that was first seen.
    """
    if view is None or since is None or not joined(ranks, view):
        return None, None
    gone = [f for f in ranks if left(f, view)]
    if not gone:
        return None, None
    # Who names a peer knows more than who was told to leave.
    first = min(gone, key=lambda f: (_lost(f, ranks) is None, f.worker.since if f.worker else 0.0, f.rank))
    assert first.worker is not None
    assert first.pod is not None
    wait = since + DROP_GRACE_SECONDS - now
    if len(gone) < len(view.members) and wait > 0:
        return None, wait
    text = f"{first.pod.name} left view {view.number}: {first.worker.lost or 'its link to a peer broke'}"
    peer = _lost(first, ranks)
    return Failure(
        IncidentKind.VIEW_DROPPED, first.rank, first.pod.name, text, Remedy.VIEW, noticed_by="its peers", peer=peer
    ), None


def moves_apart(failure: Failure, ranks: tuple[RankFacts, ...], incidents: Sequence[Incident]) -> Failure:
    """``failure``, with another pod on another node for one of the two when their link broke too often; ``incidents``: those before."""
    if failure.remedy is not Remedy.VIEW or failure.peer is None:
        return failure
    # What a new step followed is over.
    row = [(i.pod, i.peer) for i in incidents if i.kind is IncidentKind.VIEW_DROPPED and i.peer is not None and i.seconds is None]
    row.append((failure.pod, failure.peer))
    pair = {failure.pod, failure.peer}
    views = sum({one, other} == pair for one, other in row)
    ends = [f for f in ranks if f.pod is not None and f.pod.name in pair]
    if len(ends) != 2 or views < LINK_VIEWS:
        return failure

    def blame(facts: RankFacts) -> tuple[int, bool, int]:
        """Who lost more peers, else who can be had elsewhere without a loss; rank 0 last, because it records."""
        mine = facts.pod.name if facts.pod is not None else None
        peers = {other if one == mine else one for one, other in row if mine in (one, other)}
        return len(peers), _is_kept_elsewhere(facts), facts.rank

    stays, goes = sorted(ends, key=blame)
    assert stays.pod is not None
    assert goes.pod is not None
    why = f"its link to rank {stays.rank} ({stays.pod.name}) broke in {views} views without a new step"
    where = f"moves off {goes.pod.node}" if goes.pod.node is not None else "gets another pod"
    text = f"{failure.message}; rank {goes.rank} {where} because {why}"
    return replace(
        failure, rank=goes.rank, pod=goes.pod.name, peer=stays.pod.name, message=text, remedy=Remedy.POD, next_node=why
    )


def _lost(facts: RankFacts, ranks: tuple[RankFacts, ...]) -> str | None:
    """The pod of the peer to which the link of ``facts`` broke; None: it names none."""
    rank = facts.worker.lost_rank if facts.worker is not None else None
    if rank is None or rank == facts.rank or not 0 <= rank < len(ranks):
        return None
    pod = ranks[rank].pod
    return pod.name if pod is not None else None


def _is_kept_elsewhere(facts: RankFacts) -> bool:
    """Whether its follower has its state, on another node."""
    pod, follower = facts.pod, facts.follower
    return pod is not None and follower is not None and follower.node != pod.node and in_sync(follower)
