"""Whether a job that is to stop gets its ranks into one more view first: only a view takes a checkpoint of what they have in memory."""

from lmj_api.protocol import WorkerPhase
from lmj_api.status import Phase
from lmj_api.view import View
from lmj_operator.plan.failures.budget import in_row
from lmj_operator.plan.membership.membership import joined, left, next_view, runs
from lmj_operator.plan.moves.moves import to_be_left
from lmj_operator.plan.observe.facts import RankFacts, in_sync
from lmj_operator.plan.observe.observed import Observed, PodPhase
from lmj_operator.plan.report.report import checkpoint

GATHER_SECONDS = 60.0
"""A suspension waits so long for the view that takes its last checkpoint."""


def gather_left(observed: Observed, now: float) -> float:
    """Seconds that a job which is to stop still has to get its ranks together; counted from when that was stored."""
    status = observed.status
    since = status.phase_since if status.phase is Phase.SUSPENDING and status.phase_since is not None else now
    return since + GATHER_SECONDS - now


def gathers(observed: Observed, ranks: tuple[RankFacts, ...], view: View | None, step: int, now: float) -> bool:
    """Whether they are not asked to leave yet, because a view can still be had that has more than the newest checkpoint.

    ``view``: the newest; ``step``: the highest committed that anybody told of. Once one was asked to leave the others are too: it
    starts no worker any more.
    """
    if observed.spec.strategy.stateless:
        return False  # a script saves when it is told to end
    if view is None or gather_left(observed, now) <= 0 or any(f.agent is not None and f.agent.draining for f in ranks):
        return False
    saved = checkpoint(observed, ranks, view)
    durable = saved.step if saved is not None else 0
    if step <= durable:
        return False
    if runs(ranks, view):
        # All leave such a view at the next boundary, because a follower: who was asked to leave would do so with the rest, and save nothing.
        recut = observed.status.recut is not None and observed.status.recut.state == "InSync"
        return any(to_be_left(f, view) or (recut and f.agent is not None and f.agent.handover >= view.number) for f in ranks)
    # Of a rank without memory its neighbour may have a snapshot.
    enough = any if observed.spec.recovery.memory_snapshot is not None else all
    if not enough(_may_hold(ranks[m.rank]) for m in view.members if m.rank < len(ranks)):
        return False
    choice = next_view(
        observed.spec.topology,
        ranks,
        view,
        now,
        observed.every_pod,
        in_row(observed.status, step),
        saved,
        observed.status.look_since,
        observed.status.left_since,
        observed.spec.data_parallel.min_replicas,
    )
    holds = joined(ranks, view) and not any(left(f, view) for f in ranks)
    if choice.view is None or not (choice.formed or holds):
        return True  # what they have is not known yet
    return choice.view.resume.step > durable


def _may_hold(facts: RankFacts) -> bool:
    """Whether the rank's state may be in a memory that is still there: its pod's, or its follower's."""
    pod, known = facts.pod, facts.known
    if facts.follower is not None and in_sync(facts.follower):
        return True
    if pod is None or pod.phase is not PodPhase.RUNNING:
        return False
    if pod.agent is None:
        return known.pod == pod.name and known.incarnation > 0
    worker = pod.agent.worker
    return worker.incarnation > 1 or worker.phase is not WorkerPhase.STARTING
