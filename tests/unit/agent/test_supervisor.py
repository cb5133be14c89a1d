"""The supervisor over real processes that only play worker."""

import asyncio
import contextlib
import dataclasses
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from lmj_api.protocol import CheckpointInfo, EventKind, WorkerPhase
from lmj_trainer.agent import supervisor
from lmj_trainer.agent.fencing import Answer

pytestmark = pytest.mark.integration

Make = Callable[..., Any]
P, K = WorkerPhase, EventKind
SECONDS = 20.0


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether process ``pid`` is dead within ``seconds`` (a zombie that somebody else must reap is)."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] in "ZX":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


async def test_from_start_to_exit(rig: Make, make_view: Make) -> None:
    it = rig("ready view commit:3 drain exit:0")
    assert (await it.supervisor.put_worker(1)).answer is Answer.NEW
    ready = await it.until(lambda s: s.worker.phase is P.READY)
    assert ready.worker.address == "127.0.0.1:1"
    assert it.supervisor.put_view(make_view(1)).answer is Answer.NEW
    running = await it.until(lambda s: s.worker.progress and s.worker.progress.step == 3)
    assert (running.worker.phase, running.worker.view, running.view.number) == (P.RUNNING, 1, 1)
    it.supervisor.drain()
    it.supervisor.drain()
    done = await it.until(lambda s: s.worker.exit)
    assert (done.worker.phase, done.worker.exit.code, done.draining) == (P.DRAINED, 0, True)
    kinds = [e.kind for e in it.supervisor.log.after(0)]
    assert kinds == [K.WORKER_STARTED, K.READY, K.JOINED, K.COMMITTED, K.COMMITTED, K.DRAINED, K.WORKER_EXITED]
    assert (await it.supervisor.put_worker(2)).answer is Answer.REFUSED


async def test_a_clock_that_is_set_meanwhile_makes_no_time_older(
    rig: Make, make_view: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = rig("ready view commit:3 drain exit:0")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is P.READY)
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + 3600)
    it.supervisor.put_view(make_view(1))
    await it.until(lambda s: s.worker.progress and s.worker.progress.step == 3)
    told = it.supervisor.answer
    times = [told.started, told.worker.since, told.worker.heartbeat, told.clock]
    assert times == sorted(times)
    assert told.clock - told.started < SECONDS
    assert all(told.started <= event.time <= told.clock for event in it.supervisor.log.after(0))
    it.supervisor.drain()
    await it.until(lambda s: s.worker.exit)


async def test_it_restarts_nothing_on_its_own(rig: Make) -> None:
    it = rig("ready exit:1")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.exit)
    assert (await it.supervisor.put_worker(1)).answer is Answer.KNOWN
    assert it.state.worker.phase is P.EXITED
    assert (await it.supervisor.put_worker(2)).answer is Answer.NEW
    assert it.state.worker.incarnation == 2
    assert (await it.supervisor.put_worker(1)).answer is Answer.REFUSED


async def test_a_new_worker_takes_the_place_of_a_living_one(rig: Make) -> None:
    it = rig("ready err:hello wait", "ready wait")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is P.READY)
    first = it.state.worker.pid
    both = await asyncio.gather(it.supervisor.put_worker(2), it.supervisor.put_worker(2))
    assert [v.answer for v in both] == [Answer.NEW, Answer.KNOWN]
    assert gone(first)
    await it.until(lambda s: s.worker.phase is P.READY)
    events = it.supervisor.log.after(0)
    assert [e.kind for e in events] == [K.WORKER_STARTED, K.READY, K.WORKER_EXITED, K.WORKER_STARTED, K.READY]
    assert events[2].exit.message == "killed to make room for worker 2"


async def test_a_worker_that_is_replaced_says_where_it_stood(rig: Make) -> None:
    it = rig("stand ready wait", "ready wait")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is P.READY)
    await it.supervisor.put_worker(2)
    [ended] = [e.exit for e in it.supervisor.log.after(0) if e.exit]
    assert ended.message == "killed to make room for worker 2"
    assert any("most recent call first" in line for line in ended.stderr)
    assert any("fake_worker.py" in line and "in main" in line for line in ended.stderr)


async def test_a_worker_that_ends_by_being_asked_where_it_stands_is_not_waited_for(
    rig: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmj_trainer.agent.process.EXPLAIN_SECONDS", 600.0)
    it = rig("ready wait")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is P.READY)
    async with asyncio.timeout(20):
        await it.supervisor.put_worker(2)
    [ended] = [e.exit for e in it.supervisor.log.after(0) if e.exit]
    assert ended.message == "killed to make room for worker 2"


async def test_the_whole_group_goes(rig: Make) -> None:
    it = rig("fork ready exit:1")
    await it.supervisor.put_worker(1)
    ended = (await it.until(lambda s: s.worker.exit)).worker.exit
    found = re.search(r"child (\d+)", "\n".join(ended.stderr))
    assert found
    assert gone(int(found[1]))


