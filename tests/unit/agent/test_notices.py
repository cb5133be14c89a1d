"""What the clouds say of a machine that they are about to take away, and what an agent makes of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

import aiohttp
import pytest
from metadata_server import NAME, Metadata

from lmj_api.clock import steady_time
from lmj_api.protocol import EventKind, MachineNotice
from lmj_api.spec.migration import Cloud
from lmj_trainer.agent.notices import watch as watch_module
from lmj_trainer.agent.notices.aws import AWS
from lmj_trainer.agent.notices.azure import Azure
from lmj_trainer.agent.notices.cloud import CLOUDS
from lmj_trainer.agent.notices.gcp import GCP, PREEMPTION_SECONDS
from lmj_trainer.agent.notices.notice import Notice
from lmj_trainer.agent.notices.service import MOST_BYTES, MetadataService, ServiceError
from lmj_trainer.agent.notices.watch import FAILURES, watch

pytestmark = pytest.mark.integration

AT = datetime(2026, 11, 26, 10, 2, 30, tzinfo=UTC)
SECONDS = 20.0


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    server = Metadata()
    yield server
    server.close()


@pytest.fixture
async def service(metadata: Metadata) -> AsyncIterator[MetadataService]:
    async with aiohttp.ClientSession() as session:
        yield MetadataService(session, metadata.address)


@pytest.mark.parametrize("cloud", list(Cloud))
async def test_a_machine_that_stays(metadata: Metadata, service: MetadataService, cloud: Cloud) -> None:
    looks = CLOUDS[cloud]()
    assert [await looks.look(service) for _ in range(2)] == [None, None]


async def test_a_spot_instance_of_aws_is_interrupted(metadata: Metadata, service: MetadataService) -> None:
    aws = AWS()
    metadata.machine.rebalance = True
    assert await aws.look(service) == Notice("EC2 recommends to leave it")
    metadata.machine.instance_action = {"action": "terminate", "time": "2026-11-26T10:02:30Z"}
    assert await aws.look(service) == Notice("EC2 is to terminate it at 2026-11-26T10:02:30Z", AT.timestamp())
    metadata.machine.instance_action = {"action": "stop", "time": "soon"}
    assert await aws.look(service) == Notice("EC2 is to stop it at soon")


async def test_a_token_of_aws_is_asked_for_once_and_again_when_it_is_over(metadata: Metadata, service: MetadataService) -> None:
    aws = AWS()
    await aws.look(service)
    await aws.look(service)
    assert sum(asked.startswith("PUT") for asked in metadata.machine.asked) == 1
    metadata.machine.tokens.append("token-2")
    await aws.look(service)
    assert sum(asked.startswith("PUT") for asked in metadata.machine.asked) == 2


async def test_a_machine_of_gcp_is_preempted(metadata: Metadata, service: MetadataService) -> None:
    gcp = GCP()
    metadata.machine.preempted = True
    notice = await gcp.look(service)
    assert notice is not None
    assert notice.reason == "Compute Engine preempts it"
    assert notice.at == pytest.approx(time.time() + PREEMPTION_SECONDS, abs=5.0)
    assert await gcp.look(service) == notice, "its time does not move on"


@pytest.mark.parametrize(
    ("event", "notice"),
    [
        ("TERMINATE_ON_HOST_MAINTENANCE", Notice("Compute Engine is to stop it for maintenance")),
        ("MIGRATE_ON_HOST_MAINTENANCE", None),  # with all that runs in it
    ],
)
async def test_the_host_of_gcp_is_maintained(metadata: Metadata, service: MetadataService, event: str, notice: Any) -> None:
    metadata.machine.maintenance = event
    assert await GCP().look(service) == notice


def event(kind: str = "Preempt", *, machines: Any = (NAME,), before: Any = "Thu, 26 Nov 2026 10:02:30 GMT") -> dict[str, Any]:
    return {"EventId": "1", "EventType": kind, "EventStatus": "Scheduled", "Resources": list(machines), "NotBefore": before}


@pytest.mark.parametrize(
    ("events", "notice"),
    [
        ([event()], Notice("Azure is to preempt it at Thu, 26 Nov 2026 10:02:30 GMT", AT.timestamp())),
        ([event("Terminate")], Notice("Azure is to delete it at Thu, 26 Nov 2026 10:02:30 GMT", AT.timestamp())),
        ([event(before="tomorrow")], Notice("Azure is to preempt it")),
        ([event("Freeze")], None),  # for seconds
        ([event(machines=("workers_4",))], None),  # another one's of the scale set
        (
            [event(machines=("workers_4",)), event()],
            Notice("Azure is to preempt it at Thu, 26 Nov 2026 10:02:30 GMT", AT.timestamp()),
        ),
    ],
)
async def test_events_of_azure(metadata: Metadata, service: MetadataService, events: list[Any], notice: Notice | None) -> None:
    metadata.machine.events = events
    assert await Azure().look(service) == notice


async def test_an_event_of_azure_that_has_begun(metadata: Metadata, service: MetadataService) -> None:
    azure, later = Azure(), formatdate(time.time() + 600, usegmt=True)
    metadata.machine.events = [event(before=""), event("Reboot", before=later)]
    notice = await azure.look(service)
    assert notice is not None
    assert (notice.reason, notice.at) == ("Azure is about to preempt it", pytest.approx(time.time(), abs=5.0))
    assert await azure.look(service) == notice, "its time does not move on"
    metadata.machine.events = []
    assert await azure.look(service) is None
    metadata.machine.events = [event(before="")]
    again = await azure.look(service)
    assert again is not None
    assert (again.at or 0.0) > (notice.at or 0.0), "of another event"


@pytest.mark.parametrize("cloud", [Cloud.AWS, Cloud.AZURE])
@pytest.mark.parametrize(
    "answer", [b"[" * 50_000, b"no JSON", b"[]", b"\xff", b"{}", b'{"Events": [1]}', b"x" * (MOST_BYTES + 1)]
)
async def test_what_no_such_service_answers(metadata: Metadata, service: MetadataService, cloud: Cloud, answer: bytes) -> None:
    metadata.machine.broken = answer
    with pytest.raises(ServiceError):
        await CLOUDS[cloud]().look(service)


class Heard:
    """What an agent hears of its watch."""

    def __init__(self) -> None:
        self.notices: list[MachineNotice | None] = []
        self.warnings: list[str] = []

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)


@pytest.fixture
async def watched(metadata: Metadata, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Heard]:
    monkeypatch.setattr(AWS, "seconds", 0.02)
    monkeypatch.setattr(watch_module, "TIMEOUT_SECONDS", 1.0)
    heard = Heard()
    task = asyncio.create_task(watch(AWS(), metadata.address, heard.notices.append, heard.warnings.append))
    yield heard
    assert not task.done()
    task.cancel()


async def test_what_changes_is_reported_once(metadata: Metadata, watched: Heard) -> None:
    at = datetime.fromtimestamp(time.time() + 120, UTC)
    metadata.machine.instance_action = {"action": "terminate", "time": at.isoformat()}
    await watched.until(lambda: bool(watched.notices))
    looks = len(metadata.machine.asked)
    await watched.until(lambda: len(metadata.machine.asked) >= looks + 6)
    metadata.machine.instance_action = None
    await watched.until(lambda: len(watched.notices) >= 2)
    (first, second), warnings = watched.notices, watched.warnings
    assert first is not None
    assert (first.reason, second, warnings) == (f"EC2 is to terminate it at {at.isoformat()}", None, [])
    assert first.at == pytest.approx(steady_time() + 120, abs=10.0)


async def test_a_service_that_fails_is_told_of_once_and_takes_nothing_back(metadata: Metadata, watched: Heard) -> None:
    metadata.machine.instance_action = {"action": "terminate", "time": "2026-11-26T10:02:30Z"}
    await watched.until(lambda: bool(watched.notices))
    metadata.machine.broken = b"no JSON"
    looks = len(metadata.machine.asked)
    await watched.until(lambda: len(metadata.machine.asked) >= looks + 3 * FAILURES)
    assert len(watched.notices) == 1
    (warning,) = watched.warnings
    assert warning.startswith(
        f"the metadata service at {metadata.address} says nothing of this machine (migration.spotNotices): "
    )


async def test_an_agent_says_what_it_heard(rig: Callable[..., Any]) -> None:
    it = rig("ready view commit:1 drain exit:0")
    await it.supervisor.put_worker(1)
    notice = MachineNotice(reason="EC2 is to stop it", at=steady_time() + 60)
    it.supervisor.noticed(notice)
    assert it.supervisor.answer.notice == notice
    it.supervisor.noticed(None)
    assert it.supervisor.answer.notice is None
    told = [(e.kind, e.message) for e in it.supervisor.log.after(0) if e.kind in (EventKind.NOTICED, EventKind.WARNING)]
    assert told == [
        (EventKind.WARNING, "this machine is about to be taken away: EC2 is to stop it"),
        (EventKind.NOTICED, "EC2 is to stop it"),
        (EventKind.NOTICED, "this machine stays"),
    ]
