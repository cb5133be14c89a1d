"""The model's folder: whole or not there, written by whoever may, in the end also where storage was away for a while."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from lmj_api.layout import Layout
from lmj_api.protocol import EventKind, WorkerPhase
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.errors import UserError
from lmj_trainer.state.journal import Journal
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker import ending as ending_module
from lmj_trainer.worker import export as export_module
from lmj_trainer.worker import recorder as recorder_module
from lmj_trainer.worker.claims import FolderClaims
from lmj_trainer.worker.export import begin, finish
from lmj_trainer.worker.fence import Claim, Fence
from lmj_trainer.worker.record_files import RecordFiles
from lmj_trainer.worker.recorder import Recorder

from .small_job import Line, make, start, view, weights

pytestmark = pytest.mark.integration


def allowed() -> None:
    """Nobody else came."""


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(".model"))


def test_two_exporters_share_no_folder(tmp_path: Path) -> None:
    target = tmp_path / "model"
    old, new = begin(target, "r-v1-a", allowed), begin(target, "r-v2-b", allowed)
    assert old != new
    assert not old.exists(), "what came before is over"
    (new / "file").write_text("new")
    with pytest.raises(FileNotFoundError):
        (old / "file").write_text("old")
    finish(new, target, allowed)
    assert (target / "file").read_text() == "new"
    assert hidden(tmp_path) == []


def test_whoever_was_followed_removes_and_replaces_nothing(tmp_path: Path) -> None:
    def over() -> None:
        raise ViewBrokenError("a newer view has begun")

    target = tmp_path / "model"
    mine, newer = begin(target, "r-v1-a", allowed), target.with_name(".model.r-v2-b.partial")
    newer.mkdir()
    target.mkdir()
    (target / "file").write_text("newer")
    with pytest.raises(ViewBrokenError):
        finish(mine, target, over)
    with pytest.raises(ViewBrokenError):
        begin(target, "r-v1-a", over)
    assert (target / "file").read_text() == "newer"
    assert newer.exists()


def put(folder: Path, content: str) -> Path:
    (folder / "file").write_text(content)
    return folder


@pytest.mark.parametrize(
    "moment", ["before it moves the model", "after it has moved the model", "after, and a third one is there"]
)
def test_one_that_sleeps_after_it_was_allowed_leaves_the_newer_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The newer view has cleared away what it would put there."""
    target = tmp_path / "model"
    if moment.startswith("after"):
        put(begin(target, "r-v0-z", allowed), "newer").rename(target)
    mine = put(begin(target, "r-v1-a", allowed), "older")
    moved: list[Path] = []
    real = os.rename

    def newer() -> None:
        if not moment.startswith("after"):
            finish(put(begin(target, "r-v2-b", allowed), "newer"), target, allowed)

    def rename(source: Path, to: Path) -> None:
        real(source, to)
        if source == target:
            moved.append(source)
            shutil.rmtree(mine)
            if moment.endswith("there"):
                target.mkdir()
                put(target, "newest")

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(FileNotFoundError):
        finish(mine, target, newer)
    assert (target / "file").read_text() == ("newest" if moment.endswith("there") else "newer")
    assert bool(moved) == moment.startswith("after"), "a crash in between would leave no model"


@pytest.mark.parametrize("left", [".model.r-v1-a.partial", ".model.r-v1-a.old", ".model.partial", ".model.old"])
def test_leftovers_of_the_dead_go(tmp_path: Path, left: str) -> None:
    (tmp_path / left).mkdir()
    (tmp_path / left / "file").write_text("dead")
    (tmp_path / ".modelled.old").mkdir()
    target = tmp_path / "model"
    finish(begin(target, "r-v2-b", allowed), target, allowed)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".modelled.old", "model"]


