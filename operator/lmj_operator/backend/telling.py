"""Actions that are a word to an agent: the same in every place."""

from collections.abc import Awaitable, Callable

from lmj_api.protocol import AgentState
from lmj_operator.backend.agent_client import AgentClient
from lmj_operator.plan import Drain, Follow, FollowParts, HandOver, LeaveView, Look, Pause, PutView, StartWorker, Stay

Call = Callable[[AgentClient], Awaitable[AgentState]]
Told = Drain | Follow | FollowParts | HandOver | LeaveView | Look | Pause | PutView | StartWorker | Stay


def call_of(action: Told) -> Call:
    """What carries out ``action``, at the agent of its pod."""
    match action:
        case StartWorker(_, incarnation, rank):
            return lambda agent: agent.start_worker(incarnation, rank)
        case PutView(_, view):
            return lambda agent: agent.put_view(view)
        case LeaveView(_, number):
            return lambda agent: agent.leave_view(number)
        case Look(_, number, names):
            return lambda agent: agent.look(number, names)
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
