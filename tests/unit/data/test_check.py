import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmj_trainer import check as check_module
from lmj_trainer import gpu
from lmj_trainer.check import Summary, check, read_job, run
from lmj_trainer.errors import UserError
from lmj_trainer.trackers import registry

pytestmark = pytest.mark.integration


def test_a_good_job_in_numbers(job: Any, tmp_path: Path) -> None:
    summary = check(job(dataset__splits={"validationFraction": 0.2}))
    assert summary.rows == {"train": 32, "validation": 8}
    assert summary.labels == ["negative", "positive"]
    assert (summary.layers, summary.steps_per_epoch, summary.steps) == (2, 8, 16)
    assert summary.parameters > 200 * 16
    assert not (tmp_path / "out").exists()


def test_a_pretrained_folder_is_good(job: Any, pretrained: Path) -> None:
    assert check(job(model__scratch=None, model__source=str(pretrained))).layers == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset__source": "no.csv"}, "there is no file no.csv"),
        ({"dataset__text": ["reviw"]}, r"has no column 'reviw'; did you mean review\? \(columns: review, sentiment\)"),
        ({"dataset__label": "sentimnt"}, r"has no column 'sentimnt'; did you mean sentiment\?"),
        ({"model__labels": ["good", "bad"]}, "row 1 of .* has label 'negative', which is not one of good, bad"),
        ({"training__batchSize": 42}, "40 training rows are fewer than one global batch of 42"),
        ({"training__gradientAccumulationSteps": 11}, "fewer than one global batch of 44"),
        ({"pipeline__stages": 3}, "pipeline.stages 3 is more than the model's 2 layers"),
        ({"pipeline__layers": [2, 2]}, r"pipeline.layers \[2, 2\] places 4 layers, the model has 2"),
        ({"dataset__maxLength": 65}, "dataset.maxLength 65 is over the 64 tokens the model reads"),
        ({"output__weights": "Best"}, "output.weights Best needs validation rows"),
        ({"output__path": "/dev/null/out"}, "output.path /dev/null/out cannot be written"),
        ({"checkpoint__path": "/dev/null/out"}, "checkpoint.path /dev/null/out cannot be written"),
        ({"model__lora": {"targetModules": ["qurey"]}}, r"model.lora.targetModules 'qurey' .* did you mean query\?"),
        ({"model__scratch": None, "model__source": "/no/model"}, "no model /no/model: there is no such folder"),
    ],
)
def test_bad_input_is_one_clear_line(job: Any, changes: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        check(job(**changes))
    assert "\n" not in str(raised.value)


def test_a_tracker_that_is_not_installed_is_found_before_anything_is_started(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trackers = [{"kind": "Trackio", "project": "p"}, {"kind": "MLflow", "project": "p", "uri": "http://127.0.0.1:1"}]
    check(job(output__trackers=trackers))
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None if name == "mlflow" else name)
    said = r"output.trackers\[1\]: MLflow needs the mlflow package: pip install 'livemigrationjob\[mlflow\]'"
    with pytest.raises(UserError, match=said):
        check(job(output__trackers=trackers))


@pytest.mark.parametrize("code", [None, 100, 0])
def test_a_gpu_that_is_not_there_is_found_before_anything_is_started(
    job: Any, monkeypatch: pytest.MonkeyPatch, code: int | None
) -> None:
    check(job(training__device="Auto"))

    def load(name: str) -> SimpleNamespace:
        if code is None:
            raise OSError(name)
        return SimpleNamespace(cuInit=lambda flags: code, cuDeviceGetCount=lambda count: 0)

    monkeypatch.setattr(gpu.ctypes, "CDLL", load)
    monkeypatch.setattr(gpu, "version", lambda name: "2.15.0")
    monkeypatch.setattr(gpu.sys, "platform", "linux")
    reason = {None: "this machine has no NVIDIA driver", 100: "finds no GPU .*CUDA error 100", 0: "shows this process no GPU"}[
        code
    ]
    with pytest.raises(UserError, match=f"^training.device CUDA: .*{reason}.*: use CPU, or Auto"):
        check(job(training__device="CUDA"))


def test_a_torch_without_cuda_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "version", lambda name: "2.15.0+cpu")
    assert gpu.missing_gpu() == "this PyTorch (2.15.0+cpu) is built without CUDA"


