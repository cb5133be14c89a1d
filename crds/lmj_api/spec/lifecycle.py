"""What is left of a job when it ends."""

from enum import StrEnum


class CleanPodPolicy(StrEnum):
    """Pods deleted when the job ends: ``All``, only those still ``Running``, or ``None``."""

    ALL = "All"
    RUNNING = "Running"
    NONE = "None"
