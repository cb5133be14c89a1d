"""The operator's core: what is observed in, what to do out. Pure: no input or output, no clock, no random numbers."""

from lmj_operator.plan.actions import (
    Action,
    CreatePod,
    DeletePod,
    Drain,
    EnlistPod,
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
from lmj_operator.plan.observe.observed import Observed, PodObserved, PodPhase, PodWait
from lmj_operator.plan.plan import Plan
from lmj_operator.plan.planner import plan

__all__ = [
    "Action",
    "CreatePod",
    "DeletePod",
    "Drain",
    "EnlistPod",
    "Follow",
    "FollowParts",
    "HandOver",
    "LeaveView",
    "LetIn",
    "Look",
    "Observed",
    "Pause",
    "Plan",
    "PodObserved",
    "PodPhase",
    "PodWait",
    "PutView",
    "StartWorker",
    "Stay",
    "Told",
    "plan",
]
