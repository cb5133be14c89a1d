"""All jobs of this operator, and the watches that keep it informed."""

import asyncio
from collections.abc import Iterator, Mapping
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import kopf
from kubernetes.aio.client import Configuration

from lmj_api import names
from lmj_api.status import Phase
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.api import Api
from lmj_operator.backend.kubernetes.cache import Cache, Key
from lmj_operator.backend.kubernetes.connection import NoCluster, find
from lmj_operator.backend.kubernetes.resources import BUDGETS, NODES, PODS, POLICIES, SERVICES
from lmj_operator.backend.kubernetes.status_store import Replicas, StatusUnreadable
from lmj_operator.backend.kubernetes.watch import Sink, Watch
from lmj_operator.backend.rounds import turn
from lmj_operator.controller.job_task import JobTask, Place
from lmj_operator.controller.session import session_of
from lmj_operator.controller.unreadable import leave_alone


@dataclass(frozen=True, slots=True)
class _Task:
    uid: str
    version: int
    """The job's when it was first seen: what is older is not its own."""
    job: JobTask
    task: asyncio.Task[None]


def _version(metadata: Mapping[str, Any]) -> int:
    """Versions of one kind's objects are numbers that grow."""
    version = str(metadata["resourceVersion"])
    return int(version) if version.isdigit() else 0


class Controller:
    """A task for each job. Made before the watches start, and given its place before they report the first job."""

    def __init__(self) -> None:
        self.cache = Cache(self._wake)
        self.place: Place | None = None
        self.informed = asyncio.Event()
        """Pods and nodes that were there before are known."""
        self._tasks: dict[Key, _Task] = {}

    def phases(self) -> Iterator[Phase]:
        """The phase of every job. A task ends when its job is found to be gone."""
        return (known.job.phase for known in self._tasks.values() if not known.task.done())

    def replicas(self) -> Iterator[tuple[str, str, Replicas]]:
        """Namespace and name of every job that may have several replicas and is not at rest, with how many it has."""
        for (namespace, name), known in self._tasks.items():
            if not known.task.done() and (found := known.job.replicas) is not None:
                yield namespace, name, found

    async def job_seen(self, kind: str | None, body: Mapping[str, Any]) -> None:
        """A job is there, changed, or (``kind`` is ``DELETED``) is gone."""
        if self.place is None:
            raise RuntimeError("the operator is not set up yet")
        metadata = body["metadata"]
        key, uid = (metadata["namespace"], metadata["name"]), metadata["uid"]
        await turn(key)
        known, version = self._tasks.get(key), _version(metadata)
        if known is not None and known.uid != uid and (kind == "DELETED" or version < known.version):
            return  # late news of an earlier job of this name: Kopf keeps the order of each object's news alone
        if known is not None and (kind == "DELETED" or known.uid != uid or known.task.done()):
            await self._end(key)
            known = None
        if kind == "DELETED":
            return
        if known is not None:
            known.job.seen(body)
            return
        try:
            job = JobTask(body, self.place)
        except StatusUnreadable as error:
            await leave_alone(self.place.api, metadata, body.get("status"), str(error), self.place.clock())
            return
        # In a context of its own: Kopf's holds the whole event, which would be kept as long as the job is.
        task = asyncio.create_task(job.run(), name=f"job {key[0]}/{key[1]}", context=Context())
        self._tasks[key] = _Task(uid, version, job, task)

    async def close(self) -> None:
        """End all tasks; the jobs train on."""
        for key in list(self._tasks):
            await self._end(key)

    async def _end(self, key: Key) -> None:
        known = self._tasks.pop(key)
        known.task.cancel()
        await asyncio.gather(known.task, return_exceptions=True)
        await known.job.close()

    def _wake(self, key: Key) -> None:
        known = self._tasks.get(key)
        if known is not None:
            known.job.wake()


def watches(controller: Controller, api: Api, namespaces: tuple[str, ...]) -> list[Watch]:
    """What fills the cache, besides Kopf: jobs' pods and other objects (in all namespaces, where none is named), and the nodes."""
    cache, children = controller.cache, controller.cache.children
    made = [Watch(api, NODES, Sink(cache.known_nodes, cache.put_node, cache.drop_node))]
    for namespace in namespaces or (None,):
        pods = Sink(partial(cache.known_pods, namespace), cache.put_pod, cache.drop_pod)
        made.append(Watch(api, PODS, pods, namespace=namespace, selector=labels.JOB))
        for resource in (SERVICES, POLICIES, BUDGETS):
            known = partial(children.known, resource, namespace)
            sink = Sink(known, partial(children.put, resource), partial(children.drop, resource))
            made.append(Watch(api, resource, sink, namespace=namespace, selector=labels.JOB, metadata=True))
    return made


def registry(controller: Controller) -> kopf.OperatorRegistry:
    """What Kopf does for ``controller``. None of it needs a finalizer: a job is never kept from going.

    Kopf's daemons would add one, and a job would stay, stuck, where the operator is gone. Pods go with their job by their owner
    references, and their agents take the last checkpoint themselves when they are told to end.
    All handlers are coroutines: Kopf runs others in threads, which costs much, and from which no task may be woken.
    """
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made, errors=kopf.ErrorsMode.PERMANENT)
    async def login(**_: Any) -> kopf.AiohttpSession:
        made = Configuration()
        try:
            await find(made)
        except NoCluster as error:
            raise kopf.LoginError(str(error)) from error
        return await session_of(made)

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=made)
    async def job(type: str | None, event: kopf.RawEvent, **_: Any) -> None:  # noqa: A002 - Kopf calls it so
        # With a pod that it does not know of, a job would make it again.
        await controller.informed.wait()
        await controller.job_seen(type, _taken_out(cast(dict[str, Any], event["object"])))

    return made


def _taken_out(thing: dict[str, Any]) -> dict[str, Any]:
    """The object itself, without what only the API server needs. What is large of it is dropped from ``thing``: Kopf's views of that refer to
    each other, and so keep it until garbage is collected.
    """
    thing["metadata"].pop("managedFields", None)
    taken = {**thing, "metadata": {**thing["metadata"]}}
    for part in ("spec", "status"):
        thing.pop(part, None)
    return taken
