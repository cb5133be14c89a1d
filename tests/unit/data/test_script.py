"""A script with an ``lmj.Trainer``, as the check of its job sees it: in numbers, and what is wrong with it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from scripts import write_script
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    TrainingArguments,
)

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.check import check
from lmj_trainer.data.source import DataSource
from lmj_trainer.dataset.prepared import prepare, prepare_patiently
from lmj_trainer.errors import UserError
from lmj_trainer.model.stage import Place
from lmj_trainer.own.batches import OwnBatches
from lmj_trainer.own.script_task import ScriptTask
from lmj_trainer.own.source import load_own

pytestmark = pytest.mark.integration

SIZES = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
ARGUMENTS = "'per_device_train_batch_size': 4, 'num_train_epochs': 2"


def job(file: Path, **changes: Any) -> LiveMigrationJob:
    spec: dict[str, Any] = {
        "pipeline": {"stages": 1, "microBatches": 2},
        "model": {"python": f"{file}:__main__"},
        "dataset": {"source": str(file)},
        "training": {"batchSize": 4, "epochs": 2, "threads": 1},
        "output": {"path": str(file.parent / "out")},
        **changes,
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": "script"}, "spec": spec})


def test_a_good_script_in_numbers(tmp_path: Path) -> None:
    summary = check(job(write_script(tmp_path, arguments=ARGUMENTS)))
    assert (summary.rows, summary.steps, summary.layers) == ({"train": 64}, 32, 1)
    assert summary.parameters is not None
    assert not (tmp_path / "saved").exists(), "what comes after train() is not run"


def test_its_rows_are_its_objects_and_nothing_is_written(tmp_path: Path) -> None:
    spec = job(write_script(tmp_path, arguments=ARGUMENTS)).spec
    assert DataSource.of(spec).kind == "script"
    assert {name: len(rows) for name, rows in prepare_patiently(spec, print).splits.items()} == {"train": 64}
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="has no ending that is known"):
        DataSource(spec.dataset.source)


def test_all_who_run_it_get_equal_weights(tmp_path: Path) -> None:
    """Though it does not seed its generator."""
    text = write_script(tmp_path, arguments=ARGUMENTS).read_text()
    seeded = "    torch.manual_seed(1)\n"
    assert seeded in text
    found = []
    for name in ("one", "other"):  # two files: one is run once a process
        file = tmp_path / f"{name}.py"
        file.write_text(text.replace(seeded, ""))
        found.append(load_own(job(file).spec.model).task.model().state_dict())
    assert all(value.equal(found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("trainer.train()", "trainer.trian()", "done = trainer.trian()"),
        ('__name__ == "__main__"', '__name__ == "other"', None),
        ("words = pick.choices", "words = pick.choice", "words = pick.choice"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: str | None) -> None:
    file = write_script(tmp_path, arguments=ARGUMENTS)
    text = file.read_text()
    assert text.count(old) == 1
    text = text.replace(old, new)
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        check(job(file))
    if line is None:
        assert "ends without train() of an lmj.Trainer" in str(caught.value)
    else:
        number = next(number for number, each in enumerate(text.splitlines(), 1) if line in each)
        assert str(caught.value).startswith(f"{file}:{number}: ")


def test_rows_without_labels_have_no_loss(tmp_path: Path) -> None:
    file = write_script(tmp_path, arguments=ARGUMENTS)
    file.write_text(file.read_text().replace('"label": number % 2', '"lable": number % 2'))
    said = r"Trainer.loss: ValueError: the model gives no loss of its own: it needs labels, and gets none of labels"
    with pytest.raises(UserError, match=said):
        check(job(file))


def test_any_dataset_with_numbers_is_read(tmp_path: Path) -> None:
    """A list, one of ``datasets``, and one of PyTorch that changes its rows at random: seeded for each batch."""
    torch_rows = """type("Rows", (torch.utils.data.Dataset,), {
        "__len__": lambda self: 64,
        "__getitem__": lambda self, number: {**rows(64, 0)[number], "input_ids": torch.randint(0, 40, (16,))},
    })()"""
    of_datasets = "__import__('datasets').Dataset.from_list(rows(64, 0))"
    found = {}
    for name, code in (("list", "rows(64, 0)"), ("datasets", of_datasets), ("torch", torch_rows)):
        file = write_script(tmp_path / name, arguments=ARGUMENTS)
        file.write_text(file.read_text().replace("train_dataset=rows(64, 0)", f"train_dataset={code}"))
        spec = job(file).spec
        prepared, own = prepare(spec, tmp_path, print), load_own(spec.model)
        batches = OwnBatches(prepared, spec, torch.device("cpu"), own)
        rows = np.array([5, 2])
        first, again, other = (batches.inputs("train", rows, Place(step, 0)) for step in (3, 3, 4))
        found[name] = first.value
        assert set(first.value) == {"input_ids", "attention_mask", "labels"}, "the model takes no others"
        assert first.value["labels"].tolist() == [1, 0]
        assert first.value["input_ids"].equal(again.value["input_ids"])
        assert first.value["input_ids"].equal(other.value["input_ids"]) == (name != "torch")
        assert list(first.labels.value) == ["labels"]
    assert found["list"]["input_ids"].equal(found["datasets"]["input_ids"])


def given(model: Any, **more: Any) -> SimpleNamespace:
    """What a task reads of a trainer."""
    args = TrainingArguments(output_dir="x", use_cpu=True, **more.pop("args", {}))
    usual = {"data_collator": None, "processing_class": None, "compute_metrics": None, "preprocess_logits_for_metrics": None}
    rows = {"train_dataset": [], "eval_dataset": None}
    return SimpleNamespace(model=model, args=args, **{**usual, **rows, **more})


def labelled(task: ScriptTask, labels: list[list[int]]) -> dict[str, torch.Tensor]:
    ids = torch.ones(len(labels), len(labels[0]), dtype=torch.long)
    return task.collate([{"input_ids": row, "labels": label} for row, label in zip(ids.tolist(), labels, strict=True)])[1]


def test_what_is_a_mean_over_tokens_counts_tokens() -> None:
    """As transformers does: of a language model the first of a row is learned from nothing."""
    labels = [[7, -100, 3], [1, 2, -100]]
    train = [{"input_ids": [1, 1, 1], "labels": labels[0]}]
    words = BertForTokenClassification(BertConfig(**SIZES))
    language = GPT2LMHeadModel(GPT2Config(n_embd=4, n_layer=1, n_head=1, vocab_size=8))
    for model, count in ((words, 4), (language, 2)):
        task = ScriptTask(given(model, train_dataset=train))
        task.look()
        assert int(task.samples(labelled(task, labels))) == count
    texts = ScriptTask(given(BertForSequenceClassification(BertConfig(**SIZES)), train_dataset=[{"input_ids": [1], "label": 0}]))
    texts.look()
    assert not hasattr(texts, "samples"), "the mean of a micro-batch is one over rows"


def test_metrics_see_what_those_of_transformers_see() -> None:
    """Rows of different lengths: predictions and labels are filled up as there."""
    torch.manual_seed(0)
    model = BertForTokenClassification(BertConfig(**SIZES)).eval()
    rows = [{"input_ids": [1 + k % 6] * (2 + k), "labels": [k % 2] * (2 + k)} for k in range(5)]
    seen: list[Any] = []

    def metrics(found: Any) -> dict[str, float]:
        seen.append((found.predictions, found.label_ids))
        return {
            "eval_mean": float(found.predictions.mean()),
            "right": float((found.predictions.argmax(-1) == found.label_ids).mean()),
        }

    def collate(part: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in part)
        return {
            name: torch.tensor([row[name] + [fill] * (longest - len(row[name])) for row in part])
            for name, fill in (("input_ids", 0), ("labels", -100))
        }

    args = {"per_device_eval_batch_size": 2, "metric_for_best_model": "right", "greater_is_better": True}
    arguments = {"data_collator": collate, "compute_metrics": metrics, "eval_dataset": rows}
    theirs = transformers.Trainer(
        model=model, args=TrainingArguments(output_dir="x", use_cpu=True, **args), **arguments
    ).evaluate()
    task = ScriptTask(given(model, train_dataset=rows, args=args, **arguments))
    assert task.evaluation_rows == 2
    kept = []
    with torch.no_grad():
        for start in (0, 2, 4):
            inputs, targets = task.collate(rows[start : start + 2])
            kept.append(task.keep(model(**inputs), targets))
    ours = task.evaluate(kept)
    assert {f"eval_{name}": value for name, value in ours.items()} == {name: theirs[name] for name in ("eval_mean", "eval_right")}
    assert all(np.array_equal(a, b) for a, b in zip(*seen, strict=True))
    assert task.score({"loss": 1.0, **ours}) == ours["right"]
    with pytest.raises(ValueError, match=r"args.metric_for_best_model 'right' is none of an evaluation's: it has loss, mean"):
        task.score({"loss": 1.0, "mean": 2.0})


def test_logits_may_be_made_smaller_before_they_are_kept() -> None:
    model = BertForSequenceClassification(BertConfig(**SIZES))
    more = {"compute_metrics": len, "preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1) + 10 * labels}
    kept = ScriptTask(given(model, **more)).keep(
        {"loss": None, "logits": torch.tensor([[1.0, 2.0]])}, {"labels": torch.tensor([3])}
    )
    assert kept["predictions"].tolist() == [31]


def test_what_saves_is_loaded_as_any_other(tmp_path: Path) -> None:
    model = BertForSequenceClassification(BertConfig(**SIZES))
    task = ScriptTask(given(model))
    made = task.model()
    assert made is not model
    task.save(made, tmp_path)
    again = BertForSequenceClassification.from_pretrained(tmp_path).state_dict()
    assert all(value.equal(again[name]) for name, value in model.state_dict().items())