def test_weights_that_are_pickled_or_missing(job: Any, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    source = {"model__scratch": None, "model__source": str(tmp_path / "model")}
    with pytest.raises(UserError, match=r"has no model.safetensors: save it with save_pretrained"):
        check(job(**source))
    (tmp_path / "model" / "pytorch_model.bin").touch()
    with pytest.raises(
        UserError, match=r"has no model.safetensors, and pytorch_model.bin is a pickle, which runs code when it is loaded: "
    ):
        check(job(**source))
    (tmp_path / "model" / "model.safetensors").touch()
    with pytest.raises(UserError, match="has no tokenizer"):
        check(job(**source))


def test_the_output_folder_is_left_as_it_was(job: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    check(job(output__path=str(tmp_path / "out")))
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine"]


def written(path: Path, job: Any) -> str:
    path.write_text(job.to_json())
    return str(path)


def test_the_command_prints_a_summary(job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "job.json", job())
    assert run(["--job", file]) == 0
    assert "rows: 40 train" in capsys.readouterr().out
    assert run(["--job", file, "-o", "json"]) == 0
    assert Summary.model_validate_json(capsys.readouterr().out).rows == {"train": 40}


def test_a_job_that_shares_steps_says_what_memory_that_takes(
    job: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["--job", written(tmp_path / "job.json", job())]) == 0
    assert "memory" not in capsys.readouterr().out
    parts = {"dataParallel__shards": 2, "dataParallel__replicas": 2, "dataParallel__minReplicas": 2}
    assert run(["--job", written(tmp_path / "job.json", job(**parts))]) == 0
    *_, each, request = capsys.readouterr().out.splitlines()
    start = "memory: 16 bytes for each trained parameter of a stage, and at most 8 more for sums of shards (with 2 replicas): "
    assert (each[: len(start)], each[-14:]) == (start, "MiB for a rank")
    assert request.startswith("on a cluster: spec.template.spec.containers[trainer].resources.requests.memory of ")
    assert run(["--job", written(tmp_path / "job.json", job(dataParallel__shards=2, dataParallel__maxReplicas=1))]) == 0
    assert "and at most 4 more for sums of shards (with 1 replica): " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("resources", "said"),
    [
        ({}, []),
        ({"requests": {"memory": "4Gi"}, "limits": {"memory": "1e9"}}, []),
        ({"requests": {"memory": "1Mi"}, "limits": {"memory": "2M"}}, ["requests.memory 1Mi", "limits.memory 2M"]),
        ({"requests": {"memory": 1}}, ["requests.memory 1"]),
        ({"requests": "all"}, []),
    ],
)
def test_pods_with_too_little_memory_are_warned_of(job: Any, resources: Any, said: list[str]) -> None:
    wide = {"model__scratch__hiddenSize": 256, "model__scratch__intermediateSize": 1024, "dataParallel__shards": 2}
    found: list[str] = []
    template = {"spec": {"containers": [{"name": "other"}, {"name": "trainer", "resources": resources}]}}
    summary = check(job(**wide, template=template), found.append)
    assert summary.beside is not None
    assert (summary.beside.rank_bytes or 0) > 4e6
    field = "warning: spec.template.spec.containers[trainer].resources."
    assert [line for line in found if line.startswith("warning")] == [
        f"{field}{each} is less than the {-(-(summary.beside.rank_bytes or 0) // 2**20)}Mi of a rank's state and sums of shards alone: "
        "raise it"
        for each in said
    ]


@pytest.mark.parametrize("argv", [["--job"], ["--jbo", "x"], ["--job", "/no/job.json"], []])
def test_bad_arguments_are_one_line_and_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(argv) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_wrong_job_file_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"metadata": {"name": "x"}, "spec": {"modle": {}}}))
    with pytest.raises(UserError, match=r"job.json: spec\."):
        read_job(tmp_path / "job.json")


def test_the_real_command_needs_no_torch(job: Any, tmp_path: Path) -> None:
    file = written(tmp_path / "job.json", job(pipeline__stages=9))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = f"import sys; from lmj_trainer import check; c = check.main(['--job', {file!r}]); assert sys.modules['torch'] is None; sys.exit(c)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "error: pipeline.stages 9 is more than the model's 2 layers: use 2 stages at most\n"


@pytest.mark.parametrize("revision", [None, "main", "v1.0", "A" * 40])
def test_adapters_on_a_hub_model_need_its_commit(job: Any, revision: str | None) -> None:
    changes = {"model__scratch": None, "model__source": "bert-base-uncased", "model__lora": {}, "model__revision": revision}
    with pytest.raises(UserError, match=r"needs its commit as model[.]revision, 40 hex digits, not") as raised:
        check_module.check_frozen_source(job(**changes).spec)
    assert "\n" not in str(raised.value)
    check_module.check_frozen_source(job(**{**changes, "model__revision": "0123456789abcdef" * 2 + "01234567"}).spec)
