"""The recipes as they are shipped, each to its end, with small models and few rows in place of the hub's: of the same columns."""

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


def sentences(folder: Path) -> None:
    """As GLUE's sst2."""
    pick, rows = random.Random(0), []
    for number in range(200):
        words = pick.choices(WORDS[4:], k=8)
        words.insert(pick.randrange(9), WORDS[number % 2])
        rows.append({"sentence": " ".join(words), "label": number % 2, "idx": number})
    kinds = Features({"sentence": Value("string"), "label": ClassLabel(names=["negative", "positive"]), "idx": Value("int32")})
    whole = Dataset.from_list(rows, features=kinds).train_test_split(0.2, seed=0)
    DatasetDict({"train": whole["train"], "validation": whole["test"]}).save_to_disk(str(folder))


def instructions(folder: Path) -> None:
    """As Alpaca."""
    pick = random.Random(0)
    rows = [
        {"instruction": f"say {word}", "input": "", "output": f"{word} {word}", "text": "all of it"}
        for word in pick.choices(WORDS, k=200)
    ]
    DatasetDict({"train": Dataset.from_list(rows)}).save_to_disk(str(folder))


def questions(folder: Path) -> None:
    """As SQuAD."""
    rows = [json.loads(line) for line in make_questions(folder.with_suffix(".jsonl")).read_text().splitlines()]
    rows = [
        {"id": str(n), "question": r["question"], "context": r["text"], "answers": r["answers"]}
        for n, r in enumerate(rows)
        if r["answers"]
    ]
    whole = Dataset.from_list(rows).train_test_split(0.2, seed=0)
    DatasetDict({"train": whole["train"], "validation": whole["test"]}).save_to_disk(str(folder))


CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "sst2-lora": (sentences, "bert", {}),
    "llama-lora": (instructions, "llama", {"kind": AutoModelForCausalLM}),
    "squad": (questions, "bert", {}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_runs_to_its_end(name: str, tmp_path: Path) -> None:
    make_data, family, more = CASES[name]
    make_data(tmp_path / "data")
    document = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    spec = document["spec"]
    spec["model"]["source"] = str(make_model(tmp_path / "model", family, **more))
    spec["dataset"] |= {"source": str(tmp_path / "data"), "maxLength": 24}
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
    assert {result["split"] for result in evaluation} == {"validation"}
    assert (job.output / "model" / "model.safetensors").is_file()
    assert (job.output / "adapter").is_dir() == (name != "squad")
