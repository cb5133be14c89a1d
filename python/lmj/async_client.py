"""The jobs of a cluster, for programs that run a loop."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lmj.cluster_job import ClusterJob
from lmj.errors import ClusterError, JobError, JobFailed, NotFound, WaitTimeout
from lmj.job import Job
from lmj.result import Result
from lmj.words import told
from lmj_api.names import API_VERSION
from lmj_api.status import JobStatus, Phase
from lmj_operator.client.job_news import JobEvent, LogLine

if TYPE_CHECKING:
    from lmj_operator.client.jobs import Jobs

SUCCEEDED = frozenset({Phase.SUCCEEDED})


class AsyncClient:
    """The jobs of the cluster that kubectl speaks to, or of another one. Use it in ``async with``.

    Calls raise :class:`lmj.ClusterError` when the cluster says no or nothing, and :class:`lmj.NotFound` for a job that is not there. Where
    ``namespace`` is not given it is the client's.

    >>> async def train(job: Job) -> float:
    ...     async with AsyncClient(namespace="team") as client:
    ...         made = await client.create(job)
    ...         done = await client.wait(made.name, timeout=3600)
    ...         return done.result.metrics["accuracy"]
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        kubeconfig: str | os.PathLike[str] | None = None,
        context: str | None = None,
    ) -> None:
        """``namespace``: None is that of the context. ``kubeconfig``, ``context``: None is what kubectl takes; in a pod, its own cluster."""
        self._namespace, self._context = namespace, context
        self._kubeconfig = os.fspath(kubeconfig) if kubeconfig is not None else None
        self._stack = AsyncExitStack()
        self._known: Jobs | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._jobs()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        self._known = None
        await self._stack.aclose()

    async def create(self, job: Job, *, namespace: str | None = None) -> ClusterJob:
        """Make ``job`` on the cluster: in ``namespace``, else its own, else the client's. Its paths are those of its pods: what is
        relative is on its volumes.

        Raises :class:`lmj.JobError` when the cluster finds a mistake in it.
        """
        from lmj_operator.backend.kubernetes.api import ApiError

        jobs, body = await self._jobs(), job.to_object()
        body["metadata"]["namespace"] = namespace or job.namespace or self._namespace
        try:
            with _said():
                return ClusterJob.of(await jobs.create(body))
        except ClusterError as error:
            if isinstance(error.__cause__, ApiError) and error.__cause__.invalid:
                raise JobError(told(str(error))) from error
            raise

    async def get(self, name: str, *, namespace: str | None = None) -> ClusterJob:
        """The job as it is now."""
        jobs, where = await self._where(namespace)
        with _said():
            return ClusterJob.of(await jobs.get(where, name))

    async def list(self, *, namespace: str | None = None, everywhere: bool = False) -> Sequence[ClusterJob]:
        """All jobs of the namespace, or of all namespaces, by their names."""
        jobs, where = await self._where(namespace)
        with _said():
            return [ClusterJob.of(body) for body in await jobs.list(None if everywhere else where)]

    async def result(self, name: str, *, namespace: str | None = None) -> Result:
        """What the job came to, or where it is by now."""
        return (await self.get(name, namespace=namespace)).result

    async def wait(
        self,
        name: str,
        *,
        timeout: float,  # noqa: ASYNC109
        phases: Collection[Phase] = SUCCEEDED,
        namespace: str | None = None,
    ) -> ClusterJob:
        """Wait until the job is in one of ``phases``, for ``timeout`` seconds at most.

        Raises :class:`lmj.JobFailed` when it fails, :class:`lmj.ClusterError` when it ends otherwise, and :class:`lmj.WaitTimeout`.
        """

        def there(seen: ClusterJob) -> bool:
            if seen.phase in phases:
                return True
            if seen.phase is Phase.FAILED:
                raise JobFailed(seen.status.message, seen.result)
            if seen.ended:
                raise ClusterError(f"{seen.namespace}/{seen.name}: ended as {seen.phase}: {seen.status.message}")
            return False

        wanted = " or ".join(phases)
        return await self._until(
            name, there, timeout, lambda status: f"not {wanted} but {status.phase}: {status.message}", namespace
        )

    async def watch(self, name: str, *, namespace: str | None = None) -> AsyncGenerator[ClusterJob]:
        """The job as it is now, and again whenever it has changed, until it has ended."""
        jobs, where = await self._where(namespace)
        with _said():
            async with aclosing(jobs.follow(where, name)) as bodies:
                async for body in bodies:
                    seen = ClusterJob.of(body)
                    yield seen
                    if seen.ended:
                        return

    async def events(self, name: str, *, follow: bool = False, namespace: str | None = None) -> AsyncGenerator[JobEvent]:
        """What the operator told about the job, oldest first; with ``follow`` also what it will, without end: leave the loop to stop."""
        from lmj_operator.client.job_events import events

        jobs, where = await self._where(namespace)
        with _said():
            async with aclosing(events(jobs, where, name, follow)) as found:
                async for event in found:
                    yield event

    async def logs(
        self, name: str, *, rank: int | None = None, tail: int = 20, follow: bool = False, namespace: str | None = None
    ) -> AsyncGenerator[LogLine]:
        """What the job's pods logged, those of ``rank`` or all: the last ``tail`` lines of each, or (0) all.

        ``follow``: go on as lines are written, in pods that are made later too, until the job has ended or is suspended.
        """
        from lmj_operator.client.job_logs import JobLogs

        jobs, where = await self._where(namespace)
        found = JobLogs(jobs, where, name, rank, tail)
        with _said():
            async with aclosing(found.follow() if follow else found.there()) as lines:
                async for line in lines:
                    yield line

    async def migrate(
        self,
        name: str,
        ranks: Sequence[int] | None = None,
        *,
        to: str | None = None,
        timeout: float = 3600.0,  # noqa: ASYNC109
        namespace: str | None = None,
    ) -> ClusterJob:
        """Move ``ranks`` (all, if there are none) into other pods while training goes on, as ``lmj migrate`` does, and wait until they have,
        for ``timeout`` seconds at most; 0: do not wait. ``to``: the node to move to.

        Raises :class:`lmj.JobError` for ranks that it has not, :class:`lmj.ClusterError` when they do not move, and :class:`lmj.WaitTimeout`.
        """
        from lmj_operator.cli.moving import has_moved, ranks_to_move
        from lmj_operator.cli.training import move_request

        jobs, where = await self._where(namespace)
        before = await self.get(name, namespace=namespace)
        with _said():
            if before.ended:
                raise ClusterError(f"{where}/{name}: the job has ended")
            chosen = ranks_to_move(before.status, ranks)
            asked = move_request(chosen, to)
            await jobs.ask(where, name, asked)

        def there(seen: ClusterJob) -> bool:
            return has_moved(before.status, seen.status, asked, chosen, lambda: not seen.ended)

        return await self._waited(
            name, there, timeout, lambda status: f"not all of ranks {chosen} moved: {status.message}", namespace
        )

    async def scale(
        self,
        name: str,
        replicas: int | None = None,
        stages: int | None = None,
        *,
        timeout: float = 600.0,  # noqa: ASYNC109
        namespace: str | None = None,
    ) -> ClusterJob:
        """Have another number of replicas train, or of stages in each, while training goes on, as ``lmj scale`` does, and wait until they do,
        for ``timeout`` seconds at most; 0: do not wait.

        Raises :class:`lmj.JobError` for more or fewer than it may have, :class:`lmj.ClusterError` when they will not train, and
        :class:`lmj.WaitTimeout`.
        """
        from lmj_operator.cli.scaling import asked_for, check_replicas, has_scaled

        jobs, where = await self._where(namespace)
        with _said():
            asked = asked_for(replicas, stages)
            body = await jobs.get(where, name)
            if ClusterJob.of(body).ended:
                raise ClusterError(f"{where}/{name}: the job has ended")
            check_replicas(body["spec"], replicas)
            await jobs.scale(where, name, replicas, stages)

        def there(seen: ClusterJob) -> bool:
            return has_scaled(seen.status, replicas, stages, lambda: not seen.ended)

        def why(status: JobStatus) -> str:
            return f"{status.replicas} replicas of {status.stages} stages train, not {asked}: {status.message}"

        return await self._waited(name, there, timeout, why, namespace)

    async def suspend(self, name: str, *, timeout: float = 600.0, namespace: str | None = None) -> ClusterJob:  # noqa: ASYNC109
        """Have the job take a checkpoint and stop, and wait until it has, for ``timeout`` seconds at most; 0: do not wait.

        Raises :class:`lmj.ClusterError` when it ended meanwhile, and :class:`lmj.WaitTimeout`.
        """
        return await self._suspend(name, True, timeout, namespace)

    async def resume(self, name: str, *, timeout: float = 600.0, namespace: str | None = None) -> ClusterJob:  # noqa: ASYNC109
        """Have a suspended job go on, and wait until it trains, for ``timeout`` seconds at most; 0: do not wait.

        Raises as :meth:`suspend`.
        """
        return await self._suspend(name, False, timeout, namespace)

    async def delete(self, name: str, *, namespace: str | None = None) -> bool:
        """Delete the job with its pods; its claims, and so its results, stay. False: there was none."""
        jobs, where = await self._where(namespace)
        with _said():
            return await jobs.delete(where, name)

    async def _suspend(self, name: str, wanted: bool, seconds: float, namespace: str | None) -> ClusterJob:
        jobs, where = await self._where(namespace)
        with _said():
            await jobs.suspend(where, name, wanted)
        goal = Phase.SUSPENDED if wanted else Phase.RUNNING

        def there(seen: ClusterJob) -> bool:
            if seen.ended:
                raise ClusterError(f"{where}/{name}: ended as {seen.phase}: {seen.status.message}")
            return seen.phase is goal

        return await self._waited(
            name, there, seconds, lambda status: f"not {goal} but {status.phase}: {status.message}", namespace
        )

    async def _waited(
        self,
        name: str,
        there: Callable[[ClusterJob], bool],
        seconds: float,
        why: Callable[[JobStatus], str],
        namespace: str | None,
    ) -> ClusterJob:
        """As :meth:`_until`, or the job as it is now where nobody waits."""
        return await (self._until(name, there, seconds, why, namespace) if seconds > 0 else self.get(name, namespace=namespace))

    async def _until(
        self,
        name: str,
        there: Callable[[ClusterJob], bool],
        seconds: float,
        why: Callable[[JobStatus], str],
        namespace: str | None,
    ) -> ClusterJob:
        """The job once ``there`` holds of it. Raises what ``there`` does, and WaitTimeout with what ``why`` says of the newest status."""
        jobs, where = await self._where(namespace)
        seen: ClusterJob | None = None
        try:
            with _said():
                async with asyncio.timeout(seconds), aclosing(jobs.follow(where, name)) as bodies:
                    async for body in bodies:
                        seen = ClusterJob.of(body)
                        if there(seen):
                            return seen
        except TimeoutError as error:
            now = why(seen.status) if seen is not None else "the cluster does not answer"
            raise WaitTimeout(f"{where}/{name}: after {seconds:g} s {now}") from error
        raise AssertionError("a job is followed without end")

    async def _where(self, namespace: str | None) -> tuple["Jobs", str]:
        jobs = await self._jobs()
        return jobs, namespace or self._namespace or "default"

    async def _jobs(self) -> "Jobs":
        """The cluster's, connected with at the first call."""
        async with self._opening:
            if self._known is None:
                from lmj_operator.backend.kubernetes.connection import NoCluster
                from lmj_operator.client.jobs import connected

                try:
                    self._known, usual = await self._stack.enter_async_context(connected(self._kubeconfig, self._context))
                except NoCluster as error:
                    raise ClusterError(str(error)) from error
                self._namespace = self._namespace or usual
            assert self._known is not None
            return self._known


@contextmanager
def _said() -> Iterator[None]:
    """What the operator's modules raise, as what this package raises."""
    from lmj_operator.backend.kubernetes.api import ApiError
    from lmj_operator.cli.errors import BAD_INPUT, CommandError
    from lmj_operator.client.jobs import NoSuchJob

    try:
        yield
    except NoSuchJob as error:
        raise NotFound(str(error)) from error
    except ApiError as error:
        if error.status == 404:
            raise ClusterError(f"{error}; is {API_VERSION} installed on the cluster?") from error
        raise ClusterError(str(error)) from error
    except CommandError as error:
        raise (JobError(*map(told, error.lines)) if error.code == BAD_INPUT else ClusterError(told(str(error)))) from error
