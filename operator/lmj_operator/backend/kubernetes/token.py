"""The Secret with the token of a job's agents. Agents were started with it, so it stays the same for as long as the job has pods."""

import asyncio
import base64
import binascii
import secrets

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.api import Api, ApiError, Object
from lmj_operator.backend.kubernetes.build.children import build_secret
from lmj_operator.backend.kubernetes.pod_state import owner_uid
from lmj_operator.backend.kubernetes.resources import SECRETS
from lmj_operator.backend.port import ActionError


class Token:
    """Of one job."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: str | None = None
        self._reading = asyncio.Lock()

    def forget(self) -> None:
        """The Secret is gone, as it was to."""
        self._known = None

    async def read(self, job: LiveMigrationJob) -> str | None:
        """The token; None: the job has no Secret. Raises ApiError."""
        if self._known is None:
            async with self._reading:  # for each of a job's pods at once, by an operator that is new
                if self._known is None:
                    secret = await self._api.get(SECRETS, job.metadata.namespace, labels.secret_name(job))
                    if secret is not None and owner_uid(secret) == job.metadata.uid:
                        self._known = _token_in(secret)
        return self._known

    async def ensure(self, job: LiveMigrationJob, there: bool) -> Object:
        """The Secret is there, with the token that agents were started with, if that is known. Raises ApiError, and ActionError.

        ``there``: as far as the watch told there is one. One that holds another token than we know was changed by somebody: it is
        made again.
        """
        body = build_secret(job, self._known or secrets.token_urlsafe(32))
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        refusal: ApiError | None = None
        if not there:
            try:
                return await self._create(body)
            except ApiError as error:
                if not error.exists and error.status != 403:  # a quota is asked before it is seen that there is one of this name
                    raise
                refusal = error
        found = await self._api.get(SECRETS, namespace, name)
        if found is None and refusal is None:
            return await self._create(body)
        if found is None or owner_uid(found) != job.metadata.uid:
            if refusal is not None and not refusal.exists:
                raise refusal
            raise ActionError(f"Secret {name} is there already and is not of this job")
        held = _token_in(found)
        if held is not None and self._known in (None, held):
            self._known = held
            return await self._with_labels(found, body)
        await self._api.delete(SECRETS, namespace, name, uid=found["metadata"]["uid"])
        return await self._create(body)

    async def _create(self, body: Object) -> Object:
        made = await self._api.create(SECRETS, body)
        self._known = body["stringData"]["token"]
        return made

    async def _with_labels(self, there: Object, body: Object) -> Object:
        """The Secret, which the watch sees by its labels. Raises ApiError."""
        wanted = body["metadata"]["labels"]
        if wanted.items() <= (there["metadata"].get("labels") or {}).items():
            return there
        metadata = {**{key: body["metadata"][key] for key in ("name", "namespace", "labels")}, "uid": there["metadata"]["uid"]}
        return await self._api.apply(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}, force=True)


def _token_in(secret: Object) -> str | None:
    """What a Secret holds; None: no token."""
    try:
        return base64.b64decode(secret["data"]["token"], validate=True).decode("ascii") or None
    except (KeyError, TypeError, binascii.Error, ValueError):
        return None
