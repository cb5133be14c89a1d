"""Kubernetes events of a job: what a pass changed, as ``kubectl describe`` shows it."""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lmj_api.names import API_VERSION, KIND
from lmj_api.status import Incident, IncidentKind, JobStatus, Phase
from lmj_operator.backend.budget import Budget
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.cache import Key
from lmj_operator.backend.kubernetes.resources import EVENTS
from lmj_operator.plan.failures.incidents import NOT_FAILED, OF_REPLICAS, again, cost, proof, whole
from lmj_operator.plan.failures.replicas import named
from lmj_operator.plan.observe.times import rfc3339
from lmj_operator.plan.report.conditions import (
    MIGRATING,
    NOT_ENFORCED,
    NOT_FINITE,
    PUBLISHED,
    RECONCILE_FAILED,
    RECUTTING,
    STALE,
    STRAGGLER,
    WAITING,
)

log = logging.getLogger(__name__)

_LONGEST = 1000
WAITING_NOTES = 10_000
"""Notes that wait to be posted; while the API server does not take them, newer ones are dropped."""
NOTES_AT_ONCE = 100
NOTE_SECONDS = 2.0
"""One job has so many events at once, and then one in so long; more are dropped, and status tells all the same."""


@dataclass(frozen=True, slots=True)
class Note:
    """One event."""

    reason: str
    message: str
    warning: bool = False


def notes(before: JobStatus, after: JobStatus) -> list[Note]:
    """What is new in ``after``."""
    made = []
    known = {(i.time, i.rank, i.kind) for i in before.incidents}
    made += [
        Note(i.kind, _noticed(i), warning=i.kind not in NOT_FAILED)
        for i in after.incidents
        if (i.time, i.rank, i.kind) not in known
    ]
    # That training goes on without a replica is told by what befell it.
    open_before = {(i.time, i.rank, i.kind) for i in before.incidents if i.seconds is None and i.kind not in OF_REPLICAS}
    made += [
        Note(i.kind if i.kind in NOT_FAILED else "Recovered", _recovered(i, i.seconds))
        for i in after.incidents
        if i.seconds is not None and (i.time, i.rank, i.kind) in open_before
    ]
    missed = {(i.time, i.rank, i.kind) for i in before.incidents if i.whole_seconds is None and i.kind in OF_REPLICAS}
    made += [_whole(i, told) for i in after.incidents if (told := whole(i)) is not None and (i.time, i.rank, i.kind) in missed]
    held = {(c.type, c.reason) for c in before.conditions if c.status == "True"}
    made += [
        Note(c.reason if c.type == WAITING else c.type, c.message, warning=c.type not in (MIGRATING, RECUTTING))
        for c in after.conditions
        if c.type in (WAITING, STALE, MIGRATING, RECUTTING, NOT_FINITE, NOT_ENFORCED, STRAGGLER, RECONCILE_FAILED)
        and c.status == "True"
        and (c.type, c.reason) not in held
    ]
    said = {(c.type, c.reason) for c in before.conditions}
    made += [
        Note(PUBLISHED if c.status == "True" else c.reason, c.message, warning=c.status != "True")
        for c in after.conditions
        if c.type == PUBLISHED and c.reason != "Pushing" and (c.type, c.reason) not in said
    ]
    if after.move_refused is not None and after.move_request != before.move_request:
        made.append(Note("RequestRefused", after.move_refused, warning=True))
    if before.started is None and after.started is not None:
        made.append(Note("Started", "its pods are being made"))
    if after.phase is not before.phase:
        made.append(Note(after.phase.value, after.message or after.phase.value, warning=after.phase is Phase.FAILED))
    return made


def _noticed(incident: Incident) -> str:
    if incident.kind is IncidentKind.RECUT:
        return incident.message
    if incident.kind is IncidentKind.SCALED:
        return f"{incident.message} at step {incident.step}"
    return f"{incident.message}; rank {incident.rank} {_where(incident)} at step {incident.step}, noticed {_by(incident)}"


