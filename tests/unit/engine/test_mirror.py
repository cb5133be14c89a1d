"""What rank 0 records is in object storage too, in pieces that nobody writes over: another machine goes on from there."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lmj_api.layout import Layout
from lmj_api.protocol import EventKind, Progress, WorkerPhase
from lmj_api.run import Run
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Resume
from lmj_trainer.errors import UserError
from lmj_trainer.metrics import evaluate_counts
from lmj_trainer.run_commands.output import read_run
from lmj_trainer.state.journal import Journal, Line
from lmj_trainer.store import posix, registry
from lmj_trainer.store.port import Ref
from lmj_trainer.transport.inbox import ViewBrokenError
from lmj_trainer.worker import mirror as mirror_module
from lmj_trainer.worker import record_files as record_files_module
from lmj_trainer.worker.claim import claim as claim_results
from lmj_trainer.worker.claim import refuse_other
from lmj_trainer.worker.fence import Claim
from lmj_trainer.worker.record_files import RecordFiles
from lmj_trainer.worker.recorder import Recorder
from lmj_trainer.worker.results import Results
from lmj_trainer.worker.trainer import Trainer

from .small_job import Line as AgentLine
from .small_job import at, elsewhere, losses, make, start, view, weights
from .test_replicas import Workers, of

pytestmark = pytest.mark.integration

URI = "s3://bucket/run"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where what is in buckets lies."""
    root = tmp_path / "buckets"
    monkeypatch.setitem(registry.STORES, "s3", lambda uri: posix.folder(root / uri.removeprefix("s3://")))
    return root / "bucket" / "run"


class Machine:
    """One that a rank 0 records on."""

    def __init__(self, folder: Path, bucket: Path) -> None:
        self.layout = Layout(folder, folder / "checkpoints", results=URI)
        self.results = Results(posix.folder(bucket), self.layout)
        self.warnings: list[str] = []

    def files(
        self, number: int, resume: int, run: Run | None = None, journal: Journal | None = None, tensorboard: bool = False
    ) -> RecordFiles:
        """Of a view."""
        claim = Claim(run=run or Run(), view=number, pod=f"pod-{number}")
        self.layout.output.mkdir(parents=True, exist_ok=True)
        self.journal = journal or Journal()
        return RecordFiles(self.layout, claim, resume, self.journal, tensorboard, self.warnings.append, self.results)

    def record(self, files: RecordFiles, *steps: int) -> None:
        for step in steps:
            told = Progress(
                step=step, steps=100, epoch=0.1, loss=step / 3, learning_rate=1e-3, grad_norm=1.0, samples_per_second=1.0
            )
            self.journal.add(Line(step, told.to_json(), 100.0 + step))
        files.hold()
        files.write()

    @property
    def steps(self) -> list[int]:
        return [json.loads(line)["step"] for line in self.layout.metrics.read_text().splitlines()]


@pytest.fixture
def machine(tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Machine]:
    monkeypatch.setattr(record_files_module, "_PUSH_SECONDS", 1e9)  # by hand
    return lambda name: Machine(tmp_path / name, bucket)


def evaluation(step: int, hits: int = 3) -> Any:
    return evaluate_counts([[hits, 1], [1, hits]], 1.0, ["a", "b"], "validation", step)


def first_push(files: RecordFiles) -> None:
    """Of the thread, which is over then."""
    assert files._syncing is not None
    files._syncing.join(30)


def test_another_machine_has_what_was_pushed(machine: Callable[[str], Machine]) -> None:
    one = machine("one")
    files = one.files(1, 0)
    one.record(files, 1, 2)
    one.journal.evaluated(evaluation(2))
    one.record(files, 3)
    files.push()
    assert (one.journal.waits, one.journal.evaluations(), one.journal.recorded) == (False, [], 3)
    one.record(files, 4)
    assert one.journal.recorded == 3, "the others keep it"

    two = machine("two")
    newer = two.files(2, 3)
    two.record(newer)
    assert two.steps == [1, 2, 3]
    assert [e.step for e in newer.evaluations] == [2]
    two.record(newer, 4, 5)
    newer.push()
    for number, machine_ in ((3, machine("three")), (4, two)):
        again = machine_.files(number, 5)
        machine_.record(again)
        assert machine_.steps == [1, 2, 3, 4, 5]


