"""A script of transformers' Trainer, unchanged: killed, and gone on from memory, it has the losses and weights of one that was not disturbed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.unit.launch.memory.runs import Runs

from lmj_trainer.launch.memory.imports import when_imported
from lmj_trainer.launch.memory.place import Place
from lmj_trainer.launch.memory.trainer_callback import Memory

SCRIPT = """
import json, os, random, torch
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, Trainer, TrainerCallback, TrainingArguments

def rows(count, seed):
    pick = random.Random(seed)
    return [{"input_ids": pick.choices(range(40), k=16), "attention_mask": [1] * 16, "label": n % 2} for n in range(count)]

class Kill(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        kill_at(state.global_step)

torch.manual_seed(1)
config = BertConfig(vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                    max_position_embeddings=16, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
args = TrainingArguments(output_dir=os.environ["OUT"], num_train_epochs=3, per_device_train_batch_size=4, learning_rate=1e-2,
    gradient_accumulation_steps=2, warmup_steps=3, seed=7, use_cpu=True, logging_steps=3, eval_strategy="steps", eval_steps=3,
    save_strategy="steps", save_steps=6, save_total_limit=2, metric_for_best_model="loss", load_best_model_at_end=True,
    report_to="none", disable_tqdm=True)
trainer = Trainer(model=BertForSequenceClassification(config), args=args, train_dataset=rows(64, 0), eval_dataset=rows(16, 1),
                  callbacks=[EarlyStoppingCallback(50), Kill()])
done = trainer.train()
patience = [c.early_stopping_patience_counter for c in trainer.callback_handler.callbacks if hasattr(c, "early_stopping_patience_counter")]
trainer.save_model(os.environ["OUT"] + "/last")
if trainer.is_world_process_zero():
    json.dump({"log": trainer.state.log_history, "loss": done.training_loss, "flos": trainer.state.total_flos, "patience": patience,
               "best": os.path.basename(trainer.state.best_model_checkpoint or ""), "step": done.global_step, "rng": random.random(),
               "torch": torch.rand(1).item()}, open(os.environ["OUT"] + "/result.json", "w"))
"""
TIMES = ("runtime", "per_second")


def result(folder: Path) -> dict[str, Any]:
    """Of a run: what it logged, without times."""
    said: dict[str, Any] = json.loads((folder / "result.json").read_text())
    said["log"] = [{name: value for name, value in line.items() if not name.endswith(TIMES)} for line in said["log"]]
    return said


def same_weights(one: Path, other: Path) -> bool:
    mine, theirs = load_file(one / "last" / "model.safetensors"), load_file(other / "last" / "model.safetensors")
    return mine.keys() == theirs.keys() and all(bool((mine[name] == theirs[name]).all()) for name in mine)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("processes", "kill", "every", "from_step"),
    [
        pytest.param(1, "0:11", 2, 10, marks=pytest.mark.slow),
        pytest.param(1, "0:17", 8, 16, marks=pytest.mark.slow),
        (2, "1:7", 2, 6),
    ],
)
def test_killed_and_gone_on_from_memory(tmp_path: Path, processes: int, kill: str, every: int, from_step: int) -> None:
    """In the middle of an epoch, and at the end of one (with one process 8 steps are one, with two 4)."""
    runs = Runs(tmp_path, SCRIPT, processes)
    assert runs.run(out="alone") == 0, runs.said
    undisturbed = result(tmp_path / "alone")
    assert runs.run(out="killed", every=every, kill=kill) != 0
    newest = runs.newest()
    assert (newest.step, newest.world) == (from_step, processes)
    assert not any((tmp_path / "killed").glob(f"checkpoint-{from_step}")) or from_step % 6 == 0
    assert runs.run(out="killed", every=every, view=2, restore=newest.path) == 0, runs.said
    assert result(tmp_path / "killed") == undisturbed
    assert same_weights(tmp_path / "killed", tmp_path / "alone")
    saved = [sorted(p.name for p in (tmp_path / out).glob("checkpoint-*")) for out in ("alone", "killed")]
    assert saved[0] == saved[1]


@pytest.mark.integration
@pytest.mark.slow
def test_snapshots_alone_change_nothing(tmp_path: Path) -> None:
    runs = Runs(tmp_path, SCRIPT)
    assert runs.run(out="alone") == 0, runs.said
    assert runs.run(out="with", every=1) == 0, runs.said
    assert "snapshot" not in runs.said
    assert runs.newest().step == 23
    assert len(os.listdir(runs.memory)) == 2
    assert result(tmp_path / "with") == result(tmp_path / "alone")
    assert same_weights(tmp_path / "with", tmp_path / "alone")


def test_a_module_is_patched_when_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lmj_some_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    seen: list[ModuleType] = []
    when_imported("lmj_some_module", seen.append)
    assert seen == []
    module = __import__("lmj_some_module")
    assert seen == [module]
    assert module.value == 1
    when_imported("lmj_some_module", seen.append)
    assert seen == [module, module]
    assert module.__spec__.loader.get_source("lmj_some_module") == "value = 1\n"


def place(folder: Path, **more: Any) -> Place:
    return Place(
        **{"folder": folder, "every": 1, "restore": None, "view": 1, "rank": 0, "world": 1, "part": 0, "parts": 1, **more}
    )


def test_a_sharded_model_is_left_alone_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = SimpleNamespace(is_fsdp_enabled=True)
    for name in ("_maybe_log_save_evaluate", "_save_optimizer_and_scheduler", "_save_scaler", "_save_rng_state", "store_flos"):
        setattr(trainer, name, None)
    assert Memory(place(tmp_path)).begin(trainer, "theirs") == "theirs"
    assert "FSDP" in caplog.text
    caplog.clear()
    assert Memory(place(tmp_path)).begin(SimpleNamespace(), None) is None
    assert "has no Trainer._maybe_log_save_evaluate" in caplog.text


@pytest.mark.parametrize(("theirs", "taken"), [(None, True), (9, True), (10, True), (11, False)])
def test_the_newer_of_memory_and_the_scripts_own(tmp_path: Path, theirs: int | None, taken: bool) -> None:
    from lmj_trainer.launch.memory.folder import begin
    from lmj_trainer.launch.memory.trainer_callback import _NEEDED

    writing = begin(tmp_path, 10, 1)
    (writing.site / "trainer_state.json").write_text("{}")
    writing.complete()
    trainer = SimpleNamespace(args=SimpleNamespace(output_dir=str(tmp_path / "out")), **dict.fromkeys(_NEEDED))
    if theirs is not None:
        saved = tmp_path / "out" / f"checkpoint-{theirs}"
        saved.mkdir(parents=True)
        (saved / "trainer_state.json").write_text(json.dumps({"global_step": theirs}))
    for asked in (True, str(tmp_path / "out" / f"checkpoint-{theirs}")) if theirs else (None,):
        memory = Memory(place(tmp_path, view=1, restore=writing.path))
        assert memory.begin(trainer, asked) == (str(writing.path) if taken else asked)
