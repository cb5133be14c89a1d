"""The agent's pure parts: the event log, exits, tails, the environment, arguments."""

import os
from pathlib import Path

import pytest

from lmj_api.protocol import Event, EventKind, Progress
from lmj_trainer.agent.environment import default_interface, worker_environment
from lmj_trainer.agent.events import EventLog
from lmj_trainer.agent.exits import describe
from lmj_trainer.agent.main import address
from lmj_trainer.agent.memory import open_memory
from lmj_trainer.agent.tail import Lines, Tail
from lmj_trainer.errors import UserError
from lmj_trainer.interfaces import interface_of


def event(kind: EventKind = EventKind.WARNING, step: int = 0) -> Event:
    return Event(time=0, kind=kind, message=str(step), progress=Progress(step=step, steps=100, epoch=0))


def told(log: EventLog, after: int = 0) -> list[tuple[int, str]]:
    return [(e.seq, e.message) for e in log.after(after)]


@pytest.mark.parametrize("system", ["has it", "lacks it"])
def test_memory_is_a_file_that_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    if system == "lacks it":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    memory = open_memory(tmp_path / "pod")
    os.ftruncate(memory, 1 << 16)
    os.pwrite(memory, b"held", 100)
    assert os.pread(memory, 4, 100) == b"held"
    assert not os.get_inheritable(memory)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    os.close(memory)


def test_events_are_numbered_and_read_from_anywhere() -> None:
    log = EventLog()
    assert log.after(0) == []
    for i in range(5):
        log.add(event(step=i), 0.0)
    assert told(log, 3) == [(4, "3"), (5, "4")]
    assert told(log, 5) == []
    assert [e.seq for e in log.after(1, limit=2)] == [2, 3]
    assert log.newest == 5


def test_dropped_events_are_told() -> None:
    log = EventLog(size=3)
    for i in range(10):
        log.add(event(step=i), 0.0)
    first, *rest = log.after(2)
    assert (first.seq, first.kind, first.message) == (7, EventKind.WARNING, "5 events were dropped: nobody read them in time")
    assert [e.seq for e in rest] == [8, 9, 10]
    assert [e.seq for e in log.after(7)] == [8, 9, 10]  # a reader that goes on from there is not told again


def test_commits_are_thinned_out_and_the_newest_wins() -> None:
    log = EventLog()
    for step in range(1, 31):  # ten a second
        log.add(event(EventKind.COMMITTED, step), step / 10)
        if step == 15:
            assert told(log) == [(1, "1"), (2, "11")]
    assert told(log, 2) == [(3, "21")]
    assert log.due == pytest.approx(3.1)
    log.flush(3.0)
    assert log.newest == 3
    log.flush(3.2)
    assert told(log, 3) == [(4, "30")]
    assert log.due is None


def test_who_reads_late_is_told_the_first_and_the_newest_of_many_commits() -> None:
    log = EventLog(size=5, commit_interval=1.0)
    log.add(event(EventKind.JOINED, 0), 0.0)
    for step in range(1, 10_001):
        log.add(event(EventKind.COMMITTED, step), float(step))
    assert told(log) == [(1, "0"), (2, "1"), (10_001, "10000")]
    assert [told(log, after) for after in (1, 2, 3, 10_000, 10_001)] == [
        [(2, "1"), (10_001, "10000")],
        [(10_001, "10000")],
        [(10_001, "10000")],
        [(10_001, "10000")],
        [],
    ]
    log.add(event(step=7), 10_001.0)
    log.add(event(EventKind.COMMITTED, 10_001), 10_002.0)
    log.add(event(EventKind.COMMITTED, 10_002), 10_003.0)
    assert [message for _, message in told(log, 2)] == ["10000", "7", "10001", "10002"]
    assert told(log, 0)[0] == (1, "1 events were dropped: nobody read them in time")
    assert [seq for seq, _ in told(log, 1)] == [2, 10_001, 10_002, 10_003, 10_004]


