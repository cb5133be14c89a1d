"""Actions that are a word to an agent: the same in every place."""

from collections.abc import Awaitable, Callable

from lmj_api.protocol import AgentState
from lmj_api.view import View
from lmj_operator.backend.agent_client import AgentClient
from lmj_operator.plan import (
    Drain,
    Follow,
    FollowParts,
    HandOver,
    LeaveView,
    LetIn,
    Look,
    Pause,
    PutView,
    StartWorker,
    Stay,
    Told,
)

Call = Callable[[AgentClient], Awaitable[AgentState]]


class Telling:
    """Of one job. A view names all members and is told to each of them: it is written once."""

    def __init__(self) -> None:
        self._written: tuple[View, str] | None = None

    def call_of(self, action: Told) -> Call:
        """What carries out ``action``, at the agent of its pod."""
        match action:
            case StartWorker(_, incarnation, rank):
                return lambda agent: agent.start_worker(incarnation, rank)
            case PutView(_, view):
                body = self._json(view)
                return lambda agent: agent.put_view(view, body)
            case LeaveView(_, number):
                return lambda agent: agent.leave_view(number)
            case Look(_, number, names):
                return lambda agent: agent.look(number, names)
            case LetIn(_, address):
                return lambda agent: agent.let_in(address)
            case Follow(_, follower):
                return lambda agent: agent.put_follower(follower)
            case FollowParts(_, recut):
                return lambda agent: agent.put_recut(recut)
            case HandOver(_, number):
                return lambda agent: agent.hand_over(number)
            case Pause(_, number):
                return lambda agent: agent.pause(number)
            case Stay():
                return lambda agent: agent.stay()
            case Drain():
                return lambda agent: agent.drain()

    def _json(self, view: View) -> str:
        if self._written is None or self._written[0] is not view:
            self._written = view, view.to_json()
        return self._written[1]
