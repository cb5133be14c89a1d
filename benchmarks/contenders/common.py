"""What all contenders share: the model, the batches, and how a rank is told to run."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

THREADS = 1


@dataclass(frozen=True)
class Workload:
    """BERT-base on random tokens, or a tiny one to try the benchmark itself."""

    layers: int = 12
    hidden: int = 768
    vocabulary: int = 30522
    batch: int = 32
    length: int = 128
    micro_batches: int = 8
    dropout: float = 0.1
    learning_rate: float = 1e-5
    max_grad_norm: float = 1.0

    @classmethod
    def from_environment(cls) -> Workload:
        return cls(**json.loads(os.environ.get("BENCH_WORKLOAD", "{}")))

    def config(self) -> Any:
        from transformers import BertConfig

        return BertConfig(
            num_hidden_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=max(1, self.hidden // 64),
            intermediate_size=4 * self.hidden,
            vocab_size=self.vocabulary,
            hidden_dropout_prob=self.dropout,
            attention_probs_dropout_prob=self.dropout,
        )

    def model(self) -> Any:
        """The whole model with random weights, in training mode."""
        from transformers import BertForSequenceClassification

        torch.manual_seed(0)
        return BertForSequenceClassification(self.config()).train()

    def data(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """``(ids [b, t], mask [b, t], labels [b])`` of a step: rows of half to full length, as reviews are."""
        generator = torch.Generator().manual_seed(1000 + step)
        ids = torch.randint(5, self.vocabulary - 1, (self.batch, self.length), generator=generator)
        lengths = torch.randint(self.length // 2, self.length + 1, (self.batch,), generator=generator)
        mask = (torch.arange(self.length)[None, :] < lengths[:, None]).long()
        return ids * mask, mask, torch.randint(0, 2, (self.batch,), generator=generator)

    def slices(self) -> list[slice]:
        size = self.batch // self.micro_batches
        return [slice(i * size, (i + 1) * size) for i in range(self.micro_batches)]


def commands() -> Iterator[int]:
    """Numbers of steps to run, one a line on stdin, until it ends."""
    for line in sys.stdin:
        yield int(line)


def answer(**values: Any) -> None:
    """One JSON line on stdout: to the benchmark."""
    print(json.dumps(values), flush=True)


def serve(step: Callable[[int], None]) -> None:
    """Answer each command with the time that each of its steps took, and end with the input."""
    torch.set_num_threads(THREADS)
    answer(ready=True)
    done = 0
    for count in commands():
        times = []
        for _ in range(count):
            start = time.perf_counter()
            step(done)
            times.append(time.perf_counter() - start)
            done += 1
        answer(times=times)
    sys.stdout.flush()
    os._exit(0)
