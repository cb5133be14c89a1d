"""A model and a task of the user's own: trained as any other, to the bit, wherever it is cut and however many share a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from own_jobs import TASK, own_job
from safetensors.torch import load_file

from lmj_api.protocol import Evaluation, EventKind
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Resume
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.errors import UserError
from lmj_trainer.evaluate import main as evaluate_main
from lmj_trainer.own.source import load_own
from lmj_trainer.own.units import build, names_of
from lmj_trainer.task.saved_model import SavedModel, model_folder

from .small_job import Line, at, losses, make, start, view, weights
from .test_replicas import Together, Workers, learn_the_same

pytestmark = pytest.mark.integration

FOUR = {"shards": 4}
PIPELINE = {"microBatches": 4}


def of(folder: Path, stages: int = 1, replicas: int = 1, task: str = TASK, **changes: Any) -> LiveMigrationJob:
    parts = {"pipeline": PIPELINE | {"stages": stages}, "dataParallel": FOUR | {"replicas": replicas}}
    return own_job(folder, task, **{**parts, **changes})


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Together:
    return lambda job: Workers(job, monkeypatch)


@pytest.mark.parametrize(("stages", "replicas"), [(2, 2), (3, 1), (1, 4)])
def test_stages_and_replicas_learn_what_one_process_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: int, replicas: int
) -> None:
    one, several = of(tmp_path / "one"), of(tmp_path / "several", stages, replicas)
    alone = learn_the_same(one, several, monkeypatch)
    told = [details["evaluation"] for _, details in alone.of(EventKind.EVALUATED)]
    assert [sorted(each.metrics) for each in told] == [["margin"]] * 3
    assert all(0 <= each.accuracy <= 1 and each.samples == 16 for each in told)


def test_what_is_evaluated_is_what_the_class_computes_of_the_saved_model(tmp_path: Path) -> None:
    job, line = of(tmp_path), Line()
    assert make(job, line).run(view(1, start())).value == "Completed"
    best = min((d["evaluation"] for _, d in line.of(EventKind.EVALUATED)), key=lambda each: each.loss)
    own = load_own(job.spec.model)
    whole = names_of(build(own, seed=99))
    whole.load_state_dict(load_file(tmp_path / "out" / "model" / "model.safetensors"))
    whole.eval()
    rows = [json.loads(text) for text in (tmp_path / "rows.jsonl").read_text().splitlines()]
    table = prepare(job.spec, tmp_path / "cache", print).splits["validation"]
    held_out = table.rows(range(len(table)))
    assert all(row in rows for row in held_out)
    numbers, labels = own.task.collate(held_out)
    with torch.no_grad():
        hidden = numbers
        for unit in whole:
            hidden = unit(hidden)
        assert best.loss == own.task.loss(hidden, labels).item()
    assert best.accuracy == (hidden.argmax(1) == labels).double().mean().item()
    assert best.metrics["margin"] == pytest.approx(hidden.diff(dim=1).abs().mean().item(), rel=1e-6)


def test_the_saved_folder_makes_the_model_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = of(tmp_path)
    make(job, Line()).run(view(1, start()))
    folder = tmp_path / "out" / "model"
    assert (folder / "my_task.py").read_bytes() == (tmp_path / "my_task.py").read_bytes()
    card = (folder / "README.md").read_text()
    code = card.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    found: dict[str, Any] = {}
    exec(code, found)
    saved = load_file("model.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in found["model"].state_dict().items())
    assert "2.scale" in saved, "constants too"
    assert torch.equal(saved["1.first.weight"], saved["1.second.weight"])
    assert model_folder(tmp_path / "out") == folder
    with pytest.raises(UserError, match=r"is of a class of its own, my_task.py:MyTask: its README.md says how"):
        SavedModel.load(tmp_path / "out")


def test_the_saved_model_is_evaluated_as_in_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the real command; the weights of the last step, on the rows that were held out."""
    job, line = of(tmp_path, output={"path": str(tmp_path / "out"), "weights": "Last"}), Line()
    make(job, line).run(view(1, start()))
    table = prepare(job.spec, tmp_path / "cache", print).splits["validation"]
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in table.rows(range(len(table)))))
    assert evaluate_main([str(tmp_path / "out"), str(held_out), "-o", "json"]) == 0
    said = Evaluation.model_validate_json(capsys.readouterr().out)
    told = line.of(EventKind.EVALUATED)[-1][1]["evaluation"]
    assert (said.loss, said.accuracy, said.metrics, said.samples) == (told.loss, told.accuracy, told.metrics, 16)
    assert evaluate_main([str(tmp_path / "out"), str(held_out), "--label", "label"]) == 2
    assert "gets whole rows: leave it out" in capsys.readouterr().err


