"""How a job's pods talk to each other."""

from enum import StrEnum

from lmj_api.base import Message


class PolicyMode(StrEnum):
    """``Preferred``: a condition says where it is not enforced. ``Required``: no worker is started in a pod before it is known to be enforced there."""

    PREFERRED = "Preferred"
    REQUIRED = "Required"


class Encryption(StrEnum):
    """``Required``: what ranks say to each other goes through a relay in each pod, which speaks TLS 1.3 and lets in those alone that a view
    names; what the operator says to their agents goes inside TLS, too. ``Never``: both go as they are, ranks' to a port that takes it from anybody.
    """

    NEVER = "Never"
    REQUIRED = "Required"


class Network(Message):
    """How a job's pods talk to each other on a cluster. On one machine they use its loopback interface, and there is no policy."""

    policy: PolicyMode = PolicyMode.PREFERRED
    """What the job's NetworkPolicy is worth: not every network enforces policies, and ports of ranks have no authentication. What runs goes on."""
    encryption: Encryption = Encryption.NEVER
    """Whether what ranks say to each other is encrypted, and taken from ranks of the job alone: ``Required`` or ``Never``."""
