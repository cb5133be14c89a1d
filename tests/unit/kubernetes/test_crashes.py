"""The operator dies after each of its calls in turn; the one that follows makes nothing twice and replaces nothing."""

import asyncio
from typing import Any

import aiohttp
import pytest
from cluster_jobs import SETTINGS, MemoryApi, MemoryKeys, job_body

from lmj_operator.backend.kubernetes.resources import Resource
from lmj_operator.backend.kubernetes.status_store import read_status
from lmj_operator.controller.controller import Controller
from lmj_operator.controller.job_task import Place
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import Notebook

CHILDREN = 6
STATUS_WRITES = 1
CALLS = CHILDREN + STATUS_WRITES


class DyingApi(MemoryApi):
    """The process dies with its ``last`` call: before the call has an effect, or after it."""

    def __init__(self, last: int, after: bool) -> None:
        super().__init__()
        self.last, self.after = last, after
        self.dead = asyncio.Event()
        self.made: list[str] = []

    def _enter(self, verb: str, resource: Resource, name: str) -> tuple[str, str]:
        if self.dead.is_set() or (len(self.calls) + 1 == self.last and not self.after):
            self.dead.set()
            raise asyncio.CancelledError
        return super()._enter(verb, resource, name)

    def _store(self, key: tuple[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if key not in self.objects:
            self.made.append("/".join(key))
        stored = super()._store(key, body)
        if len(self.calls) == self.last:
            self.dead.set()
            raise asyncio.CancelledError
        return stored


async def operate(api: MemoryApi, until: Any) -> None:
    """One life of the operator over what is in ``api``."""
    async with aiohttp.ClientSession() as session:
        controller = Controller()
        metrics = Metrics(controller.phases)
        controller.place = Place(api, controller.cache, session, SETTINGS, MemoryKeys(), metrics, Notebook(api))  # type: ignore[arg-type]
        for (kind, _), body in list(api.objects.items()):
            if kind == "pods":  # as the index does, before any job is told
                controller.cache.put_pod(body)
        await controller.job_seen(None, api.objects["livemigrationjobs", "tiny"])
        async with asyncio.timeout(10):
            while not until():  # noqa: ASYNC110 - what is waited for tells nobody
                await asyncio.sleep(0.005)
        await controller.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("last", range(1, CALLS + 1))
async def test_it_dies_at_any_call(last: int, after: bool) -> None:
    api = DyingApi(last, after)
    api.objects["livemigrationjobs", "tiny"] = job_body()
    await operate(api, api.dead.is_set)
    api.last, api.dead = 10**9, asyncio.Event()
    before = len(api.calls)

    def settled() -> bool:
        return api.names("pods") == ["tiny-r0-1", "tiny-r1-1"]

    await operate(api, settled)
    assert sorted(api.made) == sorted(set(api.made))
    assert len(api.made) == CHILDREN
    assert api.deletions == []
    status = read_status(api.objects["livemigrationjobs", "tiny"])
    assert (status.serials, status.restarts, status.incidents) == ({"0": 1, "1": 1}, 0, [])
    assert len(api.calls) - before <= CALLS + 4  # what it finds there costs a look at most
