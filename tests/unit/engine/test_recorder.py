"""What rank 0 writes down while training."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmj_api.layout import Layout
from lmj_api.protocol import Progress
from lmj_api.run import Run
from lmj_trainer.errors import UserError
from lmj_trainer.metrics import evaluate_counts
from lmj_trainer.state.journal import Journal
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker import metrics_file
from lmj_trainer.worker import recorder as recorder_module
from lmj_trainer.worker.claims import FolderClaims
from lmj_trainer.worker.fence import Claim, Fence
from lmj_trainer.worker.recorder import Recorder

pytestmark = pytest.mark.integration

SECONDS = 30.0
"""For anything that is expected to happen."""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "out", tmp_path / "out" / "checkpoints")


def claim(view: int, run: Run | None = None) -> Claim:
    return Claim(run=run or Run(), view=view, pod="tiny-r0-1")


def begin(layout: Layout, resume: int, view: int = 1, **options: Any) -> Recorder:
    recorder = Recorder(
        layout, options.pop("journal", None) or Journal(), tensorboard=options.pop("tensorboard", False), **options
    )
    recorder.begin(claim(view), resume)
    return recorder


def progress(step: int) -> Progress:
    return Progress(step=step, steps=10, epoch=step / 10, loss=1 / 3, learning_rate=1e-3, grad_norm=2.0, samples_per_second=5.0)


def lines(layout: Layout) -> list[dict]:
    return [json.loads(line) for line in layout.metrics.read_text().splitlines()]


def steps(layout: Layout) -> list[int]:
    return [line["step"] for line in lines(layout)]


def record(layout: Layout, resume: int, steps: range, view: int = 1) -> None:
    recorder = begin(layout, resume, view)
    for step in steps:
        recorder.step(progress(step), 100.0 + step)
    recorder.end()


def evaluation(step: int, hits: int = 3, split: str = "validation"):
    return evaluate_counts([[hits, 1], [1, hits]], 1.0, ["a", "b"], split, step)


def test_one_line_a_step_with_the_loss_s_own_bits(layout: Layout) -> None:
    record(layout, 0, range(1, 4))
    assert [line["step"] for line in lines(layout)] == [1, 2, 3]
    assert lines(layout)[2] == {
        "step": 3,
        "epoch": 0.3,
        "loss": 1 / 3,
        "gradNorm": 2.0,
        "learningRate": 1e-3,
        "samplesPerSecond": 5.0,
        "time": 103.0,
    }


def test_what_is_read_without_json_is_json(layout: Layout) -> None:
    numbers = ["0", "-0", "7", "-12.5", "1e-07", "2.5E+16", "NaN", "Infinity", "-Infinity", "null"]
    texts = ['{"step": 1}', *(f'{{"step": 12, "gradNorm": {number}, "time": {number}}}' for number in numbers)]
    for text in texts:
        found = metrics_file._OURS.fullmatch(f"{text}\n".encode())
        assert found is not None, text
        assert int(found[1]) == json.loads(text)["step"]
    assert not any(metrics_file._OURS.fullmatch(f"{text}\n".encode(errors="surrogateescape")) for text in FOREIGN)
    record(layout, 0, range(1, 3))
    assert all(metrics_file._OURS.fullmatch(line) for line in layout.metrics.read_bytes().splitlines(keepends=True)), (
        "all that is written"
    )


def test_a_line_is_there_as_soon_as_it_is_recorded(layout: Layout) -> None:
    recorder = begin(layout, 0)
    recorder.step(progress(1), 1.0)
    assert len(lines(layout)) == 1
    recorder.end()


def test_a_resumed_run_forgets_what_it_does_again(layout: Layout) -> None:
    record(layout, 0, range(1, 6))
    record(layout, 3, range(4, 8))
    assert [line["step"] for line in lines(layout)] == [1, 2, 3, 4, 5, 6, 7]


TORN = ['{"step": 5, "lo', "{", '{"step": 5, "epoch": 0.5}', "\x00\x00\x00", '"\udcff', "x" * 200_000]
FOREIGN = [
    '{"step": 2, "step": 9}',
    '{"step": 03}',
    '{"step": 3, "loss": 01}',
    '{"step": 3, "loss": 1.}',
    '{"step": 3, "loss": +1}',
    '{"step": 3, "loss": }',
    '{"step": 3, "loss": 1 }x',
    '{"step": 3, "lo{"step": 3, "loss": 1}',
    "7",
    "null",
    "[]",
    '{"st": 2}',
    '{"step": true}',
    '{"step": "5"}',
    '{"step": 5.0}',
    '{"step": -1}',
    "[" * 60_000,
    "y" * 70_000,
]


@pytest.mark.parametrize("torn", TORN)
def test_a_torn_last_line(layout: Layout, torn: str) -> None:
    record(layout, 0, range(1, 5))
    with layout.metrics.open("a", errors="surrogateescape") as file:
        file.write(torn)
    record(layout, 4, range(5, 7))
    assert steps(layout) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("foreign", FOREIGN + TORN)
def test_a_foreign_line_in_the_middle(layout: Layout, foreign: str) -> None:
    record(layout, 0, range(1, 3))
    kept = layout.metrics.read_bytes()
    with layout.metrics.open("a", errors="surrogateescape") as file:
        file.write(foreign + "\n")
    record(layout, 2, range(3, 5))
    assert layout.metrics.read_bytes().startswith(kept)
    assert steps(layout) == [1, 2, 3, 4]
    record(layout, 2, range(3, 4))
    assert steps(layout) == [1, 2, 3]


@pytest.mark.parametrize("content", ["", "{", "7", "null", '[{"step": 1}]', "[7]", "[" * 60_000, "\x00", '"\udcff'])
def test_evaluations_that_are_none(layout: Layout, content: str) -> None:
    layout.output.mkdir()
    layout.evaluation.write_text(content, errors="surrogateescape")
    told: list[str] = []
    recorder = begin(layout, 4, warn=told.append)
    assert recorder.evaluations == []
    recorder.evaluation(evaluation(4))
    recorder.end()
    assert len(json.loads(layout.evaluation.read_text())) == 1
    assert len(told) == (content != "null" or 1)
    assert str(layout.evaluation) in told[0]


def test_of_two_recorders_the_newer_view_s_records(layout: Layout) -> None:
    """A group that nobody can reach trains on in a view that is over."""
    old = begin(layout, 0)
    for step in range(1, 5):
        old.check()
        old.step(progress(step), 1.0)
    new = begin(layout, 2, view=2)
    with pytest.raises(ViewBrokenError, match=r"another rank 0 writes into .*: view 2 has begun, in tiny-r0-1"):
        old.check()
    with pytest.raises(ViewBrokenError):
        old.evaluation(evaluation(5))
    old.step(progress(5), 1.0)
    old.end()
    new.check()
    new.step(progress(3), 2.0)
    new.end()
    assert [(line["step"], line["time"]) for line in lines(layout)] == [(1, 1.0), (2, 1.0), (3, 2.0)]
    assert not layout.evaluation.exists()


def test_an_older_view_that_wakes_late_changes_nothing(layout: Layout) -> None:
    record(layout, 0, range(1, 6), view=2)
    new = begin(layout, 5, view=3)
    new.step(progress(6), 3.0)
    before = layout.metrics.read_bytes()
    old = begin(layout, 1)
    with pytest.raises(ViewBrokenError, match="view 3 has begun"):
        old.check()
    old.step(progress(2), 1.0)
    old.end()
    assert layout.metrics.read_bytes() == before
    new.check()
    new.step(progress(7), 3.0)
    new.end()
    assert steps(layout) == [1, 2, 3, 4, 5, 6, 7]


def test_an_older_view_that_sleeps_while_it_opens_changes_nothing(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looked, and may; before it cuts the file the newer view has come."""
    record(layout, 0, range(1, 6))
    opened: list[Recorder] = []

    def step_of(line: bytes) -> int | None:
        if not opened:
            opened.append(Recorder(layout, Journal(), tensorboard=False))
            opened[0].begin(claim(3), 5)
            opened[0].check()
        return found(line)

    found = metrics_file._step
    monkeypatch.setattr(metrics_file, "_step", step_of)
    old = begin(layout, 1, view=2)
    with pytest.raises(ViewBrokenError, match="view 3 has begun"):
        old.check()
    opened[0].step(progress(6), 1.0)
    opened[0].end()
    assert steps(layout) == [1, 2, 3, 4, 5, 6]