def test_one_module_is_saved_with_its_own_names(tmp_path: Path) -> None:
    single = TASK.replace("return [nn.Linear(4, 8)", "return nn.Sequential(*[nn.Linear(4, 8)").replace("8, 2))]", "8, 2))])")
    job = of(tmp_path, task=single)
    make(job, Line()).run(view(1, start()))
    assert "1.first.weight" in load_file(tmp_path / "out" / "model" / "model.safetensors")
    assert losses(job)[-1] < losses(job)[0]


def test_frozen_weights_stay_and_are_in_no_checkpoint(tmp_path: Path) -> None:
    job = of(tmp_path)
    own = load_own(job.spec.model)
    first = names_of(build(own, job.spec.training.seed)).get_parameter("2.mix.weight").clone()
    make(job, Line()).run(view(1, start()))
    assert torch.equal(weights(job)["2.mix.weight"], first)
    files = list((tmp_path / "out" / "checkpoints").glob("*/*.safetensors"))
    assert files
    assert all("2.mix.weight" not in load_file(file) and "2.mix.bias" in load_file(file) for file in files)


def test_a_shared_weight_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Workers(of(tmp_path), monkeypatch).run(start())
    saved = weights(of(tmp_path))
    assert torch.equal(saved["1.first.weight"], saved["1.second.weight"])
    assert not torch.equal(saved["1.first.bias"], saved["1.second.bias"])


def test_a_checkpoint_goes_on_in_another_cut(tmp_path: Path, together: Together) -> None:
    whole, parted = of(tmp_path / "whole"), of(tmp_path / "parted", 2)
    together(whole).run(start())
    lines = together(parted).run(start())
    step = lines[0].of(EventKind.CHECKPOINTED)[0][1]["checkpoint"].step
    assert step < len(losses(whole))
    again = of(tmp_path / "parted", 3, 2)
    together(again).run(at(step), number=2)
    assert losses(again) == losses(whole)
    assert all(torch.equal(tensor, weights(again)[name]) for name, tensor in weights(whole).items())


def test_a_lost_replica_costs_no_step_and_no_bit(tmp_path: Path, together: Together) -> None:
    one, three = of(tmp_path / "one"), of(tmp_path / "three", 2, 3)
    together(one).run(start())
    group = together(three)
    group.run(start(), until=5)
    group.run(Resume(step=5, told_by=2), ranks=[2, 3, 4, 5], number=2)
    assert losses(three) == losses(one)
    assert all(torch.equal(tensor, weights(three)[name]) for name, tensor in weights(one).items())


def test_training_ends_early_by_the_loss_of_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second evaluation cannot be better by so much."""
    training = {"evalSteps": 4, "earlyStopping": {"patience": 1, "threshold": 100.0}, "metricForBestModel": "Loss"}
    one, several = of(tmp_path / "one", training=training), of(tmp_path / "several", 2, 2, training=training)
    alone = learn_the_same(one, several, monkeypatch)
    assert len(losses(one)) == 8
    told = [details["evaluation"] for _, details in alone.of(EventKind.EVALUATED)]
    assert [(each.step, each.score == -each.loss) for each in told] == [(4, True), (8, True)]


DRAWS = TASK.replace(
    "return torch.tensor([row[", "return torch.randn(()) * 0.1 + torch.rand(len(rows), 1) * 0.1 + torch.tensor([row["
)


def test_what_is_drawn_while_rows_are_collated_is_a_function_of_the_micro_batch(tmp_path: Path) -> None:
    """Whoever collates, and again after a restart."""
    jobs = [of(tmp_path / name, task=DRAWS) for name in ("one", "two")]
    for number, job in enumerate(jobs):
        torch.manual_seed(number)
        make(job, Line()).run(view(1, start()))
    assert losses(jobs[0]) == losses(jobs[1])
    make(plain := of(tmp_path / "plain"), Line()).run(view(1, start()))
    assert losses(plain) != losses(jobs[0])
    first, second = (make(job, Line())._batches.inputs("train", range(4)) for job in jobs)
    assert torch.equal(first.value, second.value)


def test_micro_batches_weigh_what_the_class_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient is that of the mean over all that counts, here rows of label 1 alone."""
    counted = TASK + (
        "\n    def samples(self, labels):\n        return labels.sum()\n"
        "\n    def loss(self, scores, labels):\n"
        "        return F.cross_entropy(scores, labels, reduction='none')[labels == 1].sum() / max(1, labels.sum())\n"
    )
    job = of(tmp_path / "one", task=counted)
    learn_the_same(job, of(tmp_path / "two", 2, 2, task=counted), monkeypatch)
    trainer = make(of(tmp_path / "again", task=counted), Line())
    own = load_own(job.spec.model)
    rows = [row for shard in trainer._batches.train(0) for part in shard for row in part]
    numbers, labels = own.task.collate(prepare(job.spec, tmp_path / "cache", print).splits["train"].rows(rows))
    hidden = numbers
    for unit in build(own, job.spec.training.seed):
        hidden = unit.eval()(hidden)
    assert losses(job)[0] == pytest.approx(own.task.loss(hidden, labels).item(), rel=1e-5)


