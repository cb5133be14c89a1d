"""How a job's pods talk to each other."""

from enum import StrEnum

from lmj_api.base import Message


class Encryption(StrEnum):
    """``Required``: what ranks say to each other goes through a relay in each pod, which speaks TLS 1.3 and lets in those alone that a view
    names. ``Never``: it goes as it is, to a port that takes it from anybody.
    """

    NEVER = "Never"
    REQUIRED = "Required"


class Network(Message):
    """How a job's pods talk to each other on a cluster. On one machine they use its loopback interface."""

    encryption: Encryption = Encryption.NEVER
    """Whether what ranks say to each other is encrypted, and taken from ranks of the job alone: ``Required`` or ``Never``."""
