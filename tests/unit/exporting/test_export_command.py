"""``lmj export`` of jobs that were trained in this process: what it writes is what the end of training writes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from own_jobs import TASK, own_job
from safetensors.torch import load_file, save_file
from tests.on_disk import at as place
from tests.on_disk import file_digest, remove, survey
from tests.unit.engine.small_job import Line, make, small_job, start, view
from transformers import AutoModelForSequenceClassification

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.__main__ import main
from lmj_trainer.checkpoint.tensors import open_tensors, read_manifest
from lmj_trainer.exporting import choice as choice_module
from lmj_trainer.exporting import model as model_module
from lmj_trainer.own import source

pytestmark = pytest.mark.integration

LAST = 12
"""Steps of the jobs here, with checkpoints after 4, 8 and 12."""


@pytest.fixture(autouse=True)
def _same_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "setpriority", lambda *_: None)


def changed(job: LiveMigrationJob, **parts: Any) -> LiveMigrationJob:
    document = json.loads(job.to_json())
    for name, part in parts.items():
        document["spec"][name] = document["spec"].get(name, {}) | part
    return LiveMigrationJob.model_validate(document)


def train(job: LiveMigrationJob) -> Path:
    """Its output folder."""
    assert make(job, Line()).run(view(1, start())).value == "Completed"
    return Path(job.spec.output.path)


@dataclass(frozen=True)
class Told:
    """What a command has said."""

    code: int
    out: str
    err: str


@pytest.fixture
def export(capfd: pytest.CaptureFixture[str]) -> Callable[..., Told]:
    def call(*words: object) -> Told:
        capfd.readouterr()
        code = main(["export", *map(str, words)])
        return Told(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job's folder, trained; not to be changed."""
    folder = tmp_path_factory.mktemp("trained")
    return train(changed(small_job(folder), output={"weights": "Last"})).parent


@pytest.fixture
def trained(once: Path, tmp_path: Path) -> Path:
    """A copy of its output folder."""
    return Path(shutil.copytree(once / "out", tmp_path / "out"))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def checkpoint(output: Path, step: int) -> Path:
    (found,) = (output / "checkpoints").glob(f"step-{step:09}*")
    return found


def damage(output: Path, step: int) -> str:
    """The name of the checkpoint, of which a byte is another now."""
    path = checkpoint(output, step) / "rank-0.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return path.parent.name


def alone(folder: Path) -> bool:
    """Whether nothing was left beside the exported folder."""
    return not [path.name for path in folder.parent.iterdir() if ".exporting-" in path.name]


def test_the_newest_is_what_the_job_has_saved_to_the_byte(trained: Path, tmp_path: Path, export: Callable[..., Told]) -> None:
    told = export(trained, "--to", tmp_path / "deep" / "model")
    assert (told.code, told.err) == (0, "")
    best = next(found.info.step for found in survey(trained / "checkpoints", None) if found.info.best)
    word = ", the best so far" * (best == LAST)
    assert told.out == f"{tmp_path / 'deep' / 'model'}: the model of small after step {LAST}{word}\n"
    assert files(tmp_path / "deep" / "model") == files(trained / "model")
    assert (tmp_path / "deep" / "model").stat().st_mode & 0o777 == 0o755
    assert alone(tmp_path / "deep" / "model")


def test_the_best_is_what_the_job_has_saved(tmp_path: Path, export: Callable[..., Told]) -> None:
    output = train(changed(small_job(tmp_path), output={"weights": "Best"}, training={"learningRate": 0.1, "epochs": 4}))
    (best,) = [found.info.step for found in survey(output / "checkpoints", None) if found.info.best]
    told = export(output, "--to", tmp_path / "model", "--step", best)
    assert told.code == 0
    assert files(tmp_path / "model") == files(output / "model")