HOOKED = TASK + (
    "\n    def forward(self, unit, hidden, inputs):\n"
    "        return unit(inputs) if hidden is None else unit(hidden) + 0.01 * inputs.sum()\n"
)


def test_every_unit_may_read_the_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learn_the_same(one := of(tmp_path / "one", task=HOOKED), of(tmp_path / "two", 3, 2, task=HOOKED), monkeypatch)
    Workers(plain := of(tmp_path / "plain"), monkeypatch).run(start())
    assert losses(one) != losses(plain)


def test_a_summary_has_the_last_word_on_metrics(tmp_path: Path) -> None:
    task = TASK + "\n    def summary(self, means):\n        return {'twice': 2 * means['loss'], **means, 'none': float('nan')}\n"
    line = Line()
    make(of(tmp_path, task=task), line).run(view(1, start()))
    for _, details in line.of(EventKind.EVALUATED):
        evaluation = details["evaluation"]
        assert evaluation.metrics["twice"] == 2 * evaluation.loss
        assert "none" not in evaluation.metrics


TRANSPOSED = TASK.replace(
    "return hidden + self.dropout",
    "hidden = hidden.reshape(-1, 2, 4).transpose(1, 2).reshape(-1, 8)\n        return hidden + self.dropout",
).replace("return self.mix(hidden) * self.scale", "return (self.mix(hidden) * self.scale).t().contiguous().t()")


def test_how_hidden_states_lie_in_memory_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent arrives in order; so does what stays."""
    learn_the_same(of(tmp_path / "one", task=TRANSPOSED), of(tmp_path / "two", 3, 2, task=TRANSPOSED), monkeypatch)


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        (
            ("return F.cross_entropy(scores, labels)", "return F.cross_entropy(scores, lables)"),
            "return F.cross",
            "NameError: name 'lables'",
        ),
        (("return [nn.Linear(4, 8)", "return [nn.Linear(5, 8)"), "def model", "unit 0 (Linear): RuntimeError: "),
        (
            ("hidden) * self.scale", "hidden) * self.scale.bool()[:3]"),
            "return self.mix",
            "unit 2 (Frozen): RuntimeError: The size of",
        ),
        (
            ("(scores.argmax(1) == labels).float().mean()", "'good'"),
            "def metrics",
            "gives 'accuracy' as a str: a number is needed",
        ),
    ],
)
def test_an_error_of_the_class_ends_training_with_its_place(
    tmp_path: Path, change: tuple[str, str], place: str, message: str
) -> None:
    task = TASK.replace(*change)
    assert task != TASK
    job = of(tmp_path, task=task)
    with pytest.raises(UserError) as raised:
        make(job, Line()).run(view(1, start()))
    line = next(number for number, text in enumerate(task.splitlines(), 1) if place in text)
    assert str(raised.value).startswith(f"{tmp_path / 'my_task.py'}:{line}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_statistics_that_change_beside_the_weights_are_refused(tmp_path: Path) -> None:
    job = of(tmp_path, task=TASK.replace("nn.LayerNorm(8)", "nn.BatchNorm1d(8)"))
    with pytest.raises(
        UserError, match=r"running_mean of unit 4 \(BatchNorm1d\) changes in training beside the weights, and would be lost"
    ):
        make(job, Line()).run(view(1, start()))
    # Without them it is a function of the micro-batch.
    kept = TASK.replace("nn.LayerNorm(8)", "nn.BatchNorm1d(8, track_running_stats=False)")
    assert make(of(tmp_path / "kept", task=kept), Line()).run(view(1, start())).value == "Completed"


def test_a_file_that_is_another_now_is_noticed(tmp_path: Path) -> None:
    job = of(tmp_path)
    (tmp_path / "my_task.py").write_text((tmp_path / "my_task.py").read_text() + "\n# another\n")
    with pytest.raises(UserError, match=r"my_task.py is not what the run began with \(SHA-256 .*\): put it back, or start over"):
        make(job, Line())
