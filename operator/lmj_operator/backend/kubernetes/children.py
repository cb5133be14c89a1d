"""The job's objects besides its pods: made before the first pod, removed after the last."""

import asyncio
import base64
import secrets

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.api import Api, ApiError
from lmj_operator.backend.kubernetes.build.children import (
    build_claims,
    build_disruption_budget,
    build_network_policy,
    build_secret,
    build_service,
)
from lmj_operator.backend.kubernetes.pod_state import owner_uid
from lmj_operator.backend.kubernetes.resources import BUDGETS, CLAIMS, POLICIES, SECRETS, SERVICES, Resource
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.port import ActionError


class Children:
    """Of one job."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._made: str | None = None
        self._token: str | None = None
        self._released: set[Resource] = set()
        # Pods are made at the same time, and each wants all of this first.
        self._making = asyncio.Lock()

    async def ensure(self, job: LiveMigrationJob) -> None:
        """All are there, as the spec wants them. Raises ApiError; ActionError while an earlier job's Secret is not gone yet."""
        async with self._making:
            wanted = job.spec.storage.to_json()
            if self._made != wanted:
                await self._make(job)
                self._made = wanted

    async def _make(self, job: LiveMigrationJob) -> None:
        self._released.clear()
        await self._ensure_secret(job)
        await self._api.apply(POLICIES, build_network_policy(job, self._settings))
        await self._api.apply(BUDGETS, build_disruption_budget(job))
        await self._api.apply(SERVICES, build_service(job))
        for claim in build_claims(job):
            # Made once: what is in it matters more than what the spec says of it by now.
            try:
                await self._api.create(CLAIMS, claim)
            except ApiError as error:
                if not error.exists:
                    raise

    async def token(self, job: LiveMigrationJob) -> str | None:
        """The token of the job's agents; None: it has no Secret. Raises ApiError."""
        if self._token is None:
            secret = await self._api.get(SECRETS, job.metadata.namespace, labels.secret_name(job))
            if secret is not None and owner_uid(secret) == job.metadata.uid:
                self._token = base64.b64decode(secret["data"]["token"]).decode()
        return self._token

    async def release(self, job: LiveMigrationJob) -> None:
        """Remove all but the claims. Raises ApiError, the first, when all were tried: another time only what is left is."""
        first: ApiError | None = None
        for resource, name in (
            (SERVICES, labels.trainers(job)),
            (POLICIES, labels.trainers(job)),
            (BUDGETS, labels.trainers(job)),
            (SECRETS, labels.secret_name(job)),
        ):
            if resource in self._released:
                continue
            try:
                uid = None
                if self._made is None:
                    # An operator before this one may have made it, or somebody else: then the job never had one of its own.
                    there = await self._api.get(resource, job.metadata.namespace, name)
                    uid = there["metadata"]["uid"] if there is not None and owner_uid(there) == job.metadata.uid else None
                if self._made is not None or uid is not None:
                    await self._api.delete(resource, job.metadata.namespace, name, uid=uid)
            except ApiError as error:
                first = first or error
            else:
                self._released.add(resource)
        if first is not None:
            raise first
        self._made = self._token = None

    async def _ensure_secret(self, job: LiveMigrationJob) -> None:
        token = secrets.token_urlsafe(32)
        try:
            await self._api.create(SECRETS, build_secret(job, token))
        except ApiError as error:
            if not error.exists:
                raise
            # It holds what living agents were started with: it is never replaced.
            if await self.token(job) is None:
                raise ActionError(f"Secret {labels.secret_name(job)} is there already and is not of this job") from error
        else:
            self._token = token