def test_one_of_a_step_has_the_weights_of_its_checkpoint(trained: Path, tmp_path: Path, export: Callable[..., Told]) -> None:
    (tmp_path / "empty").mkdir()
    told = export(trained, "--to", tmp_path / "empty", "--step", 4, "-o", "json")
    assert told.code == 0
    folder = checkpoint(trained, 4)
    assert json.loads(told.out) == {
        "folder": str(tmp_path / "empty"), "step": 4, "checkpoint": folder.name, "best": False, "adapter": None
    }  # fmt: skip
    weights = load_file(tmp_path / "empty" / "model.safetensors")
    expected = open_tensors(place(folder), read_manifest(place(folder)), weights)
    assert all(torch.equal(value, expected[name]) for name, value in weights.items())
    assert any(
        not torch.equal(value, load_file(trained / "model" / "model.safetensors")[name]) for name, value in weights.items()
    )
    card = (tmp_path / "empty" / "README.md").read_text()
    assert "- Steps: 4;" in card
    assert "| validation | 4 |" in card
    assert "| 12 |" not in card
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "empty")
    assert model.config.id2label == {0: "n", 1: "p"}


def test_an_adapter_is_merged_and_lies_beside(tmp_path: Path, export: Callable[..., Told]) -> None:
    output = train(
        changed(small_job(tmp_path), output={"weights": "Last", "int8": True}, model={"lora": {"r": 2, "dropout": 0.1}})
    )
    told = export(output, "--to", tmp_path / "model")
    assert told.code == 0
    first, second = told.out.splitlines()
    assert first.endswith("with the adapter merged into its weights")
    assert second == f"{tmp_path / 'model' / 'adapter'}: the adapter alone"
    found = files(tmp_path / "model")
    assert {f"adapter/{name}": content for name, content in files(output / "adapter").items()}.items() <= found.items()
    assert {name: content for name, content in found.items() if not name.startswith("adapter/")} == files(output / "model")


def test_a_class_of_the_user_gives_what_the_end_gives(tmp_path: Path, export: Callable[..., Told]) -> None:
    output = train(changed(own_job(tmp_path), output={"weights": "Last"}))
    told = export(output, "--to", tmp_path / "model", "-o", "json")
    assert told.code == 0, told.err
    assert json.loads(told.out)["step"] == LAST
    assert files(tmp_path / "model") == files(output / "model")


def test_a_class_that_was_changed_since_is_refused(tmp_path: Path, export: Callable[..., Told]) -> None:
    job = own_job(tmp_path)
    output = train(job)
    path = tmp_path / "my_task.py"
    path.write_text(path.read_text() + "# changed\n")
    source._load.cache_clear()  # as in another process
    told = export(output, "--to", tmp_path / "model")
    assert told.code == 2
    assert f"{path} is not what the run began with" in told.err


def test_a_damaged_one_is_refused_by_its_reason(trained: Path, tmp_path: Path, export: Callable[..., Told]) -> None:
    name = damage(trained, 8)
    told = export(trained, "--to", tmp_path / "model", "--step", 8)
    assert told.code == 2
    assert told.err.startswith(
        f"error: checkpoint {name} cannot be used: {trained / 'checkpoints' / name}/rank-0.safetensors has digest"
    )
    assert told.err.endswith("altered; there are those of steps 12, 4\n")
    assert not (tmp_path / "model").exists()


def test_the_newest_good_one_is_taken_where_newer_ones_are_damaged(
    trained: Path, tmp_path: Path, export: Callable[..., Told]
) -> None:
    name = damage(trained, 12)
    half = trained / "checkpoints" / "step-000000016-v1"
    half.mkdir()
    told = export(trained, "--to", tmp_path / "model")
    assert told.code == 0
    assert "after step 8" in told.out
    assert told.err.startswith(f"warning: checkpoint {name} cannot be used: ")
    assert told.err.endswith("altered; the one of step 8 is taken\n")
    assert "000016" not in told.err, "the job is writing it"
    refused = export(trained, "--to", tmp_path / "other", "--step", 16)
    assert "checkpoint step-000000016-v1 cannot be used: half-written (no manifest); there are" in refused.err


