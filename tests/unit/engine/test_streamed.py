"""Rows that are read while a job trains: the tensors of any rows, in an order of their own, whoever computes them and whatever happens."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from parity_jobs import WORDS, make_job, make_model
from pyarrow import parquet
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Resume
from lmj_trainer.check import check
from lmj_trainer.dataset.prepared import at_hand, prepare
from lmj_trainer.dataset.stored import PreparedDataset
from lmj_trainer.errors import UserError
from lmj_trainer.group import group as group_module
from lmj_trainer.model.stage import Place
from lmj_trainer.strategy.batches import Batches
from lmj_trainer.strategy.pipeline import exchange as exchange_module
from lmj_trainer.strategy.pipeline import pipeline as pipeline_module
from lmj_trainer.strategy.streamed import StreamedBatches
from lmj_trainer.transport.inbox import ViewBrokenError

from .disturbed import Disturbed
from .small_job import losses, start, weights
from .test_disturbed import disturbed
from .test_replicas import Clock

CPU = torch.device("cpu")
ROWS, STEPS = 120, 9


def rows(count: int, seed: int, kind: str) -> list[dict[str, Any]]:
    """Texts of 3 to 12 words with a label as of ``kind``."""
    pick, found = random.Random(seed), []
    for _ in range(count):
        words = pick.choices(WORDS, k=pick.randint(3, 12))
        good = any(word in WORDS[:4] for word in words)
        several = [name for name, part in (("neg", WORDS[4:8]), ("pos", WORDS[:4])) if set(words) & set(part)]
        labels = {"name": "pos" if good else "neg", "number": int(good), "value": good - 0.5, "several": several}
        of_words = ["pos" if word in WORDS[:4] else "neg" for word in words]
        found.append(
            {"text": words, "label": of_words}
            if kind == "words"
            else {"text": " ".join(words), "other": " ".join(words[::-1]), "label": labels.get(kind)}
        )
    return found


def write(folder: Path, kind: str) -> Path:
    """Training rows in three files of row groups of 7, and beside them all in one file, and rows to validate on."""
    train = folder / "train"
    train.mkdir(parents=True)
    every = rows(ROWS, 0, kind)
    for name, part in (("a", every[:50]), ("b", every[50:57]), ("c", every[57:])):
        parquet.write_table(pa.Table.from_pylist(part), train / f"{name}.parquet", row_group_size=7)
    parquet.write_table(pa.Table.from_pylist(every), folder / "all.parquet")
    parquet.write_table(pa.Table.from_pylist(rows(24, 1, kind)), folder / "held.parquet")
    return train


TASKS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "names": ("SequenceClassification", "name", AutoModel, {}),
    "numbers": ("SequenceClassification", "number", AutoModel, {}),
    "pairs": ("SequenceClassification", "name", AutoModel, {"text": ["text", "other"]}),
    "several": ("MultiLabelClassification", "several", AutoModel, {}),
    "value": ("Regression", "value", AutoModel, {}),
    "words": ("TokenClassification", "words", AutoModel, {}),
    "hidden": ("MaskedLM", "name", AutoModelForMaskedLM, {"label": None}),
    "language": ("CausalLM", "name", AutoModelForCausalLM, {"label": None}),
}
"""The task, the kind of its labels, the model's class and what else the dataset has."""


def job_of(
    folder: Path, name: str = "names", stages: int = 1, replicas: int = 1, out: str = "out", layers: int = 2, **changes: Any
) -> LiveMigrationJob:
    """A job with a model and rows in ``folder``, which are made with the first."""
    task, kind, model, dataset = TASKS[name]
    source = folder / "source"
    if not source.exists():
        write(folder, kind)
        make_model(source, "gpt2" if name == "language" else "bert", layers=layers, kind=model)
    labels = ["neg", "pos"] if task in ("SequenceClassification", "MultiLabelClassification", "TokenClassification") else None
    spec: dict[str, Any] = {
        "model": {"task": task, "labels": labels},
        "dataset": {
            **dataset,
            "source": str(folder / "train"),
            "splits": {"validation": str(folder / "held.parquet")},
            "streaming": {"rowGroups": 3},
            "maxLength": 16,
        },
        "dataParallel": {"shards": 4, "replicas": replicas},
        "training": {"maxSteps": STEPS, "evalSteps": 4, "gradientAccumulationSteps": 1},
        "checkpoint": {"everySteps": None},
    }
    for part, fields in changes.items():
        spec[part] = {**spec.get(part, {}), **fields}
    return make_job(folder / out, folder / "train", source, stages, **spec)


