"""The examples that are shipped: valid, in step with their generators, and not to be solved by counting words."""

import csv
import importlib.util
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet

from lmj_api.load import load_job
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.check import check
from lmj_trainer.script_check import check_script

EXAMPLES = Path(__file__).parents[3] / "examples"


def load(name: str) -> LiveMigrationJob:
    content = yaml.safe_load((EXAMPLES / name).read_text())
    if "command" in content["spec"]:
        return load_job(content, base=EXAMPLES)
    dataset = content["spec"]["dataset"]
    for place, key in ((dataset, "source"), (dataset["splits"], "test")):
        if key in place:
            place[key] = str(EXAMPLES / place[key])
    return LiveMigrationJob.model_validate(content)


def generator(name: str, folder: Path = EXAMPLES / "data") -> Any:
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(name: str) -> list[list[str]]:
    with (EXAMPLES / "data" / name).open(newline="") as file:
        return list(csv.reader(file))[1:]


@pytest.mark.parametrize(
    "name",
    [name for path in sorted(EXAMPLES.rglob("*.yaml")) if not (name := str(path.relative_to(EXAMPLES))).startswith("runs/")],
)
def test_examples_are_valid(name: str) -> None:
    load(name)


@pytest.mark.parametrize("name", ["quickstart.yaml", "pairs.yaml", "names.yaml", "questions.yaml", "replicas.yaml"])
def test_examples_with_shipped_data_pass_the_check(name: str, tmp_path: Path) -> None:
    job = load(name)
    spec = job.spec.model_copy(update={"output": job.spec.output.model_copy(update={"path": str(tmp_path)})})
    assert {"train", "validation", "test"} == check(job.model_copy(update={"spec": spec})).rows.keys()


def test_the_script_of_the_example_is_there_and_its_checkpoints_are_where_the_job_looks() -> None:
    job = load("script.yaml")
    command = job.spec.command
    assert command is not None
    assert check_script(job.spec).lines[0] == f"script: {EXAMPLES}/script/train.py, in {EXAMPLES}"
    (saved,) = [text.partition("=")[2] for text in command.args if text.startswith("--output_dir=")]
    assert str(EXAMPLES / saved) == command.checkpoints


@pytest.mark.integration
def test_the_script_of_the_example_goes_on_from_its_checkpoint_under_torchrun(tmp_path: Path) -> None:
    command = load("script.yaml").spec.command
    assert command is not None
    given = [text for text in command.args[1:] if not text.startswith(("--output_dir", "--max_steps", "--save_steps"))]
    given += [f"--output_dir={tmp_path}", "--save_steps=2"]

    def last_line(processes: int, *more: str) -> str:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        words = [*start, str(EXAMPLES / command.args[0]), *given, *more]
        there = set(tmp_path.iterdir())
        for _ in range(3):
            run = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
            if run.returncode == 0 or "(SIGABRT)" not in run.stderr:
                break
            # Now and then torch aborts where C++ ends its threads, after the process has done all: then it is run anew.
            for left in set(tmp_path.iterdir()) - there:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        assert run.returncode == 0, run.stderr[-2000:]
        return run.stdout.splitlines()[-1]

    assert last_line(2, "--max_steps=4").startswith("4 steps in 2 processes, test accuracy ")
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]
    written = (tmp_path / "checkpoint-4" / "trainer_state.json").stat().st_mtime_ns
    resumed = last_line(1, "--max_steps=6", f"--resume_from_checkpoint={tmp_path}/checkpoint-4")
    assert resumed.startswith("6 steps in 1 processes, test accuracy ")
    assert (tmp_path / "checkpoint-4" / "trainer_state.json").stat().st_mtime_ns == written, "it did not begin anew"
    assert (tmp_path / "checkpoint-6").is_dir()


def test_the_imdb_example_is_cut_as_it_says() -> None:
    dataset = load("origin/imdb.yaml").spec.dataset
    rows = dataset.max_samples.train or 0
    assert round(rows * dataset.splits.test_fraction) == 2500
    assert round(rows * dataset.splits.validation_fraction) == 2000


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("make_reviews", ["reviews.csv", "reviews-test.csv"]),
        ("make_pairs", ["pairs.jsonl"]),
        ("make_names", ["names.jsonl"]),
        ("make_questions", ["questions.jsonl"]),
    ],
)
def test_the_data_is_what_its_generator_writes(name: str, files: list[str], tmp_path: Path) -> None:
    generator(name).main(tmp_path)
    for file in files:
        assert (tmp_path / file).read_bytes() == (EXAMPLES / "data" / file).read_bytes()
        assert (tmp_path / file).stat().st_size < 2_000_000


OWN = EXAMPLES / "own-task"


def test_the_signals_are_what_their_generator_writes(tmp_path: Path) -> None:
    generator("make_signals", OWN).main(tmp_path)
    assert (tmp_path / "signals.jsonl").read_bytes() == (OWN / "signals.jsonl").read_bytes()


def test_the_class_of_our_own_passes_the_check(tmp_path: Path) -> None:
    sets = [f"output.path={tmp_path}"]
    summary = check(load_job(yaml.safe_load((OWN / "job.yaml").read_text()), base=OWN, sets=sets))
    assert (summary.rows, summary.layers) == ({"train": 1600, "validation": 200, "test": 200}, 6)


def test_no_test_review_is_a_training_review_and_labels_are_even() -> None:
    train, test = read("reviews.csv"), read("reviews-test.csv")
    assert not {text for text, _ in train} & {text for text, _ in test}
    for rows in (train, test):
        assert abs(Counter(label for _, label in rows)["positive"] / len(rows) - 0.5) < 0.03


def test_counting_words_does_not_solve_the_test_reviews() -> None:
    make = generator("make_reviews")
    right = 0
    for text, label in read("reviews-test.csv"):
        words = Counter(text.lower().replace(",", "").replace(".", "").replace(";", "").split())
        praise, blame = sum(words[w] for w in make.PRAISE), sum(words[w] for w in make.BLAME)
        right += (label == "positive") == (praise > blame) if praise != blame else 0.5
    assert right / len(read("reviews-test.csv")) < 0.7


def test_the_streamed_example_trains_on_the_files_that_its_generator_writes(tmp_path: Path, pretrained: Path) -> None:
    make = generator("make_parquet")
    make.main(tmp_path)
    places = {
        "dataset.source": tmp_path / "train",
        "dataset.splits.validation": tmp_path / "validation.parquet",
        "model.source": pretrained,  # the quickstart's is there when it was trained
        "output.path": tmp_path / "out",
    }
    job = load_job(
        yaml.safe_load((EXAMPLES / "streaming.yaml").read_text()),
        base=EXAMPLES,
        sets=[f"{field}={place}" for field, place in places.items()],
    )
    assert check(job).rows == {"train": 8100, "validation": 900, "test": 1500}
    groups = [parquet.read_metadata(path).num_row_groups for path in sorted((tmp_path / "train").iterdir())]
    assert groups == [11] * 4
    content = yaml.safe_load((EXAMPLES / "streaming.yaml").read_text())["spec"]
    assert EXAMPLES / content["dataset"]["source"] == make.main.__defaults__[0] / "train"
    assert EXAMPLES / content["model"]["source"] == EXAMPLES / load("quickstart.yaml").spec.output.path / "model"
