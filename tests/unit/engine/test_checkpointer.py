"""Checkpoints beside training: on a disk that works, and on one that fails."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.on_disk import declare_over, load_state, survey

from lmj_api.names import checkpoint_name
from lmj_api.protocol import EventKind
from lmj_api.run import Run
from lmj_api.spec import Checkpoint
from lmj_api.topology import Topology
from lmj_trainer.checkpoint.owner import Owner
from lmj_trainer.errors import UserError
from lmj_trainer.group.group import Group
from lmj_trainer.store.port import Ref, RenewableError
from lmj_trainer.store.posix import folder
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.transport.memory import MemoryTransport
from lmj_trainer.worker import checkpointer as module
from lmj_trainer.worker import saving as saving_module
from lmj_trainer.worker.background import yield_to_compute
from lmj_trainer.worker.checkpointer import Checkpointer, ManifestFacts
from lmj_trainer.worker.problem import FIRST_PAUSE
from lmj_trainer.worker.saving import Saving
from lmj_trainer.worker.throttle import Throttle

from .pair import eventually
from .small_job import small_job

pytestmark = pytest.mark.integration

PATIENCE = 30.0
RUN, OTHER = (Run(id=f"{digit * 8}-0000-4000-8000-000000000000", begun=begun) for digit, begun in (("b", 2.0), ("a", 1.0)))
OWNER = Owner("job", "d", RUN)


def facts(*, best: bool = False) -> ManifestFacts:
    return ManifestFacts(
        job="job", state_digest="d", epoch=0.5, seconds=2.0, best=best, accuracy=None, best_step=None, best_score=None
    )


PAIR = Topology(2)


class Line:
    """The line to the agent, as a list."""

    def __init__(self) -> None:
        self.events: list[tuple[EventKind, str, dict[str, Any]]] = []

    def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
        self.events.append((kind, message, details))

    def of(self, kind: EventKind) -> list[tuple[str, dict[str, Any]]]:
        return [(message, details) for k, message, details in self.events if k is kind]


class Rig:
    """Two ranks of one process."""

    def __init__(
        self,
        root: Path,
        make_state: Callable[..., Any],
        config: Any,
        keep: int,
        every: int | None = None,
        bandwidth_mbps: float | None = None,
    ) -> None:
        network: dict[str, MemoryTransport] = {}
        self.root = root
        self.transports = [MemoryTransport(network, f"rank-{rank}") for rank in range(2)]
        self.states = [make_state(config, cut)[1] for cut in (range(2), range(2, 3))]
        self.lines = [Line(), Line()]
        self.claim: Callable[[], None] = list
        kept = Checkpoint(keep=keep, keep_every=every).model_copy(update={"bandwidth_mbps": bandwidth_mbps})
        self.checkpointers = [
            Checkpointer(
                folder(root),
                kept,
                self.states[r],
                self.transports[r],
                self.lines[r],
                OWNER,
                lambda: self.claim(),
            )
            for r in range(2)
        ]
        self.join(1)

    def begin(self, step: int, view: int) -> None:
        """View ``view`` begins, from the checkpoint of ``step``."""
        self.join(view)
        good = [f.info for f in survey(self.root, "d") if f.info.problem is None and f.info.step <= step]
        self.checkpointers[0].begin(lambda: (good, ()))

    def join(self, view: int) -> None:
        for rank, transport in enumerate(self.transports):
            transport.join(view, rank, {1 - rank: f"rank-{1 - rank}"})

    def take(self, step: int, *, best: bool = False) -> str:
        """Take the checkpoint of ``step``; what rank 0 told rank 1 in the end ("" is success)."""
        for rank, each in enumerate(self.checkpointers):
            self.states[rank].fill(step)
            each.start(rank, PAIR, PATIENCE, facts(best=best) if rank == 0 else None)
        for each in self.checkpointers:
            each.before_apply()
        for state in self.states:
            # What the next step does while files are written.
            state.slots[0].weight.add_(1.0)
        for each in self.checkpointers:
            each.wait(PATIENCE)
        problems = {each.problem for each in self.checkpointers}
        assert len(problems) == 1, "all know the same"
        return problems.pop() or ""

    def steps(self) -> list[int]:
        return sorted(found.info.step for found in survey(self.root, "d", digests=True) if found.info.problem is None)


@pytest.fixture
def rig(tmp_path: Path, make_state: Callable[..., Any], make_config: Callable[..., Any]) -> Rig:
    return Rig(tmp_path / "checkpoints", make_state, make_config(), keep=2)


def test_it_holds_the_state_of_its_step(rig: Rig) -> None:
    before = {name: tensor.clone() for state in rig.states for name, tensor in state.tensors()}
    assert rig.take(5) == ""
    for state in rig.states:
        assert load_state(rig.root / checkpoint_name(5, 1, RUN), state).step == 5
        assert all(torch.equal(tensor, before[name]) for name, tensor in state.tensors())
    ((message, details),) = rig.lines[0].of(EventKind.CHECKPOINTED)
    size = sum(f.stat().st_size for f in (rig.root / checkpoint_name(5, 1, RUN)).glob("*.safetensors"))
    assert details["checkpoint"].size == size
    assert message.startswith(f"step 5, {size / 1e6:.1f} MB in ")
    assert not rig.lines[1].events
    assert not rig.checkpointers[0].busy


def test_old_ones_go_and_the_best_stays(rig: Rig) -> None:
    for step in (1, 2, 3, 4, 5):
        assert rig.take(step, best=step == 2) == ""
    assert rig.steps() == [2, 4, 5]
    assert rig.lines[0].of(EventKind.CHECKPOINTED)[-1][1]["removed"] == [checkpoint_name(3, 1, RUN)]


def test_milestones_stay(tmp_path: Path, make_state: Callable[..., Any], make_config: Callable[..., Any]) -> None:
    rig = Rig(tmp_path / "checkpoints", make_state, make_config(), keep=1, every=3)
    for step in range(1, 9):
        assert rig.take(step) == ""
    assert rig.steps() == [3, 6, 8]
    rig.begin(8, 2)
    assert rig.take(9) == ""
    assert rig.take(10) == ""
    assert rig.steps() == [3, 6, 9, 10], "a later view keeps them"


def test_a_rate_holds_until_somebody_waits(
    tmp_path: Path, make_state: Callable[..., Any], make_config: Callable[..., Any]
) -> None:
    rig = Rig(tmp_path / "checkpoints", make_state, make_config(), keep=2, bandwidth_mbps=0.01)
    assert all(8 * state.saved.nbytes > 2 * PATIENCE * 0.01e6 for state in rig.states), "at that rate it takes too long"

    def start(step: int, *, awaited: bool) -> None:
        for rank, each in enumerate(rig.checkpointers):
            rig.states[rank].fill(step)
            each.start(rank, PAIR, PATIENCE, facts() if rank == 0 else None, awaited=awaited)
        for each in rig.checkpointers:
            each.before_apply()

    start(1, awaited=False)
    time.sleep(1)
    assert all(each.busy for each in rig.checkpointers), "without a limit it is written in a fraction of that"
    assert rig.steps() == []
    assert not any(each.settled(0) for each in rig.checkpointers)
    for each in rig.checkpointers:
        each.wait(PATIENCE)
    assert rig.steps() == [1]
    start(2, awaited=True)
    eventually(lambda: not any(each.busy for each in rig.checkpointers))
    assert rig.steps() == [1, 2]
    assert rig.checkpointers[0].problem == ""


def test_a_rate_gives_other_ranks_the_time_that_it_takes() -> None:
    throttle = Throttle(8.0)
    assert throttle.longest(3_000_000) == pytest.approx(30.0)
    assert Throttle(None).longest(3_000_000) == 0.0


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_costs_one_checkpoint_and_training_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch, rank: int) -> None:
    assert rig.take(1) == ""
    real = module.write_tensors

    def full(path: Ref, *others: Any) -> Any:
        if path.name == f"rank-{rank}.safetensors":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return real(path, *others)

    monkeypatch.setattr(module, "write_tensors", full)
    problem = rig.take(2)
    assert f"rank {rank} could not write: " in problem
    assert "No space left on device" in problem
    ((message, details),) = rig.lines[0].of(EventKind.WARNING)
    assert not details["trouble"].refused
    assert message == f"checkpoint of step 2 failed: {problem}; training goes on"
    assert rig.steps() == [1]
    monkeypatch.undo()
    assert rig.take(3) == ""
    assert rig.steps() == [1, 3]


@pytest.mark.parametrize("where", ["rank 0", "rank 1", "the manifest"])
def test_a_refusal_is_told_as_one_wherever_it_is_met(rig: Rig, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Who leads begins another soon, though its own pod may have the new keys already."""
    said = "s3://b/f: ExpiredToken: renew the Secret keys"
    real = module.write_tensors

    def write(path: Ref, *others: Any) -> Any:
        if path.name == f"rank-{where[-1]}.safetensors":
            raise RenewableError(said)
        return real(path, *others)

    def commit(folder: Ref, manifest: Any) -> None:
        raise RenewableError(said)

    monkeypatch.setattr(module, "write_tensors", write)
    if where == "the manifest":
        monkeypatch.setattr(module, "commit_manifest", commit)
    problem = rig.take(2)
    assert problem == (
        f"{where} could not write: {said}" if where != "the manifest" else f"its manifest could not be written: {said}"
    )
    ((message, details),) = rig.lines[0].of(EventKind.WARNING)
    assert message == f"checkpoint of step 2 failed: {problem}; training goes on"
    assert details["trouble"].refused
    renewal = rig.checkpointers[0].renewal
    monkeypatch.setattr(renewal, "_clock", lambda: time.monotonic() + FIRST_PAUSE)
    assert renewal.due
    monkeypatch.undo()
    assert rig.take(3) == ""
    assert not rig.checkpointers[0].renewal.due
    assert rig.steps() == [3]


