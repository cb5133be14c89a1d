"""Requests to move ranks: what a person wrote, and why it is not followed when it is not."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from lmj_api.spec.migration import Migration, MigrationStrategy
from lmj_operator.plan.observe.facts import RankFacts

TO = "to="
"""Begins the word that names the node."""

MOST_MOVES = 64
"""A job remembers so many moves that are under way or wait for their turn: a status has to fit into an object of a cluster."""

_NODES_NAMED = 8
"""A refusal names so many nodes."""

_NODE = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Ranks that are to run elsewhere."""

    ranks: tuple[int, ...]
    """Each once."""
    node: str | None = None
    """The node that they are to run on; None: any other than their own."""


def parse_request(text: str, ranks: int) -> MoveRequest:
    """The request in ``text``: ranks, then words, of which one may be ``to=NODE``. Raises ValueError with a line for people."""
    words = text.split()
    try:
        found = tuple(dict.fromkeys(int(word) for word in words[0].split(","))) if words else ()
    except ValueError:
        found = ()
    if not found or not all(0 <= rank < ranks for rank in found):
        raise ValueError(f"{text[:60]!r} names no ranks to move: write ranks from 0 to {ranks - 1}, as in 0,1")
    nodes = [word.removeprefix(TO) for word in words[1:] if word.startswith(TO)]
    if len(nodes) > 1 or not all(_NODE.fullmatch(node) for node in nodes):
        raise ValueError(f"{text[:60]!r} names no node to move to: write one node's name, as in to=node-1")
    return MoveRequest(found, nodes[0] if nodes else None)


def admit(text: str, ranks: tuple[RankFacts, ...], spec: Migration, one_node: bool, nodes: Collection[str] = ()) -> MoveRequest:
    """The request in ``text``, of a job with ``ranks``. Raises ValueError with a line for people when it cannot be followed.

    ``nodes``: those that there are; none: they are not known.
    """
    request = parse_request(text, len(ranks))
    if len(request.ranks) > MOST_MOVES:
        raise ValueError(
            f"the request names {len(request.ranks)} ranks: ask for at most {MOST_MOVES}, and for the others when these have moved"
        )
    if spec.strategy is MigrationStrategy.NEVER:
        raise ValueError("no rank is moved: migration.strategy is Never")
    if request.node is not None and one_node:
        raise ValueError(f"no rank is moved to {request.node}: a job on one machine has no other node")
    if request.node is not None and nodes and request.node not in nodes:
        first = ", ".join(sorted(nodes)[:_NODES_NAMED])
        more = f" and {len(nodes) - _NODES_NAMED} more" if len(nodes) > _NODES_NAMED else ""
        raise ValueError(f"node {request.node} is not in the cluster; nodes: {first}{more}")
    asked = [ranks[rank] for rank in sorted(request.ranks)]
    unmade = [f.rank for f in asked if f.serial == 0]
    if unmade:
        raise ValueError(f"rank {unmade[0]} has no pod yet: ask again when it trains")
    there = [f.rank for f in asked if f.pod is not None and f.pod.node == request.node]
    if request.node is not None and there:
        raise ValueError(f"rank {there[0]} runs on {request.node} already")
    return request
