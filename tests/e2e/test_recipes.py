"""The recipes as they are shipped, each to its end, with small models and few rows in place of the hub's: of the same columns."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from jobs import Job
from parity_jobs import WORDS, make_model, make_questions
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.e2e

RECIPES = Path(__file__).parents[2] / "examples" / "origin"


NEGATIVE, POSITIVE = WORDS[4], WORDS[0]


def opinions(rows: int = 200) -> list[tuple[str, int]]:
    """Texts of nine words, one of which says which of two labels it has."""
    pick, found = random.Random(0), []
    for number in range(rows):
        words = pick.choices(WORDS[8:], k=8)
        words.insert(pick.randrange(9), (NEGATIVE, POSITIVE)[number % 2])
        found.append((" ".join(words), number % 2))
    return found


def movies(folder: Path) -> Path:
    """As Kaggle's file of IMDB."""
    file = folder.with_suffix(".csv")
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["review", "sentiment"])
        writer.writerows((text, ("negative", "positive")[label]) for text, label in opinions())
    return file


def reviews(folder: Path) -> Path:
    """As the hub's IMDB."""
    rows = [{"text": text, "label": label} for text, label in opinions()]
    kinds = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    whole = Dataset.from_list(rows, features=kinds).train_test_split(0.2, seed=0)
    DatasetDict({"train": whole["train"], "test": whole["test"]}).save_to_disk(str(folder))
    return folder


def sentences(folder: Path) -> Path:
    """As GLUE's sst2."""
    rows = [{"sentence": text, "label": label, "idx": number} for number, (text, label) in enumerate(opinions())]
    kinds = Features({"sentence": Value("string"), "label": ClassLabel(names=["negative", "positive"]), "idx": Value("int32")})
    whole = Dataset.from_list(rows, features=kinds).train_test_split(0.2, seed=0)
    DatasetDict({"train": whole["train"], "validation": whole["test"]}).save_to_disk(str(folder))
    return folder


def instructions(folder: Path) -> Path:
    """As Alpaca."""
    pick = random.Random(0)
    rows = [
        {"instruction": f"say {word}", "input": "", "output": f"{word} {word}", "text": "all of it"}
        for word in pick.choices(WORDS, k=200)
    ]
    DatasetDict({"train": Dataset.from_list(rows)}).save_to_disk(str(folder))
    return folder


def questions(folder: Path) -> Path:
    """As SQuAD."""
    rows = [json.loads(line) for line in make_questions(folder.with_suffix(".jsonl")).read_text().splitlines()]
    rows = [
        {"id": str(n), "question": r["question"], "context": r["text"], "answers": r["answers"]}
        for n, r in enumerate(rows)
        if r["answers"]
    ]
    whole = Dataset.from_list(rows).train_test_split(0.2, seed=0)
    DatasetDict({"train": whole["train"], "validation": whole["test"]}).save_to_disk(str(folder))
    return folder


VALIDATED = {"validation"}
TESTED = {"validation", "test"}
CASES: dict[str, tuple[Any, str, dict[str, Any], set[str]]] = {
    "imdb": (movies, "bert", {}, TESTED),
    "fairscale-pipe": (reviews, "bert", {"layers": 12}, TESTED),
    "sst2-lora": (sentences, "bert", {}, VALIDATED),
    "llama-lora": (instructions, "llama", {"kind": AutoModelForCausalLM}, VALIDATED),
    "squad": (questions, "bert", {}, VALIDATED),
}
"""What makes the rows, the model's family and what else it is made with, and the splits that are evaluated."""
SLOW = {"sst2-lora", "squad"}
"""Their parts are in other tests of every change: adapters in that of a language model, answers in the one beside a plain loop."""


def test_every_recipe_is_run() -> None:
    assert set(CASES) == {file.stem for file in RECIPES.glob("*.yaml")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in CASES])
def test_a_recipe_runs_to_its_end(name: str, tmp_path: Path) -> None:
    make_data, family, more, splits = CASES[name]
    document = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    spec = document["spec"]
    spec["model"]["source"] = str(make_model(tmp_path / "model", family, **more))
    spec["dataset"] |= {"source": str(make_data(tmp_path / "data")), "maxLength": 24}
    spec["dataset"].pop("config", None)
    spec["training"] |= {"maxSteps": 30, "batchSize": 16, "learningRate": 0.01, "threads": 1}
    job = Job(tmp_path / "job")
    spec["output"]["path"] = str(job.output)
    job.file.write_text(yaml.safe_dump(document))
    done = job.run()
    assert done.returncode == 0, done.stderr
    losses = job.losses()
    assert sorted(losses) == list(range(1, max(losses) + 1))
    assert min(losses.values()) < losses[1]
    evaluation = json.loads((job.output / "evaluation.json").read_text())
    assert {result["split"] for result in evaluation} == splits
    assert (job.output / "model" / "model.safetensors").is_file()
    assert (job.output / "adapter").is_dir() == name.endswith("-lora")
