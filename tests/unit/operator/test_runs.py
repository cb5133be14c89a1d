"""``lmj list``, ``logs`` and ``stop``: the runs of this machine, from their folders."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lmj_api.protocol import Progress
from lmj_api.spec import LiveMigrationJob
from lmj_api.status import JobStatus, Phase
from lmj_operator.backend.local.lock import RunLock, lock_holder
from lmj_operator.backend.local.process import has_open
from lmj_operator.backend.local.store import RunStore
from lmj_operator.cli.logs import LogReader, log_files

pytestmark = pytest.mark.integration

HOLDER = """
import signal, sys, time
from pathlib import Path
from lmj_operator.backend.local.lock import RunLock
if sys.argv[2] == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with RunLock(Path(sys.argv[1])):
    print("holds", flush=True)
    time.sleep(100)
"""


def lmj(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lmj_operator.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def run_in(output: Path, name: str, phase: Phase, step: int) -> RunStore:
    """A run's folder, as one that is in ``phase`` leaves it."""
    store = RunStore(output / ".lmj")
    store.folder.mkdir(parents=True)
    dataset = {"source": "d.csv", "text": ["text"], "label": "label"}
    spec = {"model": {"scratch": {}}, "dataset": dataset, "output": {"path": str(output)}}
    store.write_job(LiveMigrationJob.model_validate({"metadata": {"name": name}, "spec": spec}))
    store.write_status(JobStatus(phase=phase, message="as it is", progress=Progress(step=step, steps=9, epoch=0.0)))
    return store


def test_names_of_folders_are_no_commands_of_a_terminal(tmp_path: Path) -> None:
    run_in(tmp_path / "\x1b[2Jone\nJOB", "first", Phase.SUCCEEDED, 9)
    told = lmj("list", str(tmp_path)).stdout
    assert len(told.splitlines()) == 2
    assert "[2Jone JOB" in told
    assert told.replace("\n", "").isprintable()
    nowhere = lmj("list", str(tmp_path / "\x1b[2Jno"))
    assert nowhere.stderr == f"error: {tmp_path}/ [2Jno: there is no such folder\n"


def test_list_tells_each_run_once_and_who_was_killed(tmp_path: Path) -> None:
    one = run_in(tmp_path / "a" / "one", "first", Phase.RUNNING, 3)
    run_in(tmp_path / "b", "second", Phase.SUCCEEDED, 9)
    run_in(tmp_path / ".hidden" / "x", "hidden", Phase.SUCCEEDED, 9)
    run_in(tmp_path / "1/2/3/4/5/6/7", "deep", Phase.SUCCEEDED, 9)
    damaged = run_in(tmp_path / "c", "third", Phase.FAILED, 1)
    damaged.status_file.write_text("{")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    with RunLock(one.lock_file):
        told = lmj("list", str(tmp_path), "-o", "json")
        found = json.loads(told.stdout)
        assert [(run["name"], run["phase"], run["step"], run["process"]) for run in found] == [
            ("first", "Running", 3, os.getpid()),
            ("second", "Succeeded", 9, None),
            ("third", "Unreadable", None, None),
        ]
    rows = [line.split() for line in lmj("list", str(tmp_path)).stdout.splitlines()]
    assert rows[0] == ["JOB", "PHASE", "STEP", "PROCESS", "OUTPUT"]
    assert rows[1] == ["first", "Running", "(killed)", "3/9", "-", str(tmp_path / "a" / "one")]
    assert lmj("list", str(tmp_path / "b" / ".lmj")).stdout.startswith("no run in ")
    nowhere = lmj("list", str(tmp_path / "no"))
    assert (nowhere.returncode, nowhere.stderr) == (2, f"error: {tmp_path / 'no'}: there is no such folder\n")


def test_logs_are_of_the_rank_that_is_asked_for_from_the_end(tmp_path: Path) -> None:
    output = run_in(tmp_path / "out", "job", Phase.SUCCEEDED, 9).folder.parent
    (output / "logs").mkdir()
    for name, lines in (("job-r0-1", 3), ("job-r1-2", 30), ("job-r1-10", 1), ("job-s-4", 1)):
        (output / "logs" / f"{name}.log").write_text("".join(f"line {i} ü\n" for i in range(lines)))
    (output / "logs" / "other.log").write_text("no pod's\n")
    told = lmj("logs", str(output), "--tail", "2").stdout.splitlines()
    assert told == [
        "job-r0-1: line 1 ü",
        "job-r0-1: line 2 ü",
        "job-r1-2: line 28 ü",
        "job-r1-2: line 29 ü",
        "job-s-4: line 0 ü",
        "job-r1-10: line 0 ü",
    ]
    assert len(lmj("logs", str(output), "--rank", "1", "--tail", "0").stdout.splitlines()) == 31
    nobody = lmj("logs", str(output), "--rank", "7")
    assert nobody.returncode == 1
    assert "no log of rank 7 is here" in nobody.stderr
    assert log_files(tmp_path / "nowhere", None) == []


def test_a_log_is_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "job-r0-1.log"
    path.write_text("x" * 200_000 + "\nsecond\nthi")
    reader = LogReader(path, 1)
    assert list(reader.lines()) == ["second"]
    with path.open("a") as file:
        file.write("rd\nfourth\n")
    assert list(reader.lines()) == ["third", "fourth"]
    assert list(LogReader(path, 0).lines())[1:] == ["second", "third", "fourth"]


@pytest.fixture
def holder(tmp_path: Path, request: pytest.FixtureRequest) -> "Iterator[subprocess.Popen[str]]":
    store = run_in(tmp_path / "out", "job", Phase.SUSPENDED, 5)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(store.lock_file), request.param], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "holds\n"
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("holder", ["leaves"], indirect=True)
def test_stop_asks_and_waits(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    told = lmj("stop", str(tmp_path / "out"))
    assert (told.returncode, told.stdout) == (0, "Suspended: as it is\n")
    assert holder.wait(10) == -signal.SIGTERM
    again = lmj("stop", str(tmp_path / "out"))
    assert (again.returncode, again.stderr) == (1, f"error: {tmp_path / 'out'}: no job runs here\n")


@pytest.mark.parametrize("holder", ["stays"], indirect=True)
def test_stop_says_when_a_run_does_not_leave(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    begin = time.monotonic()
    told = lmj("stop", str(tmp_path / "out"), "--timeout", "0.3")
    assert told.returncode == 1
    assert f"process {holder.pid} was asked to leave and has not within 0.3 s" in told.stderr
    assert time.monotonic() - begin < 30


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system does not tell what a process has open")
def test_stop_never_signals_a_process_of_another_namespace(tmp_path: Path) -> None:
    store = run_in(tmp_path / "out", "job", Phase.RUNNING, 5)
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
    try:
        with RunLock(store.lock_file):
            store.lock_file.write_text(f"{bystander.pid}\n")  # as a run in a container writes its own number
            assert lock_holder(store.lock_file) == bystander.pid
            told = lmj("stop", str(tmp_path / "out"))
        assert told.returncode == 1
        assert "is not of this machine or user; stop it there" in told.stderr
        assert bystander.poll() is None
        assert has_open(os.getpid(), Path(sys.executable)) is False
    finally:
        bystander.kill()
        bystander.wait()
