"""The jobs of a cluster, for programs without a loop, and notebooks."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Collection, Coroutine, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from lmj.async_client import SUCCEEDED, AsyncClient
from lmj.cluster_job import ClusterJob
from lmj.job import Job
from lmj.result import Result
from lmj_api.status import Phase
from lmj_operator.client.job_news import JobEvent, LogLine

CLOSE_SECONDS = 10.0
T = TypeVar("T")


class Client:
    """As :class:`lmj.AsyncClient`, of which each method has a twin here: a loop of its own runs in a thread.

    Use it in ``with``, or call :meth:`close`. Several threads may share one.

    >>> client = Client(namespace="team")  # connects at the first call
    >>> job = client.create(Job.from_yaml("job.yaml"))  # doctest: +SKIP
    >>> client.scale(job.name, replicas=4)  # doctest: +SKIP
    >>> client.wait(job.name, timeout=3600).result.metrics  # doctest: +SKIP
    {'loss': 0.21, 'accuracy': 0.93, 'f1': 0.93}
    >>> for line in client.logs(job.name, rank=0):  # doctest: +SKIP
    ...     print(line)
    >>> client.close()
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
    ) -> None:
        """``namespace``: None is that of the context. ``kubeconfig``, ``context``: None is what kubectl takes; in a pod, its own cluster."""
        self._client = AsyncClient(namespace=namespace, kubeconfig=kubeconfig, context=context)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lmj-client", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections, and end the thread. A closed client makes no more calls."""
        if self._loop.is_closed():
            return
        try:
            self._run(self._client.close())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(CLOSE_SECONDS)
            self._loop.close()

    def create(self, job: Job, *, namespace: str | None = None) -> ClusterJob:
        """As :meth:`lmj.AsyncClient.create`."""
        return self._run(self._client.create(job, namespace=namespace))

    def get(self, name: str, *, namespace: str | None = None) -> ClusterJob:
        """As :meth:`lmj.AsyncClient.get`."""
        return self._run(self._client.get(name, namespace=namespace))

    def list(self, *, namespace: str | None = None, everywhere: bool = False) -> Sequence[ClusterJob]:
        """As :meth:`lmj.AsyncClient.list`."""
        return self._run(self._client.list(namespace=namespace, everywhere=everywhere))

    def result(self, name: str, *, namespace: str | None = None) -> Result:
        """As :meth:`lmj.AsyncClient.result`."""
        return self._run(self._client.result(name, namespace=namespace))

    def wait(
        self, name: str, *, timeout: float, phases: Collection[Phase] = SUCCEEDED, namespace: str | None = None
    ) -> ClusterJob:
        """As :meth:`lmj.AsyncClient.wait`."""
        return self._run(self._client.wait(name, timeout=timeout, phases=phases, namespace=namespace))

    def watch(self, name: str, *, namespace: str | None = None) -> Iterator[ClusterJob]:
        """As :meth:`lmj.AsyncClient.watch`."""
        return self._each(self._client.watch(name, namespace=namespace))

    def events(self, name: str, *, follow: bool = False, namespace: str | None = None) -> Iterator[JobEvent]:
        """As :meth:`lmj.AsyncClient.events`."""
        return self._each(self._client.events(name, follow=follow, namespace=namespace))

    def logs(
        self, name: str, *, rank: int | None = None, tail: int = 20, follow: bool = False, namespace: str | None = None
    ) -> Iterator[LogLine]:
        """As :meth:`lmj.AsyncClient.logs`."""
        return self._each(self._client.logs(name, rank=rank, tail=tail, follow=follow, namespace=namespace))

    def migrate(
        self,
        name: str,
        ranks: Sequence[int] | None = None,
        *,
        to: str | None = None,
        timeout: float = 3600.0,
        namespace: str | None = None,
    ) -> ClusterJob:
        """As :meth:`lmj.AsyncClient.migrate`."""
        return self._run(self._client.migrate(name, ranks, to=to, timeout=timeout, namespace=namespace))

    def scale(
        self,
        name: str,
        replicas: int | None = None,
        stages: int | None = None,
        *,
        timeout: float = 600.0,
        namespace: str | None = None,
    ) -> ClusterJob:
        """As :meth:`lmj.AsyncClient.scale`."""
        return self._run(self._client.scale(name, replicas, stages, timeout=timeout, namespace=namespace))

    def suspend(self, name: str, *, timeout: float = 600.0, namespace: str | None = None) -> ClusterJob:
        """As :meth:`lmj.AsyncClient.suspend`."""
        return self._run(self._client.suspend(name, timeout=timeout, namespace=namespace))

    def resume(self, name: str, *, timeout: float = 600.0, namespace: str | None = None) -> ClusterJob:
        """As :meth:`lmj.AsyncClient.resume`."""
        return self._run(self._client.resume(name, timeout=timeout, namespace=namespace))

    def delete(self, name: str, *, namespace: str | None = None) -> bool:
        """As :meth:`lmj.AsyncClient.delete`."""
        return self._run(self._client.delete(name, namespace=namespace))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """What ``call`` comes to, in the thread of the loop. Ctrl-C ends it."""
        if self._loop.is_closed():
            call.close()
            raise RuntimeError("this lmj.Client is closed: make another one")
        running = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    def _each(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """One after the other, each when it is asked for. To leave the loop ends what is behind it."""
        try:
            while (item := self._run(_next(items))) is not None:
                yield item
        finally:
            if threading.current_thread() is self._thread:  # where garbage is collected, nobody may wait
                self._loop.create_task(_close(items))
            elif not self._loop.is_closed():
                self._run(_close(items))


async def _next(items: AsyncGenerator[T]) -> T | None:
    """None: there are no more."""
    return await anext(items, None)


async def _close(items: AsyncGenerator[Any]) -> None:
    await items.aclose()
