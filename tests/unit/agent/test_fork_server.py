"""Workers that are forked from a fork server: the same as others, only sooner."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_trainer.agent.launcher import RESTART_WINDOW_SECONDS, RESTARTS, may_restart

Make = Callable[..., Any]
P, K = WorkerPhase, EventKind
MARK = f"of-process-{os.getpid()}"
"""On the command lines of this run's fake workers: another run on this machine has its own."""
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets an agent adopt the workers of its fork server"),
]


def alive(pid: int) -> bool:
    """Whether there is such a process, dead or alive: one that nobody has reaped counts."""
    return Path(f"/proc/{pid}").exists()


def open_files(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def warnings(it: Any) -> list[str]:
    return [e.message for e in it.supervisor.log.after(0) if e.kind is K.WARNING]


async def server(it: Any) -> int:
    """Process id of the fork server, when it is ready."""
    await eventually(lambda: it.launcher._server is not None and not it.launcher.importing)
    return int(it.launcher._server.pid)


async def eventually(holds: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s"
        await asyncio.sleep(0.01)


def fakes() -> set[int]:
    """Marked fake workers that there are."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and b"--fd" in (line := (entry / "cmdline").read_bytes()) and MARK.encode() in line:
                found.add(int(entry.name))
    return found


async def asked_for(it: Any) -> None:
    """A start begins within a few turns of the loop after its worker was put, however busy the machine is."""
    for _ in range(20):
        await asyncio.sleep(0)


async def facts(it: Any, incarnation: int) -> dict[str, Any]:
    """What worker ``incarnation``, which tells and exits, said of itself."""
    await it.supervisor.put_worker(incarnation)
    state = await it.until(lambda s: s.worker.incarnation == incarnation and s.worker.exit)
    told = next(line for line in state.worker.exit.stderr if line.startswith("{"))
    return dict(json.loads(told))


async def test_a_forked_worker_is_as_one_started_cold(rig: Make) -> None:
    it = rig("tell exit:0", server="load")
    mother = await server(it)
    forked, second = await facts(it, 1), await facts(it, 2)
    assert forked["parent"] == second["parent"] == os.getpid()
    assert forked["line"][-4:-1] == ["tell", "exit:0", "--fd"]
    assert forked["line"][:4] == [sys.executable, "-m", "lmj_trainer", "worker"]
    assert forked["random"] != second["random"]
    assert it.launcher._server.pid == mother
    await it.launcher.close()
    assert not alive(mother)
    cold = await facts(it, 3)
    for value in (forked, second, cold):
        assert value["session"] == value["pid"]
        assert value["terminate"]
        assert value["interrupt"]
        assert not alive(value["pid"])
    assert forked["files"] == second["files"] == cold["files"]
    assert warnings(it) == []


@pytest.mark.parametrize(
    ("acts", "code", "message"),
    [
        (["err:error: column x is not there", "exit:2"], 2, "column x is not there"),
        (["err:half", "kill:9"], -9, "killed by SIGKILL"),
        (["kill:15"], -15, "killed by SIGTERM"),
        (["kill:11"], -11, "killed by SIGSEGV"),
        (["exit"], 1, "left with exit code 1 and no message"),
        (["raise"], 1, "RuntimeError: a mistake in the worker"),
        (["env:SHOWN", "exit:1"], 1, "shown"),
        (["env:HOME", "exit:1"], 1, "unset"),
        (["err:the end"], 0, "the end"),
    ],
)
async def test_ends(rig: Make, acts: list[str], code: int, message: str) -> None:
    it = rig(acts, server="load")
    await server(it)
    await it.supervisor.put_worker(1)
    ended = (await it.until(lambda s: s.worker.exit)).worker
    assert (ended.phase, ended.exit.code) == (P.EXITED, code)
    assert ended.exit.message == message


async def test_the_end_of_the_fork_server_ends_no_worker(rig: Make, make_view: Make) -> None:
    it = rig("ready view commit:3 drain exit:0", server="load")
    mother = await server(it)
    await it.supervisor.put_worker(1)
    pid = (await it.until(lambda s: s.worker.phase is P.READY)).worker.pid
    os.kill(mother, signal.SIGKILL)
    await eventually(lambda: not alive(mother))
    await eventually(lambda: warnings(it) == ["the fork server ended (killed by SIGKILL): another is started"])
    other = await server(it)
    assert other != mother
    it.supervisor.put_view(make_view(1))
    await it.until(lambda s: s.worker.progress and s.worker.progress.step == 3)
    assert it.state.worker.pid == pid
    it.supervisor.drain()
    ended = (await it.until(lambda s: s.worker.exit)).worker
    assert (ended.phase, ended.exit.code) == (P.DRAINED, 0)
    assert not alive(pid)


async def test_a_killed_worker_is_followed_by_another(rig: Make) -> None:
    it = rig("fork ready wait", server="load")
    mother = await server(it)
    for incarnation in (1, 2, 3):
        await it.supervisor.put_worker(incarnation)
        pid = (await it.until(lambda s: s.worker.phase is P.READY)).worker.pid
        os.kill(pid, signal.SIGKILL)
        ended = (await it.until(lambda s: s.worker.exit)).worker.exit
        assert ended.code == -9
        child = next(int(line.split()[1]) for line in ended.stderr if line.startswith("child"))
        await eventually(lambda pid=pid, child=child: not alive(pid) and not alive(child))
    assert it.launcher._server.pid == mother
    assert warnings(it) == []


async def test_orphans_are_buried(rig: Make, tmp_path: Path) -> None:
    it = rig(["orphan:" + str(tmp_path / "end"), "exit:1"], server="load")
    await server(it)
    await it.supervisor.put_worker(1)
    ended = (await it.until(lambda s: s.worker.exit)).worker.exit
    child = int(ended.stderr[-1].split()[1])
    assert alive(child)
    (tmp_path / "end").touch()
    await eventually(lambda: not alive(child))


async def test_a_start_is_answered_while_libraries_load(rig: Make, tmp_path: Path) -> None:
    it = rig(f"err:{MARK} ready wait", server=f"slow:{tmp_path / 'go'}")
    await asyncio.wait_for(it.supervisor.put_worker(1), 5)
    assert (it.state.worker.phase, it.state.worker.incarnation, it.state.worker.pid) == (P.STARTING, 1, None)
    assert it.state.worker.progress.activity == "prepare: loading libraries"
    await asyncio.wait_for(it.supervisor.put_worker(2), 5)
    events = it.supervisor.log.after(0)
    assert [e.kind for e in events] == [K.WORKER_STARTED, K.PREPARING, K.WORKER_EXITED, K.WORKER_STARTED, K.PREPARING]
    assert events[2].exit.message == "killed to make room for worker 2"
    (tmp_path / "go").touch()
    await it.until(lambda s: s.worker.phase is P.READY)
    assert it.state.worker.incarnation == 2
    assert fakes() - {it.launcher._server.pid} == {it.state.worker.pid}
    assert warnings(it) == []


async def test_a_drain_while_libraries_load_reaches_the_worker(rig: Make, tmp_path: Path) -> None:
    it = rig("drain exit:0", server=f"slow:{tmp_path / 'go'}")
    await it.supervisor.put_worker(1)
    it.supervisor.drain()
    (tmp_path / "go").touch()
    assert (await it.until(lambda s: s.worker.exit)).worker.phase is P.DRAINED


async def test_a_stop_while_libraries_load(rig: Make, tmp_path: Path) -> None:
    it = rig("ready wait", server=f"slow:{tmp_path / 'never'}")
    await it.supervisor.put_worker(1)
    mother = it.launcher._server.pid
    await asyncio.wait_for(it.supervisor.stop(0.1), 10)
    ended = it.state.worker.exit
    assert (ended.code, ended.message) == (-9, "killed: it did not leave within 0.1 s after it was asked to")
    assert not alive(mother)


async def test_a_worker_given_up_before_its_birth_never_lives(rig: Make, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    it = rig(f"err:{MARK} touch:{mark} wait", f"err:{MARK} ready wait", server="load")
    mother = await server(it)
    os.kill(mother, signal.SIGSTOP)
    await it.supervisor.put_worker(1)
    await asked_for(it)
    assert it.children._expected
    await asyncio.wait_for(it.supervisor.put_worker(2), 5)
    os.kill(mother, signal.SIGCONT)  # now it forks both
    state = await it.until(lambda s: s.worker.phase is P.READY)
    await eventually(lambda: fakes() == {mother, state.worker.pid})
    assert not mark.exists()
    assert [e.exit.message for e in it.supervisor.log.after(0) if e.exit] == ["killed to make room for worker 2"]


async def test_a_stuck_fork_server_is_replaced(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmj_trainer.agent.fork_server.FORK_SECONDS", 0.3)
    it = rig("tell ready wait", server="load")
    mother = await server(it)
    os.kill(mother, signal.SIGSTOP)
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is P.READY)
    assert warnings(it)[0] == "worker 1 is started cold: its fork server did not fork it within 0.3 s"
    await eventually(lambda: not alive(mother))
    assert await server(it) != mother


@pytest.mark.parametrize(
    ("act", "stop", "reason"),
    [("slow:/never", False, "its fork server has ended"), ("load", True, "it died at once")],
)
async def test_the_end_of_the_fork_server_before_a_start(rig: Make, act: str, stop: bool, reason: str) -> None:
    it = rig("ready wait", server=act)
    mother = await server(it) if stop else it.launcher._server.pid
    if stop:
        os.kill(mother, signal.SIGSTOP)
    await it.supervisor.put_worker(1)
    await asked_for(it)
    os.kill(mother, signal.SIGKILL)
    await it.until(lambda s: s.worker.phase is P.READY)
    assert f"worker 1 is started cold: {reason}" in warnings(it)
    await eventually(lambda: it.launcher._server is not None and it.launcher._server.pid != mother)
    assert not alive(mother)


@pytest.mark.parametrize(
    ("act", "problem"),
    [("thread", "it has 2 threads, and a fork copies one"), ("fail", "ImportError: no such library")],
)
async def test_a_fork_server_that_cannot_serve_is_done_without(rig: Make, act: str, problem: str) -> None:
    it = rig("ready exit:0", server=act)
    for incarnation in (1, 2):
        await it.supervisor.put_worker(incarnation)
        ended = (await it.until(lambda s: s.worker.exit)).worker
        assert (ended.incarnation, ended.exit.code) == (incarnation, 0)
    # It says why, then ends, and may take longer for that than two workers for their lives; only then is it told.
    await eventually(lambda: it.launcher._server is None)
    told = warnings(it)
    assert told[-1] == f"workers are started cold: a fork server cannot serve: {problem}"
    assert set(told[:-1]) <= {f"worker {n} is started cold: its fork server {problem}" for n in (1, 2)}
    await it.supervisor.put_worker(3)
    await it.until(lambda s: s.worker.exit)
    assert warnings(it) == told


async def test_a_fork_that_fails_is_no_end(rig: Make) -> None:
    it = rig("ready exit:0", server="childless")
    mother = await server(it)
    await it.supervisor.put_worker(1)
    assert (await it.until(lambda s: s.worker.exit)).worker.exit.code == 0
    assert warnings(it) == ["worker 1 is started cold: its fork server cannot fork it: [Errno 11] no more processes"]
    assert it.launcher._server.pid == mother


async def test_a_fork_that_fails_when_nobody_waits_for_it_is_no_end(rig: Make) -> None:
    it = rig("wait", "ready exit:0", server="childless")
    mother = await server(it)
    os.kill(mother, signal.SIGSTOP)
    await it.supervisor.put_worker(1)
    await asked_for(it)
    assert it.children._expected
    await it.supervisor.put_worker(2)
    os.kill(mother, signal.SIGCONT)
    assert (await it.until(lambda s: s.worker.exit and s.worker.incarnation == 2)).worker.exit.code == 0
    assert warnings(it) == ["worker 2 is started cold: its fork server cannot fork it: [Errno 11] no more processes"]
    assert it.launcher._server.pid == mother


async def test_a_close_at_once_leaves_no_fork_server(rig: Make) -> None:
    it = rig("", server="load")
    mother = it.launcher._server.pid
    await it.launcher.close()
    assert not alive(mother)
    assert it.launcher.server_bytes is None


async def test_a_thread_that_comes_later_is_noticed(rig: Make) -> None:
    it = rig("ready exit:0", server="load")
    os.kill(await server(it), signal.SIGUSR1)
    await eventually(lambda: len(os.listdir(f"/proc/{it.launcher._server.pid}/task")) == 2)
    await it.supervisor.put_worker(1)
    assert (await it.until(lambda s: s.worker.exit)).worker.exit.code == 0
    reason = "workers are started cold: a fork server cannot serve: it has 2 threads, and a fork copies one"
    await eventually(lambda: reason in warnings(it))  # told when it has ended: the worker may have been faster


async def test_a_fork_server_that_always_ends_is_given_up(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmj_trainer.agent.fork_server.END_SECONDS", 20.0)  # on a busy machine too it is to end by itself
    it = rig("ready exit:0", server="leave")
    await eventually(lambda: it.launcher._keeping.done())
    told = warnings(it)
    assert told[:-1] == ["the fork server ended (left with exit code 3): another is started"] * RESTARTS
    assert told[-1].startswith("workers are started cold from now on")
    await it.supervisor.put_worker(1)
    assert (await it.until(lambda s: s.worker.exit)).worker.exit.code == 0


def test_how_often_a_fork_server_is_started_again() -> None:
    assert may_restart([0.0])
    assert may_restart([0.0] * RESTARTS)
    assert not may_restart([0.0] * (RESTARTS + 1))
    assert may_restart([*[0.0] * RESTARTS, RESTART_WINDOW_SECONDS + 1])


async def test_patience_has_an_end(rig: Make, tmp_path: Path) -> None:
    it = rig("ready exit:0", server=f"slow:{tmp_path / 'never'}", patience=0.2)
    await it.supervisor.put_worker(1)
    assert (await it.until(lambda s: s.worker.exit)).worker.exit.code == 0
    assert warnings(it) == ["worker 1 is started cold: its fork server was not ready within 0.2 s"]
    assert it.launcher.importing


async def test_fifty_births_leave_nothing_behind(rig: Make) -> None:
    it = rig("ready wait", server="load")
    mother = await server(it)
    files = open_files(mother)
    counts, pids = [], []
    for incarnation in range(1, 51):
        await it.supervisor.put_worker(incarnation)
        pids.append((await it.until(lambda s, n=incarnation: s.worker.incarnation == n and s.worker.phase is P.READY)).worker.pid)
        counts.append(open_files())
    assert counts[-1] == counts[1]
    await eventually(lambda: open_files(mother) == files)  # it closes a worker's when it gets to it: the worker may be faster
    assert len(set(pids)) == 50
    assert [pid for pid in pids if alive(pid)] == pids[-1:]
    assert it.launcher._server.pid == mother
    assert warnings(it) == []


async def test_its_memory_is_known(rig: Make) -> None:
    it = rig("", server="load")
    await server(it)
    assert 1 << 20 < it.launcher.server_bytes < 1 << 30
    await it.launcher.close()
    assert it.launcher.server_bytes is None


async def test_files_of_the_agent_are_handed_on_by_name(rig: Make) -> None:
    memory = os.memfd_create("state")
    try:
        os.write(memory, b"what was before")
        it = rig("show", server="load", inherited={"--memory-fd": memory})
        await server(it)
        for incarnation in (1, 2):  # forked, then cold
            await it.supervisor.put_worker(incarnation)
            ended = (await it.until(lambda s, n=incarnation: s.worker.incarnation == n and s.worker.exit)).worker.exit
            assert ended.message == "what was before"
            await it.launcher.close()
    finally:
        os.close(memory)
