"""The network of the pods on a cluster."""

from enum import StrEnum

from lmj_api.base import Message


class PolicyMode(StrEnum):
    """``Preferred``: a condition says where it is not enforced. ``Required``: no worker is started in a pod before it is known to be enforced there."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


class Network(Message):
    """The network of the pods on a cluster. One machine has none: its ranks listen on the loopback interface."""

    policy: PolicyMode = PolicyMode.PREFERRED
    """What the job's NetworkPolicy is worth: not every network enforces policies, and ports of ranks have no authentication. What runs goes on."""
