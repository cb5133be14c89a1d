"""A tracker that fails, is slow, or comes back: what it gets, and what is said."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests.unit.trackers.run_folder import RUN, RunFolder

from lmj_api.spec import Tracker
from lmj_trainer.trackers import tracking as tracking_module
from lmj_trainer.trackers.cursor import CursorFile
from lmj_trainer.trackers.feeding import Orders, feed
from lmj_trainer.trackers.main import name_of
from lmj_trainer.trackers.port import Begun, Note, Row
from lmj_trainer.trackers.records import Records
from lmj_trainer.trackers.tracking import Tracking

SECRET = "s3cr3t"
MLFLOW = {"kind": "MLflow", "project": "p", "uri": "http://127.0.0.1:1"}


class Memory:
    """A tracker that keeps what it is told, and raises when it is to."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.rows: list[Row] = []
        self.notes: list[Note] = []
        self.begun = 0
        self.state = ""
        self.knows = 0

    def begin(self) -> Begun:
        self._trouble()
        self.begun += 1
        return Begun("somewhere", self.knows)

    def log(self, rows: Sequence[Row]) -> None:
        self._trouble()
        self.rows += rows

    def note(self, note: Note) -> None:
        self._trouble()
        self.notes.append(note)

    def end(self) -> None:
        self._trouble()
        self.state = "ended"

    def leave(self) -> None:
        self.state = "left"

    def _trouble(self) -> None:
        if self.problem is not None:
            raise self.problem


class Fed:
    """A thread that feeds."""

    def __init__(self, run: RunFolder, tracker: Memory) -> None:
        self.run, self.tracker, self.orders = run, tracker, Orders()
        self.warned: list[str] = []
        self.shown: list[str] = []
        self.file = CursorFile(run.layout.trackers, run.job.spec.output.trackers[0])
        self.all: bool | None = None
        self.thread = threading.Thread(target=self._feed, daemon=True)

    def _feed(self) -> None:
        tracking = Tracking(lambda: self.tracker, Records(self.run.layout), self.file, RUN, 0)
        self.all = feed(
            tracking,
            self.orders,
            self.warned.append,
            self.shown.append,
            name="Memory",
            secrets=[SECRET, ""],
            again="lmj track here",
            poll=0.01,
        )

    def start(self) -> "Fed":
        self.thread.start()
        return self

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < end
            assert self.thread.is_alive() or holds()
            time.sleep(0.005)

    def finish(self, seconds: float = 20.0) -> bool | None:
        self.orders.end(seconds)
        self.thread.join(30)
        assert not self.thread.is_alive()
        return self.all


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "out", [MLFLOW])


def steps(tracker: Memory) -> list[int]:
    return [row.step for row in tracker.rows]


def test_what_comes_is_logged_as_it_comes_and_the_rest_at_the_end(run: RunFolder) -> None:
    fed = Fed(run, Memory()).start()
    run.commit(1, 3)
    fed.until(lambda: steps(fed.tracker) == [1, 2, 3])
    run.commit(4, 500)
    run.view(2, 3, "a worker died")
    assert fed.finish() is True
    assert steps(fed.tracker) == list(range(1, 501))
    assert fed.tracker.notes == [(2, 3, "a worker died")]
    assert (fed.tracker.state, fed.warned, fed.shown) == ("ended", [], ["somewhere"])
    kept = fed.file.read(RUN, 0)
    assert (kept.step, kept.view, kept.place) == (500, 2, "somewhere")


def test_a_batch_has_a_bound(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking_module, "BATCH", 7)
    asked: list[int] = []
    tracker = Memory()
    log = tracker.log
    monkeypatch.setattr(tracker, "log", lambda rows: (asked.append(len(rows)), log(rows)))
    run.commit(1, 30)
    assert Fed(run, tracker).start().finish() is True
    assert asked == [7, 7, 7, 7, 2]
    assert steps(tracker) == list(range(1, 31))


