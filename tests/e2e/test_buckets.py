"""The real ``lmj run`` with its checkpoints on servers of storage: real ones, of S3 and of Azure Blob Storage, and the tests' own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from bucket_fixture import lead
from pyarrow import csv, parquet
from renewable_server import RenewableServer
from s3_server import S3Server, serving
from secret_folder import SecretFolder
from storage_server import StorageServer

from lmj_trainer.checkpoint.scan import survey
from lmj_trainer.store.registry import open_place

from .jobs import WORDS, Job, wait_until, write_data
from .runs import Run, runs
from .test_standby import wait_until_warm
from .undisturbed_fixture import STEPS, Undisturbed

__all__ = ["runs"]

pytestmark = pytest.mark.e2e


def steps(place: str) -> list[int]:
    """Of the good checkpoints, newest first."""
    return [found.info.step for found in survey(open_place(place), None, everything=True) if found.info.problem is None]


@pytest.mark.slow
def test_another_machine_goes_on_from_the_bucket(
    server: StorageServer, undisturbed_of: Callable[[int], Undisturbed], tmp_path: Path, runs: list[Run]
) -> None:
    """Nothing else is left: neither the output folder nor a process, and nobody could save a last checkpoint."""
    place, whole = f"{server.bucket('jobs')}/{tmp_path.name}", undisturbed_of(STEPS).job.losses()
    job = Job(tmp_path / "job")
    run = Run(job, f"checkpoint.path={place}")
    runs.append(run)
    job.wait_for_step(60, run.process)
    wait_until(lambda: bool(steps(place)), run.process)
    run.process.kill()
    run.process.wait(timeout=60)
    wait_until(lambda: not job.processes(), seconds=10)
    newest = steps(place)[0]
    assert not (job.output / "checkpoints").exists()
    shutil.rmtree(job.output)

    done = job.run("--set", f"checkpoint.path={place}")
    assert done.returncode == 0, done.stdout + done.stderr
    losses = job.losses()
    assert list(losses) == list(range(newest + 1, STEPS + 1))
    assert losses == {step: whole[step] for step in losses}
    assert steps(place)[0] == STEPS
    assert len(steps(place)) in (3, 4), "three are kept, and the best"
    refused = job.run("--fresh", "--set", f"checkpoint.path={place}")
    assert refused.returncode == 2
    assert refused.stderr == f"error: --fresh moves nothing aside in {place}: choose another checkpoint.path and output.path\n"


def test_who_may_not_write_there_is_told_before_anything_starts(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    done = Job(tmp_path).run("--set", f"checkpoint.path={s3.bucket('jobs')}/x")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: checkpoint.path cannot be used: s3://jobs/x/.lmj-check-")
    assert "SignatureDoesNotMatch" in last
    assert "another" not in done.stderr + done.stdout


def put(place: str, path: Path) -> str:
    """Put a file, or the files of a folder, into ``place``, a bucket; its URI."""
    for file in [path] if path.is_file() else sorted(path.iterdir()):
        key = path.name if file == path else f"{path.name}/{file.name}"
        (open_place(place) / key).put([file.read_bytes()])
    return f"{place}/{path.name}"


def with_sets(*sets: str) -> list[str]:
    return [word for each in sets for word in ("--set", each)]


def small_model(folder: Path) -> Path:
    """A model of two layers with weights and a tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "bad", "good"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(words), max_position_embeddings=32, **sizes)).save_pretrained(folder)
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def with_model(job: Job, source: str) -> Job:
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["model"] = {"source": source, "labels": ["negative", "positive"]}
    job.file.write_text(yaml.safe_dump(document))
    return job


@pytest.mark.slow
def test_rows_and_a_model_in_a_bucket_train_as_those_of_a_folder(server: StorageServer, tmp_path: Path, runs: list[Run]) -> None:
    """To the same bits; and what was fetched is not asked for again, by no rank and no later start: the bucket is empty by then."""
    model = small_model(tmp_path / "tiny-bert")
    plain = with_model(Job(tmp_path / "plain"), str(model))
    held = tmp_path / "held.csv"
    write_data(held, 16)
    rest = ["training.maxSteps=200", "dataset.splits.validationFraction=0"]
    done = plain.run(*with_sets(*rest, f"dataset.splits.validation={held}"))
    assert done.returncode == 0, done.stdout + done.stderr

    place = server.bucket("data")
    job = with_model(Job(tmp_path / "job"), put(place, model))
    rows = put(place, plain.folder / "data.csv")
    sets = [*rest, f"dataset.splits.validation={put(place, held)}", f"dataset.source={rows}"]
    run = Run(job, *sets)
    runs.append(run)
    job.wait_for_step(20, run.process)
    for key in ("data.csv", "held.csv", *(f"{model.name}/{file.name}" for file in model.iterdir())):
        (open_place(place) / key).delete()
    first = job.worker(0)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: job.status()["view"]["number"] >= 2, run.process)
    run.finish()
    assert job.losses() == plain.losses()
    assert len(job.losses()) == 200
    card = (job.output / "model" / "README.md").read_text()
    assert f"{place}/tiny-bert" in card, "where it is from, and not where a copy of it was"
    evaluated = [json.loads((each.output / "evaluation.json").read_text()) for each in (job, plain)]
    assert evaluated[0] == evaluated[1]
    again = job.run(*with_sets(*sets))
    assert (again.returncode, "finished already" in again.stdout) == (0, True)