def test_when_all_are_damaged_there_is_nothing(trained: Path, tmp_path: Path, export: Callable[..., Told]) -> None:
    for step in (4, 8, 12):
        damage(trained, step)
    told = export(trained, "--to", tmp_path / "model")
    assert told.code == 2
    assert "altered" in told.err
    assert told.err.count("\n") == 1


def test_a_run_that_was_copied_here_needs_neither_its_data_nor_its_path(
    once: Path, trained: Path, tmp_path: Path, export: Callable[..., Told]
) -> None:
    record = trained / ".job.json"
    document = json.loads(record.read_text())
    document["spec"]["dataset"]["source"] = "/elsewhere/data.csv"
    document["spec"]["output"]["path"] = "/elsewhere/out"
    document["spec"]["checkpoint"]["path"] = "/elsewhere/checkpoints"
    record.write_text(json.dumps(document))
    for manifest in (trained / "checkpoints").glob("*/manifest.json"):
        value = json.loads(manifest.read_text())
        value["stateDigest"] = choice_module.state_digest(LiveMigrationJob.model_validate(document).spec)
        manifest.write_text(json.dumps(value))
    told = export(trained, "--to", tmp_path / "model")
    assert told.code == 0, told.err
    name = "model.safetensors"
    assert (tmp_path / "model" / name).read_bytes() == (once / "out" / "model" / name).read_bytes()
    assert (tmp_path / "model" / "tokenizer.json").read_bytes() == (once / "out" / "model" / "tokenizer.json").read_bytes()


def test_a_cache_that_is_lost_is_made_again_elsewhere(trained: Path, tmp_path: Path, export: Callable[..., Told]) -> None:
    shutil.rmtree(trained / "cache")
    told = export(trained, "--to", tmp_path / "model")
    assert told.code == 0, told.err
    assert files(tmp_path / "model") == files(trained / "model")
    assert not (trained / "cache").exists(), "the volume may be mounted to be read"


def test_checkpoints_of_another_job_are_not_its_own(trained: Path, tmp_path: Path, export: Callable[..., Told]) -> None:
    record = trained / ".job.json"
    document = json.loads(record.read_text())
    document["spec"]["training"]["seed"] = 77
    record.write_text(json.dumps(document))
    told = export(trained, "--to", tmp_path / "model")
    assert told.code == 2
    assert "was written with another model, data or hyper-parameters" in told.err


def removing(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, times: int) -> None:
    """Have the job remove the checkpoint that ``name`` of ``module`` is about to read, so many ``times``."""
    real, left = getattr(module, name), [times]

    def call(*arguments: Any, **options: Any) -> Any:
        folder = next(each for each in arguments if type(each).__name__ == "Ref")
        if left[0]:
            left[0] -= 1
            remove(Path(str(folder)).parent, [folder.name])
        return real(*arguments, **options)

    monkeypatch.setattr(module, name, call)


@pytest.mark.parametrize(("module", "name"), [(choice_module, "verify"), (model_module, "export")])
def test_one_that_goes_away_meanwhile(
    trained: Path, tmp_path: Path, export: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, module: object, name: str
) -> None:
    kept = shutil.copytree(trained, tmp_path / "kept")
    with monkeypatch.context() as patch:
        removing(patch, module, name, 1)
        told = export(trained, "--to", tmp_path / "model")
    assert told.code == 0, told.err
    assert "after step 8" in told.out
    gone = checkpoint(kept, 12).name
    assert f"the job removed {gone} while it was read (checkpoint.keep); the newest one is taken\n" in told.err
    with monkeypatch.context() as patch:
        removing(patch, module, name, 1)
        told = export(kept, "--to", tmp_path / "other", "--step", 12)
    assert told.code == 2
    wanted = f"error: the job removed {gone} while it was read (checkpoint.keep); try again with another step (lmj checkpoints {kept})\n"
    assert told.err == wanted
    with monkeypatch.context() as patch:
        removing(patch, module, name, 2)
        told = export(kept, "--to", tmp_path / "other")
    assert told.code == 2
    gone = checkpoint(trained, 4).name
    assert told.err.splitlines()[-1] == f"error: the job removed {gone} while it was read (checkpoint.keep); try again"
    assert not (tmp_path / "other").exists()
    assert alone(tmp_path / "other")


