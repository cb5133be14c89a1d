"""What an output folder has from before: refused, moved aside, or gone on from."""

import os
from pathlib import Path
from typing import Any

import pytest

from lmj_api.layout import Layout
from lmj_api.names import checkpoint_name
from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.local import aside
from lmj_operator.backend.local.aside import is_unfinished, move_aside
from lmj_operator.cli.earlier import Wish, earlier, wish_of, with_parts_of
from lmj_operator.cli.errors import BAD_INPUT, CommandError


def job(output: Path, **training: Any) -> LiveMigrationJob:
    spec = {
        "model": {"scratch": {}},
        "dataset": {"source": "/d.csv", "text": ["text"], "label": "label"},
        "training": training,
        "output": {"path": str(output)},
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": "a"}, "spec": spec})


def trained(output: Path, **training: Any) -> LiveMigrationJob:
    """A job of which ``output`` has results."""
    made = job(output, **training)
    layout = Layout.of(made.spec)
    layout.run.mkdir(parents=True)
    layout.metrics.write_text("{}\n")
    layout.trained.write_text(made.to_json())
    return made


def refusal(output: Path, wish: Wish, *, finished: bool = False, **training: Any) -> str:
    with pytest.raises(CommandError) as error:
        earlier(job(output, **training), Layout.of(job(output).spec), wish, finished=finished)
    assert error.value.code == BAD_INPUT
    assert len(error.value.lines) == 1
    return error.value.lines[0]


def test_another_job_is_told_what_differs_and_what_to_do(tmp_path: Path) -> None:
    trained(tmp_path)
    assert refusal(tmp_path, Wish.RESUME, learning_rate=1e-4, epochs=5) == (
        f"{tmp_path} has the results of another job (training.epochs 3 → 5, training.learningRate 5e-05 → 0.0001): choose another "
        "output.path, --continue to train on from its newest checkpoint with the new values, or --fresh to start over (what is there "
        "is moved aside)"
    )
    assert refusal(tmp_path, Wish.RESUME, seed=1).endswith(
        "(training.seed 0 → 1): choose another output.path, or --fresh to start over (what is there is moved aside)"
    )
    assert "because of training.seed 0 → 1:" in refusal(tmp_path, Wish.CONTINUE, seed=1, epochs=5)


def test_the_same_job_goes_on(tmp_path: Path) -> None:
    mine = trained(tmp_path)
    for wish in (Wish.RESUME, Wish.CONTINUE):
        found = earlier(job(tmp_path, threads=3), Layout.of(mine.spec), wish, finished=True)
        assert found is not None
        assert (found.job, found.changes) == (mine, "")


def test_what_may_be_changed_goes_on_when_that_is_asked_for(tmp_path: Path) -> None:
    mine = trained(tmp_path)
    found = earlier(job(tmp_path, epochs=5), Layout.of(mine.spec), Wish.CONTINUE, finished=True)
    assert found is not None
    assert found.changes == "training.epochs 3 → 5"
    assert earlier(job(tmp_path, seed=5), Layout.of(mine.spec), Wish.FRESH, finished=False) is None


def test_a_continued_run_is_resumed_without_its_parts_in_the_file(tmp_path: Path) -> None:
    mine = trained(tmp_path, epochs=5, continues=[{"step": 9, "state_digest": "0" * 32}])
    written = job(tmp_path, epochs=5)
    found = earlier(written, Layout.of(mine.spec), Wish.RESUME, finished=False)
    assert found is not None
    assert found.changes == ""
    assert with_parts_of(written, found.job) == mine


def test_a_record_that_nobody_can_read_is_one_line(tmp_path: Path) -> None:
    trained(tmp_path)
    (tmp_path / ".job.json").write_text("{")
    assert refusal(tmp_path, Wish.RESUME).endswith(": choose another output.path, or --fresh")


def test_one_of_both_wishes(tmp_path: Path) -> None:
    layout = Layout.of(job(tmp_path).spec)
    assert wish_of(layout, fresh=False, goes_on=False) is Wish.RESUME
    assert wish_of(layout, fresh=False, goes_on=True) is Wish.CONTINUE
    assert wish_of(layout, fresh=True, goes_on=False) is Wish.FRESH
    with pytest.raises(CommandError, match="give one of them"):
        wish_of(layout, fresh=True, goes_on=True)
    with pytest.raises(CommandError, match=r"^--fresh moves nothing aside in s3://b1b/x: choose another checkpoint\.path"):
        wish_of(Layout(tmp_path, tmp_path / "checkpoints", bucket="s3://b1b/x"), fresh=True, goes_on=False)


def fill(layout: Layout) -> dict[str, str]:
    """All that a run leaves; the files and what is in them, by their names in the output folder."""
    for path in (
        layout.model,
        layout.adapter,
        layout.int8,
        layout.logs,
        layout.tensorboard,
        layout.trackers,
        layout.recorders,
        layout.pretrained,
        layout.cache,
        layout.run / "pods",
    ):
        path.mkdir(parents=True)
        (path / "file").write_text(str(path))
    checkpoint = layout.checkpoints / checkpoint_name(7, 1)
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text('{"job": "a"}')
    for path in (layout.metrics, layout.evaluation, layout.trained, layout.views):
        path.write_text(str(path))
    for name in ("status.json", "job.json", "migrate", "lock", "key"):
        (layout.run / name).write_text(name)
    (layout.output / "mine.yaml").write_text("mine")
    return files(layout.output)


def files(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


STAYS = {".lmj/lock", ".lmj/key", ".lmj/pods/file", "cache/file", "mine.yaml"}


def test_nothing_is_lost_when_a_run_begins_anew(tmp_path: Path) -> None:
    layout = Layout.of(job(tmp_path / "out").spec)
    before = fill(layout)
    assert move_aside(layout, "a") == layout.output / "earlier-1"
    assert set(files(layout.output)) - {f"earlier-1/{name}" for name in before} == STAYS
    assert files(layout.output / "earlier-1") == {name: text for name, text in before.items() if name not in STAYS}
    assert move_aside(layout, "a") is None, "nothing is there any more"
    layout.metrics.write_text("again")
    assert move_aside(layout, "a") == layout.output / "earlier-2"


def test_a_new_beginning_that_was_ended_half_way_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename, moves = os.rename, 0
    for fatal in range(1, 14):
        layout = Layout.of(job(tmp_path / f"out{fatal}").spec)
        before = fill(layout)
        moves = 0

        def dies(source: Path, target: Path, fatal: int = fatal) -> None:
            nonlocal moves
            moves += 1
            if moves == fatal:
                raise KeyboardInterrupt
            rename(source, target)

        monkeypatch.setattr(aside.os, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            move_aside(layout, "a")
        monkeypatch.setattr(aside.os, "rename", rename)
        assert is_unfinished(layout)
        assert wish_of(layout, fresh=False, goes_on=False) is Wish.FRESH, "whatever the next command says"
        assert move_aside(layout, "a") == layout.output / "earlier-1"
        assert not is_unfinished(layout)
        assert files(layout.output / "earlier-1") == {name: text for name, text in before.items() if name not in STAYS}


def test_checkpoints_elsewhere_go_when_they_are_the_job_s(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    made = job(tmp_path / "out")
    made = made.model_copy(
        update={
            "spec": made.spec.model_copy(update={"checkpoint": made.spec.checkpoint.model_copy(update={"path": str(shared)})})
        }
    )
    layout = Layout.of(made.spec)
    layout.run.mkdir(parents=True)
    for name, content in {
        checkpoint_name(1, 1): "a",
        checkpoint_name(2, 1): "b",
        "notes": "a",
        checkpoint_name(3, 1): None,
    }.items():
        (shared / name).mkdir(parents=True)
        (shared / name / "manifest.json").write_text(f'{{"job": "{content}"}}' if content else "[]")
    assert move_aside(layout, "a") == layout.output / "earlier-1"
    assert sorted(path.name for path in shared.iterdir()) == ["earlier-1", "notes", checkpoint_name(2, 1), checkpoint_name(3, 1)]
    assert [path.name for path in (shared / "earlier-1").iterdir()] == [checkpoint_name(1, 1)]


@pytest.mark.parametrize("inside", ["ckpts", "a/b", "."])
def test_checkpoints_inside_the_output_folder_go_whatever_their_folder_is_called(tmp_path: Path, inside: str) -> None:
    layout = Layout(tmp_path, tmp_path / inside)
    layout.run.mkdir(parents=True)
    layout.metrics.write_text("{}\n")
    checkpoint = layout.checkpoints / checkpoint_name(7, 1)
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text('{"job": "what the job was called then"}')
    assert move_aside(layout, "a") == tmp_path / "earlier-1"
    assert not checkpoint.exists(), "else the new run resumes it"
    assert (layout.checkpoints / "earlier-1" / checkpoint.name / "manifest.json").exists()
    assert not layout.has_results()


def test_what_was_fetched_for_an_earlier_run_goes_and_what_the_check_of_the_first_has_fetched_stays(tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path / "checkpoints")
    layout.run.mkdir()
    layout.fetched.mkdir()
    assert move_aside(layout, "a") is None
    assert layout.fetched.is_dir()
    layout.metrics.write_text("old")
    assert move_aside(layout, "a") == tmp_path / "earlier-1"
    assert not layout.fetched.exists(), "a new run has what is in the bucket then"
    assert (tmp_path / "earlier-1" / "fetched").is_dir()


def test_what_is_aside_already_is_not_written_over(tmp_path: Path) -> None:
    layout = Layout(tmp_path, tmp_path / "checkpoints")
    layout.run.mkdir()
    layout.metrics.write_text("old")
    (layout.checkpoints / checkpoint_name(120, 1)).mkdir(parents=True)
    assert move_aside(layout, "a") == tmp_path / "earlier-1"
    (layout.run / "aside").write_text("earlier-1")  # storage that forgot that this was removed
    layout.metrics.write_text("new")
    (layout.checkpoints / checkpoint_name(50, 1)).mkdir(parents=True)
    assert move_aside(layout, "a") == tmp_path / "earlier-2"
    assert [(tmp_path / name / "metrics.jsonl").read_text() for name in ("earlier-1", "earlier-2")] == ["old", "new"]
    assert not is_unfinished(layout)
    assert move_aside(layout, "a") is None


def test_a_name_that_a_shared_checkpoint_folder_has_already_is_not_taken(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "out", tmp_path / "shared")
    layout.run.mkdir(parents=True)
    other = layout.checkpoints / "earlier-1" / checkpoint_name(1, 1)
    mine = layout.checkpoints / checkpoint_name(1, 1)
    for folder in (other, mine):
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text('{"job": "a"}')
    assert move_aside(layout, "a") == layout.output / "earlier-2"
    assert (layout.checkpoints / "earlier-2" / mine.name).is_dir()


def test_the_mark_and_each_move_are_durable_before_what_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that a power cut brings back, or takes away, mixes two runs."""
    layout = Layout(tmp_path, tmp_path / "checkpoints")
    layout.run.mkdir()
    layout.metrics.write_text("old")
    (layout.run / "status.json").write_text("{}")
    done: list[tuple[str, ...]] = []
    fsync, rename, unlink, mkdir = os.fsync, os.rename, os.unlink, os.mkdir

    def synced(descriptor: int) -> None:
        fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_dir():
            done.append(("sync", str(path.relative_to(tmp_path))))

    def renamed(source: Path, target: Path) -> None:
        rename(source, target)
        done.append(("rename", str(Path(target).relative_to(tmp_path))))

    def unlinked(path: Path) -> None:
        unlink(path)
        done.append(("unlink", str(Path(path).relative_to(tmp_path))))

    def made(path: Path, mode: int = 0o777) -> None:
        mkdir(path, mode)
        done.append(("mkdir", str(Path(path).relative_to(tmp_path))))

    for name, call in {"fsync": synced, "rename": renamed, "replace": renamed, "unlink": unlinked, "mkdir": made}.items():
        monkeypatch.setattr(os, name, call)
    assert move_aside(layout, "a") == tmp_path / "earlier-1"
    assert done == [
        ("rename", ".lmj/aside"),
        ("sync", ".lmj"),
        ("mkdir", "earlier-1"),
        ("sync", "."),
        ("mkdir", "earlier-1/.lmj"),
        ("sync", "earlier-1"),
        ("rename", "earlier-1/metrics.jsonl"),
        ("sync", "earlier-1"),
        ("sync", "."),
        ("rename", "earlier-1/.lmj/status.json"),
        ("sync", "earlier-1/.lmj"),
        ("sync", ".lmj"),
        ("unlink", ".lmj/aside"),
        ("sync", ".lmj"),
    ]