def prepared_of(job: LiveMigrationJob) -> PreparedDataset:
    found: PreparedDataset = prepare(job.spec, Layout.of(job.spec).cache, print)
    return found


def streamed(job: LiveMigrationJob, say: Callable[[str], None] = lambda text: None) -> StreamedBatches:
    return StreamedBatches(prepared_of(job), job.spec, CPU, say)


def as_tensors(inputs: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(inputs).items() if value is not None}


def equal(one: Any, other: Any) -> None:
    one, other = as_tensors(one), as_tensors(other)
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name]), name


def taken(batches: StreamedBatches, step: int) -> list[Any]:
    """The micro-batches of ``step``."""
    batches.fetch(step, lambda: None)
    found, first = [], 0
    for number, part in enumerate(part for shard in batches.train(step) for part in shard):
        found.append(batches.inputs("train", part, Place(step, number, first)))
        first += len(part)
    return found


@pytest.mark.parametrize("name", TASKS)
def test_a_micro_batch_is_as_of_the_same_rows_at_hand(tmp_path: Path, name: str) -> None:
    job = job_of(tmp_path, name)
    plain = job_of(tmp_path, name, out="plain", dataset={"source": str(tmp_path / "all.parquet"), "streaming": None})
    ours, theirs = streamed(job), Batches(prepared_of(plain), plain.spec, CPU)
    assert (ours.steps, ours.samples, ours.rows) == (theirs.steps, theirs.samples, theirs.rows)
    before = {"a": 0, "b": 50, "c": 57}
    seen: list[int] = []
    for step in (0, 1, 6, 7, 8):
        ours.fetch(step, lambda: None)
        found = ours._stream.rows(*ours._place(step), ours.samples)
        numbers = np.array(
            [before[Path(file).stem] + number - 1 for file, number in zip(found.origins, found.numbers, strict=True)]  # type: ignore[arg-type]
        )
        seen += numbers.tolist() if step < 7 else []
        first = 0
        for number, part in enumerate(part for shard in ours.train(step) for part in shard):
            place = Place(step, number, first)
            same = numbers[first : first + len(part)]
            equal(ours.inputs("train", part, place), theirs.inputs("train", same, place))
            assert torch.equal(ours.targets("train", part, place), theirs.targets("train", same, place))
            first += len(part)
    assert len(seen) == len(set(seen)) == 3 * 16
    for part in theirs.evaluation("validation"):
        equal(ours.inputs("validation", part), theirs.inputs("validation", part))
    assert [part.tolist() for part in ours.evaluation("validation")] == [
        part.tolist() for part in theirs.evaluation("validation")
    ]