def test_one_that_fails_is_told_of_once_and_gets_everything_when_it_works(run: RunFolder) -> None:
    tracker = Memory()
    tracker.problem = ConnectionError(f"http://user:{SECRET}@host refuses")
    fed = Fed(run, tracker).start()
    run.commit(1, 3)
    fed.until(lambda: fed.warned)
    run.commit(4, 6)
    tracker.problem = None
    fed.until(lambda: steps(tracker) == [1, 2, 3, 4, 5, 6])
    assert fed.warned == [
        "Memory fails: http://user:***@host refuses; training goes on, and it gets everything when it works again"
    ]
    tracker.problem = ConnectionError("again")
    run.commit(7, 7)
    fed.until(lambda: len(fed.warned) == 2)
    tracker.problem = None
    assert fed.finish() is True
    assert steps(tracker) == [1, 2, 3, 4, 5, 6, 7]
    assert tracker.begun == 2, "a connection that failed is made anew"


def test_one_that_never_works_ends_in_time_and_says_what_it_lacks(run: RunFolder) -> None:
    tracker = Memory()
    run.commit(1, 2)
    fed = Fed(run, tracker).start()
    fed.until(lambda: steps(tracker) == [1, 2])
    tracker.problem = ConnectionError("no route")
    run.commit(3, 4)
    assert fed.finish(0.2) is False
    assert fed.warned[-1] == "Memory did not take all: no route; it has the steps up to 2; lmj track here sends the rest"
    tracker.problem = None
    assert Fed(run, tracker).start().finish() is True
    assert steps(tracker) == [1, 2, 3, 4]


def test_one_that_leaves_lets_go_and_the_next_goes_on(run: RunFolder) -> None:
    first = Fed(run, Memory())
    run.commit(1, 5)
    first.start().until(lambda: steps(first.tracker) == [1, 2, 3, 4, 5])
    first.orders.leave()
    first.thread.join(20)
    assert (first.all, first.tracker.state) == (True, "left")
    # The run goes back: what is done again was logged already.
    run.commit(3, 7, attempt=1)
    second = Fed(run, Memory())
    assert second.start().finish() is True
    assert steps(second.tracker) == [6, 7]


def test_one_without_its_credential_is_called_so() -> None:
    plain = Tracker.model_validate(MLFLOW)
    assert name_of(plain, {}) == "MLflow (http://127.0.0.1:1)"
    told = Tracker.model_validate({**MLFLOW, "token": {"name": "tracking", "key": "mlflow"}})
    assert name_of(told, {}) == "MLflow (http://127.0.0.1:1) without MLFLOW_TRACKING_TOKEN (Secret tracking, key mlflow)"
    assert name_of(told, {"MLFLOW_TRACKING_TOKEN": "t"}) == name_of(plain, {})


def test_one_that_is_held_logs_nothing_until_it_goes_on(run: RunFolder) -> None:
    fed = Fed(run, Memory())
    fed.orders.hold(True)
    fed.start()
    run.commit(1, 3)
    time.sleep(0.1)
    assert (fed.tracker.begun, steps(fed.tracker)) == (0, [])
    fed.orders.hold(False)
    fed.until(lambda: steps(fed.tracker) == [1, 2, 3])
    fed.orders.hold(True)
    run.commit(4, 5)
    fed.orders.leave()
    fed.thread.join(20)
    assert (steps(fed.tracker), fed.tracker.state) == ([1, 2, 3], "left")


def test_what_the_tracker_has_is_not_logged_again_where_the_file_is_lost(run: RunFolder) -> None:
    tracker = Memory()
    tracker.knows = 4
    run.commit(1, 6)
    assert Fed(run, tracker).start().finish() is True
    assert steps(tracker) == [5, 6]


def test_a_file_that_cannot_be_written_does_not_log_a_step_twice(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, fails = Memory(), [OSError("no space left"), OSError("no space left")]
    fed = Fed(run, tracker)
    write = fed.file.write

    def full(cursor: object) -> None:
        if fails:
            raise fails.pop()
        write(cursor)  # type: ignore[arg-type]

    monkeypatch.setattr(fed.file, "write", full)
    run.commit(1, 3)
    fed.start().until(lambda: not fails)
    run.commit(4, 5)
    assert fed.finish() is True
    assert steps(tracker) == [1, 2, 3, 4, 5]
    assert fed.file.read(RUN, 0).step == 5
