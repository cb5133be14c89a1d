"""A trained model on a hub: pushed when the job ends, and a hub that refuses it, which fails no job."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jobs import Job
from receiving_hub import TOKEN, ReceivingHub

pytestmark = pytest.mark.e2e

PROXIES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HF_HUB_OFFLINE")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReceivingHub]:
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    with ReceivingHub().serving() as serving:
        monkeypatch.setenv("HF_ENDPOINT", serving.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield serving


def job_of(folder: Path) -> Job:
    job = Job(folder)
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["training"]["maxSteps"] = 20
    document["spec"]["output"]["hub"] = {"repository": "me/tiny"}
    job.file.write_text(yaml.safe_dump(document))
    return job


def published(job: Job) -> dict[str, Any]:
    (found,) = [c for c in job.status()["conditions"] if c["type"] == "Published"]
    return dict(found)


def test_the_model_is_on_the_hub_when_the_job_has_succeeded(hub: ReceivingHub, tmp_path: Path) -> None:
    job = job_of(tmp_path / "job")
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert (published(job)["status"], published(job)["reason"]) == ("True", "Pushed")
    assert f"hub: {hub.endpoint}/me/tiny, commit " in done.stdout
    (files,) = hub.repositories["me/tiny"].commits
    saved = {path.name: path.read_bytes() for path in (job.output / "model").iterdir() if path.name != "README.md"}
    assert {name: content for name, content in files.items() if name != "README.md"} == saved
    assert b"None: the group that trained it never changed" in files["README.md"]


def test_a_hub_that_refuses_it_is_a_condition_and_it_can_be_pushed_again(hub: ReceivingHub, tmp_path: Path) -> None:
    job = job_of(tmp_path / "job")
    hub.always = 403
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert job.status()["phase"] == "Succeeded"
    assert (published(job)["status"], published(job)["reason"]) == ("False", "PushFailed")
    assert "the hub answers 403" in published(job)["message"]
    assert f"lmj push {job.output}" in published(job)["message"]
    hub.always = None
    command = [sys.executable, "-m", "lmj_operator.cli.main", "push", str(job.output)]
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=dict(os.environ))
    assert again.returncode == 0, again.stdout + again.stderr
    assert set(hub.repositories) == {"me/tiny"}
