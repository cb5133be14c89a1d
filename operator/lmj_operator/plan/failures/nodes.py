"""Nodes on which the job's workers and pods fail, and which of them its next pods avoid. Kept in the status, because nobody else remembers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lmj_api.spec.recovery import AvoidNode
from lmj_api.status import NodeFailures
from lmj_operator.plan.actions import Action, CreatePod
from lmj_operator.plan.failures.failures import Failure
from lmj_operator.plan.observe.observed import PodObserved

KEPT = 32
"""Nodes that are remembered; those that failed last."""

CLOCK_SECONDS = 10.0
"""A pod's time of creation is the API server's, in whole seconds, and may be so much before what this operator did earlier."""

UNSCHEDULABLE = "Unschedulable"
"""Why a pod waits that no node takes."""


def with_failures(
    old: Sequence[NodeFailures],
    failures: Iterable[Failure],
    nodes: Mapping[int, str | None],
    rule: AvoidNode,
    step: int,
    now: float,
) -> list[NodeFailures]:
    """``old`` with ``failures`` noticed at ``now``, at ``step`` committed steps. ``nodes``: of each rank's pod, where it has one.

    A row of failures on a node ends with a new step, and with ``rule.within_seconds``; being avoided ends only by :func:`lifted`.
    """
    known = {(entry.node, entry.rank): entry for entry in old}
    for failure in failures:
        node = nodes.get(failure.rank)
        own = failure.rank if failure.peer is not None else None
        apart = own is not None and failure.next_node is not None
        if node is None or failure.final or not (failure.blames_node or apart):
            continue
        # Taken out and put behind: the order is that of the newest failure.
        before = known.pop((node, own), NodeFailures(node=node, rank=own))
        row = [t for t in before.times if now - t <= rule.within_seconds] if step <= before.step else []
        times = [*row, now][-rule.failures :]
        since, reason = before.avoided_since, before.reason
        if failure.next_node is not None:
            since, reason = since if since is not None else now, failure.next_node
        elif since is None and len(times) >= rule.failures:
            since, reason = now, f"{len(times)} failures there in {times[-1] - times[0]:.0f} s without a new step"
        known[node, own] = NodeFailures(
            node=node, rank=own, times=times, step=max(step, before.step), avoided_since=since, reason=reason
        )
    return list(known.values())[-KEPT:]


def avoided(nodes: Iterable[NodeFailures], rank: int | None = None) -> tuple[str, ...]:
    """Names of those that new pods of ``rank`` avoid, in order; None: pods of any rank do."""
    return tuple(sorted({e.node for e in nodes if e.avoided_since is not None and e.rank in (None, rank)}))


def explained(
    failures: tuple[Failure, ...], nodes: Mapping[int, str | None], before: Sequence[NodeFailures], after: Sequence[NodeFailures]
) -> tuple[Failure, ...]:
    """``failures``, those that brought a node to be avoided with a clause on it."""
    old = avoided(before)
    new = {
        e.node: f"node {e.node} is avoided: {e.reason}"
        for e in after
        if e.avoided_since is not None and e.rank is None and e.node not in old
    }
    return tuple(
        replace(f, message=f"{f.message}; {new[node]}") if f.blames_node and (node := nodes.get(f.rank)) in new and node else f
        for f in failures
    )


def stranded(pods: Iterable[PodObserved], nodes: Iterable[NodeFailures], rule: AvoidNode, now: float) -> tuple[PodObserved, ...]:
    """Pods that no node takes, made since nodes are avoided, when one has waited for ``rule.fallback_seconds``.

    Avoiding is asked of the scheduler as a requirement, because as a preference it would lose to spreading and to images that lie on the
    node; and an autoscaler makes a node for a requirement alone. But a job that no other node can take must not wait for ever.
    """
    since = [entry.avoided_since for entry in nodes if entry.avoided_since is not None]
    if not since:
        return ()
    asked = min(since) - CLOCK_SECONDS
    waiting = tuple(p for p in pods if p.waits is not None and p.waits.reason == UNSCHEDULABLE and p.created >= asked)
    late = any(p.waits is not None and now - max(p.waits.since, p.created) >= rule.fallback_seconds for p in waiting)
    return waiting if late else ()


def lifted(nodes: Iterable[NodeFailures]) -> list[NodeFailures]:
    """``nodes`` with none avoided and all rows of failures over: no other node took the pod."""
    return [e.model_copy(update={"times": [], "avoided_since": None, "reason": None}) for e in nodes]


def avoiding(actions: tuple[Action, ...], nodes: Iterable[NodeFailures]) -> tuple[Action, ...]:
    """``actions`` with every new pod told which nodes it avoids."""
    entries = tuple(nodes)
    return tuple(
        replace(a, avoid=tuple(n for n in avoided(entries, a.rank) if n != a.node)) if isinstance(a, CreatePod) else a
        for a in actions
    )