def _recovered(incident: Incident, seconds: float) -> str:
    """The whole story: what shows only this event, as after an hour, shows all of it."""
    if incident.kind is IncidentKind.RECUT:
        return "; ".join(part for part in (incident.message, cost(incident), incident.recovery) if part is not None)
    if incident.kind is IncidentKind.MOVED:
        told = (f"rank {incident.rank} moved", cost(incident), incident.recovery, proof(incident))
        return "; ".join(part for part in told if part is not None)
    what = f"{incident.kind} of rank {incident.rank} {_where(incident)}"
    when = f"noticed {_by(incident)} at step {incident.step}"
    return f"recovered from {what} in {seconds:.2f} s, {again(incident)}; {when}; {incident.recovery}; it was: {incident.message}"


def _whole(incident: Incident, told: str) -> Note:
    """``told``: since when all replicas train."""
    if incident.kind is IncidentKind.SCALED:
        return Note(incident.kind, f"{incident.message}; {told}")
    return Note("ReplicaJoined", f"{named(incident.replicas)}: {told}; it was: {incident.message}")


def _where(incident: Incident) -> str:
    return f"in {incident.pod}" + (f" on {incident.node}" if incident.node is not None else "")


def _by(incident: Incident) -> str:
    """Who noticed, and when: an event itself tells to the second when it was written, and people are shown its age alone."""
    return f"by {incident.noticed_by} at {incident.time}"


class Notebook:
    """Posts notes behind the passes: none waits for them, and one that is lost is not written again. Jobs take turns."""

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._waiting: dict[Key, deque[tuple[Mapping[str, Any], Note, float]]] = {}
        """Of each job, in the order in which they come to their turns."""
        self._count = 0
        self._budgets: dict[Key, tuple[Budget, float]] = {}
        """Of jobs that posted not long ago, with when they did."""
        self._news = asyncio.Event()

    def post(self, metadata: Mapping[str, Any], note: Note, now: float) -> None:
        """Have ``note`` posted on the job with ``metadata``."""
        key, at = (metadata["namespace"], metadata["name"]), self._clock()
        budget = self._budgets.pop(key, (Budget(NOTES_AT_ONCE, NOTE_SECONDS), at))[0]
        self._budgets[key] = budget, at
        while at - next(iter(self._budgets.values()))[1] > NOTES_AT_ONCE * NOTE_SECONDS:
            del self._budgets[next(iter(self._budgets))]  # it would have all of it back by now
        if self._count >= WAITING_NOTES or not budget.take(at):
            _warn(f"an event was dropped: {note.message}", metadata)
            return
        self._waiting.setdefault(key, deque()).append((metadata, note, now))
        self._count += 1
        self._news.set()

    async def run(self) -> None:
        """Post what comes, until cancelled."""
        while True:
            await self._news.wait()
            metadata, note, now = self._next()
            try:
                await self._api.create(EVENTS, _event(metadata, note, now))
            except ApiError as error:
                _warn(f"an event could not be posted: {error}", metadata)

    def _next(self) -> tuple[Mapping[str, Any], Note, float]:
        key = next(iter(self._waiting))
        queue = self._waiting.pop(key)
        found = queue.popleft()
        if queue:
            self._waiting[key] = queue  # behind the others
        self._count -= 1
        if not self._waiting:
            self._news.clear()
        return found


def _event(metadata: Mapping[str, Any], note: Note, now: float) -> dict[str, Any]:
    stamp = rfc3339(now)[:19] + "Z"
    name, namespace = metadata["name"], metadata["namespace"]
    involved = {"apiVersion": API_VERSION, "kind": KIND, "name": name, "namespace": namespace, "uid": metadata["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": namespace},
        "involvedObject": involved,
        "reason": note.reason,
        "message": note.message[:_LONGEST],
        "type": "Warning" if note.warning else "Normal",
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "source": {"component": "lmj-operator"},
        "reportingComponent": "lmj-operator",
        "reportingInstance": "lmj-operator",
    }


def _warn(text: str, metadata: Mapping[str, Any]) -> None:
    log.warning("%s", text, extra={"job": (metadata["namespace"], metadata["name"])})
