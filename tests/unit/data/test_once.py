"""A lease on a shared folder: one makes what all need, and whoever dies with it is followed by exactly one."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lmj_trainer import lease as leases
from lmj_trainer.errors import OutageError
from lmj_trainer.lease import EXPIRE_SECONDS, Lease, Seen
from lmj_trainer.once import once


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on other machines, whose processes nobody can look at from here."""
    monkeypatch.setattr(leases, "_here", lambda: None)


class Clock:
    """A clock that only waiting moves; what happens meanwhile is called at its second."""

    def __init__(self, **events: Callable[[], object]) -> None:
        self.now = 1000.0
        self.events = {1000.0 + float(name.removeprefix("at_")): call for name, call in events.items()}

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at in [at for at in self.events if at <= self.now]:
            self.events.pop(at)()


def path_of(target: Path) -> Callable[[int], Path]:
    return lambda number: target.with_name(f".lease-{target.name}.{number}")


def taken(target: Path, number: int = 1, who: str = "pod a") -> Lease:
    found = Lease.take(path_of(target), number, who)
    assert found is not None
    return found


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_who_is_alone_makes_it_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "pretrained" / "tiny"
    seen: list[list[str]] = []

    def make(say: Callable[[str], None]) -> None:
        seen.append(names(target.parent))
        target.mkdir()

    for _ in range(2):
        once(target, make, "it", print, 60)
    assert seen == [[".lease-tiny.1"]]
    assert names(target.parent) == ["tiny"]


def test_of_many_at_once_one_makes_it(tmp_path: Path) -> None:
    target, made = tmp_path / "tiny", []

    def one(number: int) -> None:
        def make(say: Callable[[str], None]) -> None:
            made.append(number)
            target.mkdir()

        once(target, make, "it", lambda line: None, 60)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert len(made) == 1
    assert names(tmp_path) == ["tiny"]


def test_who_waits_is_told_by_whom_since_when_and_how_far(tmp_path: Path) -> None:
    target, said = tmp_path / "tiny", []
    held = taken(target)
    held._begun -= 35
    held.passing_on(print)("1 of 4 MB")
    held._write()
    once(target, pytest.fail, "the model", said.append, 60, clock=(clock := Clock(at_12=target.mkdir)), sleep=clock.sleep)
    assert said == ["waits for the model: pod a has been at it for 35 s (1 of 4 MB)"] * 3, "a word every five seconds"


def test_a_lease_that_is_renewed_is_waited_for_but_not_for_ever(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    held = taken(target)
    clock = Clock(**{f"at_{second}": held._write for second in range(0, 480, 50)})
    text = "the model is not there after 480 s: pod a has been at it for 0 s; where that takes longer, raise recovery.startTimeoutSeconds"
    with pytest.raises(OutageError, match=text):
        once(target, pytest.fail, "the model", lambda line: None, 480, clock=clock, sleep=clock.sleep)
    assert 480 <= clock.now - 1000 <= 483


def test_one_that_is_not_renewed_is_taken_over_whatever_its_times_say(tmp_path: Path) -> None:
    target, said = tmp_path / "tiny", []
    held = taken(target)
    held._write()
    os.utime(path_of(target)(1), (1e10, 1e10))  # a machine whose clock is ahead by centuries
    clock, made = Clock(), []

    def make(say: Callable[[str], None]) -> None:
        made.append(names(tmp_path))
        target.mkdir()

    once(target, make, "the model", said.append, 480, clock=clock, sleep=clock.sleep)
    assert EXPIRE_SECONDS <= clock.now - 1000 <= EXPIRE_SECONDS + 3
    assert made == [[".lease-tiny.1", ".lease-tiny.2"]]
    assert said[-1].startswith("pod a has not been heard of for 6")
    assert said[-1].endswith(" s: takes over the model")
    assert names(tmp_path) == ["tiny"]


def test_one_of_which_nothing_was_written_is_taken_over_too(tmp_path: Path) -> None:
    target, clock = tmp_path / "tiny", Clock()
    path_of(target)(1).touch()
    once(target, lambda say: target.mkdir(), "it", lambda line: None, 480, clock=clock, sleep=clock.sleep)
    assert names(tmp_path) == ["tiny"]


def test_of_many_that_wait_for_a_dead_one_one_takes_over(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    taken(target)._write()
    made: list[int] = []
    barrier = threading.Barrier(8)

    def one(number: int) -> None:
        clock = Clock(at_60=barrier.wait)  # all look next when it has expired for all, and from then on time is as it is

        def sleep(seconds: float) -> None:
            clock.sleep(seconds) if clock.events else time.sleep(0.01)

        def make(say: Callable[[str], None]) -> None:
            made.append(number)
            target.mkdir()

        once(target, make, "it", lambda line: None, 480, clock=clock, sleep=sleep)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(8)))
    assert len(made) == 1
    assert names(tmp_path) == ["tiny"]


