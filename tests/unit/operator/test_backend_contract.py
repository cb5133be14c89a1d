"""What every backend must do, run against each adapter."""

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lmj_api.cut import Cut
from lmj_api.protocol import Holding, Recut
from lmj_api.spec import LiveMigrationJob
from lmj_api.status import JobStatus, Phase
from lmj_api.view import Member, Resume, View
from lmj_operator.backend.local.backend import LocalBackend
from lmj_operator.backend.local.lock import RunLock
from lmj_operator.backend.local.pod import PodPlace
from lmj_operator.backend.local.process import command_line
from lmj_operator.backend.local.store import RunStore, Scale
from lmj_operator.backend.port import ActionError, PodEvent
from lmj_operator.cli.options import Output
from lmj_operator.cli.status import status as show_status
from lmj_operator.plan import (
    CreatePod,
    DeletePod,
    Drain,
    EnlistPod,
    FollowParts,
    LeaveView,
    LetIn,
    PodObserved,
    PodPhase,
    PutView,
    StartWorker,
)

pytestmark = pytest.mark.integration

AGENT = Path(__file__).with_name("scripted_agent.py")
SECONDS = 20.0


def make_job(output: Path) -> LiveMigrationJob:
    spec = {
        "model": {"scratch": {}},
        "dataset": {"source": "d.csv", "text": ["text"], "label": "label"},
        "output": {"path": str(output)},
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": "job"}, "spec": spec})


def scripted(place: PodPlace, _: Path, trust: str) -> list[str]:
    rank = ["--standby"] if place.rank is None else ["--rank", str(place.rank)]
    command = [sys.executable, str(AGENT), *rank, "--pod", place.name, "--dir", str(place.folder)]
    return [*command, "--uid", place.uid, f"--trust={trust}", *(["--fail"] if place.serial == 99 else [])]


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[LocalBackend]:
    store = RunStore(tmp_path / "out" / ".lmj")
    store.folder.mkdir(parents=True)
    async with LocalBackend(make_job(tmp_path / "out"), store, JobStatus(), scripted) as made:
        yield made


async def pod_when(backend: LocalBackend, holds: Callable[[PodObserved], bool]) -> PodObserved:
    """The only pod, once it is so."""
    async with asyncio.timeout(SECONDS):
        while True:
            pods = (await backend.observe()).pods
            if len(pods) == 1 and holds(pods[0]):
                return pods[0]
            await asyncio.sleep(0.02)


def answers(pod: PodObserved) -> bool:
    return pod.agent is not None


async def test_a_created_pod_is_observed_and_answers(backend: LocalBackend) -> None:
    await backend.apply(CreatePod(1, 3))
    pod = await pod_when(backend, answers)
    assert (pod.name, pod.rank, pod.serial, pod.phase) == ("job-r1-3", 1, 3, PodPhase.RUNNING)
    assert pod.unreachable_since is None
    assert time.time() - pod.created < SECONDS


async def test_a_standby_is_created_and_becomes_a_rank(backend: LocalBackend) -> None:
    await backend.apply(CreatePod(None, 3))
    pod = await pod_when(backend, answers)
    assert (pod.name, pod.rank, pod.serial) == ("job-s-3", None, 3)
    assert pod.agent is not None
    assert pod.agent.rank is None
    await backend.apply(StartWorker("job-s-3", 1, 1))
    await backend.apply(EnlistPod("job-s-3", 1, 2))
    pod = await pod_when(backend, lambda p: p.agent is not None and p.agent.rank == 1)
    assert pod.rank is None, "whose it is says the status"
    heard = backend.events()
    async with asyncio.timeout(SECONDS):
        while (event := await anext(heard)).rank is None:
            continue
    assert (event.pod, event.rank) == ("job-s-3", 1)


async def test_creating_twice_makes_one_pod(backend: LocalBackend) -> None:
    await backend.apply(CreatePod(0, 1))
    first = await pod_when(backend, answers)
    await backend.apply(CreatePod(0, 1))
    second = await pod_when(backend, answers)
    assert first.agent is not None
    assert second.agent is not None
    assert first.created == second.created


async def test_worker_view_and_drain_reach_the_agent(backend: LocalBackend) -> None:
    await backend.apply(CreatePod(0, 1))
    await pod_when(backend, answers)
    await backend.apply(StartWorker("job-r0-1", 1))
    members = [Member(rank=0, pod="job-r0-1", incarnation=1, address="127.0.0.1:1")]
    view = View(number=7, members=members, resume=Resume(step=0), reason="a test")
    await backend.apply(PutView("job-r0-1", view))
    await backend.apply(LeaveView("job-r0-1", 7))
    await backend.apply(Drain("job-r0-1"))
    pod = await pod_when(backend, answers)
    assert pod.agent is not None
    assert (pod.agent.worker.view, pod.agent.worker.holding) == (7, Holding(step=7))
    assert (pod.agent.worker.incarnation, pod.agent.view, pod.agent.draining) == (1, view, True)


async def test_a_refusal_is_an_action_error(backend: LocalBackend) -> None:
    await backend.apply(CreatePod(0, 1))
    await pod_when(backend, answers)
    await backend.apply(StartWorker("job-r0-1", 2))
    with pytest.raises(ActionError, match="409"):
        await backend.apply(StartWorker("job-r0-1", 1))
    with pytest.raises(ActionError, match="job-r5-1 does not listen"):
        await backend.apply(Drain("job-r5-1"))


async def test_events_are_heard(backend: LocalBackend) -> None:
    heard: list[PodEvent] = []

    async def hear() -> None:
        async for event in backend.events():
            heard.append(event)
            if event.event is not None:
                return

    hearing = asyncio.create_task(hear())
    await backend.apply(CreatePod(0, 1))
    await pod_when(backend, answers)
    await backend.apply(StartWorker("job-r0-1", 1))
    await asyncio.wait_for(hearing, SECONDS)
    assert heard[-1].pod == "job-r0-1"
    assert heard[-1].event is not None
    assert heard[-1].event.seq == 1


async def test_a_dead_pod_is_gone_with_its_exit_code(backend: LocalBackend) -> None:
    await backend.apply(CreatePod(0, 99))
    pod = await pod_when(backend, lambda p: p.phase is PodPhase.GONE)
    assert (pod.exit_code, pod.exit_message, pod.agent) == (2, "it was told to fail", None)
    await backend.apply(DeletePod(pod.name, "gone"))
    assert (await backend.observe()).pods == ()


async def test_a_deleted_pod_leaves_nothing(backend: LocalBackend, tmp_path: Path) -> None:
    await backend.apply(CreatePod(0, 1))
    await pod_when(backend, answers)
    await backend.apply(DeletePod("job-r0-1", "a test"))
    await backend.apply(DeletePod("job-r0-1", "a test"))
    assert (await backend.observe()).pods == ()
    assert not processes_of(tmp_path)


async def test_closing_ends_every_pod(backend: LocalBackend, tmp_path: Path) -> None:
    await backend.apply(CreatePod(0, 1))
    await backend.apply(CreatePod(1, 1))
    await backend.close()
    assert not processes_of(tmp_path)


async def test_a_written_status_is_observed_and_survives(backend: LocalBackend, tmp_path: Path) -> None:
    await backend.write_status(JobStatus(phase=Phase.RUNNING, serials={"0": 4}))
    assert (await backend.observe()).status.serials == {"0": 4}
    assert RunStore(tmp_path / "out" / ".lmj").read_status() == JobStatus(phase=Phase.RUNNING, serials={"0": 4})


def processes_of(folder: Path) -> list[int]:
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [n for n in numbers if any(str(folder) in part for part in command_line(n)) and n != os.getpid()]


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
async def test_an_agents_times_are_put_to_the_own_clock(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    monkeypatch.setenv("CLOCK_AHEAD", str(ahead))
    await backend.apply(CreatePod(0, 1))
    await pod_when(backend, answers)
    await backend.apply(StartWorker("job-r0-1", 1))
    pod = await pod_when(backend, lambda p: p.agent is not None and p.agent.worker.incarnation == 1)
    assert pod.agent is not None
    assert 0 <= time.time() - pod.agent.worker.since < SECONDS
    assert 0 <= time.time() - pod.agent.started < SECONDS


async def test_an_agent_that_is_killed_gives_no_reason(backend: LocalBackend) -> None:
    """The last line of its log is of something else."""
    await backend.apply(CreatePod(0, 1))
    await pod_when(backend, answers)
    pod = backend._pods["job-r0-1"]
    with pod.place.log.open("a") as log:
        log.write("2026-01-01 00:00:00,000 INFO lmj.worker: view 1 trains from step 0 on\n")
    os.kill(pod.process.pid, signal.SIGKILL)
    seen = await pod_when(backend, lambda p: p.phase is PodPhase.GONE)
    assert (seen.exit_code, seen.exit_message) == (-9, None)


async def test_a_status_that_cannot_be_replaced_is_told_as_stale(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def shown() -> str:
        show_status(tmp_path / "out", None, Output.TEXT)
        return capsys.readouterr().out

    with RunLock(backend._store.lock_file):
        await backend.write_status(JobStatus(phase=Phase.RUNNING))
        assert "cannot be written" not in shown()
        with monkeypatch.context() as full:
            full.setattr(RunStore, "write_status", no_room)
            await backend.write_status(JobStatus(phase=Phase.RECOVERING))
        told = shown()
        assert told.startswith("as of ")
        assert f"{backend._store.status_file} cannot be written since, make room" in told
        await backend.write_status(JobStatus(phase=Phase.RUNNING))
        assert "cannot be written" not in shown()


def test_which_status_is_stale_is_told_whatever_the_clock_says(tmp_path: Path) -> None:
    """It was set back by an hour; one that has not ticked since gives equal times."""
    store = RunStore(tmp_path)
    store.lock_file.touch()
    store.write_status(JobStatus(phase=Phase.RUNNING))
    assert store.stale_since is None
    later = store.status_file.stat().st_mtime_ns + 3600 * 10**9
    os.utime(store.status_file, ns=(later, later))
    store.refuse()
    assert store.stale_since == later / 1e9
    store.write_status(JobStatus(phase=Phase.RUNNING))
    assert store.stale_since is None


def no_room(store: RunStore, status: JobStatus) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_pod_keeps_the_job_that_it_was_made_with(backend: LocalBackend, tmp_path: Path) -> None:
    """Its agent and its workers read it whenever they start."""
    await backend.apply(CreatePod(0, 1))
    assert (await pod_when(backend, answers)).cut == Cut(stages=2)
    backend._store.write_scale(Scale(stages=3))
    assert (await backend.observe()).spec.pipeline.stages == 3
    await backend.apply(CreatePod(0, 2))
    await backend.apply(CreatePod(1, 1, cut=Cut(stages=2)))
    assert [(pod.name, pod.cut) for pod in (await backend.observe()).pods] == [
        ("job-r0-1", Cut(stages=2)),
        ("job-r0-2", Cut(stages=3)),
        ("job-r1-1", Cut(stages=2)),
    ]
    for name, stages in (("job-r0-1", 2), ("job-r0-2", 3), ("job-r1-1", 2)):
        file = tmp_path / "out" / ".lmj" / "pods" / name / "job.json"
        assert LiveMigrationJob.model_validate_json(file.read_bytes()).spec.pipeline.stages == stages


async def test_who_is_to_be_let_in_reaches_the_agent(backend: LocalBackend) -> None:
    await backend.apply(CreatePod(0, 1))
    await pod_when(backend, answers)
    address = f"tls://10.0.0.1:9463/41234#{'Q' * 43}"
    await backend.apply(LetIn("job-r0-1", address, "job-r0-2"))
    pod = await pod_when(backend, lambda pod: pod.agent is not None and pod.agent.follower is not None)
    assert pod.agent is not None
    assert pod.agent.follower is not None
    assert pod.agent.follower.address == address, "so its agent was told"


async def test_who_follows_parts_of_a_pod_reaches_its_agent(backend: LocalBackend) -> None:
    await backend.apply(CreatePod(0, 1))
    await pod_when(backend, answers)
    members = [Member(rank=1, pod="job-r1-1", incarnation=1, address="127.0.0.1:1")]
    recut = Recut(cut=Cut(stages=3), followers=members)
    await backend.apply(FollowParts("job-r0-1", recut))
    pod = await pod_when(backend, lambda pod: pod.agent is not None and pod.agent.recut is not None)
    assert pod.agent is not None
    assert pod.agent.recut == recut


def test_what_is_asked_for_is_kept_beside_what_was(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    assert store.read_scale() == Scale()
    store.write_scale(Scale(replicas=2))
    store.write_scale(Scale(stages=3))
    assert store.read_scale() == Scale(replicas=2, stages=3)
    store.scale_file.write_text("{")
    assert store.read_scale() == Scale(), "somebody has written into it"
    store.write_scale(None)
    store.write_scale(None)
    assert not store.scale_file.exists()
