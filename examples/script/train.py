"""A script as others write them for torchrun: it knows nothing of any operator. A small BERT from nothing learns the sentiment of reviews.

``torchrun --nproc-per-node 2 examples/script/train.py --output_dir /tmp/saved --use_cpu`` runs it too; with ``--resume_from_checkpoint`` it
goes on from there.
"""

import csv
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    EvalPrediction,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

DATA = Path(__file__).parents[1] / "data"


@dataclass
class Arguments:
    """What is learned, and by what."""

    train_file: str = field(default=str(DATA / "reviews.csv"), metadata={"help": "Reviews to learn from."})
    test_file: str = field(default=str(DATA / "reviews-test.csv"), metadata={"help": "Reviews to test with."})
    max_train_samples: int = field(default=9000, metadata={"help": "Most reviews to learn from."})
    max_length: int = field(default=32, metadata={"help": "Words of a review that are read."})
    hidden_size: int = field(default=64, metadata={"help": "Width of the model."})
    layers: int = field(default=2, metadata={"help": "Layers of the model."})


class Reviews(Dataset[dict[str, torch.Tensor]]):
    """Reviews as numbers of words: 0 fills up, 1 is a word that was not in training."""

    def __init__(self, rows: list[tuple[list[str], int]], numbers: dict[str, int], length: int) -> None:
        self.rows, self.numbers, self.length = rows, numbers, length

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words, label = self.rows[index]
        ids = torch.zeros(self.length, dtype=torch.long)
        ids[: len(words)] = torch.tensor([self.numbers.get(word, 1) for word in words])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor(label)}


def read(file: str, length: int, most: int | None = None) -> list[tuple[list[str], int]]:
    """Words and label of each review."""
    with Path(file).open(newline="") as lines:
        rows = [(row["review"].lower().split()[:length], int(row["sentiment"] == "positive")) for row in csv.DictReader(lines)]
    return rows[:most]


def accuracy(given: EvalPrediction) -> dict[str, float]:
    """From all predictions."""
    return {"accuracy": float(numpy.mean(given.predictions.argmax(1) == given.label_ids))}


def main() -> None:
    """Learn, test, save."""
    arguments, training = HfArgumentParser((Arguments, TrainingArguments)).parse_args_into_dataclasses()
    set_seed(training.seed)
    rows = read(arguments.train_file, arguments.max_length, arguments.max_train_samples)
    numbers = {word: number for number, word in enumerate(sorted({word for words, _ in rows for word in words}), 2)}
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(numbers) + 2,
            hidden_size=arguments.hidden_size,
            num_hidden_layers=arguments.layers,
            num_attention_heads=2,
            intermediate_size=2 * arguments.hidden_size,
            max_position_embeddings=arguments.max_length,
        )
    )
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=Reviews(rows, numbers, arguments.max_length),
        eval_dataset=Reviews(read(arguments.test_file, arguments.max_length), numbers, arguments.max_length),
        compute_metrics=accuracy,
    )
    done = trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    tested = trainer.evaluate()
    trainer.save_model(str(Path(training.output_dir) / "model"))
    if trainer.is_world_process_zero():
        print(
            f"{done.global_step} steps in {training.world_size} processes, test accuracy {tested['eval_accuracy']:.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