def test_a_disk_that_fails_within_a_write(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real writer meets the error; it leaves no half file behind."""

    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("lmj_trainer.durable.os.fsync", fsync)
    assert "Input/output error" in rig.take(2)
    monkeypatch.undo()
    assert rig.steps() == []
    assert not list(rig.root.rglob("*.safetensors*"))
    assert rig.take(2) == "", "the same step again, for example in the next view"
    assert rig.steps() == [2]


def test_storage_that_does_not_answer_is_asked_once_after_a_failure(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call to a bucket may take a minute then: with one for each that failed, the last would never be begun."""
    asked: list[str] = []

    def nobody(_root: Ref, names: list[str]) -> None:
        asked.extend(names)
        raise OSError("nobody answers")

    def unwritten(*_: Any) -> Any:
        raise OSError("nobody answers")

    def clear(*_: Any) -> list[str]:
        asked.append("clear")
        return []

    monkeypatch.setattr(module, "write_tensors", unwritten)
    monkeypatch.setattr(module, "remove", nobody)
    monkeypatch.setattr(module, "clear", clear)
    monkeypatch.setattr(module, "_ANSWER_SECONDS", -1.0)
    names = [checkpoint_name(step, 1, RUN) for step in (1, 2, 3)]
    for step in (1, 2):
        assert "nobody answers" in rig.take(step)
    assert asked == names[:1] * 2
    monkeypatch.setattr(module, "_ANSWER_SECONDS", 60.0)
    rig.take(3)
    assert asked[2:] == [*names, "clear"], "a disk that says at once that it cannot is another thing"


def test_a_manifest_that_cannot_be_written(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Ref, manifest: Any) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(module, "commit_manifest", refuse)
    assert "its manifest could not be written: " in rig.take(2)
    assert rig.lines[0].of(EventKind.WARNING)
    assert rig.checkpointers[0].known == []


def test_whose_the_results_are_is_written_before_each(rig: Rig) -> None:
    """When it could not be when the view began: who goes on later asks that record which checkpoints count."""
    asked: list[list[int]] = []
    rig.claim = lambda: asked.append(rig.steps())
    assert [rig.take(step) for step in (1, 2)] == ["", ""]
    assert asked == [[], [1]], "once for all ranks"

    def refuse() -> None:
        raise UserError("out has the results of another job")

    rig.claim = refuse
    assert rig.take(3) == "out has the results of another job"
    assert rig.steps() == [1, 2]


def test_old_ones_that_cannot_be_removed_are_a_warning(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(root: Path, names: list[str]) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    for step in (1, 2):
        rig.take(step)
    monkeypatch.setattr("lmj_trainer.worker.retention.remove", refuse)
    assert rig.take(3) == ""
    assert "old checkpoints could not be removed" in rig.lines[0].of(EventKind.WARNING)[0][0]


def test_no_memory_for_the_copy(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training must not wait for a copy that will never be there."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(module.torch, "empty_like", refuse)
    assert "can't allocate memory" in rig.take(2)
    monkeypatch.undo()
    assert rig.take(3) == ""


def test_a_view_that_ends_ends_its_checkpoint(rig: Rig) -> None:
    """Rank 1 died before its part: rank 0 gives up with the view, not after all of its patience, and takes the next one."""
    rig.states[0].fill(4)
    rig.checkpointers[0].start(0, PAIR, 600.0, facts())
    rig.join(2)
    rig.checkpointers[0].wait(PATIENCE)
    assert rig.steps() == []
    assert rig.take(4) == ""
    assert json.loads((rig.root / checkpoint_name(4, 2, RUN) / "manifest.json").read_text())["view"] == 2


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux has a nice value for each thread")
def test_a_worker_that_is_nicer_than_its_checkpoints_keeps_its_nice_value() -> None:
    found = []

    def thread() -> None:
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, 15)
        yield_to_compute()  # to go back to 10 takes a privilege that pods lack
        found.append(os.getpriority(os.PRIO_PROCESS, own))

    running = threading.Thread(target=thread)
    running.start()
    running.join(10)
    assert found == [15]


def test_a_write_that_hangs_is_told_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that hangs reports no error."""
    goes_on = threading.Event()
    real = module.write_tensors

    def hang(path: Ref, *others: Any) -> Any:
        assert goes_on.wait(PATIENCE)
        return real(path, *others)

    monkeypatch.setattr(module, "write_tensors", hang)
    rig.states[0].fill(3)
    rig.checkpointers[0].start(0, Topology(1), 0.0, facts())
    for _ in range(3):
        rig.checkpointers[0].complain()
    ((message, details),) = rig.lines[0].of(EventKind.WARNING)
    assert message.startswith("checkpoint of step 3 failed: it is not written yet: is ")
    assert details["trouble"].step == 3
    goes_on.set()
    rig.checkpointers[0].wait(PATIENCE)
    assert rig.lines[0].of(EventKind.CHECKPOINTED)
    rig.checkpointers[0].complain()
    assert len(rig.lines[0].of(EventKind.WARNING)) == 1


def test_a_peer_whose_storage_hangs_is_named_and_its_view_holds(rig: Rig) -> None:
    rig.states[0].fill(3)
    rig.checkpointers[0].start(0, PAIR, 0.1, facts())
    rig.checkpointers[0].wait(PATIENCE)
    assert rig.checkpointers[0].problem == "rank 1 has not written its part within 0.1 s"
    rig.transports[0].inbox.check()
    assert list(rig.root.iterdir()) == [], "what is there of it goes: the disk may be full"
    assert rig.take(4) == ""


def test_no_message_is_left_behind(rig: Rig) -> None:
    """An inbox takes 4096 of them in a view, which may have more checkpoints than that."""
    for step in (1, 2):
        assert rig.take(step) == ""
    assert [transport.inbox.waiting for transport in rig.transports] == [0, 0]


@pytest.fixture
def one_kept(tmp_path: Path, make_state: Callable[..., Any], make_config: Callable[..., Any]) -> Rig:
    return Rig(tmp_path / "checkpoints", make_state, make_config(), keep=1)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("moment", ["before its manifest", "behind its manifest"])
def test_one_of_a_view_that_is_over_removes_none_that_the_next_view_stands_on(
    one_kept: Rig, monkeypatch: pytest.MonkeyPatch, moment: str, begun: bool
) -> None:
    """Its storage was slow. Whoever looked for the newest checkpoint did not see it; here or in another pod the next view begins."""
    rig, real = one_kept, module.commit_manifest
    assert rig.take(2) == ""

    def commit(folder: Ref, manifest: Any) -> None:
        if moment == "behind its manifest":
            real(folder, manifest)
        declare_over(rig.root, RUN, 1)
        if begun:
            rig.begin(2, 2)
        if moment != "behind its manifest":
            real(folder, manifest)

    monkeypatch.setattr(module, "commit_manifest", commit)
    rig.states[0].fill(4)
    rig.checkpointers[0].start(0, Topology(1), PATIENCE, facts())
    rig.checkpointers[0].wait(PATIENCE)
    monkeypatch.undo()
    assert rig.steps() == [2, 4], "both are there, and the plan goes back to the one of step 2"
    if begun:
        assert [c.step for c in rig.checkpointers[0].known] == [2]
        # What the next view keeps is of its own: the other is as if it were not there.
        assert rig.take(3) == ""
        assert rig.steps() == [3, 4]


def test_nothing_is_saved_in_a_view_that_was_declared_over(one_kept: Rig) -> None:
    rig = one_kept
    assert rig.take(2) == ""
    declare_over(rig.root, OTHER, 7)
    assert rig.take(3) == "", "another run's views are others"
    declare_over(rig.root, RUN, 1)
    rig.states[0].fill(4)
    rig.checkpointers[0].start(0, Topology(1), PATIENCE, facts())
    rig.checkpointers[0].wait(PATIENCE)
    assert rig.checkpointers[0].problem == "view 1 was declared over"
    with pytest.raises(ViewBrokenError, match="view 1 was declared over"):
        rig.transports[0].inbox.check()
    assert rig.steps() == [3]
    rig.begin(3, 2)
    assert rig.take(4) == ""
    assert rig.steps() == [4]


def test_another_run_of_the_job_replaces_nothing(rig: Rig) -> None:
    """One with other hyper-parameters, and views of the same numbers."""
    assert rig.take(2) == ""
    before = {path: path.read_bytes() for path in rig.root.rglob("*") if path.is_file()}
    for each in rig.checkpointers:
        each.__init__(
            folder(rig.root), Checkpoint(keep=1), each._state, each._transport, each._control, Owner("job", "another", OTHER)
        )  # type: ignore[misc]
    rig.begin(0, 2)
    rig.join(3)
    for step in (1, 2, 3):
        for rank, each in enumerate(rig.checkpointers):
            rig.states[rank].fill(step)
            each.start(rank, PAIR, PATIENCE, replace(facts(), state_digest="another") if rank == 0 else None)
        for each in rig.checkpointers:
            each.wait(PATIENCE)
    assert {path: path.read_bytes() for path in before} == before
    assert [f.info.step for f in survey(rig.root, "another") if f.info.problem is None] == [3]


def test_a_last_checkpoint_that_hangs_is_told(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training waits for it, and storage that hangs reports no error."""
    goes_on, real, patience = threading.Event(), module.write_tensors, 3.0

    def hang(path: Ref, *others: Any) -> Any:
        assert goes_on.wait(PATIENCE)
        return real(path, *others)

    class Told(Line):
        def emit(self, kind: EventKind, message: str = "", **details: Any) -> None:
            super().emit(kind, message, **details)
            if "trouble" in details:
                goes_on.set()

    line = rig.checkpointers[0]._control = Told()
    monkeypatch.setattr(module, "write_tensors", hang)
    group = Group(rig.transports[0], 0, Topology(1), patience)
    saving = Saving(small_job(tmp_path), OWNER, rig.states[0], group, rig.checkpointers[0], line, None, patience)
    rig.states[0].fill(3)
    rig.checkpointers[0].start(0, Topology(1), patience, facts())
    saving.await_durable(None)
    first, second = line.of(EventKind.WARNING)
    assert first[0].startswith("training waits for the checkpoint of step 3, which is not written after 1 s: is ")
    assert (second[1]["trouble"].step, goes_on.is_set()) == (3, True)
    assert line.of(EventKind.CHECKPOINTED)


def test_nobody_looks_for_checkpoints_before_they_are_needed(rig: Rig) -> None:
    """A view that goes on from memory does not wait for storage."""
    asked: list[int] = []
    rig.checkpointers[0].begin(lambda: asked.append(1) or ([], ()))  # type: ignore[func-returns-value]
    assert asked == []
    assert [rig.checkpointers[0].known, rig.checkpointers[0].known] == [[], []]
    assert asked == [1]


def test_a_view_begins_although_the_checkpoint_folder_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it goes on from may be in memory. What is there is not known then, and stays."""
    goes_on, line = threading.Event(), Line()
    monkeypatch.setattr(saving_module, "survey", lambda *_, **__: [] if goes_on.wait(PATIENCE) else None)
    none: Any = None
    saving = Saving(small_job(tmp_path), OWNER, none, none, none, line, none, 0.9)  # type: ignore[arg-type]
    try:
        assert saving.look(3)() == ([], [])
    finally:
        goes_on.set()
    (warning, _), *more = line.of(EventKind.WARNING)
    assert warning.endswith("checkpoints cannot be read: it does not answer within 0.3 s; older checkpoints are not removed")
    assert not more
