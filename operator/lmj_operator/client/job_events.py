"""What the operator told about a job: its Kubernetes events."""

import asyncio
from collections.abc import AsyncGenerator

from lmj_operator.backend.kubernetes.api import ApiError, Object
from lmj_operator.backend.kubernetes.resources import EVENTS
from lmj_operator.backend.kubernetes.watch import BUSY, GONE, WATCH_SECONDS
from lmj_operator.client.job_news import JobEvent
from lmj_operator.client.jobs import Jobs

RETRY_SECONDS = 1.0


async def events(jobs: Jobs, namespace: str, name: str, follow: bool) -> AsyncGenerator[JobEvent]:
    """The events of the job that has the name now, oldest first; with ``follow`` also those to come, without end. Raises as :class:`Jobs`."""
    uid = (await jobs.get(namespace, name))["metadata"]["uid"]
    query = {"fieldSelector": f"involvedObject.uid={uid}"}
    told: set[tuple[str, str]] = set()
    first = True
    while True:
        try:
            page = await jobs.api.list(EVENTS, namespace, query)
            for event in sorted(page["items"], key=_order):
                if (key := _key(event)) not in told:
                    told.add(key)
                    yield _event(event)
            if not follow:
                return
            first = False
            since = {"resourceVersion": page["metadata"]["resourceVersion"], "timeoutSeconds": str(WATCH_SECONDS)}
            async for kind, event in jobs.api.watch(EVENTS, namespace, {**query, **since, "allowWatchBookmarks": "true"}):
                if kind in ("ADDED", "MODIFIED") and (key := _key(event)) not in told:
                    told.add(key)
                    yield _event(event)
        except ApiError as error:
            if first or (error.status not in (0, GONE, BUSY) and error.status < 500):
                raise
        await asyncio.sleep(RETRY_SECONDS)


def _key(event: Object) -> tuple[str, str]:
    """An event that is counted on is news again."""
    return event["metadata"]["uid"], str(event.get("count"))


def _order(event: Object) -> tuple[str, int]:
    """Times are to the second; versions of one kind of object grow."""
    return _time(event), int(event["metadata"].get("resourceVersion") or 0)


def _time(event: Object) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _event(event: Object) -> JobEvent:
    return JobEvent(_time(event), str(event.get("reason")), str(event.get("message")), event.get("type") == "Warning")
