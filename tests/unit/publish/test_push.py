"""A model or an adapter on a hub, by the hub's own client: what is there, the card, and what is said when it is not taken."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket_fixture import s3, s3_of_session
from receiving_hub import TOKEN, ReceivingHub
from s3_server import S3Server
from tests.unit.trackers.run_folder import RunFolder

from lmj_trainer.store.registry import open_place
from lmj_trainer.trained import write_own

__all__ = ["s3", "s3_of_session"]

pytestmark = pytest.mark.integration

REAL = os.environ.get("LMJ_HUB_REPOSITORY")
"""``owner/name`` on the real hub that a test may write to, with ``HF_TOKEN``: then the same is asked of it."""
FOLDER_CARD = """---
library_name: transformers
pipeline_tag: text-classification
tags: [text-classification, livemigrationjob]
---

# tiny

A classifier.

| split | accuracy |
| --- | --- |
| test | 0.9 |

```python
from transformers import pipeline
```
"""


@pytest.fixture
def hub() -> Iterator[ReceivingHub]:
    with ReceivingHub().serving() as serving:
        yield serving


def run_of(folder: Path, hub: dict[str, Any] | None, **model: Any) -> RunFolder:
    run = RunFolder(folder, [], hub=hub, model=model or None)
    run.commit(1, 3)
    run.view(1, 0, "all are ready")
    run.view(2, 2, "rank 1 has a new worker | number 2")
    run.layout.model.mkdir()
    (run.layout.model / "config.json").write_text('{"model_type": "bert"}')
    (run.layout.model / "model.safetensors").write_bytes(b"weights" * 100)
    (run.layout.model / "README.md").write_text(FOLDER_CARD)
    run.layout.adapter.mkdir()
    (run.layout.adapter / "adapter_config.json").write_text("{}")
    (run.layout.adapter / "adapter_model.safetensors").write_bytes(b"adapter")
    return run


def push(
    hub: ReceivingHub, *arguments: str, token: str = TOKEN, patience: float = 1.0, command: str = "push"
) -> subprocess.CompletedProcess[str]:
    script = (
        "import sys; import lmj_trainer.publish.push as p; import lmj_trainer.__main__ as m;"
        f" p.PATIENCE_SECONDS = {patience}; sys.exit(m.main(sys.argv[1:]))"
    )
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    environment = {
        **kept,
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": token,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    return subprocess.run(
        [sys.executable, "-c", script, command, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=environment,
    )


def test_a_model_is_pushed_in_one_commit_with_its_card(hub: ReceivingHub, tmp_path: Path) -> None:
    run = run_of(tmp_path / "out", {"repository": "me/tiny"})
    done = push(hub, str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    there = hub.repositories["me/tiny"]
    assert there.private
    (files,) = there.commits
    assert there.messages == ["Model of the job tiny"]
    assert set(files) == {"config.json", "model.safetensors", "README.md"}
    assert files["model.safetensors"] == b"weights" * 100
    card = files["README.md"].decode()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| test | 0.9 |" in card
    assert f"Run {run.run.id} of the job tiny" in card
    assert "| 2 | rank 1 has a new worker / number 2 |" in card
    assert "all are ready" not in card
    assert re.fullmatch(rf"{hub.endpoint}/me/tiny \(commit [0-9a-f]{{40}}\)\n", done.stdout)
    # Again: nothing is sent twice.
    hub.asked.clear()
    assert push(hub, str(tmp_path / "out")).returncode == 0
    assert not [asked for asked in hub.asked if asked.startswith("PUT")]


def test_a_model_in_a_bucket_is_pushed_from_there(hub: ReceivingHub, s3: S3Server, tmp_path: Path) -> None:
    run = run_of(tmp_path / "out", {"repository": "me/tiny"})
    place = f"{s3.bucket('pushed')}/{tmp_path.name}"
    files = [run.layout.trained, run.layout.metrics, *run.layout.model.iterdir()]
    for path in files:
        (open_place(place) / str(path.relative_to(run.layout.output))).put([path.read_bytes()])
    shutil.rmtree(run.layout.output)
    done = push(hub, place)
    assert done.returncode == 0, done.stdout + done.stderr
    (there,) = hub.repositories["me/tiny"].commits
    assert there["model.safetensors"] == b"weights" * 100
    assert "| test | 0.9 |" in there["README.md"].decode()
    nothing = push(hub, f"{place}-other")
    assert (nothing.returncode, nothing.stderr) == (2, f"error: {place}-other: no run's results are here\n")


def test_an_adapter_is_pushed_alone(hub: ReceivingHub, tmp_path: Path) -> None:
    run_of(tmp_path / "out", {"repository": "me/adapter", "private": False, "content": "Adapter"}, lora={"r": 2})
    done = push(hub, str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    there = hub.repositories["me/adapter"]
    assert not there.private
    assert set(there.commits[0]) == {"adapter_config.json", "adapter_model.safetensors", "README.md"}
    assert "library_name: peft" in there.commits[0]["README.md"].decode()


def test_a_model_of_a_class_of_one_s_own_is_pushed_with_its_file(hub: ReceivingHub, tmp_path: Path) -> None:
    run = run_of(tmp_path / "out", {"repository": "me/own"})
    (run.layout.model / "config.json").unlink()
    file = tmp_path / "my_task.py"
    file.write_text("class MyTask: ...")
    write_own(run.layout.model, str(file), "MyTask")
    shutil.copy(file, run.layout.model)
    done = push(hub, str(tmp_path / "out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(hub.repositories["me/own"].commits[0]) == {"lmj.json", "model.safetensors", "my_task.py", "README.md"}
    (run.layout.model / "lmj.json").unlink()
    assert "there is no model here, so there is nothing to push" in push(hub, str(tmp_path / "out")).stderr


def test_another_repository_may_be_named(hub: ReceivingHub, tmp_path: Path) -> None:
    run_of(tmp_path / "out", None)
    unsaid = push(hub, str(tmp_path / "out"))
    assert (unsaid.returncode, unsaid.stderr) == (
        2,
        "error: the run's job has no output.hub: say where to, with --repository OWNER/NAME\n",
    )
    assert push(hub, str(tmp_path / "out"), "--repository", "me/other").returncode == 0
    assert "me/other" in hub.repositories
    wrong = push(hub, str(tmp_path / "out"), "--repository", "a/b/c")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: --repository a/b/c: ")


def test_a_token_that_may_not_write_is_told_in_a_line_without_it(hub: ReceivingHub, tmp_path: Path) -> None:
    run_of(tmp_path / "out", {"repository": "me/tiny"})
    refused = push(hub, str(tmp_path / "out"), token="hf_wrongOne")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: me/tiny: the hub answers 401: ")
    assert refused.stderr.endswith("; give a token that may write there, as output.hub.token or HF_TOKEN\n")
    assert refused.stderr.count("\n") == 1
    assert "hf_wrongOne" not in refused.stdout + refused.stderr


def test_a_hub_that_fails_for_a_moment_is_asked_again_and_one_that_fails_on_is_an_outage(
    hub: ReceivingHub, tmp_path: Path
) -> None:
    run_of(tmp_path / "out", {"repository": "me/tiny"})
    hub.answers = [503]
    done = push(hub, str(tmp_path / "out"), patience=30.0)
    assert done.returncode == 0, done.stdout + done.stderr
    hub.always = 500
    failed = push(hub, str(tmp_path / "out"))
    assert failed.returncode == 1
    assert "error: me/tiny: the hub cannot be reached, or does not take it: " in failed.stderr
    assert failed.stderr.endswith("; try again later\n")


def test_what_is_on_a_cluster_is_told_how_to_push(hub: ReceivingHub, tmp_path: Path) -> None:
    for arguments in (("tiny", "-n", "team"), ("nowhere",)):
        told = push(hub, *arguments)
        assert told.returncode == 2
        assert "a job on a cluster keeps its model on its output volume" in told.stderr
    (tmp_path / "out").mkdir()
    assert "no run's results are here" in push(hub, str(tmp_path / "out")).stderr


@pytest.mark.parametrize(("status", "told"), [(None, "url"), (403, "problem")])
def test_an_agent_is_told_in_a_line_what_came_of_it(hub: ReceivingHub, tmp_path: Path, status: int | None, told: str) -> None:
    run = run_of(tmp_path / "out", {"repository": "me/tiny"})
    hub.always = status
    (tmp_path / "job.json").write_text(run.job.to_json())
    done = push(hub, "--job", str(tmp_path / "job.json"), command="publish")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert told in said
    assert ("problem" in said) == (told == "problem")


if REAL:

    def test_the_real_hub_takes_it_too(tmp_path: Path) -> None:
        """As the first test, of the hub itself."""
        run_of(tmp_path / "out", {"repository": REAL})
        command = [sys.executable, "-m", "lmj_trainer", "push", str(tmp_path / "out")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        from huggingface_hub import HfApi

        found = HfApi().list_repo_files(REAL or "", revision=re.findall(r"commit ([0-9a-f]{40})", done.stdout)[0])
        assert {"config.json", "model.safetensors", "README.md"} <= set(found)