@pytest.mark.slow
def test_adapters_on_a_model_in_a_bucket_and_a_standby_that_takes_over(s3: S3Server, tmp_path: Path, runs: list[Run]) -> None:
    """The weights that stay as they are are read by each start, and by the export; the bucket has none by then."""
    model, place = small_model(tmp_path / "tiny-bert"), s3.bucket("models")
    job = with_model(Job(tmp_path / "job"), put(place, model))
    run = Run(job, "model.lora.r=4", "recovery.standby=1", "training.maxSteps=1500")
    runs.append(run)
    wait_until_warm(job, run.process)
    job.wait_for_step(20, run.process)
    for file in model.iterdir():
        (open_place(place) / f"{model.name}/{file.name}").delete()
    os.killpg(job.agent(1), signal.SIGKILL)
    wait_until(lambda: job.status()["view"]["number"] >= 2, run.process)
    run.finish()
    assert job.status()["phase"] == "Succeeded"
    (fetched,) = (job.output / "fetched").glob("*/tiny-bert")
    config = json.loads((job.output / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(fetched), "a library can load it from there"
    assert (fetched / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert (job.output / "model" / "model.safetensors").is_file()


def test_results_in_a_bucket_outlive_the_machine(
    server: StorageServer, undisturbed_of: Callable[[int], Undisturbed], tmp_path: Path, runs: list[Run]
) -> None:
    """Nothing else is left of the first machine, not the lines since the newest checkpoint either."""
    place, whole = f"{server.bucket('jobs')}/{tmp_path.name}", undisturbed_of(STEPS).job
    job = Job(tmp_path / "job")
    sets = [f"output.path={place}", f"output.scratch={job.output}"]
    run = Run(job, *sets)
    runs.append(run)
    job.wait_for_step(60, run.process)
    wait_until(lambda: bool(steps(f"{place}/checkpoints")), run.process)
    run.process.kill()
    run.process.wait(timeout=60)
    wait_until(lambda: not job.processes(), seconds=10)
    shutil.rmtree(job.output)

    done = job.run(*with_sets(*sets))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"model: {place}/model, and {job.output / 'model'} here" in done.stdout
    root = open_place(place)
    recorded = [json.loads(line) for line in (root / "metrics.jsonl").get().splitlines()]
    assert {line["step"]: line["loss"] for line in recorded} == whole.losses()
    assert len(recorded) == STEPS
    assert (root / "model" / "model.safetensors").get() == (whole.output / "model" / "model.safetensors").read_bytes()
    assert sorted(root.folders()) == [".recorders", ".records", "checkpoints", "model"]
    again = job.run(*with_sets(*sets))
    assert (again.returncode, "finished already" in again.stdout) == (0, True)
    other = Job(tmp_path / "other").run(*with_sets(f"output.path={place}", "training.learningRate=0.5"))
    assert other.returncode == 2
    assert f"{place} has the results of another job (training.learningRate" in other.stdout + other.stderr


def test_rows_that_are_wrong_are_told_before_anything_starts_and_leave_nothing(s3: S3Server, tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    rows = put(s3.bucket("data"), job.folder / "data.csv")
    command = [sys.executable, "-m", "lmj_operator.cli.main", "validate", str(job.file), "--set", f"dataset.source={rows}"]
    valid = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (valid.returncode, valid.stdout.splitlines()[-1]) == (0, f"{job.file}: valid")
    assert not job.output.exists(), "it writes nothing"
    done = job.run("--set", f"dataset.source={rows}", "--set", "dataset.label=lable")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == f"error: {rows} has no column 'lable'; did you mean label? (columns: text, label)"
    assert not job.output.exists()


@pytest.mark.slow
def test_a_server_that_goes_away_stops_no_training(tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path / "job")
    with serving(tmp_path) as first:
        lead(first, monkeypatch)
        place = f"{first.bucket('jobs')}/x"
        run = Run(job, f"checkpoint.path={place}", "training.maxSteps=6000", "checkpoint.everySteps=200")
        runs.append(run)
        wait_until(lambda: bool(steps(place)), run.process)
    # Nobody answers there now.
    said = run.wait_for_stale("True")
    assert place in said["message"]
    other = job.worker(0)
    os.kill(job.worker(1), signal.SIGKILL)
    wait_until(lambda: job.status()["view"]["number"] == 2, run.process)
    assert job.worker(0) == other, "the survivor kept its process"
    job.wait_for_step(max(job.losses()) + 60, run.process)
    with serving(tmp_path, first.port, first.secret):
        run.finish()
        status = job.status()
        assert (status["phase"], status["restarts"], status["stepsLost"]) == ("Succeeded", 1, 0)
        assert steps(place)[0] == 6000
        assert list(job.losses()) == list(range(1, 6001))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["s3", "azblob"])
def test_keys_that_end_while_a_job_writes_stop_no_training_and_the_next_ones_are_taken(
    kind: str, tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a Secret of a pod does, as far as files go: nobody starts anything again."""
    job = Job(tmp_path / "job")
    with RenewableServer(kind, tmp_path) as server:
        secret = SecretFolder(tmp_path / "secret", server.environment)
        secret.lead(monkeypatch)
        place = f"{server.server.bucket('jobs')}/x"
        run = Run(job, f"checkpoint.path={place}", "training.maxSteps=60000", "checkpoint.everySteps=500")
        runs.append(run)
        wait_until(lambda: bool(steps(place)), run.process)
        workers = [job.worker(rank) for rank in (0, 1)]
        server.renew()
        said = run.wait_for_stale("True")
        assert said["reason"] == "CredentialsRefused"
        assert said["message"].partition("; the newest is of step ")[0].endswith(": renew the Secret bucket")
        job.wait_for_step(max(job.losses()) + 60, run.process)
        secret.put(server.environment)
        run.wait_for_stale("False")
        assert [job.worker(rank) for rank in (0, 1)] == workers
        os.kill(run.process.pid, signal.SIGTERM)
        run.process.wait(timeout=60)
        status = job.status()
        assert (status["restarts"], status["stepsLost"], status["view"]["number"]) == (0, 0, 1)
        assert steps(place)[0] == status["checkpoint"]["step"] >= max(job.losses()) - 500
        everything = json.dumps(status) + "".join(run.lines) + (job.output / ".lmj" / "status.json").read_text()
        keys = {value for name, value in server.environment.items() if name.endswith("KEY") and name != "AWS_ACCESS_KEY_ID"}
        assert keys
        assert not any(key in everything for key in keys)


def write_parquet(folder: Path, table: Path) -> Path:
    """The rows of ``table`` in two files, in row groups of 20."""
    rows = csv.read_csv(table)
    folder.mkdir()
    for name, part in (("a", rows.slice(0, 110)), ("b", rows.slice(110))):
        parquet.write_table(part, folder / f"{name}.parquet", row_group_size=20)
    return folder


@pytest.mark.slow
def test_rows_that_stay_in_a_bucket_train_as_those_of_a_folder(s3: S3Server, tmp_path: Path, runs: list[Run]) -> None:
    """To the same bits, while workers are killed; and nothing of them is kept."""
    model, held = small_model(tmp_path / "tiny-bert"), tmp_path / "held.csv"
    write_data(held, 16)
    plain = with_model(Job(tmp_path / "plain"), str(model))
    train = write_parquet(tmp_path / "train", plain.folder / "data.csv")
    rest = [
        "training.maxSteps=600",
        "dataset.splits.validationFraction=0",
        "dataset.splits.testFraction=0",
        "dataset.streaming.rowGroups=3",
        f"dataset.splits.validation={held}",
    ]
    done = plain.run(*with_sets(*rest, f"dataset.source={train}"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(plain.losses()) == 600

    job = with_model(Job(tmp_path / "job"), str(model))
    rows = put(s3.bucket("data"), train)
    run = Run(job, *rest, f"dataset.source={rows}")
    runs.append(run)
    for rank, view in ((0, 2), (1, 3)):
        job.wait_for_step(max(job.losses(), default=0) + 40, run.process)
        os.kill(job.worker(rank), signal.SIGKILL)
        wait_until(lambda view=view: job.status()["view"]["number"] >= view, run.process)  # type: ignore[misc]
    run.finish()
    assert job.losses() == plain.losses()
    (fetched,) = (job.output / "fetched").iterdir()
    assert [path.name for path in fetched.iterdir()] == ["index.json"]
    assert not list((job.output / "cache").glob("*/train.*"))
    card = (job.output / "model" / "README.md").read_text()
    assert "- Data: train, columns text" in card


@pytest.mark.slow
def test_rows_in_a_bucket_that_are_replaced_end_the_job_with_a_line(s3: S3Server, tmp_path: Path, runs: list[Run]) -> None:
    job = with_model(Job(tmp_path / "job"), str(small_model(tmp_path / "tiny-bert")))
    train = write_parquet(tmp_path / "train", job.folder / "data.csv")
    place = s3.bucket("data")
    rows = put(place, train)
    sets = ["dataset.splits.validationFraction=0", "dataset.splits.testFraction=0", "dataset.streaming.rowGroups=1"]
    run = Run(job, *sets, f"dataset.source={rows}", "training.maxSteps=100000")
    runs.append(run)
    job.wait_for_step(20, run.process)
    (open_place(place) / "train/a.parquet").put([(train / "b.parquet").read_bytes()])
    assert run.process.wait(timeout=120) != 0
    status = job.status()
    assert status["phase"] == "Failed"
    assert f"{rows}/a.parquet is not what the run began with: put that back" in status["message"]
    assert status["restarts"] == 0, "no restart can mend it"
