"""A script of transformers.Trainer with one import changed: a small BERT from nothing learns the sentiment of reviews. No network is needed.

``python examples/trainer/train.py``, or shared by two replicas ``lmj run examples/trainer/train.py --replicas 2``.
"""

import csv
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, EvalPrediction, TrainingArguments

from lmj import Trainer  # from transformers import Trainer

HERE = Path(__file__).parent
LENGTH = 32


def read(name: str) -> list[tuple[list[str], int]]:
    """Words and label of each review."""
    with (HERE.parent / "data" / name).open(newline="") as file:
        return [(row["review"].lower().split()[:LENGTH], int(row["sentiment"] == "positive")) for row in csv.DictReader(file)]


def encoded(reviews: list[tuple[list[str], int]], numbers: dict[str, int]) -> list[dict[str, object]]:
    """Rows as the model reads them: 0 fills up, 1 is a word that was not in training."""
    rows = []
    for words, label in reviews:
        ids = [numbers.get(word, 1) for word in words]
        rest = LENGTH - len(ids)
        rows.append({"input_ids": ids + [0] * rest, "attention_mask": [1] * len(ids) + [0] * rest, "label": label})
    return rows


def compute_metrics(given: EvalPrediction) -> dict[str, float]:
    """From all predictions."""
    found = given.predictions.argmax(1)
    right = found == given.label_ids
    return {"accuracy": right.mean(), "recall": right[given.label_ids == 1].mean()}


training, test = read("reviews.csv"), read("reviews-test.csv")
numbers = {word: number for number, word in enumerate(sorted({word for words, _ in training for word in words}), 2)}

torch.manual_seed(0)
config = BertConfig(
    vocab_size=len(numbers) + 2,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    max_position_embeddings=LENGTH,
)
trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        output_dir=str(HERE.parent / "runs" / "trainer"),
        per_device_train_batch_size=32,
        num_train_epochs=3,
        learning_rate=1e-3,
        warmup_steps=0.1,
        lr_scheduler_type="cosine",
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
    ),
    train_dataset=encoded(training, numbers),
    eval_dataset=encoded(test, numbers),
    compute_metrics=compute_metrics,
)
done = trainer.train()
print(f"{done.global_step} steps, mean loss {done.training_loss:.3f}, {trainer.evaluate()}")
