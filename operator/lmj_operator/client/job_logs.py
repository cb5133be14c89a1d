"""What the ranks of a job on a cluster wrote."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from lmj_api.names import parse_pod_name
from lmj_operator.backend.kubernetes import labels
from lmj_operator.backend.kubernetes.api import ApiError, Object
from lmj_operator.backend.kubernetes.resources import PODS
from lmj_operator.client.job_news import LogLine
from lmj_operator.client.jobs import Jobs, NoSuchJob
from lmj_operator.plan.report.phases import AT_REST

POLL_SECONDS = 2.0
"""How often it is looked for new pods."""
_NOT_YET = 400
"""The pod has no container yet that could have a log."""
_GONE = 404


class JobLogs:
    """Of one job."""

    def __init__(self, jobs: Jobs, namespace: str, name: str, rank: int | None, tail: int) -> None:
        """``rank``: of its pods only; None: of all. ``tail``: lines of each log, from its end; 0: all."""
        self._jobs, self._api = jobs, jobs.api
        self._namespace, self._name = namespace, name
        self._rank = rank
        self._query = {"container": labels.CONTAINER, **({"tailLines": str(tail)} if tail else {})}

    async def there(self) -> AsyncGenerator[LogLine]:
        """What is there by now, the oldest pods first. Raises ApiError, and NoSuchJob when there is no job of the name."""
        await self._jobs.get(self._namespace, self._name)
        for pod in await self._pods():
            async with aclosing(self._lines(pod, self._query)) as lines:
                async for line in lines:
                    yield line

    async def follow(self) -> AsyncGenerator[LogLine]:
        """What is there, then lines as they are written, in pods that are made later too, until the job is at rest. Raises as :meth:`there`."""
        news: asyncio.Queue[LogLine | ApiError | NoSuchJob | None] = asyncio.Queue()
        running = asyncio.create_task(self._follow(news))
        try:
            while (line := await news.get()) is not None:
                if isinstance(line, Exception):
                    raise line
                yield line
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _follow(self, news: "asyncio.Queue[LogLine | ApiError | NoSuchJob | None]") -> None:
        followed: dict[str, asyncio.Task[bool]] = {}
        try:
            while True:
                rests = await self._rests()
                for pod in await self._pods():
                    task = followed.get(pod["metadata"]["uid"])
                    if task is None or (task.done() and not task.result()):
                        followed[pod["metadata"]["uid"]] = asyncio.create_task(self._pump(pod, news))
                if rests:
                    await asyncio.gather(*followed.values())
                    break
                await asyncio.sleep(POLL_SECONDS)
        except (ApiError, NoSuchJob) as error:
            news.put_nowait(error)
        else:
            news.put_nowait(None)
        finally:
            for task in followed.values():
                task.cancel()
            await asyncio.gather(*followed.values(), return_exceptions=True)

    async def _pump(self, pod: Object, news: "asyncio.Queue[LogLine | ApiError | NoSuchJob | None]") -> bool:
        """Whether there was a log."""
        some = False
        async with aclosing(self._lines(pod, {**self._query, "follow": "true"})) as lines:
            async for line in lines:
                some = True
                news.put_nowait(line)
        return some

    async def _rests(self) -> bool:
        thing = await self._jobs.get(self._namespace, self._name)
        return (thing.get("status") or {}).get("phase") in AT_REST

    async def _pods(self) -> list[Object]:
        """The job's pods, oldest first."""
        selector = f"{labels.JOB}={self._name}" + ("" if self._rank is None else f",{labels.RANK}={self._rank}")
        page = await self._api.list(PODS, self._namespace, {"labelSelector": selector})
        return sorted(page["items"], key=_age)

    async def _lines(self, pod: Object, query: dict[str, str]) -> AsyncGenerator[LogLine]:
        """None, where the pod has no log yet or any more."""
        name, rank = pod["metadata"]["name"], _rank(pod)
        try:
            async with aclosing(self._api.text(PODS, self._namespace, name, "log", query)) as lines:
                async for line in lines:
                    yield LogLine(name, rank, line)
        except ApiError as error:
            if error.status not in (_NOT_YET, _GONE):
                raise


def _rank(pod: Object) -> int | None:
    told = (pod["metadata"].get("labels") or {}).get(labels.RANK, "")
    return int(told) if told.isdigit() else None


def _age(pod: Object) -> tuple[int, int]:
    try:
        _, rank, serial = parse_pod_name(pod["metadata"]["name"])
    except ValueError:
        return 0, -1
    return serial, -1 if rank is None else rank
