"""Whether the network enforces the job's NetworkPolicy, as far as the canaries of its pods showed it."""

from collections.abc import Iterable

from lmj_api.canary import PORT
from lmj_operator.plan.observe.lists import few
from lmj_operator.plan.observe.observed import PodObserved


def reached(pods: Iterable[PodObserved]) -> str | None:
    """Which of ``pods`` the operator reached where the policy does not let it, in a clause; None: none, as far as is known."""
    names = [f"{pod.name}{f' on {pod.node}' if pod.node is not None else ''}" for pod in pods if pod.enforced is False]
    return f"the operator reached port {PORT} of {few(names)}, which the job's NetworkPolicy forbids" if names else None


def is_enforced(pods: Iterable[PodObserved]) -> bool:
    """Whether it was kept from one of ``pods`` at least, as far as is known."""
    return any(pod.enforced for pod in pods)