def test_what_the_machine_has_beyond_is_pushed_by_the_next_process(machine: Callable[[str], Machine]) -> None:
    """The journal ends with the process; the file does not."""
    one = machine("one")
    files = one.files(1, 0)
    one.record(files, 1)
    files.push()
    one.record(files, 2, 3)
    again = one.files(2, 3)
    one.record(again)
    assert one.steps == [1, 2, 3]
    again.push()
    two = machine("two")
    two.record(two.files(3, 3))
    assert two.steps == [1, 2, 3]


def test_steps_that_are_done_again_go(machine: Callable[[str], Machine]) -> None:
    one, two = machine("one"), machine("two")
    files = one.files(1, 0)
    one.record(files, 1, 2, 3, 4)
    one.journal.evaluated(evaluation(4))
    one.record(files)
    files.push()
    newer = two.files(2, 2)
    two.record(newer)
    assert (two.steps, newer.evaluations) == ([1, 2], [])
    two.record(newer, 3)
    newer.push()
    three = machine("three")
    three.record(three.files(3, 3))
    assert three.steps == [1, 2, 3]


def test_who_was_followed_writes_no_more(machine: Callable[[str], Machine]) -> None:
    one, two = machine("one"), machine("two")
    files = one.files(1, 0)
    one.record(files, 1)
    files.push()
    newer = two.files(2, 1)
    two.record(newer)
    one.record(files, 2)
    with pytest.raises(ViewBrokenError, match="view 2 has begun, in pod-2"):
        files.push()
    with pytest.raises(ViewBrokenError, match="view 2 has begun"):
        files.hold()
    with pytest.raises(ViewBrokenError, match="view 2 has begun"):
        files.publish()
    later = machine("three").files(1, 0, Run(id="00000002-0000-4000-8000-000000000000", begun=2.0))
    later.hold()
    later.write()
    with pytest.raises(UserError, match=r"a later run writes there .* or remove .*\.recorders if that run is gone"):
        newer.push()


