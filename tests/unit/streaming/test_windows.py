"""The window in use and the next one: never more are in memory, and storage that fails is asked again, for some time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from lmj_trainer.data.windowed import Window
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.streaming import windows as windows_module
from lmj_trainer.streaming.windows import Windows

SECONDS = 20.0


class Table:
    """What counts as one."""

    nbytes = 100

    def __init__(self, alive: list[int], number: int) -> None:
        self.number, self._alive = number, alive
        alive.append(number)

    def __del__(self) -> None:
        self._alive.remove(self.number)


class Storage:
    """Groups ``10 * window + place`` of windows of two groups."""

    def __init__(self) -> None:
        self.read_: list[tuple[int, float]] = []
        self.alive: list[int] = []
        self.gate: Callable[[int], None] = lambda group: None

    def groups(self, window: Window) -> list[int]:
        return [100 * window.epoch + 10 * window.number + place for place in range(2)]

    def read(self, group: int, most: float) -> Table:
        self.read_.append((group, most))
        self.gate(group)
        return Table(self.alive, group)

    def windows(self, patience: float = SECONDS, say: Callable[[str], None] = lambda text: None, **more: Any) -> Windows:
        return Windows(self.groups, self.read, 1000.0, "dataset.source s3://rows", patience, say, **more)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.setattr(windows_module, "_FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(windows_module, "_LONGEST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(windows_module, "_LOOK_SECONDS", 0.01)
    return Storage()


def nothing() -> None:
    pass


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def numbers(tables: list[Any]) -> list[int]:
    return [table.number for table in tables]


def test_the_next_window_is_read_once_and_beside(storage: Storage) -> None:
    windows = storage.windows()
    assert numbers(windows.hold(Window(0, 0), nothing)) == [0, 1]
    windows.expect(Window(0, 1))
    windows.expect(Window(0, 1))
    wait_until(lambda: len(storage.alive) == 4)
    assert numbers(windows.hold(Window(0, 0), nothing)) == [0, 1], "it is still the one in use"
    assert numbers(windows.hold(Window(0, 1), nothing)) == [10, 11]
    windows.expect(Window(0, 1))
    assert [group for group, _ in storage.read_] == [0, 1, 10, 11]
    assert sorted(storage.alive) == [10, 11], "the one before is gone"


def test_a_group_gets_what_those_before_it_have_left(storage: Storage) -> None:
    storage.windows().hold(Window(0, 0), nothing)
    assert storage.read_ == [(0, 1000.0), (1, 900.0)]


def test_never_more_than_two_windows_are_in_memory(storage: Storage) -> None:
    windows, most = storage.windows(), 0

    def count(group: int) -> None:
        nonlocal most
        most = max(most, len(storage.alive) + 1)

    storage.gate = count
    for number in range(6):
        windows.hold(Window(0, number), nothing)
        windows.expect(Window(0, number + 1))
        wait_until(lambda: len(storage.alive) == 4)
    # A jump gives up what was read, and what is under way.
    for number in (3, 0, 7):
        windows.expect(Window(1, number))
    assert numbers(windows.hold(Window(1, 7), nothing)) == [170, 171]
    assert most <= 4


def test_what_nobody_wants_any_more_is_over_before_another_is_begun(storage: Storage) -> None:
    windows, begun, go = storage.windows(), threading.Event(), threading.Event()

    def gate(group: int) -> None:
        if group == 0:
            begun.set()
            assert go.wait(SECONDS)

    storage.gate = gate
    windows.expect(Window(0, 0))
    assert begun.wait(SECONDS)
    windows.expect(Window(0, 5))
    time.sleep(0.02)
    assert [group for group, _ in storage.read_] == [0]
    go.set()
    assert numbers(windows.hold(Window(0, 5), nothing)) == [50, 51]
    assert [group for group, _ in storage.read_] == [0, 50, 51], "the rest of the first was not read"
    wait_until(lambda: sorted(storage.alive) == [50, 51])


def test_storage_that_fails_is_asked_again_and_a_warning_says_why(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows_module, "_QUIET_SECONDS", 0.0)
    said: list[str] = []
    failures = 8

    def gate(group: int) -> None:
        nonlocal failures
        if group == 1 and failures:
            failures -= 1
            raise OSError("503: SlowDown")

    storage.gate = gate
    assert numbers(storage.windows(say=said.append).hold(Window(0, 0), nothing)) == [0, 1]
    assert said == ["warning: training waits for dataset.source s3://rows: 503: SlowDown"]
    assert [group for group, _ in storage.read_] == [0] + [1] * 9


def test_storage_that_gives_nothing_ends_the_wait_with_what_it_said(storage: Storage) -> None:
    def gate(group: int) -> None:
        raise OSError("no route to host")

    storage.gate = gate
    with pytest.raises(OutageError, match=r"dataset.source s3://rows: .*no route to host$"):
        storage.windows(patience=0.1).hold(Window(0, 0), nothing)


def test_storage_that_hangs_ends_the_wait_too(storage: Storage) -> None:
    go = threading.Event()
    storage.gate = lambda group: go.wait(SECONDS) and None
    begun = time.monotonic()
    with pytest.raises(OutageError, match=r"no rows for .*: it is read slowly: lower dataset.streaming.rowGroups"):
        storage.windows(patience=0.1).hold(Window(0, 0), nothing)
    assert time.monotonic() - begun < SECONDS / 2
    go.set()


def test_what_failed_while_it_was_read_ahead_is_read_again_when_it_is_wanted(storage: Storage) -> None:
    windows = storage.windows(patience=0.05)
    broken = True

    def gate(group: int) -> None:
        if broken:
            raise OSError("gone")

    storage.gate = gate
    windows.expect(Window(0, 0))
    reading = windows._reading
    assert reading is not None
    wait_until(reading.answer.done)
    broken = False
    assert numbers(windows.hold(Window(0, 0), nothing)) == [0, 1]


def test_who_waits_can_be_called_away_and_comes_back_to_the_same_reading(storage: Storage) -> None:
    go, windows = threading.Event(), storage.windows()
    storage.gate = lambda group: go.wait(SECONDS) and None

    def away() -> None:
        raise InterruptedError("the view is over")

    with pytest.raises(InterruptedError, match=r"the view is over"):
        windows.hold(Window(0, 0), away)
    go.set()
    assert numbers(windows.hold(Window(0, 0), nothing)) == [0, 1]
    assert [group for group, _ in storage.read_] == [0, 1]


def test_what_is_wrong_with_the_rows_is_told_when_they_are_wanted(storage: Storage) -> None:
    def gate(group: int) -> None:
        if group == 10:
            raise UserError("it is broken")

    storage.gate = gate
    windows = storage.windows()
    windows.hold(Window(0, 0), nothing)
    windows.expect(Window(0, 1))
    reading = windows._reading
    assert reading is not None
    wait_until(reading.answer.done)
    assert numbers(windows.hold(Window(0, 0), nothing)) == [0, 1]
    with pytest.raises(UserError, match=r"it is broken"):
        windows.hold(Window(0, 1), nothing)


def test_the_thread_that_reads_steps_aside(storage: Storage) -> None:
    threads: list[str] = []
    storage.windows(aside=lambda: threads.append(threading.current_thread().name)).hold(Window(0, 0), nothing)
    assert threads == ["rows"]


def test_closed_it_reads_no_further(storage: Storage) -> None:
    windows, begun, go = storage.windows(), threading.Event(), threading.Event()

    def gate(group: int) -> None:
        begun.set()
        assert go.wait(SECONDS)

    storage.gate = gate
    windows.expect(Window(0, 0))
    assert begun.wait(SECONDS)
    windows.close()
    go.set()
    wait_until(lambda: not storage.alive)
    assert [group for group, _ in storage.read_] == [0]


def test_a_window_is_gone_before_another_is_waited_for(storage: Storage) -> None:
    windows, alive = storage.windows(), list[int]()
    windows.hold(Window(0, 0), nothing)
    storage.gate = lambda group: alive.append(len(storage.alive))
    windows.hold(Window(0, 5), nothing)
    assert alive == [0, 1]


def test_windows_of_one_step_share_the_time_that_there_is(storage: Storage) -> None:
    go = threading.Event()
    storage.gate = lambda group: go.wait(SECONDS) and None
    begun = time.monotonic()
    with pytest.raises(OutageError, match=r"no rows for"):
        storage.windows(patience=SECONDS / 2).hold(Window(0, 0), nothing, begun - SECONDS)
    assert time.monotonic() - begun < SECONDS / 4
    go.set()
