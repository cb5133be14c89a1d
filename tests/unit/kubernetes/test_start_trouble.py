"""What keeps a pod from starting is told in the kubelet's words."""

from typing import Any

import pytest
from backend_fixture import Clock, Fixture
from cluster_jobs import MemoryApi, error, pod_body

from lmj_operator.backend.kubernetes.start_trouble import (
    LONGEST_AGAIN_SECONDS,
    PAUSE_SECONDS,
    PODS_AT_ONCE,
    SLOW_SECONDS,
    StartTrouble,
    event_lists,
)
from lmj_operator.plan import PodObserved, PodPhase
from lmj_operator.plan.observe.times import rfc3339

SECRET = 'MountVolume.SetUp failed for volume "keys" : secret "tiny-keys" not found'
DISK = "AttachVolume.Attach failed for volume: the disk is attached to another node"


def event(reason: str, message: str, kind: str = "Warning", at: float = 1001.0, **more: Any) -> dict[str, Any]:
    told = {"type": kind, "reason": reason, "message": message, "lastTimestamp": rfc3339(at), "source": {"component": "kubelet"}}
    return {**told, "involvedObject": {"uid": "pod-1"}, **more}


SCHEDULED = event("Scheduled", "Successfully assigned", "Normal", 9999.0, source={"component": "default-scheduler"})
"""By another machine, whose clock is hours ahead."""
DETACHED = {"source": {}, "reportingComponent": "attachdetach-controller"}


def tell(at: Fixture, *events: dict[str, Any]) -> None:
    for number, made in enumerate(events):
        at.api.objects["events", f"e{number}"] = made


@pytest.fixture
async def creating(at: Fixture) -> Fixture:
    """A pod that a node took at 1000, whose container is being created."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(1000.0)}
    waiting = {"name": "trainer", "state": {"waiting": {"reason": "ContainerCreating"}}}
    at.api.objects["pods", "tiny-r0-1"] = pod_body(phase="Pending", conditions=[scheduled], containerStatuses=[waiting])
    at.api.objects["pods", "tiny-r0-1"]["metadata"]["creationTimestamp"] = rfc3339(999.0)
    at.cache.put_pod(at.api.objects["pods", "tiny-r0-1"])
    await at.backend.observe()
    at.clock.now += SLOW_SECONDS
    return at


async def seen(at: Fixture) -> PodObserved:
    [pod] = (await at.backend.observe()).pods
    return pod


@pytest.mark.parametrize(
    ("reason", "message", "more", "elsewhere"),
    [("FailedMount", SECRET, {}, False), ("FailedAttachVolume", DISK, DETACHED, True)],
)
async def test_a_pod_that_is_not_created_says_why(
    creating: Fixture, reason: str, message: str, more: dict[str, Any], elsewhere: bool
) -> None:
    tell(creating, SCHEDULED, event(reason, message, **more))
    waits = (await seen(creating)).waits
    assert waits is not None
    assert (waits.reason, waits.message, waits.since, waits.elsewhere) == (reason, message, 1000.0, elsewhere)


async def test_a_pod_that_gets_on_waits_for_nothing(creating: Fixture) -> None:
    """What the newest event says counts: an image that is pulled may take long."""
    tell(creating, event("FailedMount", SECRET, at=1001.0), event("Pulling", "Pulling image", "Normal", 1002.0))
    assert (await seen(creating)).waits is None
    series = {"lastTimestamp": None, "series": {"lastObservedTime": rfc3339(1004.0)}}
    tell(creating, event("FailedMount", SECRET, **series), event("Pulling", "Pulling image", "Normal", 1002.0))
    creating.clock.now += 5
    assert (await seen(creating)).waits is not None


async def test_events_are_read_of_slow_pods_alone_and_seldom(creating: Fixture) -> None:
    creating.clock.now -= 1
    await seen(creating)
    assert creating.calls("list", "events") == 0
    tell(creating, event("FailedMount", SECRET))
    for _ in range(600):
        creating.clock.now += 1
        await seen(creating)
    assert 600 / LONGEST_AGAIN_SECONDS <= creating.calls("list", "events") <= 15
    started = pod_body(phase="Running", containerStatuses=[{"name": "trainer", "state": {"running": {}}}])
    creating.cache.put_pod(started)
    before = creating.calls("list", "events")
    creating.clock.now += 1000
    await creating.backend.observe()
    assert creating.calls("list", "events") == before


async def test_hundreds_that_start_slowly_are_not_asked_for_at_once(creating: Fixture) -> None:
    for number in range(100):
        pod = pod_body(f"tiny-r{number}-1", f"uid-{number}", phase="Pending")
        pod["metadata"]["creationTimestamp"] = rfc3339(999.0)
        creating.cache.put_pod(pod)
    await creating.backend.observe()
    before = creating.calls("list", "events")
    creating.clock.now += SLOW_SECONDS
    await creating.backend.observe()
    assert creating.calls("list", "events") == before + PODS_AT_ONCE
    for _ in range(2):
        creating.clock.now += PAUSE_SECONDS
        await creating.backend.observe()
    assert creating.calls("list", "events") == before + PODS_AT_ONCE + 2


async def test_all_jobs_share_how_often_events_are_read() -> None:
    """A thousand jobs that are made at once made thousands of these calls, each as long as the namespace has events."""
    api, clock, lists = MemoryApi(), Clock(), event_lists()
    jobs = [StartTrouble(api, lists, clock) for _ in range(100)]  # type: ignore[arg-type]
    for seconds in range(20):
        clock.now += 1
        for number, job in enumerate(jobs):
            pod = pod_body(f"job{number}-r0-1", f"uid-{number}", phase="Pending")
            slow = PodObserved("pod", 0, 1, PodPhase.PENDING, 0.0, node="a")
            await job.told(("ns", f"job{number}"), [(pod, slow)])
        assert sum(call[:2] == ("list", "events") for call in api.calls) == PODS_AT_ONCE + seconds


@pytest.mark.parametrize("odd", [{"lastTimestamp": 7}, {"lastTimestamp": "yesterday"}, {"series": [1]}, {"message": {"a": 1}}])
async def test_an_event_that_anybody_may_have_written_ends_nothing(creating: Fixture, odd: dict[str, Any]) -> None:
    tell(creating, event("FailedMount", SECRET), event("no word!", "x" * 10_000, at=2000.0) | odd)
    found = await seen(creating)
    assert found.waits is None or len(found.waits.message) <= 300


async def test_events_that_may_not_be_read_end_nothing(creating: Fixture) -> None:
    creating.api.refuse["list", "events"] = [error(403, "Forbidden")]
    assert (await seen(creating)).waits is None
