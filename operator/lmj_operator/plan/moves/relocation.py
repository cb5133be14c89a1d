"""What is done in one pass for ranks that run, or are to run, elsewhere: moves, and the followers that they and hot standbys need."""

from collections.abc import Mapping
from dataclasses import dataclass

from lmj_api.status import NodeFailures
from lmj_api.view import View
from lmj_operator.plan.actions import Action
from lmj_operator.plan.changes import Changes
from lmj_operator.plan.failures.nodes import avoiding
from lmj_operator.plan.failures.stragglers import find_stragglers
from lmj_operator.plan.moves.joining import Joins, plan_joins
from lmj_operator.plan.moves.moves import off_their_nodes, plan_moves
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import Observed
from lmj_operator.plan.pods.following import follow
from lmj_operator.plan.pods.wants import Want
from lmj_operator.plan.recut.recutting import Recutting, plan_recut


@dataclass(frozen=True, slots=True)
class Relocation:
    """The outcome."""

    changes: Changes
    """Of the status."""
    actions: tuple[Action, ...]
    """All of the pass so far, with new pods told which nodes they avoid or have to be on, and what is to be done for moves and followers."""
    due: tuple[float, ...]
    """Seconds until something is due."""
    urgent: bool
    """All ranks wait for a follower to take a place."""


def relocate(
    observed: Observed,
    ranks: tuple[RankFacts, ...],
    wanted: Mapping[int, Want],
    view: View | None,
    runs: bool,
    nodes: list[NodeFailures],
    actions: tuple[Action, ...],
    now: float,
) -> Relocation:
    """Besides ``actions``; ``runs``: ``view`` trains and nothing failed. ``nodes``: as in the status."""
    stragglers = find_stragglers(observed, ranks, view if runs else None, now)
    moves = plan_moves(observed, ranks, view, runs, now, stragglers)
    hot: dict[int, str | None] = {f.rank: None for f in ranks} if observed.spec.recovery.hot_standby else {}
    followed = {**hot, **dict(moves.targets)}
    # A follower that becomes the rank in this pass is no follower any more, wherever one was to be: nothing may remove it.
    promoted = {f.rank for f in ranks if f.entry is not None and wanted[f.rank].serial == f.entry.serial}
    others = tuple(f for f in ranks if f.rank not in promoted)
    trains = view if runs else None
    busy = bool(moves.targets) or any(entry.source is not None for entry in observed.status.joins)
    recut = _recut(observed, ranks, trains, busy, now)
    joins = _joins(observed, ranks, None if recut.under_way else trains, followed, now)
    kept = joins.followed(observed.spec.topology)
    stateless = observed.spec.strategy.stateless
    following = follow(observed.name, others, recut.made, followed, observed.spec.recovery, now, kept, stateless=stateless)
    changes = Changes(
        followers=list(following.entries),
        joins=list(joins.entries),
        recut=recut.status,
        made=following.made,
        moves=list(moves.moves),
        stragglers=list(stragglers.moving(moves.begun, now)),
        move_request=moves.request,
        move_refused=moves.refused,
    )
    actions = avoiding(actions + following.actions, nodes) + moves.actions + joins.actions
    if not observed.one_node:
        actions = off_their_nodes(actions, moves.moves)
    actions += avoiding(recut.actions, nodes)
    told = any(f.agent is not None and view is not None and f.agent.handover >= view.number for f in ranks)
    due = (*following.due, *joins.due, *recut.due, *stragglers.due, *((0.0,) if promoted else ()))
    return Relocation(changes, actions, due, told or bool(promoted) or joins.urgent or recut.urgent)


def _recut(observed: Observed, ranks: tuple[RankFacts, ...], view: View | None, busy: bool, now: float) -> Recutting:
    """``view``: the one that trains; None: none does. One that is about to have fewer replicas is let be."""
    shrinks = view is not None and any(m.rank >= len(ranks) for m in view.members)
    return plan_recut(observed, ranks, None if shrinks else view, busy, observed.status.made, now)


def _joins(
    observed: Observed, ranks: tuple[RankFacts, ...], view: View | None, moving: Mapping[int, object], now: float
) -> Joins:
    """``view``: the one that trains; None: none does, and all stays as it is."""
    spec = observed.spec
    if view is None or spec.topology.replicas == 1:
        return Joins(tuple(observed.status.joins))
    if spec.strategy.stateless:
        return Joins(())  # nobody follows: see lmj_operator.plan.script_views
    return plan_joins(spec.topology, ranks, view, observed.status.joins, moving, spec.recovery, now)