def test_any_step_is_the_same_whatever_was_asked_for_before(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    whole = [taken(streamed(job), step) for step in range(STEPS)]
    jumping = streamed(job)
    for step in (8, 0, 7, 6, 6, 3, 4):
        jumping.expect(step + 1)
        for one, other in zip(taken(jumping, step), whole[step], strict=True):
            equal(one, other)


def test_what_was_not_fetched_is_not_guessed(tmp_path: Path) -> None:
    batches = streamed(job_of(tmp_path))
    rows = batches.train(1)[0][0]
    with pytest.raises(RuntimeError, match="rows are asked for before they are fetched"):
        batches.inputs("train", rows, Place(1, 0, 0))
    batches.fetch(0, lambda: None)
    with pytest.raises(RuntimeError, match=r"rows 16 to \d+ are asked for, and those of step 0 were fetched"):
        batches.inputs("train", rows, Place(1, 0, 0))


def test_what_training_uses_of_an_epoch(tmp_path: Path) -> None:
    batches = streamed(job_of(tmp_path))
    # 120 rows are seven batches of 16, and 8 are left over; nine steps end in the second epoch.
    assert [batches._used(epoch) for epoch in range(4)] == [112, 32, 0, 0]
    batches.expect(STEPS)
    assert batches._stream._windows._reading is None, "there is no such step"


def test_a_rehearsal_needs_no_storage(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    batches = streamed(job)
    for file in (tmp_path / "train").iterdir():
        file.unlink()
    inputs = batches.rehearsal()
    assert len(inputs.input_ids) == len(batches.train(0)[0][0])
    wide = job_of(tmp_path, training={"batchSize": 96}, pipeline={"microBatches": 4}, out="wide")
    held = prepared_of(job)
    assert len(StreamedBatches(held, wide.spec, CPU, print).rehearsal().input_ids) == 12
    assert held.streamed is not None
    assert len(held.streamed.sample) == 7, "the first row group has no more"


def test_the_check_of_a_job_counts_rows_and_keeps_nothing(tmp_path: Path) -> None:
    summary = check(job_of(tmp_path))
    assert (summary.rows, summary.labels, summary.steps) == ({"train": ROWS, "validation": 24}, ["neg", "pos"], STEPS)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dataset": {"label": "lable"}}, "a.parquet has no column 'lable'; did you mean label?"),
        ({"model": {"labels": ["bad", "good"]}}, "train/a.parquet has label 'neg', which is not one of bad, good"),
        ({"dataset": {"splits": {"validation": "held"}}}, "dataset.splits.validation: 'held' is not a file, and "),
        ({"training": {"batchSize": 128}}, "120 training rows are fewer than one global batch of 128"),
        ({"dataset": {"source": "/nowhere"}}, "there is no file /nowhere"),
    ],
)
def test_what_can_be_known_is_told_before_training(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as raised:
        check(job_of(tmp_path, **changes))
    assert said in str(raised.value)
    assert "Fraction" not in str(raised.value)


def test_a_row_that_cannot_be_trained_on_is_told_with_its_place_when_it_comes(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    table = parquet.read_table(tmp_path / "train" / "c.parquet").to_pylist()
    table[40]["label"] = "what"
    parquet.write_table(pa.Table.from_pylist(table), tmp_path / "train" / "c.parquet", row_group_size=7)
    check(job)
    batches = streamed(job)

    def train() -> None:
        for step in range(14):
            batches.fetch(step, lambda: None)

    with pytest.raises(UserError, match=r"^row 41 of .*/train/c.parquet has label 'what', which is not one of neg, pos"):
        train()


def test_rows_that_may_not_be_meant_are_told_a_few_times(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    for file in (tmp_path / "train").iterdir():
        table = parquet.read_table(file).to_pylist()
        for row in table[7:]:
            row["text"] = "NaN"
        parquet.write_table(pa.Table.from_pylist(table), file, row_group_size=7)
    said: list[str] = []
    batches = streamed(job, said.append)
    for step in range(7):
        batches.fetch(step, lambda: None)
    assert len(said) == 5
    assert all(text.startswith("warning: row ") and "which marks a missing value" in text for text in said)
    assert said[-1].endswith("; more are not told")


def test_what_is_prepared_is_found_without_the_rows(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    cache = Layout.of(job.spec).cache
    assert at_hand(job.spec, cache) is None
    made = prepared_of(job)
    for file in (tmp_path / "train").iterdir():
        file.unlink()
    found = at_hand(job.spec, cache)
    assert isinstance(found, PreparedDataset)
    assert (found.digest, found.labels, found.rows) == (made.digest, ("neg", "pos"), {"train": ROWS, "validation": 24})
    assert prepared_of(job).digest == made.digest
    other = job_of(tmp_path, dataset={"maxLength": 12})
    assert at_hand(other.spec, cache) is None
    (index,) = cache.glob("*/index.json")
    index.write_text("{}")
    with pytest.raises(UserError, match=r"is damaged .*: remove that folder, it is made again"):
        at_hand(job.spec, cache)


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[LiveMigrationJob], Disturbed]]:
    with ExitStack() as stack:

        def group(job: LiveMigrationJob) -> Disturbed:
            made = Disturbed(job, monkeypatch)
            stack.callback(made.close)
            return made

        yield group


Groups = Callable[[LiveMigrationJob], Disturbed]


@pytest.mark.integration
@pytest.mark.parametrize(("name", "victim"), [("names", 0), ("words", 3), ("hidden", 3)])
def test_a_kill_and_a_move_change_no_bit(tmp_path: Path, groups: Groups, name: str, victim: int) -> None:
    """Of two replicas of two stages, beside one rank that is left alone."""
    disturbed(lambda out, stages, replicas: job_of(tmp_path, name, stages, replicas, out), groups, 2, victim)


@pytest.mark.integration
def test_any_number_of_stages_and_a_checkpoint_that_goes_on_in_others(tmp_path: Path, groups: Groups) -> None:
    def trained(stages: int, replicas: int) -> LiveMigrationJob:
        job = job_of(tmp_path, "names", stages, replicas, f"{stages}x{replicas}", layers=6)
        groups(job).run(start())
        return job

    def same(job: LiveMigrationJob) -> None:
        assert losses(job) == losses(alone)
        assert all(torch.equal(tensor, weights(job)[name]) for name, tensor in weights(alone).items())

    alone = trained(1, 1)
    assert len(set(losses(alone))) == STEPS
    for shape in ((2, 1), (3, 1), (1, 4)):
        same(trained(*shape))
    often = {"checkpoint": {"everySteps": 3, "keep": 9}}
    halves = job_of(tmp_path, "names", 2, 1, "halves", layers=6, **often)
    group = groups(halves)
    group.run(start(), until=5)
    (name,) = [path.parent.name for path in (tmp_path / "halves" / "checkpoints").glob("*/manifest.json") if step_of(path) == 3]
    on = job_of(tmp_path, "names", 3, 2, "halves", layers=6, **often)
    groups(on).run(Resume(step=3, checkpoint=name), number=2)
    same(on)


def step_of(manifest: Path) -> int:
    return int(json.loads(manifest.read_text())["step"])


@pytest.mark.integration
def test_a_view_begins_to_read_the_rows_of_its_first_step_before_anything_else(tmp_path: Path, groups: Groups) -> None:
    group = groups(job_of(tmp_path))
    batches, told = group.trainers[0]._batches, list[int]()
    group.trainers[0]._batches.expect = told.append  # type: ignore[method-assign]
    group.run(start(), until=4)
    group.run(Resume(step=4, told_by=0), number=2)
    assert told == [0, 4]
    assert batches.steps == STEPS


@pytest.mark.integration
def test_waiting_for_rows_is_no_part_of_what_a_rank_computes(
    tmp_path: Path, groups: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    group = groups(job_of(tmp_path))
    trainer = group.trainers[0]
    fetch = trainer._batches.fetch

    def slow(step: int, check: Callable[[], None]) -> None:
        clock.sleep(100)
        fetch(step, check)

    trainer._batches.fetch = slow  # type: ignore[method-assign]
    for module in (pipeline_module, exchange_module, group_module):
        monkeypatch.setattr(module, "time", clock)
    group.run(start(), until=2)
    assert trainer.strategy.compute_seconds == 0


@pytest.mark.integration
def test_who_waits_for_rows_leaves_a_view_that_is_over(tmp_path: Path, groups: Groups) -> None:
    """Storage hangs; the worker is told of another view, and trains in that when storage answers."""
    job = job_of(tmp_path)
    group, go, asked = groups(job), threading.Event(), threading.Event()
    trainer = group.trainers[0]
    windows = trainer._batches._stream._windows  # type: ignore[attr-defined]
    read = windows._read

    def hanging(number: int, most: float) -> Any:
        asked.set()
        assert go.wait(60)
        return read(number, most)

    windows._read = hanging

    def newer() -> None:
        assert asked.wait(60)
        trainer._transport.inbox.supersede(2, "the next view")

    thread = threading.Thread(target=newer)
    thread.start()
    with pytest.raises(ViewBrokenError, match="the next view"):
        trainer.run(group.view(1, start()))
    thread.join()
    go.set()
    group.run(start(), number=2)
    assert len(losses(job)) == STEPS


def test_rows_of_which_none_has_any_of_several_labels(tmp_path: Path) -> None:
    job = job_of(tmp_path, "several")

    def without_labels(path: Path) -> None:
        table = parquet.read_table(path)
        none = pa.array([[]] * len(table), pa.list_(pa.string()))
        parquet.write_table(table.set_column(table.column_names.index("label"), "label", none), path, row_group_size=7)

    without_labels(tmp_path / "train" / "b.parquet")
    assert check(job).rows == {"train": ROWS, "validation": 24}, "some of the training rows may have none"
    without_labels(tmp_path / "held.parquet")
    with pytest.raises(UserError, match=r"held.parquet: no validation row has a label: .* as dataset.splits.validation$"):
        check(job)
    without_labels(tmp_path / "train" / "a.parquet")
    with pytest.raises(UserError, match=r"^the first row group of .*/train/a.parquet: no row has a label: name the column"):
        check(job)
