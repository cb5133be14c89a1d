"""Why a pod that a node has taken does not start, in the kubelet's words: its events, because its status says nothing of a volume."""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lmj_operator.backend.budget import Budget
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.cache import Key, Object
from lmj_operator.backend.kubernetes.pod_state import one_line, seconds, word
from lmj_operator.backend.kubernetes.resources import EVENTS
from lmj_operator.plan import PodObserved, PodPhase, PodWait

SLOW_SECONDS = 5.0
"""A pod whose image is there starts faster."""
AGAIN_SECONDS = 5.0
LONGEST_AGAIN_SECONDS = 60.0
EVENTS_READ = 100
PODS_AT_ONCE = 4
PAUSE_SECONDS = 1.0


def event_lists() -> Budget:
    """For the pods of all jobs. The API server reads all events of a namespace to find those of one pod, and when a thousand jobs are made,
    thousands of pods start slowly at once.
    """
    return Budget(PODS_AT_ONCE, PAUSE_SECONDS)


_MISSING = re.compile(r"\b(secret|configmap)s? .*not found|references non-existent")
"""What the kubelet says of what the template names and is not there: a pod on another node misses it too."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Said:
    wait: PodWait | None
    pause: float
    again: float
    """Its events are read again then."""


class StartTrouble:
    """Of the pods of one job."""

    def __init__(self, api: Api, lists: Budget, clock: Callable[[], float]) -> None:
        self._api, self._lists = api, lists
        self._clock = clock
        self._said: dict[str, _Said] = {}

    async def told(self, job: Key, pods: Sequence[tuple[Object, PodObserved]]) -> list[tuple[Object, PodObserved]]:
        """``pods``; those that take long to start with what keeps them."""
        now = self._clock()
        slow = {pod["metadata"]["uid"]: pod for pod, seen in pods if _is_slow(seen, now)}
        self._said = {uid: said for uid, said in self._said.items() if uid in slow}
        due = sorted((self._said[uid].again if uid in self._said else 0.0, uid) for uid in slow)
        for again, uid in due:
            if again > now or not self._lists.take(now):
                break
            await self._look(job, slow[uid], now)
        return [(pod, self._with(pod["metadata"]["uid"], seen)) for pod, seen in pods]

    def _with(self, uid: str, seen: PodObserved) -> PodObserved:
        said = self._said.get(uid)
        return seen if said is None or said.wait is None else replace(seen, waits=replace(said.wait, since=seen.created))

    async def _look(self, job: Key, pod: Object, now: float) -> None:
        uid, before = pod["metadata"]["uid"], self._said.get(pod["metadata"]["uid"])
        pause = AGAIN_SECONDS if before is None else min(2 * before.pause, LONGEST_AGAIN_SECONDS)
        query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(EVENTS_READ)}
        try:
            wait = _wait(await self._api.list(EVENTS, job[0], query))
        except ApiError as error:
            log.info("why pod %s does not start is not known: %s", pod["metadata"]["name"], error, extra={"job": job})
            wait = before.wait if before is not None else None
        self._said[uid] = _Said(wait, pause, now + pause)


def _is_slow(seen: PodObserved, now: float) -> bool:
    waits = seen.phase is PodPhase.PENDING and seen.node is not None and seen.waits is None
    return waits and now - seen.created >= SLOW_SECONDS


def _wait(page: Object) -> PodWait | None:
    """What the newest of the events warns of; None: nothing, it gets on. The kubelet's, where it told any: each writer has its own clock."""
    events = [event for event in page.get("items") or [] if isinstance(event, dict)]
    of_kubelet = [event for event in events if _writer(event) == "kubelet"]
    newest = max(of_kubelet or [event for event in events if event.get("type") == "Warning"], key=_time, default={})
    if newest.get("type") != "Warning":
        return None
    message = one_line(newest.get("message"))
    return PodWait(word(newest.get("reason"), "DoesNotStart"), message, 0.0, elsewhere=_MISSING.search(message) is None)


def _writer(event: Object) -> object:
    source = event.get("source")
    return (source.get("component") if isinstance(source, dict) else None) or event.get("reportingComponent")


def _time(event: Object) -> float:
    """When it was last seen."""
    try:
        stamps = ((event.get("series") or {}).get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
        return max(seconds(stamp) for stamp in stamps)
    except (TypeError, ValueError, AttributeError):
        return 0.0  # anybody may write one
