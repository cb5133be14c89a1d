"""The operator's core: what is observed in, what to do out. Pure: no input or output, no clock, no random numbers."""

from lmj_operator.plan.actions import (
    Action,
    CreatePod,
    DeletePod,
    Drain,
    EnlistPod,
    Follow,
    HandOver,
    LeaveView,
    PutView,
    StartWorker,
)
from lmj_operator.plan.observed import Observed, PodObserved, PodPhase, PodWait
from lmj_operator.plan.plan import Plan, plan

__all__ = [
    "Action",
    "CreatePod",
    "DeletePod",
    "Drain",
    "EnlistPod",
    "Follow",
    "HandOver",
    "LeaveView",
    "Observed",
    "Plan",
    "PodObserved",
    "PodPhase",
    "PodWait",
    "PutView",
    "StartWorker",
    "plan",
]
