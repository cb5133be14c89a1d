"""What one pass of the plan looks at."""

from dataclasses import dataclass, field, replace
from typing import Unpack

from lmj_api.status import Phase
from lmj_api.view import View
from lmj_operator.plan.changes import Changes
from lmj_operator.plan.failures.failures import Failure
from lmj_operator.plan.membership.membership import left_since, newest_view
from lmj_operator.plan.observe.facts import RankFacts, rank_facts
from lmj_operator.plan.observe.observed import Observed, PodObserved
from lmj_operator.plan.pods.wants import Want, wants
from lmj_operator.plan.report.report import newest_step

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
    changes: Changes = field(default_factory=Changes)
    """Of the stored status besides the report."""

    def changed(self, **changes: Unpack[Changes]) -> "Scene":
        """With more changes of the stored status."""
        return replace(self, changes={**self.changes, **changes})


def scene_of(observed: Observed, now: float) -> Scene:
    """What is ``observed`` at ``now``, before anything is judged."""
    ranks = rank_facts(observed)
    newest = newest_view(observed.status, observed.every_pod)
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
