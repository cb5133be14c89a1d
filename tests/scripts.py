"""A script of ``transformers.Trainer`` that learns in seconds: a random BERT, and rows that it writes itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

DEADLINE = 200.0

SCRIPT = '''
import random

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from IMPORT import Trainer


def rows(count, seed):
    """Sixteen words a row; whether 5 or 6 is among them is the label."""
    pick = random.Random(seed)
    found = []
    for number in range(count):
        words = pick.choices(range(7, 40), k=15)
        words.insert(pick.randrange(16), 5 + number % 2)
        found.append({"input_ids": words, "attention_mask": [1] * 16, "label": number % 2, "row": number})
    return found


def main():
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, hidden_dropout_prob=DROPOUT, attention_probs_dropout_prob=DROPOUT,
    )
    model = BertForSequenceClassification(config)
    arguments = {"output_dir": "out", "learning_rate": 1e-2, "weight_decay": 0.1, "warmup_steps": 3, "seed": 7, "use_cpu": True}
    arguments |= {ARGUMENTS}
    trainer = Trainer(model=model, args=TrainingArguments(**arguments), train_dataset=rows(64, 0), MORE)
    done = trainer.train()
    trainer.save_model("saved")
    print("steps", done.global_step)
    return trainer


if __name__ == "__main__":
    trainer = main()
'''


def write_script(folder: Path, *, arguments: str = "", more: str = "", trainer: str = "lmj", dropout: float = 0.1) -> Path:
    """``arguments``: items of a dict for TrainingArguments; ``more``: arguments of the Trainer; ``trainer``: the module that it is of."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "train.py"
    text = SCRIPT.replace("IMPORT", trainer).replace("DROPOUT", str(dropout))
    file.write_text(text.replace("{ARGUMENTS}", f"{{{arguments}}}").replace("MORE", more))
    return file


def environment() -> dict[str, str]:
    # Here are stand-ins that scripts import.
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(Path(__file__).parent / "parity")}


def python(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``python train.py``, in its folder."""
    return _run([sys.executable, file.name, *arguments], file.parent)


def lmj_run(file: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """``lmj run train.py``, in its folder."""
    return _run([sys.executable, "-m", "lmj_operator.cli.main", "run", file.name, *options], file.parent)


def _run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=DEADLINE, check=False)


def losses(folder: Path) -> list[float]:
    """Of each step, in order."""
    records = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    found = [record for record in records if record.get("loss") is not None]
    assert [record["step"] for record in found] == list(range(1, len(found) + 1))
    return [record["loss"] for record in found]
