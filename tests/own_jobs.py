"""Jobs with a class of the user's own: its file, rows that it can learn from, and the job."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from lmj_api.spec import LiveMigrationJob

TASK = '''
import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """One weight, used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, hidden):
        return hidden + self.dropout(self.second(self.first(hidden).relu()))


class Frozen(nn.Module):
    """A weight that is not trained, and a constant that is no weight."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.mix.weight.requires_grad_(False)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 8))

    def forward(self, hidden):
        return self.mix(hidden) * self.scale


class MyTask:
    def model(self):
        return [nn.Linear(4, 8), Residual(), Frozen(), Residual(), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2))]

    def collate(self, rows):
        return torch.tensor([row["numbers"] for row in rows]), torch.tensor([row["label"] for row in rows])

    def loss(self, scores, labels):
        return F.cross_entropy(scores, labels)

    def metrics(self, scores, labels):
        return {"accuracy": (scores.argmax(1) == labels).float().mean(), "margin": scores.diff(dim=1).abs().mean()}
'''


def write_rows(path: Path, rows: int = 80) -> Path:
    """Four numbers a row; the label says whether their sum is over 0."""
    pick = random.Random(0)
    lines = []
    for _ in range(rows):
        numbers = [round(pick.gauss(0, 1), 3) for _ in range(4)]
        lines.append(json.dumps({"numbers": numbers, "label": int(sum(numbers) > 0)}))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_task(path: Path, task: str = TASK, dropout: float = 0.0) -> Path:
    """The file of the class."""
    path.write_text(task.replace("DROPOUT", str(dropout)))
    return path


def own_job(folder: Path, task: str = TASK, dropout: float = 0.0, rows: int = 80, **changes: Any) -> LiveMigrationJob:
    """64 rows for training and 16 for validation, in batches of 16: 12 steps in 3 epochs. ``changes``: parts of the spec, merged."""
    folder.mkdir(parents=True, exist_ok=True)
    file = write_task(folder / "my_task.py", task, dropout)
    spec: dict[str, Any] = {
        "pipeline": {"stages": 1, "microBatches": 2},
        "model": {"python": f"{file}:MyTask", "pythonSha256": hashlib.sha256(file.read_bytes()).hexdigest()},
        "dataset": {"source": str(write_rows(folder / "rows.jsonl", rows)), "splits": {"validationFraction": 0.2}},
        "training": {"batchSize": 16, "epochs": 3, "learningRate": 1e-2, "threads": 1},
        "checkpoint": {"keep": 9},
        "output": {"path": str(folder / "out"), "weights": "Best"},
    }
    for name, part in changes.items():
        spec[name] = {**spec.get(name, {}), **part}
    return LiveMigrationJob.model_validate({"metadata": {"name": "own"}, "spec": spec})
