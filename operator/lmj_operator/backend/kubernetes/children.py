"""The job's objects besides its pods: made before the first pod, removed after the last."""

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable
from functools import partial

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.api import Api, ApiError, Object
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

_Child = tuple[Resource, str]
"""Kind and name."""


class Children:
    """Of one job."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self._api = api
        self._settings = settings
        self._wanted: str | None = None
        self._all_of: str | None = None
        self._made: set[_Child] = set()
        self._budget: int | None = None
        """Pods of which the budget says that they may not be evicted; None: not known."""
        self._token: str | None = None
        self._released: set[_Child] = set()
        # Pods are made at the same time, and each wants all of this first.
        self._making = asyncio.Lock()

    @property
    def made(self) -> int:
        """How many are known to be there."""
        return len(self._made)

    async def ensure(self, job: LiveMigrationJob) -> None:
        """All are there, as the spec wants them. Raises ApiError, the first, when all were tried: another time only what is missing is.

        Raises ActionError while an earlier job's Secret is not gone yet.
        """
        async with self._making:
            # What of the spec the objects depend on; keep_budget sees to the rest.
            wanted = job.spec.storage.to_json()
            if self._all_of == wanted:
                return
            if self._wanted != wanted:
                self._made.clear()
                self._wanted = wanted
            self._released.clear()
            first: ApiError | None = None
            for child, make in self._steps(job).items():
                if child in self._made:
                    continue
                try:
                    await make()
                except ApiError as error:
                    first = first or error
                else:
                    self._made.add(child)
            if first is not None:
                raise first
            self._all_of = wanted

    def _steps(self, job: LiveMigrationJob) -> dict[_Child, Callable[[], Awaitable[object]]]:
        api, name = self._api, labels.trainers(job)
        return {
            (SECRETS, labels.secret_name(job)): lambda: self._ensure_secret(job),
            (POLICIES, name): lambda: api.apply(POLICIES, build_network_policy(job, self._settings)),
            (BUDGETS, name): lambda: self._apply_budget(job),
            (SERVICES, name): lambda: api.apply(SERVICES, build_service(job)),
            **{(CLAIMS, claim["metadata"]["name"]): partial(self._ensure_claim, claim) for claim in build_claims(job)},
        }

    async def keep_budget(self, job: LiveMigrationJob) -> None:
        """What may be evicted is as the spec wants it by now, in a job that has all its objects. Raises ApiError.

        The other objects are not asked for: what has no room for another claim would keep this one from being changed.
        """
        async with self._making:
            begun = self._wanted is not None and (BUDGETS, labels.trainers(job)) not in self._made
            if not begun and self._budget != build_disruption_budget(job)["spec"]["minAvailable"]:
                await self._apply_budget(job)

    async def _apply_budget(self, job: LiveMigrationJob) -> None:
        body = build_disruption_budget(job)
        await self._api.apply(BUDGETS, body)
        self._budget = body["spec"]["minAvailable"]

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

    async def token(self, job: LiveMigrationJob) -> str | None:
        """The token of the job's agents; None: it has no Secret. Raises ApiError."""
        if self._token is None:
            secret = await self._api.get(SECRETS, job.metadata.namespace, labels.secret_name(job))
            if secret is not None and owner_uid(secret) == job.metadata.uid:
                self._token = base64.b64decode(secret["data"]["token"]).decode()
        return self._token

    async def release(self, job: LiveMigrationJob) -> None:
        """Remove all but the claims. Raises ApiError, the first, when all were tried: another time only what is left is."""
        self._all_of = self._budget = None
        first: ApiError | None = None
        for resource, name in (
            (SERVICES, labels.trainers(job)),
            (POLICIES, labels.trainers(job)),
            (BUDGETS, labels.trainers(job)),
            (SECRETS, labels.secret_name(job)),
        ):
            if (resource, name) in self._released:
                continue
            try:
                uid, ours = None, (resource, name) in self._made
                if not ours:
                    # An operator before this one may have made it, or somebody else: then the job never had one of its own.
                    there = await self._api.get(resource, job.metadata.namespace, name)
                    uid = there["metadata"]["uid"] if there is not None and owner_uid(there) == job.metadata.uid else None
                if ours or uid is not None:
                    await self._api.delete(resource, job.metadata.namespace, name, uid=uid)
            except ApiError as error:
                first = first or error
            else:
                self._released.add((resource, name))
                self._made.discard((resource, name))
        if first is not None:
            raise first
        self._wanted = self._token = None

    async def _ensure_secret(self, job: LiveMigrationJob) -> None:
        token = secrets.token_urlsafe(32)
        try:
            await self._api.create(SECRETS, build_secret(job, token))
        except ApiError as error:
            if not error.exists and error.status != 403:  # a quota, as of the claims
                raise
            # It holds what living agents were started with: it is never replaced.
            if await self.token(job) is None:
                if not error.exists:
                    raise
                raise ActionError(f"Secret {labels.secret_name(job)} is there already and is not of this job") from error
        else:
            self._token = token
