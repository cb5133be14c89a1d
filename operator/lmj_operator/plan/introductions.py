"""Who is to be let in by whose relay before a view names both: those that a worker is to follow."""

from collections.abc import Iterator
from dataclasses import replace

from lmj_api.view import Member
from lmj_operator.plan.actions import Action, Follow, FollowParts, LetIn
from lmj_operator.plan.observe.observed import Observed
from lmj_operator.plan.plan import Plan

_RELAYED = "tls://"
"""How the address of a worker behind a relay begins."""


def with_introductions(made: Plan, observed: Observed) -> Plan:
    """``made``, in which the pod of each follower is told to let its source in, as the source is told to connect to it.

    Where there are no relays, nothing changes.
    """
    if not any(isinstance(action, Follow | FollowParts) for action in made.actions):
        return made
    addresses = {
        pod.name: pod.agent.worker.address
        for pod in observed.every_pod
        if pod.agent is not None and pod.agent.worker.address is not None
    }
    actions: list[Action] = []
    for action in made.actions:
        actions += _beside(action, addresses)
        actions.append(action)
    return replace(made, actions=tuple(actions))


def _beside(action: Action, addresses: dict[str, str]) -> Iterator[LetIn]:
    """What is to be done with ``action``, in whatever order: a relay holds who comes too early. ``addresses``: of workers, by their pods."""
    if not isinstance(action, Follow | FollowParts):
        return
    source = addresses.get(action.pod, "")
    if not source.startswith(_RELAYED):
        return
    for follower in _followers(action):
        yield LetIn(follower.pod, source, action.pod)


def _followers(action: Follow | FollowParts) -> list[Member]:
    if isinstance(action, FollowParts):
        return action.recut.followers if action.recut is not None else []
    return [action.follower] if action.follower is not None else []
