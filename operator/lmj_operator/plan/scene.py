"""What one pass of the plan looks at."""

from dataclasses import dataclass, field
from typing import Any

from lmj_api.status import Phase
from lmj_api.view import View
from lmj_operator.plan.facts import RankFacts, rank_facts
from lmj_operator.plan.failures import Failure
from lmj_operator.plan.membership import left_since, newest_view
from lmj_operator.plan.observed import Observed, PodObserved
from lmj_operator.plan.report import newest_step
from lmj_operator.plan.wants import Want, wants

WAIT_SECONDS = 3.0
"""A pod that does not start is told of after so long: a scheduler often has not heard yet of the claim that was made just before."""


@dataclass(frozen=True, slots=True)
class Scene:
    """One pass: what was observed, and what follows from it at once."""

    observed: Observed
    now: float
    ranks: tuple[RankFacts, ...]
    newest: View | None
    step: int
    """Highest committed step that anybody told of."""
    wanted: dict[int, Want]
    left_since: float | None
    """When it was first seen that a member had left the newest view."""
    waiting: PodObserved | None
    """The pod that has waited longest for something that is known."""
    failures: tuple[Failure, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes to the stored status besides the report."""


def scene_of(observed: Observed, now: float) -> Scene:
    """What is ``observed`` at ``now``, before anything is judged."""
    ranks = rank_facts(observed)
    newest = newest_view(observed.status, observed.pods)
    return Scene(
        observed=observed,
        now=now,
        ranks=ranks,
        newest=newest,
        step=newest_step(ranks, observed.status.progress),
        wanted=wants(ranks, ()),
        left_since=left_since(observed.status, ranks, newest, now),
        waiting=_waiting(observed, now),
    )


def leaving(observed: Observed) -> bool:
    """Whether the job is to stop, or stops."""
    return observed.stop_wanted or observed.status.phase is Phase.SUSPENDING


def _waiting(observed: Observed, now: float) -> PodObserved | None:
    since = {pod.name: pod.waits.since for pod in observed.pods if pod.waits is not None and pod.rank is not None}
    longest = min(since, key=lambda name: (since[name], name), default=None)
    if longest is None or now - since[longest] < WAIT_SECONDS:
        return None  # that may pass by itself yet
    return next(pod for pod in observed.pods if pod.name == longest)
