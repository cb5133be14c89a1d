"""A script with an ``lmj.Trainer``, as the check of its job sees it: in numbers, and what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest
from scripts import write_script

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.check import check
from lmj_trainer.errors import UserError
from lmj_trainer.own.source import load_own

pytestmark = pytest.mark.integration

ARGUMENTS = "'per_device_train_batch_size': 4, 'num_train_epochs': 2"


def job(file: Path, **changes: Any) -> LiveMigrationJob:
    spec: dict[str, Any] = {
        "pipeline": {"stages": 1, "microBatches": 2},
        "model": {"python": f"{file}:__main__"},
        "dataset": {"source": str(file)},
        "training": {"batchSize": 4, "epochs": 2, "threads": 1},
        "output": {"path": str(file.parent / "out")},
        **changes,
    }
    return LiveMigrationJob.model_validate({"metadata": {"name": "script"}, "spec": spec})


def test_a_good_script_in_numbers(tmp_path: Path) -> None:
    summary = check(job(write_script(tmp_path, arguments=ARGUMENTS)))
    assert (summary.rows, summary.steps, summary.layers) == ({"train": 64}, 32, 1)
    assert summary.parameters is not None
    assert not (tmp_path / "saved").exists(), "what comes after train() is not run"


def test_all_who_run_it_get_equal_weights(tmp_path: Path) -> None:
    """Though it does not seed its generator."""
    text = write_script(tmp_path, arguments=ARGUMENTS).read_text()
    seeded = "    torch.manual_seed(1)\n"
    assert seeded in text
    found = []
    for name in ("one", "other"):  # two files: one is run once a process
        file = tmp_path / f"{name}.py"
        file.write_text(text.replace(seeded, ""))
        found.append(load_own(job(file).spec.model).task.model().state_dict())
    assert all(value.equal(found[1][name]) for name, value in found[0].items())


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("trainer.train()", "trainer.trian()", "done = trainer.trian()"),
        ('__name__ == "__main__"', '__name__ == "other"', None),
        ("words = pick.choices", "words = pick.choice", "words = pick.choice"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, old: str, new: str, line: str | None) -> None:
    file = write_script(tmp_path, arguments=ARGUMENTS)
    text = file.read_text()
    assert text.count(old) == 1
    text = text.replace(old, new)
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        check(job(file))
    if line is None:
        assert "ends without train() of an lmj.Trainer" in str(caught.value)
    else:
        number = next(number for number, each in enumerate(text.splitlines(), 1) if line in each)
        assert str(caught.value).startswith(f"{file}:{number}: ")


def test_rows_without_labels_have_no_loss(tmp_path: Path) -> None:
    file = write_script(tmp_path, arguments=ARGUMENTS)
    file.write_text(file.read_text().replace('"label": number % 2', '"lable": number % 2'))
    said = r"Trainer.loss: ValueError: the model gives no loss of its own: it needs labels, and gets none of labels"
    with pytest.raises(UserError, match=said):
        check(job(file))
