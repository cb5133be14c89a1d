"""A status that cannot be read, whoever wrote it: the job is left alone and says so, until it can be."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest
from cluster_jobs import SETTINGS, MemoryApi, MemoryKeys, error, job_body

from lmj_operator.backend.kubernetes.status_store import StatusUnreadable, read_status
from lmj_operator.controller.controller import Controller
from lmj_operator.controller.job_task import Place
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import Notebook

pytestmark = pytest.mark.integration

JOB = ("livemigrationjobs", "tiny")
NEWER = {"phase": "Levitating", "message": "by a newer one"}


class World:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.api, self.controller = MemoryApi(), Controller()
        metrics = Metrics(self.controller.phases, self.controller.replicas)
        self.controller.place = Place(
            self.api,  # type: ignore[arg-type]
            self.controller.cache,
            session,
            SETTINGS,
            MemoryKeys(),
            metrics,
            Notebook(self.api),  # type: ignore[arg-type]
        )

    async def news(self) -> None:
        """The watch tells of the job as it is stored."""
        await self.controller.job_seen("MODIFIED", self.api.objects[JOB])

    def write(self, status: dict[str, Any]) -> None:
        """As somebody else."""
        body = self.api.objects[JOB]
        body["status"] = status
        self.api._store(JOB, body)

    @property
    def conditions(self) -> dict[str, tuple[str, str]]:
        status = self.api.objects[JOB].get("status") or {}
        return {c["type"]: (c["status"], c["message"]) for c in status.get("conditions", [])}


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr("lmj_operator.controller.job_task.FIRST_RETRY_SECONDS", 0.05)
    async with aiohttp.ClientSession() as session:
        made = World(session)
        made.api.objects[JOB] = job_body()
        yield made
        await made.controller.close()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - what is waited for tells nobody
            await asyncio.sleep(0.01)


def left(world: World) -> bool:
    status, message = world.conditions.get("ReconcileFailed", ("", ""))
    return status == "True" and message.startswith("the operator leaves the job alone: status.phase cannot be read")


async def test_a_job_that_is_found_so_says_it_once_and_nothing_else_of_it_is_changed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write(dict(NEWER))
    for _ in range(3):
        await world.news()
    assert left(world)
    stored = world.api.objects[JOB]["status"]
    assert (stored["phase"], stored["message"]) == ("Levitating", "by a newer one")
    assert [call[:2] for call in world.api.calls] == [("patch", "livemigrationjobs")]
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_a_view_of_nobody_is_none_that_can_be_read() -> None:
    view = {"number": 1, "members": [], "resume": {"step": 0}, "reason": ""}
    with pytest.raises(StatusUnreadable, match=r"^status\.view\.members cannot be read"):
        read_status({"status": {"phase": "Running", "view": view}})
    member = {"rank": 0, "pod": "tiny-r0-1", "incarnation": 1, "address": "10.0.0.1:2"}
    assert read_status({"status": {"phase": "Running", "view": view | {"members": [member]}}}).view is not None


async def test_one_that_becomes_so_is_left_alone_and_looked_after_again_when_it_can_be_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    await world.news()
    await until(lambda: len(world.api.names("pods")) == 2)
    good = world.api.objects[JOB]["status"]
    world.write(dict(NEWER))
    change = job_body(suspend=True)
    world.api.objects[JOB]["spec"], world.api.objects[JOB]["metadata"]["generation"] = change["spec"], 2
    await world.news()
    await until(lambda: left(world))
    calls = len(world.api.calls)
    await world.news()
    await asyncio.sleep(0.2)
    assert len(world.api.calls) == calls, "it is left alone"
    world.write({**good, "conditions": world.api.objects[JOB]["status"]["conditions"]})
    await world.news()
    await until(lambda: world.conditions.get("ReconcileFailed", ("",))[0] == "False")
    assert read_status(world.api.objects[JOB]).observed_generation == 2
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


async def test_a_server_that_takes_no_word_of_it_is_told_of_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write(dict(NEWER))
    world.api.refuse["patch", "livemigrationjobs"] = [error(500)]
    await world.news()
    assert "the status does not say so" in caplog.text
    await world.news()
    assert left(world)
