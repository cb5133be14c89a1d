"""``lmj.Trainer`` before it trains: the job that its arguments make, and what has no counterpart, each in one line."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from scripts import lmj_run, python, write_script
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, TrainingArguments

import lmj
from lmj import script
from lmj_api import handover
from lmj_api.status import JobStatus, Phase

pytestmark = pytest.mark.integration

ROWS = [{"input_ids": [1, 2], "label": 0}] * 100


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the script is that this process is taken to run."""
    file = tmp_path / "train.py"
    file.write_text("")
    monkeypatch.setattr(script, "file", lambda: file)
    return tmp_path


@pytest.fixture(scope="module")
def model() -> Any:
    sizes = {"vocab_size": 8, "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 4}
    return BertForSequenceClassification(BertConfig(**sizes))


def trainer(here: Path, model: Any, more: dict[str, Any] | None = None, **args: Any) -> lmj.Trainer:
    given = TrainingArguments(output_dir=str(here / "My Run.v2"), use_cpu=True, **args)
    return lmj.Trainer(**{"model": model, "args": given, "train_dataset": ROWS, **(more or {})})


def test_a_job_of_what_transformers_does_where_nothing_is_said(here: Path, model: Any) -> None:
    job = trainer(here, model).job()
    file = here / "train.py"
    assert (job.name, job.model.python, job.dataset.source) == ("my-run-v2", f"{file}:__main__", str(file))
    assert (job.pipeline.stages, job.pipeline.micro_batches, job.data_parallel.shards, job.data_parallel.replicas) == (1, 2, 2, 1)
    training = job.training
    assert (training.batch_size, training.gradient_accumulation_steps, training.epochs, training.max_steps) == (8, 1, 3, None)
    assert (training.learning_rate, training.schedule, training.warmup_steps, training.optimizer) == (5e-5, "Linear", 0, "AdamW")
    assert (training.weight_decay, training.max_grad_norm, training.seed, training.device) == (0, 1.0, 42, "CPU")
    assert (job.checkpoint.every_steps, job.output.weights, job.output.path) == (500, "Last", str(here / "My Run.v2"))
    assert (training.early_stopping, training.eval_steps, training.precision) == (None, None, "Float32")


@pytest.mark.parametrize(
    ("args", "part", "expected"),
    [
        (
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
            "training",
            {"batch_size": 4, "gradient_accumulation_steps": 2},
        ),
        ({"num_train_epochs": 1.5}, "training", {"max_steps": 18}),
        ({"max_steps": 7}, "training", {"max_steps": 7}),
        ({"warmup_steps": 5}, "training", {"warmup_steps": 5}),
        ({"warmup_steps": 0.1}, "training", {"warmup_steps": 4}),
        ({"warmup_steps": 5, "lr_scheduler_type": "constant"}, "training", {"schedule": "Constant", "warmup_steps": 0}),
        (
            {"warmup_steps": 5, "lr_scheduler_type": "constant_with_warmup"},
            "training",
            {"schedule": "Constant", "warmup_steps": 5},
        ),
        ({"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3}}, "training", {"cycles": 3}),
        (
            {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0, "lr_end": 0.0}},
            "training",
            {"power": 2.0, "end_learning_rate": 0.0},
        ),
        ({"optim": "sgd"}, "training", {"optimizer": "SGD"}),
        ({"max_grad_norm": 0.0}, "training", {"max_grad_norm": None}),
        (
            {"adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6},
            "training",
            {"adam_beta1": 0.8, "adam_beta2": 0.9, "adam_epsilon": 1e-6},
        ),
        (
            {"weight_decay": 0.3, "learning_rate": 1e-3, "seed": 5},
            "training",
            {"weight_decay": 0.3, "learning_rate": 1e-3, "seed": 5},
        ),
        ({"bf16": True}, "training", {"precision": "BFloat16"}),
        ({"fp16": True}, "training", {"precision": "Float16"}),
        ({"activation_checkpointing": True}, "training", {"gradient_checkpointing": True}),
        ({"eval_strategy": "steps", "eval_steps": 10}, "training", {"eval_steps": 10}),
        ({"eval_strategy": "steps", "logging_steps": 20}, "training", {"eval_steps": 20}),
        ({"eval_strategy": "steps", "eval_steps": 0.5}, "training", {"eval_steps": 18}),
        ({"eval_strategy": "epoch"}, "training", {"eval_steps": None}),
        ({"save_strategy": "epoch", "save_total_limit": 5}, "checkpoint", {"every_steps": 12, "keep": 5}),
        ({"save_strategy": "no"}, "checkpoint", {"every_steps": None}),
        ({"save_steps": 30}, "checkpoint", {"every_steps": 30}),
        ({"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}, "output", {"weights": "Best"}),
        ({"report_to": ["tensorboard"]}, "output", {"tensorboard": True}),
        ({"per_device_train_batch_size": 5}, "data_parallel", {"shards": 1}),
        ({"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2}, "data_parallel", {"shards": 2}),
        ({"per_device_train_batch_size": 5, "gradient_accumulation_steps": 2}, "pipeline", {"micro_batches": 1}),
        ({"logging_steps": 3, "dataloader_num_workers": 4, "do_train": True, "data_seed": 42}, "training", {"seed": 42}),
    ],
)
def test_arguments_are_fields(here: Path, model: Any, args: dict[str, Any], part: str, expected: dict[str, Any]) -> None:
    made = getattr(trainer(here, model, {"eval_dataset": ROWS}, **args).job(), part)
    assert {name: getattr(made, name) for name in expected} == expected


def test_early_stopping_is_a_callback_there_and_a_field_here(here: Path, model: Any) -> None:
    callback = EarlyStoppingCallback(2, 0.01)
    job = trainer(here, model, {"callbacks": [callback]}, metric_for_best_model="loss").job()
    assert job.training.early_stopping is not None
    assert (job.training.early_stopping.patience, job.training.early_stopping.threshold) == (2, 0.01)


def test_a_callback_may_be_a_class_and_come_later(here: Path, model: Any) -> None:
    assert (
        trainer(here, model, {"callbacks": [EarlyStoppingCallback]}).job().training.early_stopping
        == lmj.Training(early_stopping={"patience": 1, "threshold": 0.0}).early_stopping
    )
    made = trainer(here, model)
    made.add_callback(EarlyStoppingCallback(3))
    assert made.job().training.early_stopping == lmj.Training(early_stopping={"patience": 3, "threshold": 0.0}).early_stopping
    with pytest.raises(lmj.JobError, match=r"^callbacks: lmj.Trainer has no counterpart of Stream, EarlyStoppingCallback alone"):
        made.add_callback(Stream)


def test_a_subclass_whose_methods_nobody_calls_is_told() -> None:
    loss = r"^Other has compute_loss, log of its own, which lmj.Trainer does not call \(the loss is what the model's forward gives\): leave"
    with pytest.raises(lmj.JobError, match=loss):
        type("Other", (lmj.Trainer,), {"compute_loss": print, "log": print})
    with pytest.raises(lmj.JobError, match=r"^Mixed has compute_loss of its own"):
        type("Mixed", (type("Loss", (), {"compute_loss": print}), lmj.Trainer), {})
    assert issubclass(type("Fine", (lmj.Trainer,), {"mine": print}), lmj.Trainer)


@pytest.mark.parametrize("native", [False, True])
def test_a_model_with_adapters_is_told(here: Path, model: Any, native: bool) -> None:
    adapted, lora = copy.deepcopy(model), peft.LoraConfig(target_modules=["query"])
    if native:
        adapted.add_adapter(lora)
    else:
        adapted = peft.get_peft_model(adapted, lora)
    said = r"^model: \w+ with adapters is not for lmj.Trainer: a job with model.lora trains adapters \(docs/tasks.md\)$"
    with pytest.raises(lmj.JobError, match=said):
        trainer(here, adapted)


def test_shards_may_be_said(here: Path, model: Any) -> None:
    job = trainer(here, model, {"shards": 8}).job()
    assert (job.data_parallel.shards, job.pipeline.micro_batches) == (8, 8)
    with pytest.raises(lmj.JobError, match=r"^shards 3: a step of 8 x 1 rows cannot be cut into so many equal parts$"):
        trainer(here, model, {"shards": 3})


def test_a_copy_for_each_replica_and_threads_that_do_not_depend_on_them(
    here: Path, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = trainer(here, model, {"shards": 4}).job()
    monkeypatch.setattr(script, "asked", script.Asked(replicas=4))
    four = trainer(here, model, {"shards": 4}).job()
    assert (one.data_parallel.replicas, four.data_parallel.replicas) == (1, 4)
    assert one.training == four.training
    monkeypatch.setattr(script, "asked", script.Asked(replicas=5))
    with pytest.raises(lmj.JobError, match=r"replicas 5 is more than shards 4: each replica needs a shard"):
        trainer(here, model, {"shards": 4}).job()


class Stream:
    """Rows without numbers."""

    def __iter__(self) -> Any:
        return iter(ROWS)


@pytest.mark.parametrize(
    ("more", "args", "line"),
    [
        ({}, {"label_smoothing_factor": 0.1}, "args.label_smoothing_factor: 0.1 has no counterpart here: leave it out"),
        ({}, {"neftune_noise_alpha": 5.0}, "args.neftune_noise_alpha: 5.0 has no counterpart here: leave it out"),
        ({}, {"torch_empty_cache_steps": 5}, "args.torch_empty_cache_steps: 5 has no counterpart here: leave it out"),
        (
            {},
            {"train_sampling_strategy": "group_by_length"},
            "args.train_sampling_strategy: 'group_by_length' has no counterpart here: leave it out",
        ),
        ({}, {"push_to_hub": True}, "args.push_to_hub: True has no counterpart here: leave it out"),
        ({}, {"data_seed": 1}, "args.data_seed: 1 is not args.seed 42: one seed decides all: leave it out"),
        (
            {},
            {"optim": "adafactor"},
            "args.optim: 'adafactor' has no counterpart here: use one of adamw_torch, adamw_torch_fused, sgd",
        ),
        ({}, {"optim_args": "a=1"}, "args.optim_args: 'a=1' has no counterpart here: leave it out"),
        (
            {"eval_dataset": ROWS},
            {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
            "args.lr_scheduler_type: 'reduce_lr_on_plateau' has no",
        ),
        (
            {},
            {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 2}},
            "args.lr_scheduler_kwargs: num_cycles has no counterpart here for cosine",
        ),
        ({}, {"report_to": ["wandb"]}, "args.report_to: wandb: a script's run is shown in tensorboard alone: leave it out"),
        ({}, {"eval_strategy": "epoch"}, "eval_dataset: args.eval_strategy needs one"),
        ({"model_init": print}, {}, "model_init: lmj.Trainer has no counterpart of it: leave it out"),
        ({"compute_loss_func": print}, {}, "compute_loss_func: lmj.Trainer has no counterpart of it: leave it out"),
        ({"optimizers": (1, None)}, {}, "optimizers: lmj.Trainer has no counterpart of it: leave it out"),
        (
            {"optimizer_cls_and_kwargs": (1, {})},
            {},
            "optimizer_cls_and_kwargs: lmj.Trainer has no counterpart of it: leave it out",
        ),
        (
            {"callbacks": [Stream()]},
            {},
            "callbacks: lmj.Trainer has no counterpart of Stream, EarlyStoppingCallback alone: leave it out",
        ),
        (
            {"train_dataset": Stream()},
            {},
            "train_dataset: rows are read by their numbers: Stream is not, it needs __len__ and __getitem__",
        ),
        ({"train_dataset": None}, {}, "train_dataset: rows are read by their numbers: NoneType is not"),
        ({"eval_dataset": {"a": ROWS}}, {}, "eval_dataset: rows are read by their numbers: dict is not"),
        (
            {"model": print},
            {},
            "model: a model of transformers is needed, not builtin_function_or_method: for any other there is model.python",
        ),
        ({"args": None}, {}, "args: a TrainingArguments of transformers is needed"),
    ],
)
def test_what_has_no_counterpart_is_a_line(here: Path, model: Any, more: dict[str, Any], args: dict[str, Any], line: str) -> None:
    with pytest.raises(lmj.JobError) as caught:
        trainer(here, model, more, **args)
    (told,) = caught.value.lines
    assert told.startswith(line)


def test_each_field_is_told(here: Path, model: Any) -> None:
    with pytest.raises(lmj.JobError) as caught:
        trainer(here, model, label_smoothing_factor=0.1, eval_delay=3)
    assert [line.split(":")[0] for line in caught.value.lines] == ["args.label_smoothing_factor", "args.eval_delay"]


def test_where_a_trainer_is_awaited_it_is_handed_over(here: Path, model: Any) -> None:
    made = trainer(here, model)
    with handover.awaited(), pytest.raises(handover.HandedOver) as caught:
        made.train()
    assert caught.value.trainer is made


def test_a_script_trains_one(here: Path, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ranks would take the first for the other."""
    monkeypatch.setattr(script, "_trained", [])
    calls: list[Any] = []

    def run(job: lmj.Job, **options: Any) -> Any:
        calls.append(options)
        raise lmj.RunError("not here")

    monkeypatch.setattr("lmj.trainer.run", run)
    monkeypatch.setattr(script, "asked", script.Asked(fresh=True))
    first, other = trainer(here, model), trainer(here, model)
    for each, error in (
        (first, "not here"),
        (first, "not here"),
        (other, "train: a script trains one Trainer, as its ranks run it up to the"),
    ):
        with pytest.raises(lmj.LmjError, match=error):
            each.train()
    assert calls == [{"progress": True, "fresh": True, "goes_on": False}] * 2


def test_results_come_after_training(here: Path, model: Any) -> None:
    made = trainer(here, model, {"eval_dataset": ROWS})
    for call, line in (
        (made.evaluate, "evaluate: train() comes first"),
        (lambda: made.evaluate(list(ROWS)), "evaluate: rows other than those of the Trainer's eval_dataset are not evaluated"),
        (lambda: made.predict(ROWS), "there is no trained model: train() comes first"),
        (lambda: made.save_model(str(here / "saved")), "there is no trained model: train"),
        (lambda: made.train("checkpoint-5"), "resume_from_checkpoint: a run goes on from its newest checkpoint by itself"),  # type: ignore[arg-type]
    ):
        with pytest.raises(lmj.JobError) as caught:
            call()
        assert str(caught.value).startswith(line)


def test_predictions_are_those_of_the_trained_model(here: Path, model: Any) -> None:
    rows = [{"input_ids": [1, number % 8], "label": number % 2} for number in range(11)]
    metrics = {
        "eval_dataset": rows,
        "compute_metrics": lambda given: {"right": float((given.predictions.argmax(1) == given.label_ids).mean())},
    }
    made = trainer(here, model, metrics, eval_strategy="epoch", disable_tqdm=True)
    (here / "out/model").mkdir(parents=True)
    made.result = lmj.Result(JobStatus(phase=Phase.SUCCEEDED), here / "out")
    found = made.predict(rows)
    with torch.no_grad():
        scores = copy.deepcopy(model).eval()(torch.tensor([row["input_ids"] for row in rows])).logits
    assert torch.allclose(torch.from_numpy(found.predictions), scores, atol=1e-6)
    assert found.label_ids.tolist() == [row["label"] for row in rows]
    assert found.metrics["test_right"] == (scores.argmax(1) == torch.tensor(found.label_ids)).double().mean().item()
    assert "new_loss" in made.predict(rows, metric_key_prefix="new").metrics
    with pytest.raises(lmj.JobError, match=r"^test_dataset: rows are read by their numbers: Stream is not"):
        made.predict(Stream())


def test_a_script_says_it_in_a_line(tmp_path: Path) -> None:
    wrong = write_script(tmp_path, arguments="'label_smoothing_factor': 0.1")
    done = lmj_run(wrong)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "error: args.label_smoothing_factor: 0.1 has no counterpart here: leave it out"
    done = python(write_script(tmp_path), "--rate", "3")
    assert done.returncode == 1
    said = "was started with arguments (--rate 3), which its ranks would not see: write them into it"
    assert said in done.stderr.splitlines()[-1]
    for option in (["--set", "training.epochs=1"], ["-o", "json"], ["--plain"]):
        done = lmj_run(wrong, *option)
        assert (done.returncode, f"{option[0]}" in done.stderr) == (2, True)
        assert "is for a job's file" in done.stderr
    done = lmj_run(tmp_path / "trian.py")
    assert (done.returncode, done.stderr) == (2, "error: trian.py: No such file or directory\n")


def test_who_has_no_file_is_told() -> None:
    code = "import lmj.script; lmj.script.file()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "lmj.Trainer trains in scripts: each rank runs the file up to train(), and here is none" in done.stderr


def test_nothing_of_transformers_is_imported_with_it() -> None:
    code = "import sys, lmj; lmj.Trainer; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
