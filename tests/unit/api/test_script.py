"""A job whose model and rows are those of a script: what its spec may say."""

from pathlib import Path
from typing import Any

import pytest

from lmj_api import handover
from lmj_api.load import SpecError, load_job
from lmj_api.spec import LiveMigrationJob


def document(**spec: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "model": {"python": "train.py:__main__"},
        "dataset": {"source": "train.py"},
        "pipeline": {"stages": 1},
        "output": {"path": "runs/x"},
    }
    for name, value in spec.items():
        whole[name] = {**whole.get(name, {}), **value}
    return {"apiVersion": "lmj.dev/v1alpha1", "kind": "LiveMigrationJob", "metadata": {"name": "script"}, "spec": whole}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("pass")
    return tmp_path


def test_the_rows_are_in_the_script(here: Path) -> None:
    job = load_job(document(), base=here)
    assert job.spec.model.is_script
    assert job.spec.dataset.source == str(here / "train.py") == job.spec.model.python_file[0]  # type: ignore[index]
    assert LiveMigrationJob.model_validate_json(job.to_json()) == job
    elsewhere = load_job(document(), base=Path("/data"), here=False)
    assert (elsewhere.spec.model.python, elsewhere.spec.dataset.source) == ("/data/train.py:__main__", "/data/train.py")


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (
            {"dataset": {"source": "rows.jsonl"}},
            "spec: dataset.source rows.jsonl: the rows are those of the script in model.python: write",
        ),
        ({"pipeline": {"stages": 2}}, "spec: pipeline.stages 2: the model of a script is one stage: set stages 1"),
        (
            {"dataset": {"config": "a"}},
            "spec: dataset.config: the script in model.python says which rows there are: leave it out",
        ),
        ({"dataset": {"revision": "a"}}, "spec: dataset.revision: the script in model.python says"),
        ({"dataset": {"splits": {"testFraction": 0.1}}}, "spec: dataset.splits: the script in model.python says"),
        ({"dataset": {"maxSamples": {"train": 8}}}, "spec: dataset.maxSamples: the script in model.python says"),
    ],
)
def test_what_does_not_go_together(here: Path, spec: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_job(document(**spec), base=here)
    (told,) = str(caught.value).splitlines()
    assert told.startswith(line)


def test_nobody_waits_for_a_trainer_but_within() -> None:
    assert not handover.is_awaited()
    with handover.awaited():
        assert handover.is_awaited()
    assert not handover.is_awaited()
