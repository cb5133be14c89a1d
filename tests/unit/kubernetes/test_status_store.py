"""The status: stored before it matters, not too often, and never over another's."""

from typing import Any

import pytest
from cluster_jobs import MemoryApi, error, job_body

from lmj_api.protocol import Progress
from lmj_api.status import JobStatus, Phase, RankStatus, StragglerStatus
from lmj_operator.backend.kubernetes.api import ApiError
from lmj_operator.backend.kubernetes.status_store import LONG, JobGone, StatusConflict, StatusStore, read_status


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def api() -> MemoryApi:
    made = MemoryApi()
    made.objects["livemigrationjobs", "tiny"] = job_body()
    return made


def store_of(api: MemoryApi, clock: Clock) -> StatusStore:
    return StatusStore(api, api.objects["livemigrationjobs", "tiny"], 2.0, clock)  # type: ignore[arg-type]


def stored(api: MemoryApi) -> JobStatus:
    return read_status(api.objects["livemigrationjobs", "tiny"])


def at(step: int, beat: float = 0.0) -> JobStatus:
    ranks = [RankStatus(rank=0, state="Running", heartbeat_seconds=beat)]
    return JobStatus(phase=Phase.RUNNING, progress=Progress(step=step, steps=9, epoch=0.1), ranks=ranks)


def writes(api: MemoryApi) -> int:
    return sum(call[0] == "patch" for call in api.calls)


async def test_progress_is_written_once_in_two_seconds_and_the_phase_at_once(api: MemoryApi) -> None:
    clock = Clock()
    store = store_of(api, clock)
    await store.write(at(1))
    for step in range(2, 12):
        clock.now += 0.19
        await store.write(at(step))
        assert store.status == at(step)
    assert writes(api) == 1
    clock.now += 0.2
    await store.write(at(12))
    assert writes(api) == 2
    await store.write(at(12).model_copy(update={"phase": Phase.RECOVERING}))
    assert writes(api) == 3
    assert stored(api).phase is Phase.RECOVERING


async def test_the_age_of_a_heartbeat_is_no_news(api: MemoryApi) -> None:
    clock = Clock()
    store = store_of(api, clock)
    await store.write(at(1))
    clock.now += 1000
    await store.write(at(1, beat=1000.0))
    assert writes(api) == 1


async def test_a_long_status_is_kept_packed(api: MemoryApi) -> None:
    store = store_of(api, Clock())
    long = at(1).model_copy(update={"message": "it is long; " * LONG})
    await store.write(long)
    assert store.status == stored(api) == long
    assert len(store._newest.json) < LONG
    await store.write(long)
    assert writes(api) == 1


async def test_what_is_measured_of_ranks_waits_with_the_progress(api: MemoryApi) -> None:
    clock = Clock()
    store = store_of(api, clock)
    await store.write(at(1))
    for step in range(2, 12):
        clock.now += 0.19
        rank = RankStatus(rank=0, state="Running", compute_seconds=step / 7)
        slow = [StragglerStatus(rank=0, pod="p", since=step)] if step % 2 else []
        await store.write(at(step).model_copy(update={"ranks": [rank], "stragglers": slow}))
    assert writes(api) == 1
    clock.now += 0.2
    await store.flush()
    assert (writes(api), stored(api).stragglers, stored(api).ranks[0].compute_seconds) == (2, slow, 11 / 7)


@pytest.mark.parametrize("change", [{"serials": {"0": 2}}, {"restarts": 1}, {"not_before": 5.0}, {"cleaned": True}])
async def test_what_must_not_be_forgotten_is_written_at_once(api: MemoryApi, change: dict[str, Any]) -> None:
    store = store_of(api, Clock())
    await store.write(at(1))
    await store.write(at(1).model_copy(update=change))
    assert stored(api) == at(1).model_copy(update=change)


async def test_another_operators_status_is_not_overwritten(api: MemoryApi) -> None:
    clock = Clock()
    ours, theirs = store_of(api, clock), store_of(api, clock)
    await theirs.write(at(5).model_copy(update={"serials": {"0": 7}}))
    with pytest.raises(StatusConflict):
        await ours.write(at(1))
    assert ours.status.serials == {"0": 7}
    await ours.write(ours.status.model_copy(update={"phase": Phase.RECOVERING}))
    assert stored(api).serials == {"0": 7}


async def test_a_change_of_the_spec_that_the_watch_told_of_is_no_conflict(api: MemoryApi) -> None:
    store = store_of(api, Clock())
    await store.write(at(1))
    body = api.objects["livemigrationjobs", "tiny"]
    body["metadata"]["resourceVersion"] = "77"
    store.seen(body)
    await store.write(at(1).model_copy(update={"phase": Phase.RECOVERING}))
    assert stored(api).phase is Phase.RECOVERING


async def test_late_news_from_the_watch_changes_nothing(api: MemoryApi) -> None:
    store = store_of(api, Clock())
    old = job_body()
    await store.write(at(1))
    store.seen(old)
    await store.write(at(1).model_copy(update={"phase": Phase.RECOVERING}))
    assert stored(api).phase is Phase.RECOVERING


async def test_a_refused_write_leaves_what_was_stored(api: MemoryApi) -> None:
    store = store_of(api, Clock())
    api.refuse["patch", "livemigrationjobs"] = [error(500)]
    with pytest.raises(ApiError):
        await store.write(at(1))
    assert store.status == JobStatus()
    await store.write(at(1))
    assert stored(api) == at(1)


async def test_a_write_that_a_live_server_does_not_end_in_time_has_longer_from_then_on(api: MemoryApi) -> None:
    store = store_of(api, Clock())
    api.refuse["patch", "livemigrationjobs"] = [error(504, took=15.5), error(0, took=30.1), error(0, took=60.0), error(500)]
    for _ in range(4):
        with pytest.raises(ApiError):
            await store.write(at(1))
    await store.write(at(1))
    await store.write(at(1).model_copy(update={"phase": Phase.RECOVERING}))
    assert api.deadlines == [15.0, 30.0, 60.0, 60.0, 60.0, 15.0]


async def test_a_write_that_nobody_answers_has_no_longer_than_any_other(api: MemoryApi) -> None:
    store = store_of(api, Clock())
    api.refuse["patch", "livemigrationjobs"] = [error(0)]
    with pytest.raises(ApiError):
        await store.write(at(1))
    await store.write(at(1))
    assert api.deadlines == [15.0, 15.0]


async def test_a_job_that_is_gone(api: MemoryApi) -> None:
    store = store_of(api, Clock())
    del api.objects["livemigrationjobs", "tiny"]
    with pytest.raises(JobGone):
        await store.write(at(1))


def test_a_status_of_a_newer_operator_is_left_alone() -> None:
    with pytest.raises(ValueError, match="written by a newer operator"):
        read_status({"status": {"phase": "Levitating"}})
