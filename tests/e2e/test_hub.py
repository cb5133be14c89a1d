"""A job whose model is a hub's, and a hub that is not there any more: the run goes on with what it has."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hub import Hub
from jobs import DEADLINE, Job, wait_until
from parity_jobs import make_model

pytestmark = pytest.mark.e2e

MODEL = "someone/tiny"
PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """It answers meanwhile; runs ask it, and their cache of it is ``tmp_path / home``."""
    made = Hub()
    made.publish(MODEL, make_model(tmp_path / "first", "bert", layers=2))
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with made.serving():
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        yield made


def job_of(folder: Path, steps: int) -> Job:
    job = Job(folder)
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["model"] = {"source": MODEL, "labels": ["negative", "positive"]}
    document["spec"]["training"]["maxSteps"] = steps
    job.file.write_text(yaml.safe_dump(document))
    return job


@pytest.mark.slow
def test_a_run_goes_on_without_the_hub(hub: Hub, tmp_path: Path) -> None:
    undisturbed = job_of(tmp_path / "undisturbed", 120)
    done = undisturbed.run()
    assert done.returncode == 0, done.stdout + done.stderr

    job = job_of(tmp_path / "job", 120)
    process = job.start()
    job.wait_for_step(20, process)
    # From here on whoever asks the hub is told to come later, its cache is another machine's, and its branch has moved.
    hub.publish(MODEL, make_model(tmp_path / "second", "bert", layers=2, seed=9))
    hub.always = 429
    hub.asked.clear()
    shutil.rmtree(tmp_path / "home")
    os.kill(job.worker(1), signal.SIGKILL)
    wait_until(lambda: job.status()["view"]["number"] == 2, process)
    job.wait_for_step(max(job.losses()) + 5, process)
    process.terminate()
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 130, out + err

    resumed = job.run()
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert hub.asked == [], "nobody asked"
    assert job.losses() == undisturbed.losses()
    assert (job.output / "model" / "model.safetensors").read_bytes() == (
        undisturbed.output / "model" / "model.safetensors"
    ).read_bytes()


def test_ranks_that_start_together_fetch_once(hub: Hub, tmp_path: Path) -> None:
    job = job_of(tmp_path / "job", 20)
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert hub.sent.count("model.safetensors") == 1
    assert [path.name for path in (job.output / "pretrained").iterdir()] == ["someone--tiny"]


def test_a_model_that_is_not_there_is_the_user_s_mistake(hub: Hub, tmp_path: Path) -> None:
    job = job_of(tmp_path / "job", 20)
    missing = job.run("--set", "model.source=someone/else")
    assert missing.returncode == 2, missing.stdout + missing.stderr
    assert "no model someone/else: there is no such file or folder, and the hub says: " in missing.stderr
    assert not (job.output / "pretrained").exists()
