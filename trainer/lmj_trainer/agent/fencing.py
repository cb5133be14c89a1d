"""What an agent accepts: views and workers with a number that only grows. Pure decisions, each with its reason."""

from dataclasses import dataclass
from enum import Enum, auto

from lmj_api.fold import alive
from lmj_api.protocol import AgentState
from lmj_api.view import View


class Answer(Enum):
    """What to do with a request."""

    NEW = auto()
    """Do it."""
    KNOWN = auto()
    """It was done before: say so."""
    REFUSED = auto()
    """It is too old, or not for this worker."""


@dataclass(frozen=True)
class Admission:
    """An answer with its reason."""

    answer: Answer
    reason: str


def admit_worker(state: AgentState, incarnation: int, rank: int | None = None) -> Admission:
    """Whether worker ``incarnation`` is to be started (a living older one gives way); ``rank``: the one that it is to be, if told."""
    current = state.worker.incarnation
    if rank is None and state.rank is None:
        return Admission(
            Answer.REFUSED, f"pod {state.pod} is a standby: it must be told which rank worker {incarnation} is to be"
        )
    if rank is not None and state.rank is not None and rank != state.rank:
        return Admission(Answer.REFUSED, f"pod {state.pod} is rank {state.rank}: it cannot become rank {rank}")
    if incarnation < current:
        return Admission(Answer.REFUSED, f"worker {incarnation} is older than worker {current}, which was started already")
    if incarnation == current:
        return Admission(Answer.KNOWN, f"worker {incarnation} was started already")
    if state.draining:
        return Admission(Answer.REFUSED, f"pod {state.pod} is draining: it starts no worker any more")
    return Admission(
        Answer.NEW, f"worker {incarnation} follows worker {current}" if current else f"worker {incarnation} is the first"
    )


def admit_view(state: AgentState, view: View) -> Admission:
    """Whether the worker is to join ``view``."""
    known = state.view
    if known is not None and view.number < known.number:
        return Admission(Answer.REFUSED, f"view {view.number} is older than view {known.number}, which was accepted already")
    if known is not None and view.number == known.number and view != known:
        return Admission(Answer.REFUSED, f"view {view.number} was accepted already with other content")
    if refusal := _not_for(state, view):
        return Admission(Answer.REFUSED, f"view {view.number} {refusal}")
    if known is not None and view.number == known.number:
        return Admission(Answer.KNOWN, f"view {view.number} was accepted already")
    return Admission(Answer.NEW, view.reason)


def _not_for(state: AgentState, view: View) -> str | None:
    """Why ``view`` is not for this pod's living worker; None when it is."""
    worker = state.worker
    mine = [member for member in view.members if member.rank == state.rank]
    if len(mine) != 1:
        return f"has {len(mine)} members of rank {state.rank}"
    if mine[0].pod != state.pod:
        return f"has {mine[0].pod} as rank {state.rank}, not this pod, {state.pod}"
    if not alive(worker):
        return f"is for worker {mine[0].incarnation}, but no worker runs"
    if mine[0].incarnation != worker.incarnation:
        return f"is for worker {mine[0].incarnation}, but worker {worker.incarnation} runs"
    return None
