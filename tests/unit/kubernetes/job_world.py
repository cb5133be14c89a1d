"""Jobs with their tasks, and an API server in memory: what the tests of tasks share."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
from cluster_jobs import SETTINGS, MemoryApi, MemoryKeys

from lmj_api.status import JobStatus
from lmj_operator.backend.kubernetes.status_store import read_status
from lmj_operator.controller.controller import Controller
from lmj_operator.controller.job_task import Place
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import Notebook

SECONDS = 10.0


class World:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.api = MemoryApi()
        self.controller = Controller()
        self.metrics = Metrics(self.controller.phases, self.controller.replicas)
        self.notebook = Notebook(self.api)  # type: ignore[arg-type]
        keys, cache = MemoryKeys(), self.controller.cache
        self.controller.place = Place(self.api, cache, session, SETTINGS, keys, self.metrics, self.notebook)  # type: ignore[arg-type]

    async def put(self, body: dict[str, Any]) -> None:
        """As a user and the watch would."""
        old = self.api.objects.get(("livemigrationjobs", "tiny"))
        body = {**body, "status": (old or body).get("status", {})}
        body["metadata"] = {**body["metadata"], "resourceVersion": str(self.api.version + 1)}
        self.api.version += 1
        self.api.objects["livemigrationjobs", "tiny"] = body
        await self.controller.job_seen("MODIFIED" if old else "ADDED", body)

    @property
    def status(self) -> JobStatus:
        return self.status_of("tiny")

    def status_of(self, name: str) -> JobStatus:
        return read_status(self.api.objects["livemigrationjobs", name])

    def has_begun(self, name: str) -> bool:
        return bool(self.status_of(name).serials)

    def share(self, **parts: Any) -> None:
        """Have jobs share these."""
        assert self.controller.place is not None
        self.controller.place = replace(self.controller.place, **parts)

    def notes(self) -> list[str]:
        return [body["reason"] for (kind, _), body in self.api.objects.items() if kind == "events"]


def passes(world: World) -> float:
    lines = world.metrics.render().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("lmj_passes_total"))


def count(world: World, result: str) -> float:
    return sum(
        float(line.rpartition(" ")[2])
        for line in world.metrics.render().decode().splitlines()
        if line.startswith(f'lmj_passes_total{{result="{result}"}}')
    )


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)
