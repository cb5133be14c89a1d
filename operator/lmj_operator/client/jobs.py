"""The jobs of a cluster, for who makes and asks them: the calls behind ``lmj migrate``, ``lmj scale`` and the Python client."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from kubernetes.aio.client import ApiClient, Configuration

from lmj_api.names import MIGRATE
from lmj_operator.backend.kubernetes.api import Api, ApiError, Object
from lmj_operator.backend.kubernetes.connection import find
from lmj_operator.backend.kubernetes.resources import JOBS
from lmj_operator.backend.kubernetes.watch import PAGE, WATCH_SECONDS

RETRY_SECONDS = 1.0
"""Between a watch that ended or broke and the next look."""
_PASSING = frozenset({0, 410, 429})
"""Codes that say nothing of the job: no answer, a version that is forgotten, a busy server."""


class NoSuchJob(Exception):  # noqa: N818 - it names what is the matter
    """There is none of this name, or it was deleted."""


class Jobs:
    """All jobs that ``api`` leads to. Calls raise :class:`ApiError`, and those that name a job :class:`NoSuchJob`."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def create(self, body: Object) -> Object:
        """Make a job, whose namespace ``body`` says."""
        return await self.api.create(JOBS, body)

    async def get(self, namespace: str, name: str) -> Object:
        """The job as it is now."""
        found = await self.api.get(JOBS, namespace, name)
        if found is None:
            raise NoSuchJob(f"{namespace}/{name}: there is no such job")
        return found

    async def list(self, namespace: str | None) -> list[Object]:
        """All of ``namespace``, or (None) of all namespaces, by namespace and name."""
        query, found = {"limit": str(PAGE)}, []
        while True:
            page = await self.api.list(JOBS, namespace, query)
            found += page["items"]
            if not page["metadata"].get("continue"):
                return sorted(found, key=lambda job: (job["metadata"]["namespace"], job["metadata"]["name"]))
            query["continue"] = page["metadata"]["continue"]

    async def ask(self, namespace: str, name: str, request: str) -> None:
        """Ask it to move ranks: see :data:`lmj_api.names.MIGRATE`."""
        await self._merge(namespace, name, {"metadata": {"annotations": {MIGRATE: request}}})

    async def scale(self, namespace: str, name: str, replicas: int | None, stages: int | None) -> None:
        """Ask for so many replicas, stages, or both."""
        wanted = {"replicas": replicas}
        if stages is None:
            # Its subresource: who may scale need not be allowed to change the job.
            await self._merge(namespace, name, {"spec": wanted}, subresource="scale")
            return
        parts: Object = {"pipeline": {"stages": stages}}
        await self._merge(namespace, name, {"spec": parts if replicas is None else {**parts, "dataParallel": wanted}})

    async def suspend(self, namespace: str, name: str, wanted: bool) -> None:
        """Have it take a checkpoint and stop, or go on."""
        await self._merge(namespace, name, {"spec": {"suspend": wanted}})

    async def delete(self, namespace: str, name: str) -> bool:
        """Delete it, with all that belongs to it; False: there was none."""
        found = await self.api.get(JOBS, namespace, name)
        return found is not None and await self.api.delete(JOBS, namespace, name, uid=found["metadata"]["uid"])

    async def follow(self, namespace: str, name: str) -> AsyncGenerator[Object]:
        """The job as it is now, and again whenever it has changed, until it is deleted (:class:`NoSuchJob`). An API server that is away later on
        is waited for, without end: who follows has a deadline.
        """
        uid: str | None = None
        while True:
            try:
                thing = await self.get(namespace, name)
                uid = _same(thing, uid)
                yield thing
                async for changed in self._changes(namespace, name, thing["metadata"]["resourceVersion"]):
                    _same(changed, uid)
                    yield changed
            except ApiError as error:
                if uid is None or (error.status not in _PASSING and error.status < 500):
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _changes(self, namespace: str, name: str, version: str) -> AsyncGenerator[Object]:
        """Since ``version``, until the server ends the watch."""
        query = {"fieldSelector": f"metadata.name={name}", "resourceVersion": version, "timeoutSeconds": str(WATCH_SECONDS)}
        query["allowWatchBookmarks"] = "true"  # one a minute keeps a quiet watch from being taken for a dead one
        async for kind, thing in self.api.watch(JOBS, namespace, query):
            if kind == "DELETED":
                raise NoSuchJob(f"{namespace}/{name}: the job was deleted")
            if kind in ("ADDED", "MODIFIED"):
                yield thing

    async def _merge(self, namespace: str, name: str, change: Object, subresource: str | None = None) -> None:
        try:
            await self.api.merge(JOBS, namespace, name, change, subresource=subresource)
        except ApiError as error:
            if error.status == 404:
                raise NoSuchJob(f"{namespace}/{name}: there is no such job") from error
            raise


def _same(thing: Object, uid: str | None) -> str:
    """The uid of ``thing``. Raises NoSuchJob when it is not ``uid``."""
    found = thing["metadata"]
    if uid not in (None, found["uid"]):
        raise NoSuchJob(f"{found['namespace']}/{found['name']}: the job was deleted, and another one made")
    return str(found["uid"])


@asynccontextmanager
async def connected(kubeconfig: str | None = None, context: str | None = None) -> AsyncIterator[tuple[Jobs, str]]:
    """The jobs of a cluster, and the namespace that is usual there: see :func:`lmj_operator.backend.kubernetes.connection.find`."""
    made = Configuration()
    namespace = await find(made, kubeconfig, context)
    async with ApiClient(made) as client:
        yield Jobs(Api(client)), namespace