def test_a_crash_between_any_two_operations_hinders_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is at the model's name is whole, and the next exporter gets through."""

    class Crash(BaseException):
        pass

    target = tmp_path / "model"
    for count in range(100):
        calls, done = [], False

        def step(real: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if len(calls) >= count:  # noqa: B023 - it is called in this round
                    raise Crash
                calls.append(real)  # noqa: B023
                return real(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("rename", "mkdir", "rmdir", "unlink", "fsync"):
                patch.setattr(os, name, step(getattr(os, name)))
            try:
                partial = begin(target, f"r-v{count}-a", allowed)
                for name in ("one", "two"):
                    (partial / name).write_text(str(count))
                finish(partial, target, allowed)
                done = True
            except Crash:
                pass
        assert not target.exists() or len({path.read_text() for path in target.iterdir()}) == 1 == len(list(target.iterdir())) - 1
        partial = begin(target, f"r-v{count}-b", allowed)
        for name in ("one", "two"):
            (partial / name).write_text("next")
        finish(partial, target, allowed)
        assert (target / "one").read_text() == "next"
        assert hidden(tmp_path) == []
        if done:
            break
    assert count > 5


@pytest.mark.parametrize("error", [OSError(errno.EROFS, "Read-only file system"), SafetensorError("No space left on device")])
def test_a_model_that_cannot_be_written_is_tried_again(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(ending_module, "_LONGEST_RETRY_SECONDS", 0.1)
    real, left = export_module.save_file, [error, error]

    def save(*arguments: Any, **options: Any) -> None:
        if left:
            raise left.pop()
        real(*arguments, **options)

    monkeypatch.setattr(export_module, "save_file", save)
    line = Line()
    assert make(job, line).run(view(1, start())) is WorkerPhase.COMPLETED
    assert weights(job)
    [(message, _)] = line.of(EventKind.WARNING)
    assert message.startswith(f"{job.spec.output.path}/model cannot be written: ")
    assert message.endswith("; it is tried again")
    shown = [d["progress"].activity for _, d in line.of(EventKind.PREPARING) if "progress" in d]
    assert sum(text.startswith("export: ") for text in shown) == 2
    assert hidden(Path(job.spec.output.path)) == []


def test_a_model_that_can_never_be_written_fails_the_job(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export_module, "save_file", full)
    monkeypatch.setattr(ending_module, "_LONGEST_RETRY_SECONDS", 0.1)
    checkpoint = job.spec.checkpoint.model_copy(update={"retry_seconds": 0.5})
    job = job.model_copy(update={"spec": job.spec.model_copy(update={"checkpoint": checkpoint})})
    line = Line()
    with pytest.raises(
        UserError, match=r"No space left on device, nor could it within 0.5 s \(checkpoint.retrySeconds\); make room"
    ):
        make(job, line).run(view(1, start()))
    assert not line.of(EventKind.COMPLETED)


def test_a_group_that_nobody_can_reach_leaves_before_it_commits_what_another_does(job: LiveMigrationJob) -> None:
    """And one that wakes as its view begins, when the next has begun long ago."""
    layout = Layout.of(job.spec)
    newer = Recorder(layout, Journal(), tensorboard=False)

    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.COMMITTED and details["progress"].step == 3:
            newer.begin(Claim(run=job.metadata.run, view=2, pod="small-r0-2"), 3)
            newer.check()

    line = Line(on)
    trainer = make(job, line)
    with pytest.raises(ViewBrokenError, match="view 2 has begun, in small-r0-2"):
        trainer.run(view(1, start()))
    assert trainer._state.step == 3
    before = layout.metrics.read_bytes()
    assert before.count(b"\n") == 3
    late = make(job, Line())
    with pytest.raises(ViewBrokenError, match="view 2 has begun"):
        late.run(view(1, start()))
    assert late._state.step == 0
    assert layout.metrics.read_bytes() == before
    newer.check()
    newer.end()


def test_one_that_was_followed_while_its_storage_was_in_trouble_exports_nothing(
    job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on without a look at such a time."""
    layout = Layout.of(job.spec)

    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if "progress" in details and details["progress"].activity == "export":
            recorder = trainer._recorder
            assert recorder is not None
            with monkeypatch.context() as patch:
                patch.setattr(RecordFiles, "write", broken)
                recorder._pause = 60.0
                recorder.check()
            Fence(FolderClaims(layout.recorders), Claim(run=job.metadata.run, view=2, pod="small-r0-2")).hold()
            recorder.check()

    def broken(self: RecordFiles) -> None:
        raise OSError(errno.EIO, "Input/output error")

    trainer = make(job, Line(on))
    monkeypatch.setattr(recorder_module, "_LONGEST_RETRY", 60.0)
    with pytest.raises(ViewBrokenError, match="view 2 has begun, in small-r0-2"):
        trainer.run(view(1, start()))
    assert not layout.model.exists()


def test_all_metrics_are_durable_before_the_others_leave(job: LiveMigrationJob, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    real = os.fsync

    def fsync(file: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{file}"), os.fstat(file).st_size))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    seen: list[int] = []

    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.COMPLETED:
            seen.extend(size for path, size in synced if path == str(metrics))

    metrics = Layout.of(job.spec).metrics
    make(job, Line(on)).run(view(1, start()))
    assert seen[-1] == metrics.stat().st_size > 0
