"""The script that the benchmark has both run: transformers' Trainer as its users write it, on rows that it makes.

It writes down each step (``metrics.jsonl``), and who does it. With ``--turns`` it does so many steps whenever it is told to go on, so that two
jobs that are there at once can take turns on the same processors.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

WORDS, LENGTH, ROWS = 1000, 64, 4096


@dataclass
class Workload:
    """What is trained."""

    hidden: int = field(default=64)
    layers: int = field(default=2)
    turns: int = field(default=0)


class Notes(TrainerCallback):  # type: ignore[misc]
    """Writes down the steps of the first process, and waits for its turn."""

    def __init__(self, folder: Path, turns: int) -> None:
        self._folder, self._turns = folder, turns
        self._rank, self._ranks = os.environ["RANK"], int(os.environ["WORLD_SIZE"])
        self._file = (folder / "metrics.jsonl").open("a", buffering=1) if self._rank == "0" else None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._turns and state.global_step % self._turns == 0:
            (self._folder / f"waits-{self._rank}").write_text(str(state.global_step))
            while state.global_step >= self._may():
                time.sleep(0.02)
            # Both begin together: what the one waited for the other is not part of a step.
            torch.distributed.barrier()
            self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._turns and state.global_step % self._turns == 0 and self._file is not None:
            took = (time.perf_counter() - self._began) / self._turns
            (self._folder / f"took-{state.global_step}").write_text(repr(took))
        if self._file is not None:
            line = {"step": state.global_step, "time": time.time(), "pid": os.getpid(), "world": self._ranks}
            self._file.write(json.dumps(line) + "\n")

    def _may(self) -> int:
        try:
            return int((self._folder / "may").read_text())
        except (FileNotFoundError, ValueError):
            return 0


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Random words, of which the first decides the label."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        words = torch.randint(1, WORDS, (LENGTH,), generator=torch.Generator().manual_seed(row))
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": int(words[0]) % 2}


def newest(folder: Path) -> str | None:
    """The newest checkpoint that is whole. ``get_last_checkpoint`` takes one, too, in whose middle a process died."""
    found = {int(path.parent.name.rpartition("-")[2]): path.parent for path in folder.glob("checkpoint-*/trainer_state.json")}
    return str(found[max(found)]) if found else None


def main() -> None:
    workload, arguments = HfArgumentParser((Workload, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(arguments.seed)
    if workload.turns:
        # Each process has one core, the same in both jobs: where the scheduler puts two is luck that lasts as long as they live.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    folder = Path(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=workload.hidden,
        num_hidden_layers=workload.layers,
        num_attention_heads=4,
        intermediate_size=4 * workload.hidden,
        max_position_embeddings=LENGTH,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=arguments,
        train_dataset=Rows(),
        callbacks=[Notes(folder, workload.turns)],
    )
    trainer.train(resume_from_checkpoint=newest(folder))


if __name__ == "__main__":
    main()
