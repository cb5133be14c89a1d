"""An agent looks through the checkpoints when it starts, and again when it is told that a view is over."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.on_disk import at, commit_manifest, file_digest, make_folder, newest_over

from lmj_api.manifest import Manifest, ManifestFile
from lmj_api.protocol import CheckpointInfo, Event, EventKind
from lmj_api.run import Run
from lmj_trainer.agent.looks import Looks
from lmj_trainer.agent.main import look

RUN = Run(id="aaaaaaaa-0000-4000-8000-000000000000")
Make = Callable[..., Any]


def put(root: Path, step: int, view: int = 1, *, complete: bool = True) -> str:
    """A checkpoint that somebody has saved."""
    folder = make_folder(root, step, view)
    (folder / "rank-0.safetensors").write_bytes(b"state")
    file = ManifestFile(name="rank-0.safetensors", size=5, xxh128=file_digest(folder / "rank-0.safetensors"))
    if complete:
        commit_manifest(folder, Manifest(job="j", view=view, step=step, epoch=0, state_digest="d", seconds=0, files=[file]))
    return folder.name


async def test_what_others_have_saved_since_is_found(rig: Make, tmp_path: Path) -> None:
    it = rig("")
    lost, bad = put(tmp_path, 10), put(tmp_path, 12, complete=False)
    looking = asyncio.create_task(look(it.supervisor, at(tmp_path), "d", RUN))
    await it.until(lambda s: s.scanned)
    assert newest_over(tmp_path, RUN) == 0
    assert (it.state.looked, [c.name for c in it.state.checkpoints]) == (0, [bad, lost])
    saved = put(tmp_path, 17)
    shutil.rmtree(tmp_path / lost)
    it.supervisor.looks.ask(1)
    it.supervisor.looks.ask(1)
    await it.until(lambda s: s.looked == 1)
    assert newest_over(tmp_path, RUN) == 1
    assert [(c.name, c.problem) for c in it.state.checkpoints] == [(saved, None), (bad, "half-written (no manifest)")]
    told = [(e.kind, e.message) for e in it.supervisor.log.after(0)]
    # The operator waits for the word; of one that is bad it is told once.
    assert told == [
        (EventKind.WARNING, f"checkpoint {bad} is skipped: half-written (no manifest)"),
        (EventKind.LOOKED, f"view 1 is over; the newest checkpoint is {saved}"),
    ]
    it.supervisor.looks.ask(1)  # late, or again: it was done
    it.supervisor.looks.ask(3)
    await it.until(lambda s: s.looked == 3)
    looking.cancel()


def info(step: int) -> CheckpointInfo:
    return CheckpointInfo(name=f"step-{step:09d}-v1", step=step)


def saved(step: int, *removed: int) -> Event:
    gone = [info(each).name for each in removed]
    return Event(time=0, kind=EventKind.CHECKPOINTED, checkpoint=info(step), removed=gone)


async def test_what_its_worker_tells_while_it_looks_is_newer_than_what_it_sees(rig: Make) -> None:
    state = rig("").state.model_copy(update={"checkpoints": [info(5)]})
    looks = Looks()
    looks.ask(2)
    assert await looks.next() == (2, ())
    looks.hear(saved(6, 5))
    looks.hear(saved(7, 6))
    state = state.model_copy(update={"checkpoints": [info(7)]})
    half = info(7).model_copy(update={"problem": "half-written"})
    assert looks.done(state, [half, info(6), info(5), info(4)], 2).checkpoints == [info(7), info(4)]
    # What was told before the next look began is what that one finds, or is gone.
    looks.ask(3)
    await looks.next()
    assert looks.done(state, [info(4)], 3).checkpoints == [info(4)]


async def test_one_that_is_asked_for_while_another_is_under_way_begins_after_it() -> None:
    looks = Looks()
    looks.ask(1)
    assert await looks.next() == (1, ())
    looks.ask(2, ["a"])
    looks.ask(1, ["b"])
    assert await asyncio.wait_for(looks.next(), 5) == (2, ("a",))


async def test_nobody_looks_before_the_view_is_declared_over(rig: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has saved a checkpoint and finds no such word knows that whoever looks sees it."""
    it, done = rig(""), []
    monkeypatch.setattr("lmj_trainer.agent.main.declare_over", lambda root, run, number: done.append(f"over {number}"))
    monkeypatch.setattr("lmj_trainer.agent.main.scan", lambda *_: done.append("scan") or [])
    looking = asyncio.create_task(look(it.supervisor, at(tmp_path), "d", RUN))
    it.supervisor.looks.ask(2)
    await it.until(lambda s: s.looked == 2)
    assert done == ["scan", "over 2", "scan"]
    looking.cancel()


async def test_a_folder_that_takes_no_word_is_looked_through_all_the_same(
    rig: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(root: Path, run: Run, number: int) -> None:
        raise OSError("no space left on device")

    it, name = rig(""), put(tmp_path, 5)
    monkeypatch.setattr("lmj_trainer.agent.main.declare_over", full)
    looking = asyncio.create_task(look(it.supervisor, at(tmp_path), "d", RUN))
    it.supervisor.looks.ask(2)
    await it.until(lambda s: s.looked == 2)
    assert [c.name for c in it.state.checkpoints] == [name]
    looking.cancel()