@pytest.mark.parametrize(
    ("acts", "code", "message"),
    [
        (["err:error: column x is not there", "exit:2"], 2, "column x is not there"),
        (["err:ValueError: bad", "exit:1"], 1, "ValueError: bad"),
        (["err:half", "kill:9"], -9, "killed by SIGKILL"),
        (["kill:11"], -11, "killed by SIGSEGV"),
        (["say:nonsense", "wait"], -9, "broke the protocol: line: Invalid JSON"),
        (['say:{"time": 1, "kind": "ready", "extra": 1}', "wait"], -9, "broke the protocol: extra"),
        (['say:{"time": 1, "kind": "completed"}', "wait"], -9, "broke the protocol: completed cannot follow Starting"),
        (['say:{"time": 1, "kind": "workerExited"}', "wait"], -9, "broke the protocol: workerExited is the agent's to say"),
        (['part:{"time": 1, "ki', "exit:3"], 3, "left with exit code 3"),
        (["env:SHOWN", "exit:1"], 1, "shown"),
        (["env:HOME", "exit:1"], 1, "unset"),
    ],
)
async def test_ends(rig: Make, acts: list[str], code: int, message: str) -> None:
    it = rig(acts)
    await it.supervisor.put_worker(1)
    ended = (await it.until(lambda s: s.worker.exit)).worker
    assert ended.phase is P.EXITED
    assert ended.exit.code == code
    assert ended.exit.message.startswith(message)


async def test_the_last_fifty_lines(rig: Make) -> None:
    it = rig([*(f"err:line {i}" for i in range(60)), "err:" + "x" * 100_000, "exit:1"])
    await it.supervisor.put_worker(1)
    stderr = (await it.until(lambda s: s.worker.exit)).worker.exit.stderr
    assert len(stderr) == 50
    assert all(len(line) <= 500 for line in stderr)
    assert set(stderr[-1]) == {"x"} or stderr[-1].endswith("…")


async def test_a_line_too_long(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmj_trainer.agent.process.LONGEST_LINE", 1000)
    it = rig(["say:" + "x" * 5000, "wait"])
    await it.supervisor.put_worker(1)
    assert (await it.until(lambda s: s.worker.exit)).worker.exit.message == "sent a line longer than 1000 bytes"


async def test_a_closed_line_without_an_exit(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmj_trainer.agent.process.LEAVE_SECONDS", 0.2)
    it = rig("ready close wait")
    await it.supervisor.put_worker(1)
    assert "did not exit within 0.2 s" in (await it.until(lambda s: s.worker.exit)).worker.exit.message


async def test_views_are_told_once_to_each_worker(rig: Make, make_view: Make) -> None:
    it = rig("ready view view exit:0")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is P.READY)
    for number, answer in ((1, Answer.NEW), (1, Answer.KNOWN), (1, Answer.KNOWN), (2, Answer.NEW), (1, Answer.REFUSED)):
        assert it.supervisor.put_view(make_view(number)).answer is answer
    # Had view 1 been told twice, joining it again would have been an illegal event.
    ended = (await it.until(lambda s: s.worker.exit)).worker
    assert (ended.view, ended.exit.code) == (2, 0)
    assert it.supervisor.put_view(make_view(3)).answer is Answer.REFUSED
    assert it.state.view == make_view(2)


async def test_a_drain_during_the_start_reaches_the_worker(rig: Make) -> None:
    it = rig("drain exit:0")
    await it.supervisor.put_worker(1)
    it.supervisor.drain()  # at once: its end of the line is hardly open
    assert (await it.until(lambda s: s.worker.exit)).worker.phase is P.DRAINED


async def test_a_pod_that_is_told_to_end_says_so_and_drains_when_nobody_has_it_stay(rig: Make, make_view: Make) -> None:
    it = rig("ready view drain exit:0")
    await it.supervisor.put_worker(1)
    it.supervisor.put_view(make_view(1))
    await it.until(lambda s: s.worker.phase is P.RUNNING)
    await it.supervisor.stop(SECONDS)
    assert (it.state.worker.phase, it.state.worker.exit.code) == (P.DRAINED, 0)
    assert (it.state.leaving, it.state.staying, it.state.draining) == (True, False, True)
    kinds = [e.kind for e in it.supervisor.log.after(0)]
    assert kinds == [K.WORKER_STARTED, K.READY, K.JOINED, K.LEAVING, K.LEAVING, K.DRAINED, K.WORKER_EXITED]


@pytest.mark.parametrize("before", [True, False], ids=["who was told before", "who is told then"])
async def test_who_may_stay_leaves_when_another_has_its_place(rig: Make, make_view: Make, before: bool) -> None:
    it = rig("ready view drain exit:0")
    await it.supervisor.put_worker(1)
    it.supervisor.put_view(make_view(1))
    await it.until(lambda s: s.worker.phase is P.RUNNING)
    if before:
        it.supervisor.stay()
    stopping = asyncio.create_task(it.supervisor.stop(10 * SECONDS))
    await it.until(lambda s: s.leaving)
    it.supervisor.stay()
    done, _ = await asyncio.wait([stopping], timeout=2 * supervisor.ANSWER_SECONDS)
    assert not done
    assert not it.state.draining
    it.supervisor.drain()
    await asyncio.wait_for(stopping, SECONDS)
    assert it.state.worker.phase is P.DRAINED


async def test_who_may_stay_does_so_for_a_part_of_its_time(rig: Make, make_view: Make) -> None:
    """The rest is for a checkpoint."""
    it = rig("ready view drain exit:0")
    await it.supervisor.put_worker(1)
    it.supervisor.put_view(make_view(1))
    await it.until(lambda s: s.worker.phase is P.RUNNING)
    it.supervisor.stay()
    begin = time.monotonic()
    await it.supervisor.stop(3.0)
    assert it.state.worker.phase is P.DRAINED
    assert time.monotonic() - begin >= 1.5


async def test_stop_waits_and_then_kills(rig: Make) -> None:
    it = rig("ready wait")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is P.READY)
    pid = it.state.worker.pid
    left: list[bool] = []
    await it.supervisor.stop(0.2, lambda: left.append(it.state.worker.exit is not None))
    assert left == [True]
    assert it.supervisor.closing
    assert gone(pid)
    assert it.state.worker.exit.message == "killed: it did not leave within 0.2 s after it was asked to"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
