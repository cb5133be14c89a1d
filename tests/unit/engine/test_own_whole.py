"""Metrics of a whole split, by a class of the user's own, and the best weights by one of them."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from own_jobs import TASK, own_job
from safetensors.torch import load_file

from lmj_api.protocol import Evaluation, EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.errors import UserError
from lmj_trainer.model.inputs import Targets
from lmj_trainer.own.objective import OwnObjective
from lmj_trainer.own.source import load_own
from lmj_trainer.own.units import build, names_of

from .test_replicas import learn_the_same

pytestmark = pytest.mark.integration

WHOLE = (
    TASK
    + """
    evaluation_rows = 3

    def keep(self, scores, labels):
        return {"scores": scores, "labels": labels}

    def evaluate(self, kept):
        scores = torch.cat([each["scores"] for each in kept])
        return {"spread": scores.std(), "first": kept[0]["scores"][0, 0], "parts": len(kept)}

    def score(self, metrics):
        return -metrics["spread"]
"""
)


def of(folder: Path, task: str = WHOLE, replicas: int = 1) -> LiveMigrationJob:
    parts: dict[str, Any] = {"pipeline": {"stages": 1, "microBatches": 4}, "dataParallel": {"shards": 4, "replicas": replicas}}
    return own_job(folder, task, **parts)


def test_replicas_keep_what_one_process_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = of(tmp_path / "one")
    line = learn_the_same(one, of(tmp_path / "several", replicas=4), monkeypatch)
    told: list[Evaluation] = [details["evaluation"] for _, details in line.of(EventKind.EVALUATED)]
    assert [each.metrics["parts"] for each in told] == [6.0] * 3
    best = max(told, key=lambda each: each.score)
    assert best.score == -best.metrics["spread"]
    assert best is not min(told, key=lambda each: each.loss), "the test shows nothing"  # type: ignore[type-var,return-value]

    own = load_own(one.spec.model)
    whole = names_of(build(own, seed=99))
    whole.load_state_dict(load_file(tmp_path / "one" / "out" / "model" / "model.safetensors"))
    whole.eval()
    table = prepare(one.spec, tmp_path / "cache", print).splits["validation"]
    found = []
    with torch.no_grad():
        for start in range(0, 16, 3):
            hidden, _ = own.task.collate(table.rows(range(start, min(16, start + 3))))
            for unit in whole:
                hidden = unit(hidden)
            found.append(hidden)
    scores = torch.cat(found)
    assert best.metrics["spread"] == scores.std().item()
    assert best.metrics["first"] == scores[0, 0].item(), "in the order of the split"


def objective(folder: Path, old: str, new: str) -> OwnObjective:
    assert WHOLE.count(old) == 1
    return OwnObjective(load_own(of(folder, WHOLE.replace(old, new)).spec.model))


def evaluated(own: OwnObjective) -> Evaluation:
    counts = own.counts()
    with torch.no_grad():
        counts.add(0, torch.tensor([[1.0, 2.0]]), Targets(1, torch.tensor([1])))
    return own.evaluation(counts, "validation", 1)


def test_whoever_computed_what_it_is_in_the_order_of_the_split(tmp_path: Path) -> None:
    own = objective(tmp_path, '-metrics["spread"]', 'metrics["first"]')
    mine, other = own.counts(), own.counts()
    with torch.no_grad():
        for counts, number in ((mine, 1), (other, 0), (other, 2)):
            counts.add(number, torch.tensor([[10.0 + number, 0.0]]), Targets(1, torch.tensor([1])))
    mine.merge(other.payload())
    result = own.evaluation(mine, "validation", 1)
    assert (result.metrics["first"], result.metrics["parts"], result.score) == (10.0, 3.0, 10.0)


def test_a_score_that_is_no_number_is_the_worst(tmp_path: Path) -> None:
    result = evaluated(objective(tmp_path, '-metrics["spread"]', 'float("nan")'))
    assert result.score == -sys.float_info.max
    assert Evaluation.model_validate_json(result.to_json()).score == result.score
    assert math.isfinite(evaluated(objective(tmp_path / "other", '-metrics["spread"]', 'metrics["loss"]')).score)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('-metrics["spread"]', '-metrics["spraed"]', "MyTask.score: KeyError: 'spraed'"),
        ('-metrics["spread"]', '"high"', "MyTask.score gives 'score' as a str: a number is needed"),
        ('return {"spread": scores.std(),', 'return 1 or {"spread": scores.std(),', "MyTask.evaluate gives a int: numbers by name are needed"),
        ('return {"scores": scores,', 'return {"scores": socres,', "MyTask.keep: NameError: name 'socres' is not defined"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: str) -> None:
    number = next(number for number, text in enumerate(WHOLE.replace(old, new).splitlines(), 1) if new in text)
    with pytest.raises(UserError) as caught:
        evaluated(objective(tmp_path, old, new))
    assert line in str(caught.value)
    where = int(str(caught.value).split(":")[1])
    assert where in (number, number - 1, number - 2), "its line, or that of its method"
