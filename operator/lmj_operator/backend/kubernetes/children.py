"""The job's objects besides its pods: there before the first pod and as they should be, whatever changed them; removed after the last."""

import asyncio
import hashlib
import json
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from lmj_api.clock import steady_time
from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.api import Api, ApiError, Object
from lmj_operator.backend.kubernetes.build.children import (
    build_claims,
    build_disruption_budget,
    build_network_policy,
    build_service,
)
from lmj_operator.backend.kubernetes.child_cache import ChildCache, Stamp
from lmj_operator.backend.kubernetes.pod_state import owner_uid
from lmj_operator.backend.kubernetes.resources import BUDGETS, CLAIMS, POLICIES, SERVICES, Resource
from lmj_operator.backend.kubernetes.settings import Settings

_Child = tuple[Resource, str]
"""Kind and name."""

AGAIN_SECONDS = 10.0
"""An object is repaired at most this often: somebody may change it again and again."""

HELD_SECONDS = 60.0
"""An object that needed no repair for this long is in order: its next repair is logged. Passes are less far apart."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Made:
    digest: str
    """What was wanted."""
    stamp: Stamp | None
    """What the API server made of it; None: nobody looks whether it is so still."""


class Children:
    """Of one job."""

    def __init__(self, api: Api, cache: ChildCache, settings: Settings, clock: Callable[[], float] = steady_time) -> None:
        self._api = api
        self._cache = cache
        self._settings = settings
        self._clock = clock
        self._begun = False
        """All of them were asked for."""
        self._made: dict[_Child, _Made] = {}
        self._mended_at: dict[_Child, float] = {}
        """When each was last repaired."""
        self._released: set[_Child] = set()
        self._digests: tuple[LiveMigrationJob, dict[_Child, str]] | None = None
        """Of what the job wants. The objects themselves are built when they are made, which is seldom: there are thousands of jobs."""
        # Pods are made at the same time, and each wants all of this first.
        self._making = asyncio.Lock()

    @property
    def made(self) -> int:
        """How many are known to be there."""
        return len(self._made)

    async def ensure(self, job: LiveMigrationJob) -> None:
        """All are there, as the spec wants them. Raises ApiError, the first, when all were tried: another time only what is missing is."""
        async with self._making:
            self._begun = True
            self._released.clear()
            await self._make(job, self._lacking(job))

    async def keep(self, job: LiveMigrationJob) -> None:
        """What was made is as it should be: the spec may have changed, and people change and delete objects. Raises as :meth:`ensure`.

        Not the claims: what has no room for another one would keep the others from being fixed.
        """
        async with self._making:
            # What was asked for and is not there yet, creation asks for again. Of what an operator before this one made nothing is known.
            lacking = [c for c in self._lacking(job) if c[0] != CLAIMS and (c in self._made or not self._begun)]
            now, wanted = self._clock(), self._wanted(job)
            due = [c for c in lacking if self._made_as(c, wanted[c]) is None or now - self._last_mended(c) >= AGAIN_SECONDS]
            await self._make(job, due)

    def _lacking(self, job: LiveMigrationJob) -> list[_Child]:
        """What is not there as it should be, as far as the watches and we ourselves know."""
        return [child for child, digest in self._wanted(job).items() if not self._stands(job, child, digest)]

    def _stands(self, job: LiveMigrationJob, child: _Child, digest: str) -> bool:
        made, (resource, name) = self._made_as(child, digest), child
        return made is not None and made.stamp in (None, self._cache.stamp(resource, job.metadata.namespace or "", name))

    def _made_as(self, child: _Child, digest: str) -> _Made | None:
        """What was made as is wanted. None: nothing was, or the spec has changed since."""
        made = self._made.get(child)
        return made if made is not None and made.digest == digest else None

    def _last_mended(self, child: _Child) -> float:
        return self._mended_at.get(child, -math.inf)

    def _wanted(self, job: LiveMigrationJob) -> dict[_Child, str]:
        """The digest of each."""
        if self._digests is None or self._digests[0] is not job:
            self._digests = job, {child: _digest(body) for child, body in self._bodies(job).items()}
        return self._digests[1]

    def _bodies(self, job: LiveMigrationJob) -> dict[_Child, Object]:
        name = labels.trainers(job)
        return {
            (POLICIES, name): build_network_policy(job, self._settings),
            (BUDGETS, name): build_disruption_budget(job),
            (SERVICES, name): build_service(job),
            **{(CLAIMS, claim["metadata"]["name"]): claim for claim in build_claims(job)},
        }

    async def _make(self, job: LiveMigrationJob, children: list[_Child]) -> None:
        # At the same time: each costs an answer of the API server, and pods wait for all of them.
        bodies = self._bodies(job) if children else {}
        made = await asyncio.gather(*(self._make_one(job, child, bodies[child]) for child in children))
        if (first := next((error for error in made if error is not None), None)) is not None:
            raise first

    async def _make_one(self, job: LiveMigrationJob, child: _Child, body: Object) -> ApiError | None:
        resource, digest = child[0], self._wanted(job)[child]
        try:
            made = await self._steps(job)[resource](body)
        except ApiError as error:
            return error
        if self._made_as(child, digest) is not None:
            self._mended(job, child)
        self._made[child] = _Made(digest, self._cache.made(resource, made) if made is not None else None)
        return None

    def _mended(self, job: LiveMigrationJob, child: _Child) -> None:
        now, before = self._clock(), self._last_mended(child)
        self._mended_at[child] = now
        if now - before >= HELD_SECONDS:
            text = "%s of the job was deleted or changed by somebody and is as it should be again"
            log.warning(text, f"{child[0].plural}/{child[1]}", extra={"job": (job.metadata.namespace, job.metadata.name)})

    def _steps(self, job: LiveMigrationJob) -> dict[Resource, Callable[[Object], Awaitable[Object | None]]]:
        return {
            POLICIES: lambda body: self._apply(POLICIES, body),
            BUDGETS: lambda body: self._apply(BUDGETS, body),
            SERVICES: lambda body: self._apply(SERVICES, body),
            CLAIMS: self._ensure_claim,
        }

    async def _apply(self, kind: Resource, body: Object) -> Object:
        """The object is as ``body`` says; another's of this name is left alone. Raises ApiError."""
        try:
            return await self._api.apply(kind, body)
        except ApiError as error:
            if error.status != 409:
                raise
            metadata = body["metadata"]
            there = await self._api.get(kind, metadata["namespace"], metadata["name"])
            if there is None or owner_uid(there) != owner_uid(body):
                raise
            # It is the job's own: somebody else has set what conflicts.
            return await self._api.apply(kind, {**body, "metadata": {**metadata, "uid": there["metadata"]["uid"]}}, force=True)

    async def _ensure_claim(self, claim: Object) -> None:
        # Made once: what is in it matters more than what the spec says of it by now.
        try:
            await self._api.create(CLAIMS, claim)
        except ApiError as error:
            metadata = claim["metadata"]
            # A quota that is used up is asked before it is seen that there is one of this name, of an operator before this.
            there = error.status == 403 and await self._api.get(CLAIMS, metadata["namespace"], metadata["name"]) is not None
            if not (there or error.exists):
                raise

    async def release(self, job: LiveMigrationJob) -> None:
        """Remove all but the claims. Raises ApiError, the first, when all were tried: another time only what is left is."""
        first: ApiError | None = None
        for resource, name in (
            (SERVICES, labels.trainers(job)),
            (POLICIES, labels.trainers(job)),
            (BUDGETS, labels.trainers(job)),
        ):
            if (resource, name) in self._released:
                continue
            made = self._made.get((resource, name))
            uid = made.stamp.uid if made is not None and made.stamp is not None else None
            try:
                if uid is None:
                    # An operator before this one may have made it, or somebody else: then the job never had one of its own.
                    there = await self._api.get(resource, job.metadata.namespace, name)
                    uid = there["metadata"]["uid"] if there is not None and owner_uid(there) == job.metadata.uid else None
                if uid is not None:
                    await self._api.delete(resource, job.metadata.namespace, name, uid=uid)
            except ApiError as error:
                first = first or error
            else:
                self._released.add((resource, name))
                self._made.pop((resource, name), None)
        if first is not None:
            raise first
        self._begun = False


def _digest(body: Object) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