def test_a_later_run_of_the_job_ends_this_one(layout: Layout) -> None:
    """Deleted and made again, with pods of the earlier one that nobody can reach: views are counted from 1 again."""
    first, second = (Run(id=f"{n}" * 8 + "-0000-4000-8000-000000000000", begun=float(n)) for n in (1, 2))
    old, new = (Recorder(layout, Journal(), tensorboard=False) for _ in range(2))
    old.begin(claim(7, first), 0)
    new.begin(claim(1, second), 0)
    with pytest.raises(UserError, match=r"a later run writes there \(22222222-.*choose another output.path"):
        old.check()
    new.check()
    new.end()
    old.end()


def test_lines_that_came_in_between_cost_none_of_the_others(layout: Layout) -> None:
    """Written by one that looked just before the other came."""
    record(layout, 0, range(1, 4))
    with layout.metrics.open("a") as file:
        for step in (9, 4, 5, 4, 5, 6):
            file.write(json.dumps({"step": step}) + "\n")
    record(layout, 6, range(7, 9))
    assert [line["step"] for line in lines(layout)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_evaluations_are_replaced_and_forgotten(layout: Layout) -> None:
    recorder = begin(layout, 0)
    for result in (evaluation(2), evaluation(4), evaluation(4, hits=9), evaluation(4, split="test")):
        recorder.evaluation(result)
    recorder.end()
    kept = begin(layout, 4)
    assert kept.evaluations == [evaluation(2), evaluation(4, hits=9), evaluation(4, split="test")]
    kept.end()
    written = json.loads(layout.evaluation.read_text())
    assert [(e["split"], e["step"], e["confusion"]) for e in written][1] == ("validation", 4, [[9, 1], [1, 9]])
    early = begin(layout, 3)
    assert early.evaluations == [evaluation(2)]
    early.end()


def test_tensorboard_files(layout: Layout) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    recorder = begin(layout, 0, tensorboard=True)
    for step in (1, 2):
        recorder.step(progress(step), 100.0 + step)
    recorder.evaluation(evaluation(2))
    recorder.end()
    events = EventAccumulator(str(layout.tensorboard))
    # On a busy machine the recorder's thread is not waited for, and writes later.
    eventually(lambda: "validation/accuracy" in events.Reload().Tags()["scalars"])
    assert [event.step for event in events.Scalars("train/loss")] == [1, 2]
    assert events.Scalars("validation/accuracy")[0].value == 0.75


class Outage:
    """Every call of the system that the recorder makes fails, or hangs, while it lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number: int | None = None
        self.hangs = False
        self.over = threading.Event()
        for name in ("open", "write", "replace", "mkdir", "listdir", "ftruncate", "fsync"):
            monkeypatch.setattr(os, name, self._wrap(getattr(os, name)))
        monkeypatch.setattr("io.open", self._wrap(open))

    def _wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if threading.current_thread().name == "recorder":
                if self.hangs:
                    assert self.over.wait(SECONDS)
                if self.number is not None:
                    raise OSError(self.number, os.strerror(self.number))
            return real(*arguments, **options)

        return call


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    return Outage(monkeypatch)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("begins", [False, True])
def test_an_outage_stops_nothing_and_costs_no_line(layout: Layout, outage: Outage, number: int, begins: bool) -> None:
    """In the middle of a view, or when one begins, and over the next."""
    told: list[str] = []
    journal = Journal()
    record(layout, 0, range(1, 3))
    recorder = begin(layout, 2, 2, journal=journal, warn=told.append)
    if begins:
        recorder.end()
        outage.number = number
        recorder.begin(claim(3), 2)
        assert recorder.lacks(2)
    outage.number = number
    recorder.check()
    recorder.step(progress(3), 3.0)
    recorder.evaluation(evaluation(3))
    recorder.step(progress(4), 4.0)
    recorder.end()
    recorder.begin(claim(4), 4)
    recorder.check()
    assert recorder.evaluations == [evaluation(3)]
    recorder.step(progress(5), 5.0)
    assert journal.recorded <= 2
    assert len(told) == 1
    assert f"{os.strerror(number)}; training goes on, and they are written later" in told[0]
    outage.number = None
    recorder.end()
    assert steps(layout) == [1, 2, 3, 4, 5]
    assert [e["step"] for e in json.loads(layout.evaluation.read_text())] == [3]
    assert (journal.lines(), journal.evaluations()) == ([], [])
    assert len(told) == 1


def test_storage_that_comes_back_is_written_to_though_nothing_new_is_recorded(layout: Layout, outage: Outage) -> None:
    outage.number = errno.EIO
    recorder = begin(layout, 0)
    recorder.step(progress(1), 1.0)
    outage.number = None
    eventually(lambda: layout.metrics.exists() and steps(layout) == [1])
    recorder.end()


def test_the_others_keep_lines_until_they_are_durable_and_nobody_waits_for_that(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmj_trainer.worker.record_files._SYNC_SECONDS", 0.0)
    go_on, real, files = threading.Event(), os.fdatasync, []

    def sync(file: int) -> None:
        files.append(os.readlink(f"/proc/self/fd/{file}"))
        assert go_on.wait(SECONDS)
        real(file)

    monkeypatch.setattr(os, "fdatasync", sync)
    told: list[str] = []
    journal = Journal()
    recorder = begin(layout, 0, journal=journal, warn=told.append)
    for step in range(1, 4):
        recorder.step(progress(step), 1.0)
        recorder.check()
    assert steps(layout) == [1, 2, 3]
    assert (journal.recorded, told) == (0, [])
    go_on.set()
    eventually(lambda: recorder.check() or journal.recorded == 3)
    assert set(files) == {str(layout.metrics)}
    recorder.end()


def test_lines_that_could_not_be_made_durable_are_never_said_to_be(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmj_trainer.worker.record_files._SYNC_SECONDS", 0.0)
    real, problems = os.fdatasync, [OSError(errno.EIO, "Input/output error")]
    monkeypatch.setattr(os, "fdatasync", lambda file: (_ for _ in ()).throw(problems.pop()) if problems else real(file))
    told: list[str] = []
    journal = Journal()
    recorder = begin(layout, 0, journal=journal, warn=told.append)
    recorder.step(progress(1), 1.0)
    eventually(lambda: bool(told))
    for step in range(2, 5):
        recorder.step(progress(step), 1.0)
    recorder.end()
    assert journal.recorded == 0
    assert "Input/output error; the other ranks keep them" in told[0]


def test_storage_that_hangs_is_waited_for_once(layout: Layout, outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two views: the first one's write is under way all the time."""
    monkeypatch.setattr(recorder_module, "_PATIENCE", 0.2)
    told: list[str] = []
    journal = Journal()
    recorder = begin(layout, 0, journal=journal, warn=told.append)
    recorder.step(progress(1), 1.0)
    outage.hangs = True
    waited: list[float] = []
    monkeypatch.setattr(
        recorder._turn, "wait_for", lambda holds, limit=None, real=recorder._turn.wait_for: waits(real, holds, limit)
    )

    def waits(real: Callable[..., bool], holds: Callable[[], bool], limit: float | None) -> bool:
        if threading.current_thread().name != "recorder":
            waited.append(limit or 0.0)
        return real(holds, limit)

    for step in (2, 3):
        recorder.check()
        recorder.step(progress(step), 1.0)
    recorder.end()
    recorder.begin(claim(2), 3)
    recorder.check()
    recorder.step(progress(4), 1.0)
    assert len(waited) == 1
    assert told == [f"{layout.output} does not answer; training goes on, and metrics are written later"]
    outage.hangs = False
    outage.over.set()
    eventually(lambda: journal.recorded == 4)
    recorder.end()
    assert steps(layout) == [1, 2, 3, 4]


def test_to_hold_is_to_have_looked(layout: Layout, outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    """While storage is in trouble training goes on without a look; what replaces a model may not."""
    monkeypatch.setattr(recorder_module, "_LAST_PATIENCE", 0.2)
    recorder = begin(layout, 0)
    recorder.hold()
    outage.number = errno.EIO
    recorder.check()
    with pytest.raises(OSError, match=r"whether another writes into .* cannot be told: .*Input/output error"):
        recorder.hold()
    outage.number, outage.hangs = None, True
    with pytest.raises(OSError, match="cannot be told: it does not answer"):
        recorder.hold()
    recorder.check()
    Fence(FolderClaims(layout.recorders), claim(2)).hold()
    outage.hangs = False
    outage.over.set()
    monkeypatch.setattr(recorder_module, "_LAST_PATIENCE", SECONDS)
    with pytest.raises(ViewBrokenError, match="view 2 has begun"):
        recorder.hold()
    recorder.end()


def test_one_whose_metrics_cannot_be_written_may_hold(layout: Layout) -> None:
    layout.metrics.mkdir(parents=True)
    recorder = begin(layout, 0)
    recorder.step(progress(1), 1.0)
    recorder.hold()
    Fence(FolderClaims(layout.recorders), claim(2)).hold()
    with pytest.raises(ViewBrokenError, match="view 2 has begun"):
        recorder.hold()
    recorder.end()


def test_a_line_that_was_written_by_half_is_written_whole(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = begin(layout, 0)
    recorder.step(progress(1), 1.0)
    real, left = os.write, [20]

    def write(descriptor: int, data: bytes) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken, left[0] = min(left[0], len(data)), 0
        return real(descriptor, data[:taken])

    with monkeypatch.context() as patch:
        patch.setattr("lmj_trainer.worker.metrics_file.os.write", write)
        recorder.step(progress(2), 2.0)
        assert not layout.metrics.read_bytes().endswith(b"\n")
    recorder.step(progress(3), 3.0)
    recorder.end()
    assert steps(layout) == [1, 2, 3]


def test_what_had_no_room_in_memory_is_told(layout: Layout, outage: Outage) -> None:
    told: list[str] = []
    recorder = begin(layout, 0, journal=Journal(limit=3), warn=told.append)
    recorder.step(progress(1), 1.0)
    outage.number = errno.EROFS
    for step in range(2, 9):
        recorder.step(progress(step), 1.0)
    outage.number = None
    recorder.end()
    assert steps(layout) == [1, 6, 7, 8]
    assert told[1] == "metrics of the steps 2 to 5 are lost: they could not be written in time"


def test_an_unexpected_error_is_raised_by_whoever_asks_next(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = begin(layout, 0)
    monkeypatch.setattr("lmj_trainer.worker.record_files.RecordFiles.write", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        recorder.check()
    recorder.end()


def test_leftovers_of_writers_that_died_go(layout: Layout) -> None:
    layout.output.mkdir()
    for name in (".evaluation.json.0a.partial", ".metrics.jsonl.0b.partial", ".other.json.0c.partial"):
        (layout.output / name).touch()
    record(layout, 0, range(1, 2))
    assert sorted(path.name for path in layout.output.iterdir()) == [".other.json.0c.partial", ".recorders", "metrics.jsonl"]


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not within {SECONDS:g} s"
        time.sleep(0.01)
