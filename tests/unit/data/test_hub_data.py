"""A dataset of the hub: a branch that moves changes no run, and what one process fetched is not fetched again."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub import Hub

pytestmark = pytest.mark.integration

DATA = "someone/reviews"
REPOSITORY = f"datasets/{DATA}"


def publish(hub: Hub, folder: Path, word: str) -> str:
    """Rows with ``word`` in each are the dataset's newest commit; its name."""
    folder.mkdir()
    rows = "".join(f"{word} number {row},{('negative', 'positive')[row % 2]}\n" for row in range(40))
    (folder / "train.csv").write_text(f"text,label\n{rows}")
    return hub.publish(REPOSITORY, folder)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub()
    publish(made, tmp_path / "first", "great")
    with made.serving():
        yield made


def job(folder: Path, **dataset: Any) -> dict[str, Any]:
    """A job whose output folder is ``folder / out``."""
    sizes = {"layers": 1, "hiddenSize": 8, "heads": 2, "intermediateSize": 16, "vocabulary": 200, "maxPositions": 32}
    return {
        "metadata": {"name": "reviews"},
        "spec": {
            "model": {"scratch": sizes},
            "dataset": {"source": DATA, "text": ["text"], "label": "label", "maxLength": 16} | dataset,
            "training": {"batchSize": 4},
            "pipeline": {"stages": 1},
            "recovery": {"startTimeoutSeconds": 75},
            "output": {"path": str(folder / "out")},
        },
    }


def environment(hub: Hub, home: Path) -> dict[str, str]:
    found = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
    return found | {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "OMP_NUM_THREADS": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }


def test_it_is_checked_without_torch(hub: Hub, tmp_path: Path) -> None:
    """As ``lmj validate`` does, which keeps torch from being imported."""
    file = tmp_path / "job.json"
    file.write_text(json.dumps(job(tmp_path)))
    command = [sys.executable, "-m", "lmj_trainer", "check", "--job", str(file), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(hub, tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == {"train": 40}
