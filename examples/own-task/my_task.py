"""A model and a task of our own: a small convolutional network that tells the shape of a sensor's signal."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SHAPES = ["sine", "square", "saw", "noise"]


class Block(nn.Module):
    """A convolution beside which the signal passes unchanged."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, width), nn.Conv1d(width, width, kernel_size=5, padding=2)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.dropout(self.conv(self.norm(hidden).relu()))


class Head(nn.Module):
    """A score for each shape, from the mean over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, len(SHAPES))

    def forward(self, hidden: Tensor) -> Tensor:
        return self.scores(self.norm(hidden.mean(2)))


class MyTask:
    """What model.python names in job.yaml."""

    def model(self) -> list[nn.Module]:
        """The units of the model, applied one after the other: it can be cut between any two."""
        return [nn.Conv1d(1, 32, kernel_size=5, padding=2), *(Block(32) for _ in range(4)), Head(32)]

    def collate(self, rows: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        """Rows of the dataset as what the first unit reads, and what the loss takes."""
        signals = torch.tensor([row["readings"] for row in rows])
        return signals[:, None], torch.tensor([SHAPES.index(row["shape"]) for row in rows])

    def loss(self, scores: Tensor, shapes: Tensor) -> Tensor:
        """The mean over the rows."""
        return F.cross_entropy(scores, shapes)

    def metrics(self, scores: Tensor, shapes: Tensor) -> dict[str, Tensor]:
        """Means over the rows, by name."""
        right = scores.argmax(1) == shapes
        return {"accuracy": right.float().mean(), "certainty": scores.softmax(1).amax(1).mean()}
