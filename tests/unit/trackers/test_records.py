"""What is read of a run's files for its trackers, while they are written and cut back."""

import json
from pathlib import Path

import pytest
from tests.unit.trackers.run_folder import BEGUN, OTHER, RUN, RunFolder

from lmj_api.protocol import Evaluation
from lmj_trainer.trackers.cursor import Cursor, CursorFile
from lmj_trainer.trackers.parameters import parameters
from lmj_trainer.trackers.records import MetricsTail, Records

MLFLOW = {"kind": "MLflow", "project": "p", "uri": "http://127.0.0.1:1"}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "out", [MLFLOW])


def steps(tail: MetricsTail, after: int, limit: int = 100) -> list[int]:
    return [line["step"] for line in tail.after(after, limit)]


def test_lines_come_once_and_whole(run: RunFolder) -> None:
    tail = MetricsTail(run.layout.metrics)
    assert steps(tail, 0) == []
    run.commit(1, 3)
    assert steps(tail, 0, limit=2) == [1, 2]
    with run.layout.metrics.open("a") as file:
        file.write('{"step": 4, "lo')
    assert steps(tail, 2) == [3]
    with run.layout.metrics.open("a") as file:
        file.write('ss": 1.0}\nsomebody else wrote this\n')
    assert steps(tail, 3) == [4]
    assert steps(tail, 4) == []


@pytest.mark.parametrize("last", [4, 6, 9])
def test_steps_that_are_done_again_do_not_come_again(run: RunFolder, last: int) -> None:
    """However long the file has become by the time that it is looked at."""
    tail = MetricsTail(run.layout.metrics)
    run.commit(1, 6)
    assert steps(tail, 0) == [1, 2, 3, 4, 5, 6]
    run.commit(4, last, attempt=1)
    assert steps(tail, 6) == list(range(7, last + 1))
    run.commit(last + 1, last + 2)
    assert steps(tail, max(6, last)) == [step for step in (last + 1, last + 2) if step > 6]


def test_a_line_of_the_same_length_in_another_s_place_is_not_taken_for_the_next(run: RunFolder) -> None:
    """Cut back within a step whose line is as long: only its number tells."""
    run.commit(11, 13)
    tail = MetricsTail(run.layout.metrics)
    assert steps(tail, 0) == [11, 12, 13]
    content = run.layout.metrics.read_bytes()
    size = len(content) // 3
    run.layout.metrics.write_bytes(content[:size] + content[:size].replace(b'"step": 11', b'"step": 12') * 1 + content[size:])
    assert steps(tail, 13) == []


def test_an_evaluation_waits_for_its_step(run: RunFolder) -> None:
    records, cursor = Records(run.layout), Cursor(run=RUN)
    run.commit(1, 4)
    run.evaluate(("validation", 2), ("test", 4))
    first = records.after(cursor, 3)
    assert [(row.step, sorted(name for name in row.values if not name.startswith("train"))) for row in first.rows] == [
        (1, []),
        (2, ["validation/accuracy", "validation/f1", "validation/loss"]),
        (3, []),
    ]
    assert first.more
    second = records.after(first.cursor, 3)
    assert [(row.step, "test/accuracy" in row.values) for row in second.rows] == [(4, True)]
    assert (second.cursor.step, second.cursor.evaluations, second.more) == (4, [("validation", 2), ("test", 4)], False)
    assert records.after(second.cursor, 3).rows == []
    run.evaluate(("validation", 2), ("test", 4), ("test", 3))
    (late,) = records.after(second.cursor, 3).rows
    assert (late.step, late.time) == (3, BEGUN + 3), "it is of the time of its step"


def test_an_evaluation_whose_line_is_lost_comes_at_the_end(run: RunFolder) -> None:
    run.evaluate(("test", 9))
    records, cursor = Records(run.layout), Cursor(run=RUN)
    assert records.after(cursor, 3).rows == []
    assert [row.step for row in records.after(cursor, 3, last=True).rows] == [9]


def test_what_is_no_number_is_left_out(run: RunFolder) -> None:
    run.layout.metrics.write_text(
        '{"step": 1, "loss": NaN, "gradNorm": Infinity, "learningRate": 0.5, "epoch": null, "time": 1.5}\n'
    )
    (row,) = Records(run.layout).after(Cursor(run=RUN), 3).rows
    assert (row.values, row.time) == ({"train/learningRate": 0.5}, 1.5)


def test_metrics_of_a_class_of_one_s_own_are_shown_by_names_that_trackers_take(run: RunFolder) -> None:
    run.commit(1, 1)
    result = Evaluation(split="test", step=1, samples=8, loss=0.5, metrics={"f1": 0.25, "hits@3/all": 0.75, "loss": 9.0})
    run.layout.evaluation.write_text(json.dumps([result.model_dump(mode="json", by_alias=True)]))
    (row,) = Records(run.layout).after(Cursor(run=RUN), 3).rows
    shown = {name: value for name, value in row.values.items() if name.startswith("test")}
    assert shown == {"test/f1": 0.25, "test/hits_3_all": 0.75, "test/loss": 0.5}


def test_views_are_noted_once_and_those_of_another_run_never(run: RunFolder) -> None:
    run.view(1, 0, "all are ready")
    run.view(2, 5, "another run's", run=OTHER)
    with run.layout.views.open("a") as file:
        file.write('{"run": "torn')
    run.view(2, 7, "rank 0 has a new worker")
    run.view(2, 7, "told again")
    batch = Records(run.layout).after(Cursor(run=RUN), 3)
    assert batch.notes == [(2, 7, "rank 0 has a new worker")]
    assert Records(run.layout).after(batch.cursor, 3).notes == []


def test_a_cursor_is_of_one_run_and_goes_back_to_where_a_part_of_it_begins(tmp_path: Path, run: RunFolder) -> None:
    file = CursorFile(tmp_path / "trackers", run.job.spec.output.trackers[0])
    assert file.read(RUN, 0) == Cursor(run=RUN)
    kept = Cursor(run=RUN, step=9, evaluations=[("validation", 4), ("validation", 8)], view=3)
    file.write(kept)
    assert file.read(RUN, 0) == kept
    assert file.read(OTHER, 0) == Cursor(run=OTHER)
    part = file.read(RUN, 6)
    assert (part.step, part.evaluations, part.begins, part.view) == (6, [("validation", 4)], 6, 3)
    file.path.write_text("{")
    assert file.read(RUN, 0) == Cursor(run=RUN)


def test_parameters_are_the_spec_without_what_may_be_hidden(run: RunFolder) -> None:
    told = parameters(run.job.spec)
    assert told["training.learningRate"] == "0.001"
    assert told["model.labels"] == "negative, positive"
    assert told["dataset.splits.testFraction"] == "0.1"
    assert not [name for name, value in told.items() if name.startswith(("template", "output")) or "concealed" in value]