def test_a_slow_holder_does_not_remove_the_lease_of_the_next(tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    slow = taken(target, who="slow")
    with slow.held():
        second = taken(target, 2, "second")
        with second.held():
            pass
        third = taken(target, 1, "third")  # after the second all names are free
        third._write()
    assert names(tmp_path) == [".lease-tiny.1"]
    left = Seen.of(path_of(target)(1), 1)
    assert left is not None
    assert "third has been at it" in left.doing


def test_when_the_holder_gives_up_the_others_try_at_once(tmp_path: Path) -> None:
    """One after the other, each would wait for the failure of the one before."""
    target = tmp_path / "tiny"
    held = taken(target)
    held._write()
    clock, seen = Clock(at_7=held._give_back), []
    once(target, lambda say: seen.append(names(tmp_path)), "it", lambda line: None, 480, clock=clock, sleep=clock.sleep)
    assert seen == [[]], "without a lease"
    assert clock.now - 1000 < 13


def test_an_error_gives_the_lease_back(tmp_path: Path) -> None:
    def make(say: Callable[[str], None]) -> None:
        raise KeyError("the hub's")

    with pytest.raises(KeyError):
        once(tmp_path / "tiny", make, "it", print, 60)
    assert names(tmp_path) == []


def test_a_folder_that_takes_no_lease_does_not_stop_anybody(tmp_path: Path) -> None:
    (tmp_path / "pretrained").write_text("a file, where a folder should be")
    made: list[Callable[[str], None]] = []
    once(tmp_path / "pretrained" / "tiny", made.append, "it", print, 60)
    assert made == [print]


def test_a_process_of_this_machine_that_is_gone_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_here", lambda: "this start of this machine")
    target, said = tmp_path / "tiny", []
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(60)
    with monkeypatch.context() as patched:
        patched.setattr(leases.os, "getpid", lambda: gone.pid)
        taken(target)._write()
    clock = Clock()
    once(target, lambda say: target.mkdir(), "it", said.append, 60, clock=clock, sleep=clock.sleep)
    assert (said, clock.now) == (["pod a is gone: takes over it"], 1000.0)


def test_it_is_renewed_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.01)
    target = tmp_path / "tiny"

    def make(say: Callable[[str], None]) -> None:
        path, seen = path_of(target)(1), set()
        while len(seen) < 3:  # the test's own deadline ends it
            seen.add(path.read_bytes())
        assert {len(content) for content in seen} == {4096}, "never half of one"

    once(target, make, "it", print, 60)


@pytest.mark.parametrize(
    "content",
    [
        b"5",
        b"[[]]",
        b'{"here": 1, "pid": {}}',
        b'{"who": {}, "seconds": "1", "says": [0]}',
        b"[" * 4096,
        b"\xff",
        b'{"who": "a\\nb"}',
    ],
)
def test_whatever_somebody_wrote_is_a_lease_that_expires(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lease").write_bytes(content + b" " * (1 << 20))
    seen = Seen.of(tmp_path / "lease", 1)
    assert seen is not None
    assert len(seen.content) <= 4096
    assert seen.over(0.0) is None
    assert seen.over(EXPIRE_SECONDS) is not None
    assert "\n" not in seen.doing


@pytest.mark.parametrize("pid", ["1", -1, 0, 1 << 40, None, 2.5])
def test_what_is_no_process_is_not_taken_for_one_that_is_gone(tmp_path: Path, pid: object) -> None:
    (tmp_path / "lease").write_text(json.dumps({"here": leases._here(), "pid": pid}))
    seen = Seen.of(tmp_path / "lease", 1)
    assert seen is not None
    assert seen.over(0.0) is None
