"""Whether a job says why it is as it is."""

from collections.abc import Mapping
from typing import Any

REFUSED, FAILED_PASS = "ChangeRefused", "ReconcileFailed"
UNREADABLE = "StatusUnreadable"
ENDED = ("Succeeded", "Failed", "Suspended")


def unsaid(job: Mapping[str, Any], stranger: bool = False) -> str | None:
    """What the status of ``job`` does not say of it; None: it says all.

    It has a phase. It speaks of the newest spec, or says why it does not follow that. Unless it trains it says why. Where a
    ``stranger`` wrote the status it may be left alone, if that is said, or have an end that nobody gives a reason for.
    """
    status = job.get("status") or {}
    if stranger and any(c.get("reason") == UNREADABLE and c.get("message") for c in status.get("conditions") or ()):
        return None
    if not status.get("phase"):
        return "it has no phase"
    if not followed(job) and not any(holds(job, kind) for kind in (REFUSED, FAILED_PASS)):
        return f"it speaks of generation {status.get('observedGeneration')}, and not of {job['metadata']['generation']}"
    waits = any(c.get("message") and c.get("status") == "True" for c in status.get("conditions") or ())
    if stranger and status["phase"] in ENDED[:2]:
        return None
    if status["phase"] != "Running" and not status.get("message") and not waits:
        return f"it is {status['phase']} without a word"
    return None


def followed(job: Mapping[str, Any]) -> bool:
    """Whether the status speaks of the newest spec, or the job has ended and no spec changes it any more."""
    status = job.get("status") or {}
    ended = status.get("phase") in ENDED[:2] and status.get("started") is not None
    return ended or status.get("observedGeneration") == job["metadata"]["generation"]


def holds(job: Mapping[str, Any], kind: str) -> bool:
    """Whether the condition ``kind`` is true of ``job``."""
    return any(c.get("type") == kind and c.get("status") == "True" for c in (job.get("status") or {}).get("conditions") or ())


def has_had(job: Mapping[str, Any], kind: str) -> bool:
    """Whether the condition is true of ``job``, or was."""
    return any(c.get("type") == kind for c in (job.get("status") or {}).get("conditions") or ())