@pytest.mark.parametrize("nice", [0, 15])
def test_what_has_no_hurry_gives_way_with_all_its_threads(nice: int) -> None:
    program = """
import os, sys, threading
from lmj_trainer import linux
os.nice(int(sys.argv[1]))
wait = threading.Event()
thread = threading.Thread(target=wait.wait)
thread.start()
linux.give_way()
print(sorted(os.getpriority(os.PRIO_PROCESS, int(t)) for t in os.listdir("/proc/self/task")))
wait.set()
"""
    said = subprocess.run(
        [sys.executable, "-c", program, str(nice)], check=True, capture_output=True, text=True, timeout=60, start_new_session=True
    ).stdout
    base = os.getpriority(os.PRIO_PROCESS, 0)
    assert said.strip() == str([max(10, min(19, base + nice))] * 2)


async def test_a_command_that_is_not_there(rig: Make) -> None:
    it = rig("")
    it.launcher._program = dataclasses.replace(it.program, cold=["/no/such/command"])
    before = len(os.listdir("/proc/self/fd"))
    await it.supervisor.put_worker(1)
    ended = (await it.until(lambda s: s.worker.exit)).worker
    assert (ended.phase, ended.exit.code) == (P.EXITED, 127)
    assert "could not be started: [Errno 2]" in ended.exit.message
    assert len(os.listdir("/proc/self/fd")) == before


async def test_no_descriptor_is_left_behind(rig: Make) -> None:
    it = rig("ready exit:1")
    counts = []
    for incarnation in range(1, 5):
        await it.supervisor.put_worker(incarnation)
        await it.until(lambda s: s.worker.exit)
        await asyncio.sleep(0)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[-1] <= counts[1]


async def test_an_error_of_the_agent_ends_it(rig: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a mistake in the agent")

    it = rig("ready wait")
    await it.supervisor.put_worker(1)
    pid = (await it.until(lambda s: s.worker.pid)).worker.pid
    monkeypatch.setattr("lmj_trainer.agent.supervisor.fold", broken)
    with pytest.raises(RuntimeError, match="a mistake"):
        async with asyncio.timeout(20):
            await it.supervisor.failure
    assert gone(pid)
    it.supervisor._watching.exception()
    it.supervisor._watching = None


async def test_the_scan_is_told(rig: Make) -> None:
    it = rig("")
    assert not it.state.scanned
    good, bad = CheckpointInfo(name="step-000000002", step=2), CheckpointInfo(name="step-000000003", step=3, problem="torn")
    it.supervisor.found([bad, good])
    assert it.state.scanned
    assert it.state.checkpoints == [bad, good]
    assert [e.message for e in it.supervisor.log.after(0)] == ["checkpoint step-000000003 is skipped: torn"]


async def test_commits_held_back_are_told_in_time(rig: Make, make_view: Make) -> None:
    it = rig("ready view commit:500 wait")
    await it.supervisor.put_worker(1)
    await it.until(lambda s: s.worker.phase is P.READY)
    it.supervisor.put_view(make_view(1))
    await it.until(lambda s: s.worker.progress and s.worker.progress.step == 500)
    await it.until(lambda s: it.supervisor.log.after(0)[-1].progress.step == 500, seconds=5)
    assert [e.kind for e in it.supervisor.log.after(0)].count(K.COMMITTED) <= 3
    with contextlib.suppress(ProcessLookupError):
        os.kill(it.state.worker.pid, 9)
