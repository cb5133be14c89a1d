"""Where the job demands that the network enforces its NetworkPolicy, no worker starts before that is known of its pod: nothing listens there
that runs what it is sent.
"""

from collections.abc import Iterable, Sequence

from lmj_api.spec.network import PolicyMode
from lmj_operator.plan.actions import Action, StartWorker
from lmj_operator.plan.observe.enforcement import reached
from lmj_operator.plan.observe.lists import few
from lmj_operator.plan.observe.observed import Observed, PodObserved

_DEMAND = "network.policy is Required"


def without_held(observed: Observed, actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """``actions`` without those that start a worker where it must not start yet."""
    held = {pod.name for pod in _held(observed, actions)}
    return tuple(a for a in actions if not (isinstance(a, StartWorker) and a.pod in held)) if held else actions


def why_held(observed: Observed, actions: Iterable[Action]) -> str | None:
    """What those of ``actions`` wait for that start a worker, in a sentence; None: all that are to start may."""
    held = _held(observed, actions)
    if not held:
        return None
    if (told := reached(held)) is not None:
        return f"{_DEMAND}, and {told}: use a network that enforces policies, let no other policy allow more, or set Preferred"
    deaf = [pod.name for pod in held if pod.agent is not None and not pod.agent.canary]
    if deaf:
        return f"{_DEMAND}, and {few(deaf)} does not listen where that shows: use a trainer image of the operator's version"
    return f"{_DEMAND}: waits until it is known whether the network keeps others from {few([pod.name for pod in held])}"


def _held(observed: Observed, actions: Iterable[Action]) -> Sequence[PodObserved]:
    """Pods in which one of ``actions`` starts a worker, and none must."""
    if not observed.networked or observed.spec.network.policy is not PolicyMode.REQUIRED:
        return ()
    starts = {action.pod for action in actions if isinstance(action, StartWorker)}
    return [pod for pod in observed.every_pod if pod.name in starts and pod.enforced is not True]