def test_a_commit_that_waits_is_told_before_what_followed_it() -> None:
    log = EventLog()
    for step in (1, 2, 3):
        log.add(event(EventKind.COMMITTED, step), 0.1)
    log.add(event(EventKind.LOST_PEER, 99), 0.1)
    assert told(log) == [(1, "1"), (2, "3"), (3, "99")]
    assert log.due is None


@pytest.mark.parametrize(
    ("code", "stderr", "reason", "message"),
    [
        (2, ["error: first", "error: no column x", "bye"], None, "no column x"),
        (2, ["usage"], None, "usage"),
        (1, ["Traceback", "ValueError: x", "", "  "], None, "ValueError: x"),
        (-9, ["x"], None, "killed by SIGKILL"),
        (-11, [], None, "killed by SIGSEGV"),
        (-99, [], None, "killed by signal 99"),
        (-9, ["x"], "broke the protocol", "broke the protocol"),
        (1, ["x"], "broke the protocol", "x"),
        (0, [], None, "left with exit code 0 and no message"),
    ],
)
def test_exits(code: int, stderr: list[str], reason: str | None, message: str) -> None:
    assert describe(code, stderr, reason).message == message


def test_lines_are_bounded() -> None:
    lines = Lines(limit=10)
    assert lines.feed(b"ab") == []
    assert lines.feed(b"c\nd\n\ne") == [b"abc", b"d", b""]
    assert lines.feed(b"x" * 25) == [b"e" + b"x" * 9, b"x" * 10]
    assert lines.end() == [b"x" * 6]
    assert lines.end() == []
    tail = Tail(count=2, width=5)
    for line in (b"gone", b" 10%\r 99%\r", b"\x1b[31mred and long \xff"):
        tail.add(line)
    assert tail.lines() == [" 99%", " [31…"]


def test_environment() -> None:
    base = {"OMP_NUM_THREADS": "64", "TOKENIZERS_PARALLELISM": "true", "HOME": "/root"}
    made = worker_environment(base, 3, "lo")
    assert (made["OMP_NUM_THREADS"], made["MKL_NUM_THREADS"], made["TP_SOCKET_IFNAME"]) == ("3", "3", "lo")
    assert made["OPENBLAS_NUM_THREADS"] == "1"
    assert (made["TOKENIZERS_PARALLELISM"], made["HOME"], made["MALLOC_MMAP_MAX_"]) == ("true", "/root", "0")
    assert made["HF_HUB_DISABLE_PROGRESS_BARS"] == "1"
    assert "TP_SOCKET_IFNAME" not in worker_environment({}, 1, None)
    assert [default_interface(h, "linux") for h in ("127.0.0.1", "::1", "0.0.0.0", "10.0.0.1")] == ["lo", "lo", None, None]
    assert default_interface("localhost", "darwin") == "lo0"


def test_addresses() -> None:
    assert address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert address("[::]:8080") == ("::", 8080)
    for wrong in ("", "80", ":80", "host", "host:x", "host:65536"):
        with pytest.raises(ValueError, match="HOST:PORT"):
            address(wrong)


def test_an_address_names_its_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"
    with pytest.raises(UserError, match="no network interface has it"):
        interface_of("203.0.113.9")
    with pytest.raises(UserError, match="not an IP address"):
        interface_of("eth0")


def test_the_first_commit_of_a_view_is_told_at_once() -> None:
    log = EventLog(commit_interval=1.0)
    log.add(event(EventKind.COMMITTED, 1), 0.0)
    log.add(event(EventKind.JOINED, 0), 0.1)
    log.add(event(EventKind.COMMITTED, 2), 0.2)
    log.add(event(EventKind.COMMITTED, 3), 0.3)
    assert [message for _, message in told(log)] == ["1", "0", "2"]
    assert log.due == pytest.approx(1.2)