def test_a_disk_that_is_full_leaves_nothing(
    trained: Path, tmp_path: Path, export: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_module, "export", full)
    told = export(trained, "--to", tmp_path / "model")
    assert told.code == 2
    assert told.err == f"error: the model cannot be written to {tmp_path / 'model'}: [Errno 28] No space left on device\n"
    assert not (tmp_path / "model").exists()
    assert alone(tmp_path / "model")


def test_another_that_was_faster_keeps_its_folder(
    trained: Path, tmp_path: Path, export: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, target = model_module.export, tmp_path / "model"

    def slow(*arguments: Any) -> None:
        real(*arguments)
        target.mkdir()
        (target / "file").write_text("another's")

    monkeypatch.setattr(model_module, "export", slow)
    told = export(trained, "--to", target)
    assert told.code == 2
    assert told.err == f"error: --to {target} is not empty any more: choose another folder\n"
    assert files(target) == {"file": b"another's"}
    assert alone(target)


def test_one_that_lacks_a_weight_is_refused(trained: Path, tmp_path: Path, export: Callable[..., Told]) -> None:
    folder = checkpoint(trained, 8)
    path, manifest = folder / "rank-0.safetensors", folder / "manifest.json"
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    del tensors["classifier.bias"]
    save_file(tensors, path, metadata={"format": "pt"})
    value = json.loads(manifest.read_text())
    value["files"] = [{"name": path.name, "size": path.stat().st_size, "xxh128": file_digest(path)}]
    manifest.write_text(json.dumps(value))
    told = export(trained, "--to", tmp_path / "model", "--step", 8)
    assert told.code == 2
    assert told.err.startswith(f"error: checkpoint {folder.name} is not of this job's model: ")
    assert "holds no classifier.bias" in told.err
    assert not (tmp_path / "model").exists()


def test_an_error_of_the_users_class_is_told_with_its_line(tmp_path: Path, export: Callable[..., Told]) -> None:
    task = TASK + "\n    def save(self, model, folder):\n        model[0].weight  # noqa\n        raise RuntimeError('no')\n"
    job = own_job(tmp_path, task)
    with pytest.raises(RuntimeError):
        make(job, Line()).run(view(1, start()))
    told = export(job.spec.output.path, "--to", tmp_path / "model")
    assert told.code == 2
    line = task.splitlines().index("        raise RuntimeError('no')") + 1
    assert told.err == f"error: {tmp_path / 'my_task.py'}:{line}: RuntimeError: no\n"


def test_what_a_class_prints_is_no_part_of_the_output(tmp_path: Path, export: Callable[..., Told]) -> None:
    job = own_job(
        tmp_path, TASK.replace("        return [nn.Linear(4, 8)", '        print("here I am")\n        return [nn.Linear(4, 8)')
    )
    output = train(job)
    told = export(output, "--to", tmp_path / "model", "-o", "json")
    assert json.loads(told.out)["step"] == LAST
    assert "here I am" in told.err


def test_the_job_is_as_it_was(trained: Path, tmp_path: Path, export: Callable[..., Told]) -> None:
    """Nothing of it is written, nor removed: it may be training."""
    before = files(trained)
    assert export(trained, "--to", tmp_path / "model").code == 0
    assert export(trained, "--to", trained / "at-4", "--step", 4).code == 0
    after = files(trained)
    assert {name: content for name, content in after.items() if not name.startswith("at-4/")} == before
