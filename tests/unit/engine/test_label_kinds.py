"""Texts with any number of labels, and texts with a number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForSequenceClassification

from lmj_api.spec import LiveMigrationJob
from lmj_trainer import evaluate, predict
from lmj_trainer.data.files import read_rows
from lmj_trainer.dataset.selection import select
from lmj_trainer.errors import UserError
from lmj_trainer.task.multi_label.objective import LabelsObjective
from lmj_trainer.task.multi_label.task import MultiLabelClassification
from lmj_trainer.task.regression.objective import NumberObjective
from lmj_trainer.task.regression.task import Regression
from lmj_trainer.task.saved_model import SavedModel

from .conftest import small_config
from .test_replicas import learn_the_same, of

KINDS = {"MultiLabelClassification": MultiLabelClassification, "Regression": Regression}


def of_task(job: LiveMigrationJob, task: str) -> LiveMigrationJob:
    """``job`` with rows of which each number has several labels, or is a number."""
    data = Path(job.spec.dataset.source).parent / f"{task}.jsonl"
    rows = []
    for i in range(80):
        label: Any = [name for name, every in (("even", 2), ("third", 3)) if i % 7 % every == 0]
        rows.append({"text": f"this one is {i % 7}", "label": label if task == "MultiLabelClassification" else i % 7 / 2})
    data.write_text("\n".join(map(json.dumps, rows)))
    document = job.model_dump(by_alias=True, mode="json")
    document["spec"]["model"]["task"] = task
    document["spec"]["dataset"]["source"] = str(data)
    return LiveMigrationJob.model_validate(document)


@pytest.mark.parametrize("task", KINDS)
def test_loss_and_scores_are_those_of_transformers(task: str) -> None:
    several = task == "MultiLabelClassification"
    config = small_config("bert", num_labels=3 if several else 1, problem_type=KINDS[task].heads.problem_type)
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    ids = torch.randint(5, 3000, (6, 8))
    labels = torch.randint(0, 2, (6, 3)).float() if several else torch.randn(6)
    with torch.no_grad():
        theirs = model(input_ids=ids, labels=labels)
    objective: Any = LabelsObjective() if several else NumberObjective()
    assert torch.allclose(objective.loss(theirs.logits, labels), theirs.loss)
    assert objective.samples(labels) == 6
    parts = [objective.counts(), objective.counts()]
    for number, rows in enumerate((slice(4), slice(4, 6))):
        parts[number].add(number, theirs.logits[rows], labels[rows])
    parts[1].merge(json.loads(json.dumps(parts[0].payload())))
    result = objective.evaluation(parts[1], "validation", 2)
    assert result.loss == pytest.approx(float(theirs.loss), rel=1e-5)
    if several:
        said, there = theirs.logits > 0, labels > 0
        assert result.accuracy == float((said == there).all(1).double().mean())
        assert result.f1 == pytest.approx(2 * int((said & there).sum()) / int(said.sum() + there.sum()))
        assert result.score == result.accuracy
    else:
        values = theirs.logits[:, 0].double().numpy()
        assert result.mean_absolute_error == pytest.approx(float(np.abs(values - labels.double().numpy()).mean()))
        assert result.correlation == pytest.approx(float(np.corrcoef(values, labels.double().numpy())[0, 1]))
        assert (result.accuracy, result.score) == (None, -(result.loss or 0.0))
        assert "accuracy" not in result.scores_text
    with pytest.raises(ValueError, match="no row of test"):
        objective.evaluation(objective.counts(), "test", 1)


def test_numbers_that_are_all_the_same_have_no_correlation() -> None:
    counts = NumberObjective().counts()
    counts.add(0, torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 3.0]))
    assert NumberObjective().evaluation(counts, "test", 1).correlation is None


@pytest.mark.integration
@pytest.mark.parametrize("task", KINDS)
def test_stages_and_replicas_learn_what_one_process_does(
    job: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], task: str
) -> None:
    one, four = (of_task(of(job, tmp_path / name, n, n), task) for name, n in (("one", 1), ("four", 2)))
    learn_the_same(one, four, monkeypatch)
    output = Path(one.spec.output.path)
    saved = SavedModel.load(output)
    assert type(saved.task) is KINDS[task]
    assert saved.labels == (("even", "third") if task == "MultiLabelClassification" else ("label",))
    assert evaluate.main([str(output), one.spec.dataset.source]) == 0
    assert "80 samples: " in capsys.readouterr().out
    assert predict.main([str(output), "this one is 6", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    if task == "Regression":
        assert said.keys() == {"text", "value"}
    else:
        assert said["labels"] == [name for name, chance in said["probabilities"].items() if chance > 0.5]


def test_labels_of_a_table_have_commas_between_them(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('text,label\none,"b, a"\ntwo,\nthree,a\n')
    rows, task = read_rows(path, ["text"], "label"), MultiLabelClassification()
    labels = task.labels(rows, None, "label")
    assert labels.names == ("a", "b")
    assert task.ids(rows, labels).tolist() == [[1, 1], [0, 0], [1, 0]]
    with pytest.raises(UserError, match=r"row 1 of .*rows.csv has label 'b', which is not one of a, c"):
        task.ids(rows, task.labels(rows, ["a", "c"], "label"))
    path.write_text("text,label\none,\ntwo,\n")
    with pytest.raises(UserError, match="no row has a label"):
        task.labels(read_rows(path, ["text"], "label"), None, "label")


@pytest.mark.parametrize("value", ["many", "", "nan", "inf", True, None, [1]])
def test_what_is_no_number(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"text": "a", "label": 1.5}, {"text": "b", "label": value}])))
    rows, task = read_rows(path, ["text"], "label"), Regression()
    with pytest.raises(UserError, match=r"row 2 of .*rows.jsonl has .* in column 'label': a number is needed"):
        task.ids(rows, task.labels(rows, None, "label"))


@pytest.mark.integration
def test_a_label_that_no_row_has_is_told(job: LiveMigrationJob) -> None:
    document = of_task(job, "MultiLabelClassification").model_dump(by_alias=True, mode="json")
    document["spec"]["model"]["labels"] = ["even", "third", "fifth"]
    said: list[str] = []
    selection = select(LiveMigrationJob.model_validate(document).spec, said.append)
    assert selection.splits["train"].ids.shape == (64, 3)
    assert any("no training row has label 'fifth'" in line for line in said)


def test_numbers_have_no_names(job: LiveMigrationJob) -> None:
    document = of_task(job, "Regression").model_dump(by_alias=True, mode="json")
    document["spec"]["model"]["labels"] = ["a", "b"]
    with pytest.raises(ValidationError, match=r"model.labels: model.task Regression has no labels: leave it out"):
        LiveMigrationJob.model_validate(document)
