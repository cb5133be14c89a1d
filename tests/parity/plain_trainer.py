"""``transformers.Trainer``, with what parity with another trainer needs: the order of its rows, and each step's loss on record.

``from plain_trainer import Trainer`` is the one import that differs. What a step computes is transformers' own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from lmj_trainer.data.order import epoch_order


class Order(torch.utils.data.Sampler[int]):
    """Each epoch's rows in the order of the seed, as jobs have them."""

    def __init__(self, seed: int, rows: int) -> None:
        self._seed, self._rows, self._epoch = seed, rows, 0

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[int]:
        order = epoch_order(self._seed, self._epoch, self._rows)
        self._epoch += 1
        return iter(order.tolist())


class Record(transformers.TrainerCallback):  # type: ignore[misc]
    """Writes losses as a job does."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **more: Any) -> None:
        if logs is not None and "loss" in logs:
            with (Path(args.output_dir) / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": state.global_step, "loss": logs["loss"]}) + "\n")


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """See the module."""

    loss_is_scaled_for_ga = False
    """BERT's classifier takes any keyword and ignores the number of items of a step, so its loss is a mean that has to be scaled."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        Path(self.args.output_dir).mkdir(exist_ok=True)
        self.add_callback(Record())

    def _get_train_sampler(self, train_dataset: Any = None) -> Order:
        return Order(self.args.seed, len(self.train_dataset))
