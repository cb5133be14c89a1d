"""Ranks that compute slower than their peers: those of the same stage in other replicas, each counted for one of its shards.

A rank is suspected while its ratio to the median of its peers is above ``factor``, slow once that has lasted for ``seconds`` without a
break, and well again below halfway between 1 and ``factor``: what swings about the factor is told once. While its ratio is not known (a
view forms, its peers are away, a follower copies its state) it is what it was.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from lmj_api.shards import share
from lmj_api.spec import MigrationStrategy, Straggler, StragglerAction
from lmj_api.status import StragglerStatus
from lmj_api.topology import Topology
from lmj_api.view import View
from lmj_operator.plan.observe.facts import RankFacts
from lmj_operator.plan.observe.observed import Observed
from lmj_operator.plan.observe.times import rfc3339

LARGEST_RATIO = 1000.0
"""What workers tell may be any number."""

MOST_MOVES = 3
"""A rank that is slow wherever it is moves so often."""

REST_SECONDS = 600.0
"""A rank that was moved stays where it is for so long, twice as long after the second time and so on. One that was well by then begins anew."""


@dataclass(frozen=True, slots=True)
class Stragglers:
    """The ranks that are slow, or may be."""

    entries: tuple[StragglerStatus, ...] = ()
    to_move: Mapping[int, str] = field(default_factory=dict)
    """Ranks for which a move is to begin, each with the clause that says why."""
    due: tuple[float, ...] = ()
    """Seconds until something is due."""

    @property
    def slow(self) -> frozenset[int]:
        """The ranks that are."""
        return frozenset(entry.rank for entry in self.entries if entry.slow)

    def moving(self, ranks: frozenset[int], now: float) -> tuple[StragglerStatus, ...]:
        """The entries once the moves of ``ranks`` have begun."""
        return tuple(_moved(entry, now) if entry.rank in ranks else entry for entry in self.entries)


def find_stragglers(observed: Observed, ranks: tuple[RankFacts, ...], view: View | None, now: float) -> Stragglers:
    """Those at ``now``. ``view``: the one that trains; None: none does, and what is known stays."""
    spec, rule = observed.spec, observed.spec.recovery.straggler
    if rule is None or spec.topology.replicas == 1:
        return Stragglers()
    ratios = _known_ratios(spec.topology.stages, spec.data_parallel.shards, ranks, view) if view is not None else {}
    before = {entry.rank: entry for entry in observed.status.stragglers}
    judged = [judge(before.get(f.rank), f, ratios.get(f.rank), rule, now) for f in ranks]
    under_way = {m.rank for m in observed.status.moves if m.given_up is None or m.strategy == "Checkpoint"}
    entries: list[StragglerStatus] = []
    to_move: dict[int, str] = {}
    ends: list[float] = []
    for entry in judged:
        if entry is None:
            continue
        asks = entry.slow and rule.action is StragglerAction.MOVE and entry.rank not in under_way
        stays = _stays(entry, observed, now) if asks else None
        if asks and stays is None:
            to_move[entry.rank] = f"it {_computes(entry)}"
        entries.append(entry.model_copy(update={"stays": stays}))
        ends += [entry.not_before, *([entry.since + rule.seconds] if entry.since is not None else [])]
    # One that is past, of a rank of which nothing is known now, waits for news.
    return Stragglers(tuple(entries), to_move, tuple(end - now for end in ends if end > now))


def compare(topology: Topology, shards: int, seconds: Mapping[int, float]) -> dict[int, float]:
    """How many times as long as the median of its peers each rank of ``seconds`` computes one of its shards.

    ``topology``: that of the view, whose replicas share ``shards``. A rank without peers that are known is left out.
    """
    present = topology.present
    held = {replica: len(share(shards, len(present), place)) for place, replica in enumerate(present)}
    ratios: dict[int, float] = {}
    for part in topology.parts:
        each = {r: seconds[r] / held[topology.rank(r).replica] for r in topology.holders(part) if r in seconds}
        for rank, mine in each.items():
            peers = [theirs for other, theirs in each.items() if other != rank]
            usual = median(peers) if peers else 0.0
            if usual > 0:
                ratios[rank] = min(mine / usual, LARGEST_RATIO)
    return ratios


def _known_ratios(stages: int, shards: int, ranks: tuple[RankFacts, ...], view: View) -> dict[int, float]:
    """Of the members of ``view``, which trains, but for those whose state is copied beside their work: they are slower for that."""
    numbers = [m.rank for m in view.members]
    told = {f.rank: f.worker.compute_seconds for f in ranks if f.worker is not None and f.rank in numbers}
    ratios = compare(view.topology(stages), shards, {r: s for r, s in told.items() if s is not None})
    followed = {f.rank for f in ranks if f.agent is not None and f.agent.follower is not None}
    return {rank: ratio for rank, ratio in ratios.items() if rank not in followed}


def judge(
    entry: StragglerStatus | None, facts: RankFacts, ratio: float | None, rule: Straggler, now: float
) -> StragglerStatus | None:
    """``entry`` of the rank as it is now; None: there is nothing to remember. ``ratio``: as of :func:`compare`; None: it is not known."""
    pod = facts.pod
    if pod is None:
        return _well(entry, now)
    if entry is not None and entry.pod != pod.name:
        entry = _well(entry, now)
    if ratio is None:
        return entry if entry is None or entry.since is not None else _well(entry, now)
    slow = entry is not None and entry.slow
    if ratio < (1 + rule.factor) / 2 or (not slow and ratio <= rule.factor):
        return _well(entry, now)
    since = now if entry is None or entry.since is None else entry.since
    entry = entry or StragglerStatus(rank=facts.rank, pod=pod.name)
    slow = slow or now - since >= rule.seconds
    changes = {"pod": pod.name, "node": pod.node, "since": since, "slow": slow, "ratio": round(ratio, 2)}
    return entry.model_copy(update=changes)


def describe(stragglers: Sequence[StragglerStatus], topology: Topology, action: StragglerAction) -> str | None:
    """Those that are slow, in a sentence; None: none is. A time and no duration: what only passes is no news."""
    told = []
    for entry in stragglers:
        if not entry.slow or entry.since is None:
            continue
        me = topology.rank(entry.rank)
        who = f"rank {entry.rank} (stage {me.stage}, replica {me.replica}) in {entry.pod}{_on(entry)}"
        goes = "it is to move" if entry.stays is None else f"it is not moved: {entry.stays}"
        done = f", and {goes}" if action is StragglerAction.MOVE else ""
        told.append(f"{who} {_computes(entry)} since {rfc3339(entry.since)}{done}")
    return "; ".join(told) or None


def _on(entry: StragglerStatus) -> str:
    return f" on {entry.node}" if entry.node is not None else ""


def _computes(entry: StragglerStatus) -> str:
    return f"computes {entry.ratio:.1f} times as long as its peers"


def _well(entry: StragglerStatus | None, now: float) -> StragglerStatus | None:
    """``entry`` when the rank is not slow: it is remembered for as long as it must not be moved again."""
    if entry is None or now >= entry.not_before:
        return None
    return entry.model_copy(update={"since": None, "slow": False, "stays": None})


def _stays(entry: StragglerStatus, observed: Observed, now: float) -> str | None:
    """Why no move of it begins."""
    if observed.spec.migration.strategy is MigrationStrategy.NEVER:
        return "migration.strategy is Never"
    if observed.one_node:
        return "there is one node"
    failed = next((m.given_up for m in observed.status.moves if m.rank == entry.rank), None)
    if entry.moves >= MOST_MOVES:
        return failed or f"{entry.moves} moves did not help"
    if now < entry.not_before:
        return f"{failed or 'a move did not help'}; the next one may begin at {rfc3339(entry.not_before)}"
    return None


def rest_seconds(moves: int) -> float:
    """For how long a rank stays after so many moves."""
    return REST_SECONDS * 2.0 ** (min(max(moves, 1), MOST_MOVES) - 1)


def _moved(entry: StragglerStatus, now: float) -> StragglerStatus:
    moves = entry.moves + 1
    return entry.model_copy(update={"moves": moves, "not_before": now + rest_seconds(moves)})
