"""How far a helper pod is, and what keeps it: pure functions of what the API server says."""

from collections.abc import Sequence
from typing import Any

from lmj_operator.backend.kubernetes.labels import CONTAINER
from lmj_operator.backend.kubernetes.pod_state import is_started, one_line

Object = dict[str, Any]
HOPELESS = frozenset({"InvalidImageName", "ErrImageNeverPull"})
"""Reasons that no waiting helps against."""
_NO_NEWS = frozenset({"ContainerCreating", "PodInitializing"})


def has_started(pod: Object) -> bool:
    """Whether commands can be run in it."""
    return is_started(pod) and pod["metadata"].get("deletionTimestamp") is None


def has_ended(pod: Object) -> str | None:
    """Why it will never start; None: it may."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp") is not None:
        return "somebody deleted it"
    if status.get("phase") in ("Failed", "Succeeded"):
        ended = (_container(pod).get("state") or {}).get("terminated") or {}
        said = one_line(status.get("message") or ended.get("message") or ended.get("reason"))
        return f"it ended at once: {status.get('reason') or ''} {said or 'no reason is known'}".replace("  ", " ")
    reason, _, _ = (waits_for(pod) or "").partition(":")
    return waits_for(pod) if reason in HOPELESS else None


def waits_for(pod: Object) -> str | None:
    """What keeps it from starting: a reason, and a message; None: nothing that is known."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    scheduled: Object = next((c for c in conditions if c.get("type") == "PodScheduled"), {})
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason') or 'Unschedulable'}: {one_line(scheduled.get('message'))}"
    waiting = (_container(pod).get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason")
    if reason and reason not in _NO_NEWS:
        return f"{reason}: {one_line(waiting.get('message')) or 'image ' + str(_image(pod))}"
    return None


def warned(events: Sequence[Object]) -> str | None:
    """The newest warning: of a volume that is not mounted the pod's status says nothing."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    newest = max(warnings, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default=None)
    return None if newest is None else f"{newest.get('reason')}: {one_line(newest.get('message'))}"


def claim_trouble(claim: Object | None, name: str, namespace: str, *, write: bool) -> str | None:
    """Why ``claim`` cannot be used; None: it can."""
    where = f"claim {namespace}/{name}"
    if claim is None:
        return f"{where}: there is none of this name; list them with: kubectl get pvc -n {namespace}"
    if claim["metadata"].get("deletionTimestamp") is not None:
        return f"{where}: it is being deleted; it goes when no pod uses it any more"
    if (claim.get("status") or {}).get("phase") == "Lost":
        return f"{where}: its volume is lost; see: kubectl describe pvc {name} -n {namespace}"
    if write and is_read_only(claim):
        return f"{where}: its only access mode is ReadOnlyMany: write by another claim of the same volume that allows it"
    return None


def is_read_only(claim: Object) -> bool:
    """Whether nobody may write by it."""
    return set((claim.get("spec") or {}).get("accessModes") or []) == {"ReadOnlyMany"}


def _container(pod: Object) -> Object:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((status for status in statuses if status.get("name") == CONTAINER), {})


def _image(pod: Object) -> object:
    containers = (pod.get("spec") or {}).get("containers") or []
    return next((c.get("image") for c in containers if c.get("name") == CONTAINER), None)
