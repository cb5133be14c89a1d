"""What Linux alone offers."""

import errno
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lmj_trainer import linux

pytestmark = pytest.mark.integration

GROUP = Path("/proc/self/autogroup")
STANDS_BACK = """
import threading
from pathlib import Path
from lmj_trainer import linux

def nice():
    for thread in threading.enumerate():
        if thread.name == "session-nice":
            thread.join(20)
    print((Path("/proc/self/autogroup").read_text().split() or ["none"])[-1])

with linux.behind_others():
    nice()
nice()
linux.like_others()
nice()
linux.stay_behind()
nice()
linux.like_others()
nice()
"""


@pytest.mark.skipif(not GROUP.exists(), reason="sessions are not scheduled as such here")
def test_a_session_stands_back_for_a_while() -> None:
    # In a session of its own: processes that are in none since the machine started have no group, and the tests' one is to be left alone.
    done = subprocess.run(
        [sys.executable, "-c", STANDS_BACK], stdout=subprocess.PIPE, text=True, start_new_session=True, timeout=60, check=True
    )
    if set(done.stdout.split()) == {"none"}:
        pytest.skip("new sessions get no group here")
    assert done.stdout.split() == ["10", "0", "0", "15", "0"]


def test_nothing_happens_in_a_session_without_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    class Groupless:
        def write_text(self, text: str) -> None:
            raise OSError(errno.EINVAL, "not a group of its own")

    monkeypatch.setattr(linux, "_SESSION", Groupless())
    with linux.behind_others():
        pass


def test_nothing_is_said_where_sessions_are_not_scheduled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(linux, "_SESSION", tmp_path / "none" / "autogroup")
    with linux.behind_others():
        pass
    linux.stay_behind()
    linux.like_others()


def test_the_kernel_takes_only_so_many_changes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        def __init__(self) -> None:
            self.written: list[str] = []
            self.refusals = 30

        def write_text(self, text: str) -> None:
            if self.refusals:
                self.refusals -= 1
                raise BlockingIOError("the last was just now")
            self.written.append(text)

    busy = Busy()
    monkeypatch.setattr(linux, "_SESSION", busy)
    with linux.behind_others():
        _await_changes()
        assert busy.written == ["10"]
        busy.refusals = 2
    _await_changes()
    assert busy.written == ["10", "0"]
    busy.refusals = 10**9
    with linux.behind_others():
        pass
    busy.refusals = 0
    _await_changes()
    assert busy.written == ["10", "0", "0"], "what is not wanted any more is not set"


def _await_changes() -> None:
    for thread in threading.enumerate():
        if thread.name == "session-nice":
            thread.join(20)
