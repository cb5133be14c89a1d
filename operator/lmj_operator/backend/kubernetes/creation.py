"""Making pods: what the API server refuses for good, what it refuses for now, and when to try again."""

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from lmj_api.clock import steady_time
from lmj_api.names import pod_name, standby_name
from lmj_api.problems import SpecError
from lmj_api.protocol import USER_ERROR
from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.budget import Budget
from lmj_operator.backend.kubernetes.api import Api, ApiError, Object
from lmj_operator.backend.kubernetes.build.kept_template import is_large
from lmj_operator.backend.kubernetes.build.pod import build_pod
from lmj_operator.backend.kubernetes.cache import Cache
from lmj_operator.backend.kubernetes.children import Children
from lmj_operator.backend.kubernetes.pod_state import owner_uid
from lmj_operator.backend.kubernetes.resources import PODS
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.port import ActionError
from lmj_operator.backend.rounds import turn
from lmj_operator.plan import CreatePod, PodObserved, PodPhase, PodWait

PODS_OF_A_RANK = 4
PODS_BESIDES = 16
POD_SECONDS = 2.0
"""A job makes so many pods for each rank, and so many besides, as fast as it wants, and then for each rank one in so long, whatever its
spec says."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Unmade:
    """A pod that the API server did not take."""

    action: CreatePod
    since: float
    reason: str
    message: str
    final: bool
    """The pod itself is wrong, so the job's template is."""
    tries: int
    not_before: float

    def observed(self, name: str) -> PodObserved:
        """How the plan sees it: as a pod that waits, or one that ended with a user's error."""
        rank, serial, cut = self.action.rank, self.action.serial, self.action.cut
        if self.final:
            code, message = USER_ERROR, self.message
            return PodObserved(name, rank, serial, PodPhase.GONE, self.since, exit_code=code, exit_message=message, cut=cut)
        wait = PodWait(self.reason, self.message, self.since)
        return PodObserved(name, rank, serial, PodPhase.PENDING, self.since, waits=wait, cut=cut)


class Creation:
    """Makes the pods of one job."""

    def __init__(
        self,
        api: Api,
        cache: Cache,
        children: Children,
        settings: Settings,
        clock: Callable[[], float] = steady_time,
    ) -> None:
        self._api = api
        self._cache = cache
        self._children = children
        self.settings = settings
        """Of the next pod: whoever knows the job's pods says what it joins."""
        self._clock = clock
        self.unmade: dict[str, Unmade] = {}
        self._hold: tuple[int, float] = (0, 0.0)
        self._ranks = 0
        self._pods = Budget(PODS_BESIDES, POD_SECONDS)

    async def create(self, job: LiveMigrationJob, action: CreatePod) -> None:
        """Make the pod that ``action`` asks for. Raises ActionError.

        One that is there is left as it is, and none is made while a refusal is waited out.
        """
        rank, serial = action.rank, action.serial
        owner, now = job.metadata.name, self._clock()
        name = standby_name(owner, serial) if rank is None else pod_name(owner, rank, serial)
        if now < self._hold[1] or name in self.unmade or not self._may_make(job.spec.world_size):
            return
        try:
            await self._ensure(job)
            made = await self._made(job, action)
        except SpecError as error:
            self.unmade[name] = Unmade(action, now, "Invalid", str(error), True, 1, now)
        except ApiError as error:
            await self._failed(job, name, action, error, now)
        except ActionError:
            self._wait(now)
            raise
        else:
            self._hold = (0, 0.0)
            self._cache.add_pod(made)

    async def retry(self, job: LiveMigrationJob) -> None:
        """Try again what was refused for now, when its time has come. Raises ActionError."""
        now = self._clock()
        for name, unmade in list(self.unmade.items()):
            if unmade.final or now < unmade.not_before:
                continue
            try:
                # What was refused may be one of them and not the pod.
                await self._ensure(job)
                made = await self._made(job, unmade.action)
            except ActionError:
                del self.unmade[name]
                self._wait(now)
                raise
            except ApiError as error:
                del self.unmade[name]
                await self._failed(job, name, unmade.action, error, now, unmade)
            else:
                del self.unmade[name]
                self._cache.add_pod(made)

    def _may_make(self, ranks: int) -> bool:
        """Whether one more pod may be made by now; another pass asks again."""
        if ranks > self._ranks:
            # What was made before counts: who grows by one rank again and again gets no more than who begins with all.
            self._pods.widen(PODS_OF_A_RANK * (ranks - self._ranks), POD_SECONDS / ranks)
            self._ranks = ranks
        return self._pods.take(time.monotonic())

    async def _made(self, job: LiveMigrationJob, action: CreatePod) -> Object:
        """The pod as the API server has made it. Raises SpecError and ApiError."""
        # All of a job's pods are made at the same time, those of many jobs are, and a template may be large.
        async with self._api.large.taken() if is_large(job) else nullcontext():
            await turn(long=is_large(job))
            cut, settings = job.cut_into(action.cut), self.settings
            pod = build_pod(cut, settings, action.rank, action.serial, action.avoid, action.node)
            if is_large(job):
                await turn()  # for it is written as JSON now
            return await self._api.create(PODS, pod)

    def forget(self, name: str) -> None:
        """The pod is not wanted any more."""
        self.unmade.pop(name, None)

    async def _ensure(self, job: LiveMigrationJob) -> None:
        """The job's other objects are there. Raises ApiError; ActionError when they cannot be had now and it says nothing of the pod."""
        before = self._children.made
        try:
            await self._children.ensure(job)
        except ApiError as error:
            if self._children.made > before:
                self._hold = (0, self._hold[1])  # it gets on: no reason to wait longer and longer
            if error.status == 409:
                raise ActionError(str(error)) from error
            raise

    async def _failed(
        self,
        job: LiveMigrationJob,
        name: str,
        action: CreatePod,
        error: ApiError,
        now: float,
        before: Unmade | None = None,
    ) -> None:
        if error.exists:
            there = await self._there(job, name, error, now)
            if there:
                return
        if error.status == 403 or error.invalid:
            tries = before.tries + 1 if before is not None else 1
            wait = min(FIRST_RETRY_SECONDS * 2.0 ** min(tries, 10), LONGEST_RETRY_SECONDS)
            since = before.since if before is not None else now
            reason = error.reason if error.reason.isalpha() else "Refused"
            self.unmade[name] = Unmade(action, since, reason, error.message, error.invalid, tries, now + wait)
            return
        self._wait(now)
        raise ActionError(str(error)) from error

    async def _there(self, job: LiveMigrationJob, name: str, error: ApiError, now: float) -> bool:
        """Whether the pod that has the name is this job's (the watch is late then)."""
        try:
            pod = await self._api.get(PODS, job.metadata.namespace, name)
        except ApiError as failed:
            raise ActionError(str(failed)) from failed
        if pod is not None and owner_uid(pod) == job.metadata.uid:
            self._cache.add_pod(pod)
            return True
        self._wait(now)
        raise ActionError(f"pod {name} of an earlier job is not gone yet") from error

    def _wait(self, now: float) -> None:
        tries = self._hold[0] + 1
        self._hold = (tries, now + min(FIRST_RETRY_SECONDS * 2.0 ** min(tries - 1, 10), LONGEST_RETRY_SECONDS))