def test_storage_that_is_away_loses_nothing(machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch) -> None:
    one = machine("one")
    files = one.files(1, 0)
    one.record(files)
    first_push(files) if files._syncing is not None else None

    def away(*_: Any) -> None:
        raise OSError("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Results, "add_lines", away)
        one.record(files, 1)
        with pytest.raises(OSError, match="does not answer"):
            files.push()
        one.record(files, 2)
        assert (one.steps, one.journal.waits) == ([1, 2], True)
    files.push()
    assert not one.journal.waits
    two = machine("two")
    two.record(two.files(2, 2))
    assert two.steps == [1, 2]


def test_it_is_pushed_unasked_and_told_of_once_when_it_cannot(
    machine: Callable[[str], Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files_module, "_PUSH_SECONDS", 0.0)
    one = machine("one")
    files = one.files(1, 0)
    one.record(files, 1)
    first_push(files)
    assert one.journal.recorded == 1

    def away(*_: Any) -> None:
        raise OSError("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(Results, "add_lines", away)
        for step in (2, 3):
            one.record(files, step)
            first_push(files)
    assert one.warnings == ["metrics cannot be written: it does not answer; training goes on, and they are written later"]
    one.record(files, 4)
    first_push(files)
    assert one.journal.recorded == 4


@pytest.mark.parametrize("fails", [False, True])
def test_many_pieces_become_one(
    machine: Callable[[str], Machine], bucket: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(mirror_module, "_MOST_PIECES", 3)
    one = machine("one")
    files = one.files(1, 0)

    def pieces() -> list[str]:
        return sorted(path.name for path in (bucket / ".records").glob("*.jsonl"))

    for step in (1, 2, 3):
        one.record(files, step)
        files.push()
    assert len(pieces()) == 3
    with monkeypatch.context() as patch:
        if fails:

            def away(*_: Any) -> None:
                raise OSError("it does not answer")

            patch.setattr(Results, "forget_lines", away)
        one.record(files, 4)
        files.push()
    assert len(pieces()) == (4 if fails else 1)
    one.record(files, 5)
    files.push()
    two = machine("two")
    newer = two.files(2, 5)
    two.record(newer, 6)
    assert two.steps == [1, 2, 3, 4, 5, 6]
    newer.push()
    three = machine("three")
    three.record(three.files(3, 6))
    assert three.steps == [1, 2, 3, 4, 5, 6]


def test_the_end_leaves_files_and_no_pieces(machine: Callable[[str], Machine], bucket: Path) -> None:
    one = machine("one")
    files = one.files(1, 0)
    one.record(files, 1, 2)
    one.journal.evaluated(evaluation(2))
    one.record(files)
    model = one.layout.model
    (model / "deep").mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "deep/tokens.txt"):
        (model / name).write_text(name)
    (bucket / "model").mkdir(parents=True)
    (bucket / "model" / "old.safetensors").write_text("of another run")
    (bucket / "model-int8").mkdir()
    (bucket / "model-int8" / "config.json").write_text("of another run")
    files.publish()
    assert (bucket / "metrics.jsonl").read_bytes() == one.layout.metrics.read_bytes()
    assert (bucket / "evaluation.json").read_bytes() == one.layout.evaluation.read_bytes()
    there = {str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file() and ".recorders" not in path.parts}
    assert there == {
        "metrics.jsonl",
        "evaluation.json",
        "model/config.json",
        "model/model.safetensors",
        "model/deep/tokens.txt",
        ".records/0000000001.published",
    }
    # A longer run goes on from there.
    two = machine("two")
    newer = two.files(1, 2, Run(id="00000002-0000-4000-8000-000000000000", begun=2.0))
    two.record(newer, 3)
    assert two.steps == [1, 2, 3]
    assert [e.step for e in newer.evaluations] == [2]


def test_the_end_makes_one_event_file_of_all_that_pods_recorded(machine: Callable[[str], Machine], bucket: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    one = machine("one")
    files = one.files(1, 0)
    one.record(files, 1, 2)
    one.journal.evaluated(evaluation(2))
    one.record(files)
    files.push()
    two = machine("two")
    (two.layout.tensorboard / "plugins").mkdir(parents=True)
    (bucket / "tensorboard").mkdir()
    (bucket / "tensorboard" / "events.out.tfevents.1.pod.1.0").write_bytes(b"of a run that ended earlier")
    files = two.files(2, 2, tensorboard=True)
    two.record(files, 3)
    files.publish()
    files.publish()  # as after an answer that was lost
    [shown] = (bucket / "tensorboard").iterdir()
    events = EventAccumulator(str(shown)).Reload()
    assert [(event.step, event.wall_time) for event in events.Scalars("train/loss")] == [(1, 101.0), (2, 102.0), (3, 103.0)]
    assert [(event.step, event.wall_time, event.value) for event in events.Scalars("validation/accuracy")] == [(2, 102.0, 0.75)]


def test_a_model_is_none_before_all_of_it_is_there(machine: Callable[[str], Machine], bucket: Path) -> None:
    """A reader finds the old one, none, or the new one."""
    one = machine("one")
    one.layout.model.mkdir(parents=True)
    for name in ("a.safetensors", "config.json", "z.json"):
        (one.layout.model / name).write_text(f"new {name}")
    old = bucket / "model"
    old.mkdir(parents=True)
    for name in ("a.safetensors", "config.json"):
        (old / name).write_text(f"old {name}")
    seen: list[set[str]] = []

    class Watched:
        """Looks before and after each change."""

        def __init__(self, store: Any) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            if name in ("put", "delete"):
                seen.append({path.read_text() for path in old.iterdir()})
            return getattr(self._store, name)

    dataclasses.replace(one.results, root=Ref(Watched(one.results.root.store), one.results.root.key)).publish(lambda: None)
    seen.append({path.read_text() for path in old.iterdir()})
    assert seen[0] == {"old a.safetensors", "old config.json"}
    assert seen[-1] == {"new a.safetensors", "new config.json", "new z.json"}
    for state in seen[1:-1]:
        assert not any("config.json" in text for text in state)


@pytest.fixture
def there(job: LiveMigrationJob, tmp_path: Path, bucket: Path) -> Callable[[str], LiveMigrationJob]:
    """The job with its results in the bucket, on a machine of that name."""

    def on(name: str) -> LiveMigrationJob:
        spec = job.spec
        output = spec.output.model_copy(update={"path": URI, "scratch": str(tmp_path / name)})
        return job.model_copy(update={"spec": spec.model_copy(update={"output": output})})

    return on


def breaks(trainer: Any, line: AgentLine, step: int) -> None:
    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.COMMITTED and details["progress"].step == step:
            trainer._transport.inbox.supersede(2, "the machine is gone")

    line.on = on


def test_another_machine_goes_on_from_the_newest_checkpoint(
    there: Callable[[str], LiveMigrationJob], job: LiveMigrationJob, tmp_path: Path, bucket: Path
) -> None:
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, AgentLine()).run(view(1, start()))
    first, line = there("first"), AgentLine()
    trainer = make(first, line)
    breaks(trainer, line, 6)
    with pytest.raises(ViewBrokenError, match="the machine is gone"):
        trainer.run(view(1, start()))
    trainer._checkpointer.wait(30)
    shutil.rmtree(tmp_path / "first")

    second = there("second")
    assert make(second, AgentLine()).run(view(2, at(4))) is WorkerPhase.COMPLETED
    lines = [json.loads(text) for text in (bucket / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in lines] == list(range(1, 13))
    assert [one["loss"] for one in lines] == losses(whole)
    model = load_file(bucket / "model" / "model.safetensors")
    assert model.keys() == weights(whole).keys()
    assert all(torch.equal(tensor, model[name]) for name, tensor in weights(whole).items())
    assert [e["step"] for e in json.loads((bucket / "evaluation.json").read_bytes())] == [4, 8, 12]
    assert [path.suffix for path in (bucket / ".records").iterdir()] == [".published"]


def test_a_killed_process_s_successor_has_its_lines(
    there: Callable[[str], LiveMigrationJob], job: LiveMigrationJob, tmp_path: Path, bucket: Path
) -> None:
    whole = elsewhere(job, tmp_path / "whole")
    make(whole, AgentLine()).run(view(1, start()))
    here, line, memory = there("here"), AgentLine(), os.memfd_create("state")
    trainer = make(here, line, memory=memory)
    breaks(trainer, line, 6)
    with pytest.raises(ViewBrokenError, match="the machine is gone"):
        trainer.run(view(1, start()))
    trainer._checkpointer.wait(30)
    assert make(here, AgentLine(), memory=memory).run(view(2, Resume(step=6))) is WorkerPhase.COMPLETED
    lines = [json.loads(text) for text in (bucket / "metrics.jsonl").read_text().splitlines()]
    assert [one["loss"] for one in lines] == losses(whole)


def test_a_checkpoint_is_none_before_the_lines_up_to_it_are_there(
    there: Callable[[str], LiveMigrationJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(there("first"), line := AgentLine())

    def away(self: Results, *_: Any) -> None:
        raise OSError("it does not answer")

    monkeypatch.setattr(Results, "add_lines", away)
    breaks(trainer, line, 6)
    with pytest.raises(ViewBrokenError, match="the machine is gone"):
        trainer.run(view(1, start()))
    trainer._checkpointer.wait(30)
    assert not trainer._checkpointer.known
    assert any("its manifest could not be written: it does not answer" in message for message, _ in line.of(EventKind.WARNING))


def test_results_of_another_job_are_not_written_over(there: Callable[[str], LiveMigrationJob], bucket: Path) -> None:
    one = there("one")
    assert claim_results(one, print)
    (bucket / ".records").mkdir()
    (bucket / ".records" / "0000000001-00000000.jsonl").write_text("{}")
    refuse_other(there("two"), print)
    other = one.spec.model_copy(update={"training": one.spec.training.model_copy(update={"learning_rate": 0.5})})
    with pytest.raises(UserError, match=r"^s3://bucket/run has the results of another job \(training.learningRate"):
        refuse_other(one.model_copy(update={"spec": other}), print)
    (bucket / ".job.json").write_text("{")
    with pytest.raises(UserError, match=r"\.job\.json is not a job"):
        refuse_other(one, print)


def lines_of(machine_: Machine) -> list[tuple[int, float]]:
    """Steps and when they were recorded."""
    return [(one["step"], one["time"]) for one in map(json.loads, machine_.layout.metrics.read_text().splitlines())]


def again(machine_: Machine, files: RecordFiles, *steps: int) -> None:
    """Steps that were done before, at another time."""
    for step in steps:
        told = Progress(step=step, steps=100, epoch=0.1, loss=1, learning_rate=1e-3, grad_norm=1.0, samples_per_second=1.0)
        machine_.journal.add(Line(step, told.to_json(), 900.0 + step))
    machine_.record(files)


def test_an_evaluation_that_many_views_knew_is_there_once(machine: Callable[[str], Machine]) -> None:
    for number, name in enumerate(("one", "two", "three"), 1):
        here = machine(name)
        files = here.files(number, 2 * number - 2)
        here.record(files, 2 * number - 1, 2 * number)
        here.journal.evaluated(evaluation(2 * number))
        here.record(files)
        files.push()
    four = machine("four")
    files = four.files(4, 6)
    four.record(files)
    assert [e.step for e in files.evaluations] == [2, 4, 6]


def test_lines_of_steps_that_were_done_again_are_the_later_ones_before_they_are_pushed_too(
    machine: Callable[[str], Machine],
) -> None:
    """The second view did steps 3 and 4 again, and was lost before it pushed them: the others have them."""
    one, two, three = machine("one"), machine("two"), machine("three")
    files = one.files(1, 0)
    one.record(files, 1, 2, 3, 4)
    one.journal.evaluated(evaluation(3))
    one.record(files)
    files.push()
    newer = two.files(2, 2)
    newer._synced = 0.0  # pushes nothing
    again(two, newer, 3, 4)
    third = three.files(3, 4)
    again(three, third, 3, 4)
    assert lines_of(three) == [(1, 101.0), (2, 102.0), (3, 903.0), (4, 904.0)]
    assert third.evaluations == []


def test_what_a_machine_has_of_steps_that_another_did_again_goes(machine: Callable[[str], Machine]) -> None:
    one, two = machine("one"), machine("two")
    files = one.files(1, 0)
    one.record(files, 1, 2, 3, 4)
    one.journal.evaluated(evaluation(4, hits=1))
    one.record(files)
    files.push()
    newer = two.files(2, 2)
    two.record(newer)
    again(two, newer, 3, 4)
    two.journal.evaluated(evaluation(4, hits=2))
    two.record(newer)
    newer.push()
    back = one.files(3, 4)
    one.record(back)
    assert lines_of(one) == lines_of(two)
    assert [e.accuracy for e in back.evaluations] == [evaluation(4, hits=2).accuracy]


def test_what_is_in_the_scratch_folder_of_another_job_is_none_of_this_one_s(
    machine: Callable[[str], Machine], tmp_path: Path
) -> None:
    """Two jobs, s3://one/run and s3://two/run, have the same scratch folder by default."""
    one, two = machine("one"), machine("two")
    other = machine("two")
    other.results = dataclasses.replace(other.results, root=posix.folder(tmp_path / "other" / "run"))
    of_other = other.files(1, 0)
    other.record(of_other, 1, 2, 3, 4)
    of_other.push()
    files = one.files(1, 0)
    one.record(files, 1, 2)
    files.push()
    newer = two.files(2, 4, Run(id="00000002-0000-4000-8000-000000000000", begun=2.0))
    two.record(newer)
    assert two.steps == [1, 2]


def test_nothing_is_pushed_before_the_files_are_those_of_the_view(machine: Callable[[str], Machine]) -> None:
    """A checkpoint of the view before may be completed when this one has just begun."""
    one = machine("one")
    files = one.files(1, 0)
    one.record(files, 1, 2, 3, 4)
    files.push()
    newer = one.files(2, 2, journal=one.journal)
    with pytest.raises(OSError, match=r"what is recorded in .* has not been read yet"):
        newer.push()
    again(one, newer, 3, 4)
    assert one.journal.recorded <= 2
    assert lines_of(one)[2:] == [(3, 903.0), (4, 904.0)]


def test_claims_that_somebody_removed_are_not_numbered_anew(machine: Callable[[str], Machine], bucket: Path) -> None:
    """As the message of a run that ends because of a later one says. A piece of the same name would be written over."""
    one, two = machine("one"), machine("two")
    later = one.files(1, 0, Run(id="00000002-0000-4000-8000-000000000000", begun=2.0))
    one.record(later, 1, 2)
    later.push()
    shutil.rmtree(bucket / ".recorders")
    files = two.files(1, 2)
    two.record(files, 3)
    files.push()
    three = machine("three")
    three.record(three.files(2, 3))
    assert three.steps == [1, 2, 3]


def test_a_piece_that_comes_after_the_end_spoils_nothing(machine: Callable[[str], Machine]) -> None:
    one, two = machine("one"), machine("two")
    files = one.files(1, 0)
    one.record(files, 1, 2)
    piece = one.layout.metrics.read_bytes()
    newer = two.files(2, 0)
    two.record(newer)
    again(two, newer, 1, 2)
    newer.publish()
    one.results.add_lines(1, 0, piece)
    three = machine("three")
    three.record(three.files(3, 2))
    assert lines_of(three) == lines_of(two) == [(1, 901.0), (2, 902.0)]


def test_a_checkpoint_s_push_has_what_waits_in_the_journal(machine: Callable[[str], Machine], bucket: Path) -> None:
    one, journal = machine("one"), Journal()
    recorder = Recorder(one.layout, journal, tensorboard=False, warn=one.warnings.append, results=one.results)
    recorder.begin(Claim(run=Run(), view=1, pod="pod"), 0)
    told = Progress(step=1, steps=9, epoch=0.1, loss=1, learning_rate=1e-3, grad_norm=1.0, samples_per_second=1.0)
    journal.add(Line(1, told.to_json(), 1.0))
    recorder.push()
    recorder.end()
    assert not journal.waits
    assert len(list((bucket / ".records").glob("*.jsonl"))) == 1


class Machines(Workers):
    """Ranks with a machine each, that share a bucket and no folder."""

    def __init__(self, job: LiveMigrationJob, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.number = folder, 0
        self.memory = [os.memfd_create("state") for _ in range(job.spec.world_size)]
        super().__init__(job, monkeypatch)

    def made(self, rank: int) -> Trainer:
        """The worker of ``rank``, on a machine that nobody has recorded on."""
        self.number += 1
        output = self.job.spec.output.model_copy(update={"path": URI, "scratch": str(self.folder / f"machine-{self.number}")})
        job = self.job.model_copy(update={"spec": self.job.spec.model_copy(update={"output": output})})
        return make(job, self.lines[rank], rank, self.network, f"machine-{self.number}", memory=self.memory[rank])


def in_bucket(bucket: Path) -> list[float]:
    """The losses of all steps, each once."""
    lines = [json.loads(text) for text in (bucket / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in lines] == list(range(1, 13))
    return [one["loss"] for one in lines]


def test_a_new_rank_0_that_knows_the_last_line_hears_of_those_before_it(
    job: LiveMigrationJob, tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its predecessor had not pushed them. Were the last recorded first, those before it would come too late."""
    monkeypatch.setattr(record_files_module, "_PUSH_SECONDS", 1e9)
    one, two = of(job, tmp_path / "one", 1), of(job, tmp_path / "two", 2)
    make(one, AgentLine()).run(view(1, start()))
    group = Machines(two, tmp_path, monkeypatch)
    group.run(start(), until=7)
    group.trainers[0] = group.made(0)
    group.run(Resume(step=7, told_by=0), number=2)
    assert in_bucket(bucket) == losses(one)


def test_the_only_rank_pushes_before_it_hands_over(
    there: Callable[[str], LiveMigrationJob], tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker that follows has the state and the lines, and nobody else has the evaluations."""
    monkeypatch.setattr(record_files_module, "_PUSH_SECONDS", 1e9)
    line = AgentLine()
    trainer = make(there("first"), line)
    handed: list[list[int]] = []

    def hand_over() -> None:
        (piece,) = (bucket / ".records").glob("*.json")
        handed.append([e["step"] for e in json.loads(piece.read_bytes())])

    def on(kind: EventKind, details: dict[str, Any]) -> None:
        if kind is EventKind.COMMITTED and details["progress"].step == 5:
            assert trainer._checkpointer.settled(60)
            trainer._state.journal.evaluated(evaluation(5))
            line.handover = line.pause = 1

    line.on = on
    monkeypatch.setattr(type(trainer._source), "in_sync", True)
    monkeypatch.setattr(trainer._source, "hand_over", hand_over)
    with pytest.raises(ViewBrokenError, match="the next view has other members, from step 6 on"):
        trainer.run(view(1, start()))
    assert handed == [[4, 5]]


def test_the_others_wait_for_a_model_that_takes_long_to_publish(
    job: LiveMigrationJob, tmp_path: Path, bucket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than for what hangs: else the view would break, and the next would take as long again."""
    two = of(job, tmp_path / "two", 2)
    recovery = two.spec.recovery.model_copy(update={"hang_timeout_seconds": 3.0})
    two = two.model_copy(update={"spec": two.spec.model_copy(update={"recovery": recovery})})
    publish = Results.publish

    def slow(self: Results, allowed: Callable[[], None]) -> None:
        time.sleep(5.0)
        publish(self, allowed)

    monkeypatch.setattr(Results, "publish", slow)
    Machines(two, tmp_path, monkeypatch).run(start())
    assert (bucket / "model" / "config.json").exists()


def test_a_job_that_has_trained_nothing_leaves_the_folder_to_another(
    there: Callable[[str], LiveMigrationJob], bucket: Path
) -> None:
    """As on a volume: one that fails at its first step, and is mended, has the same output.path."""
    one = there("one")
    assert claim_results(one, print)
    other = one.spec.model_copy(update={"training": one.spec.training.model_copy(update={"learning_rate": 0.5})})
    refuse_other(mended := one.model_copy(update={"spec": other}), print)
    (bucket / "metrics.jsonl").write_text("")
    with pytest.raises(UserError, match="has the results of another job"):
        refuse_other(mended, print)


def test_a_scratch_folder_tells_where_its_checkpoints_are(
    there: Callable[[str], LiveMigrationJob], tmp_path: Path, bucket: Path
) -> None:
    """``lmj export`` is told of that folder, or of a copy of it."""
    assert make(there("one"), AgentLine()).run(view(1, start())) is WorkerPhase.COMPLETED
    spec = read_run(tmp_path / "one").spec
    layout = Layout.of(spec)
    assert (layout.output, layout.results, layout.bucket) == (tmp_path / "one", None, f"{URI}/checkpoints")
    assert spec.output.scratch is None
