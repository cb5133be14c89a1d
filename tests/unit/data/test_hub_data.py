"""A dataset of the hub: a branch that moves changes no run, and what one process fetched is not fetched again."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub import Hub

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.data.source import DataSource
from lmj_trainer.dataset import prepared
from lmj_trainer.dataset.pin import Pin

pytestmark = pytest.mark.integration

DATA = "someone/reviews"
REPOSITORY = f"datasets/{DATA}"
PROGRAM = """
import json, sys
sys.modules["torch"] = None
from lmj_api.spec import LiveMigrationJob
from lmj_trainer.data.tokens import load_tokenizer
from lmj_trainer.dataset.prepared import prepare_patiently
from lmj_trainer.errors import OutageError, UserError
try:
    spec = LiveMigrationJob.model_validate_json(sys.argv[1]).spec
    made = prepare_patiently(spec, lambda line: print("say:", line, flush=True))
    tokenizer = load_tokenizer(str(made.tokenizer))
    train = made.splits["train"]
    print("rows:", len(train), tokenizer.decode(train.row(3)[0], skip_special_tokens=True), made.digest)
except (UserError, OutageError) as error:
    print(type(error).__name__ + ":", error)
"""


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


def start(hub: Hub, folder: Path, **dataset: Any) -> "subprocess.Popen[str]":
    """A process that prepares the job's data in ``folder / out``; the hub's own cache is empty in each."""
    home = folder / f"home-{time.monotonic_ns()}"
    command = [sys.executable, "-c", PROGRAM, json.dumps(job(folder, **dataset))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(hub, home))


def told(process: "subprocess.Popen[str]") -> list[str]:
    out, err = process.communicate(timeout=120)
    assert out, err
    return out.splitlines()


def prepare(hub: Hub, folder: Path, **dataset: Any) -> list[str]:
    return told(start(hub, folder, **dataset))


def rows(said: list[str]) -> str:
    """What the last line says of the rows, without the digest."""
    assert said[-1].startswith("rows: "), said
    return said[-1].rpartition(" ")[0]


def pin(folder: Path) -> Path:
    return folder / "out" / "pretrained" / "dataset=someone--reviews" / "lmj-origin.json"


GREAT, AWFUL = "rows: 40 great number 3", "rows: 40 awful number 3"


def test_a_branch_that_has_moved_gives_the_same_rows(hub: Hub, tmp_path: Path) -> None:
    commit, cache = hub.branches[REPOSITORY], tmp_path / "out" / "cache"
    first = prepare(hub, tmp_path)
    assert first[0] == f"say: reading {DATA} at commit {commit}"
    assert rows(first) == GREAT
    assert json.loads(pin(tmp_path).read_text()) == {"source": DATA, "revision": None, "commit": commit}
    publish(hub, tmp_path / "second", "awful")

    hub.asked.clear()
    assert prepare(hub, tmp_path) == first[-1:], "what is prepared is asked for no more"
    assert hub.asked == []
    shutil.rmtree(cache)
    assert prepare(hub, tmp_path)[-1] == first[-1], "to the digest"
    assert not [path for path in hub.asked if "/main/" in path], "it is asked for a commit"
    assert rows(prepare(hub, tmp_path, maxLength=15)) == GREAT, "with another digest"
    assert prepare(hub, tmp_path, maxLength=15)[-1] != first[-1]

    assert rows(prepare(hub, tmp_path / "other")) == AWFUL, "another run"
    assert rows(prepare(hub, tmp_path, revision=hub.branches[REPOSITORY])) == AWFUL, "another dataset"
    assert [path.name for path in (tmp_path / "out" / "pretrained").iterdir()] == ["dataset=someone--reviews"]


def test_a_check_looks_at_the_rows_of_the_run(hub: Hub, tmp_path: Path) -> None:
    prepare(hub, tmp_path)
    shutil.rmtree(tmp_path / "out" / "cache")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "train.csv").write_text("other,columns\na,b\n")
    hub.publish(REPOSITORY, tmp_path / "second")
    test_it_is_checked_without_torch(hub, tmp_path)


def test_a_folder_of_an_earlier_version_goes_on_and_is_pinned_when_data_is_prepared(hub: Hub, tmp_path: Path) -> None:
    said = prepare(hub, tmp_path)
    [folder] = (tmp_path / "out" / "cache").iterdir()
    shutil.rmtree(tmp_path / "out" / "pretrained")
    meta = json.loads((folder / "meta.json").read_text())
    assert meta.pop("commit") == hub.branches[REPOSITORY]
    (folder / "meta.json").write_text(json.dumps(meta))
    second = publish(hub, tmp_path / "second", "awful")

    hub.asked.clear()
    assert prepare(hub, tmp_path) == said[-1:], "as before"
    assert (hub.asked, pin(tmp_path).exists()) == ([], False), "nobody knows what it is of"
    shutil.rmtree(folder)
    assert rows(prepare(hub, tmp_path)) == AWFUL
    assert json.loads(pin(tmp_path).read_text())["commit"] == second


def test_a_run_that_begins_anew_with_prepared_rows_is_pinned_to_theirs(hub: Hub, tmp_path: Path) -> None:
    prepare(hub, tmp_path)
    commit = hub.branches[REPOSITORY]
    shutil.move(tmp_path / "out" / "pretrained", tmp_path / "aside")
    publish(hub, tmp_path / "second", "awful")
    prepare(hub, tmp_path)
    assert json.loads(pin(tmp_path).read_text())["commit"] == commit


def test_rows_that_nobody_can_be_trained_on_pin_nothing(hub: Hub, tmp_path: Path) -> None:
    assert "has no column 'text2'" in prepare(hub, tmp_path, text=["text2"])[-1]
    assert not pin(tmp_path).exists()
    publish(hub, tmp_path / "second", "awful")
    assert rows(prepare(hub, tmp_path)) == AWFUL


def test_a_commit_that_the_hub_does_not_give_is_not_another(hub: Hub, tmp_path: Path) -> None:
    """``datasets`` goes on with whatever its cache has."""
    home = tmp_path / "home"
    prepare(hub, tmp_path)
    shutil.rmtree(tmp_path / "out" / "cache")
    commit = hub.branches[REPOSITORY]
    publish(hub, tmp_path / "second", "awful")
    warm = [sys.executable, "-c", PROGRAM, json.dumps(job(tmp_path / "other"))]
    asked = [sys.executable, "-c", PROGRAM, json.dumps(job(tmp_path))]
    done = subprocess.run(warm, capture_output=True, text=True, timeout=120, env=environment(hub, home))
    assert AWFUL in done.stdout, done.stderr
    folder = hub.commits[REPOSITORY].pop(commit)
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, env=environment(hub, home))
    assert f"UserError: no dataset {DATA}, revision {commit}: there is no such file or folder, and the hub says: " in done.stdout
    offline = environment(hub, home) | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, env=offline)
    assert "the hub cannot be reached, and it is not in the hub's cache" in done.stdout, done.stdout + done.stderr
    hub.commits[REPOSITORY][commit] = folder
    assert rows(prepare(hub, tmp_path)) == GREAT


def test_what_the_hub_s_cache_has_is_pinned_where_nobody_answers(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    warm = [sys.executable, "-c", PROGRAM, json.dumps(job(tmp_path / "other"))]
    subprocess.run(warm, capture_output=True, timeout=120, env=environment(hub, home), check=True)
    offline = environment(hub, home) | {"HF_HUB_OFFLINE": "1"}
    asked = [sys.executable, "-c", PROGRAM, json.dumps(job(tmp_path))]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=120, env=offline)
    assert GREAT in done.stdout, done.stderr
    assert json.loads(pin(tmp_path).read_text())["commit"] == hub.branches[REPOSITORY]


def test_a_pin_that_cannot_be_read_is_one_line(hub: Hub, tmp_path: Path) -> None:
    pin(tmp_path).parent.mkdir(parents=True)
    for content in ("{", "[]", '{"commit": "main"}'):
        pin(tmp_path).write_text(content)
        [line] = prepare(hub, tmp_path)
        assert line.startswith(f"UserError: {pin(tmp_path)} "), line
    assert hub.asked == []


def test_of_two_ranks_that_found_different_commits_the_slower_takes_the_other_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = LiveMigrationJob.model_validate(job(tmp_path)).spec
    pin, first, second, site = Pin.of(spec), "1" * 40, "2" * 40, tmp_path / "site"
    assert pin is not None
    site.mkdir()
    built: list[str | None] = []

    def build(spec: Any, site: Path, say: Any) -> None:
        if not built:
            assert pin.keep(second) == second, "while this one builds"
        built.append(spec.dataset.revision)
        (site / f"rows-{len(built)}").mkdir()

    monkeypatch.setattr(prepared, "_build", build)
    monkeypatch.setattr(DataSource, "commit", lambda self: first)
    prepared._build_at(spec, site, lambda line: None, pin)
    assert (built, pin.commit()) == ([first, second], second)
    assert [path.name for path in site.iterdir()] == ["rows-2"], "of the other nothing is left"


def test_a_pin_that_has_no_room_ends_no_job(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "pretrained").write_text("a file, where a folder should be")
    said = prepare(hub, tmp_path)
    commit = hub.branches[REPOSITORY]
    [warning] = [line for line in said if "warning" in line]
    assert warning.startswith(
        f"say: warning: the commit {commit} of {DATA} cannot be kept in {tmp_path / 'out' / 'pretrained'}: "
    )
    assert rows(said) == GREAT
    (tmp_path / "out" / "pretrained").unlink()
    prepare(hub, tmp_path)
    assert json.loads(pin(tmp_path).read_text())["commit"] == commit, "a later start keeps it"


@pytest.mark.parametrize(
    "dataset",
    [{"revision": "a" * 40}, {"splits": {"train": "/t.csv", "validation": "/v.csv"}}, {"source": "FOLDER"}],
)
def test_what_no_branch_can_change_has_no_pin(tmp_path: Path, dataset: dict[str, Any]) -> None:
    dataset = {name: str(tmp_path) if value == "FOLDER" else value for name, value in dataset.items()}
    assert Pin.of(LiveMigrationJob.model_validate(job(tmp_path, **dataset)).spec) is None


def half_sent(hub: Hub) -> None:
    """Waits until the hub has sent half of the rows to somebody."""
    until = time.monotonic() + 100
    while "train.csv" not in hub.sent:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_ranks_that_prepare_at_once_read_the_hub_once(hub: Hub, tmp_path: Path) -> None:
    hub.slow = threading.Event()
    first = start(hub, tmp_path)
    half_sent(hub)
    second = start(hub, tmp_path)
    assert second.stdout is not None
    line = second.stdout.readline()
    assert line.startswith(f"say: waits for the dataset {DATA}: process {first.pid} on ")
    hub.slow.set()
    said = told(first), told(second)
    assert [rows(lines) for lines in said] == [GREAT] * 2
    assert hub.sent.count("train.csv") == 1
    assert len(list((tmp_path / "out" / "cache").iterdir())) == 1, "nothing else is left"


def test_when_who_prepares_is_killed_another_does_and_the_rows_are_whole(hub: Hub, tmp_path: Path) -> None:
    hub.slow = threading.Event()
    first = start(hub, tmp_path)
    half_sent(hub)
    second = start(hub, tmp_path)
    assert second.stdout is not None
    assert "waits for" in second.stdout.readline()
    first.kill()
    first.communicate(timeout=60)
    hub.slow.set()
    said = told(second)
    assert [line for line in said if line.endswith(f"is gone: takes over the dataset {DATA}")], said
    assert rows(said) == GREAT


def test_rows_that_arrive_torn_are_none(hub: Hub, tmp_path: Path) -> None:
    hub.torn = True
    document = job(tmp_path)
    document["spec"]["recovery"]["startTimeoutSeconds"] = 3
    asked = [sys.executable, "-c", PROGRAM, json.dumps(document)]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=200, env=environment(hub, tmp_path / "home"))
    assert f"OutageError: no dataset {DATA}" in done.stdout, done.stdout + done.stderr
    assert not list((tmp_path / "out").rglob("*.npy"))
    assert not pin(tmp_path).exists()
    hub.torn = False
    assert rows(prepare(hub, tmp_path)) == GREAT
