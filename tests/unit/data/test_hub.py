"""A hub that moves, is slow, refuses or is gone: what a job has of it stays, and an outage is nobody's mistake."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub import Hub

from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.fetching import amount
from lmj_trainer.hub import patiently

pytestmark = pytest.mark.integration

MODEL = "someone/tiny"
PROGRAM = """
import json, sys
sys.modules["torch"] = None
from lmj_api.spec import JobSpec
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.pretrained import keep
try:
    kept = keep(JobSpec.model_validate_json(sys.argv[1]), lambda line: print("say:", line, flush=True))
    print("kept:", kept.model.source, kept.model.revision)
except (UserError, OutageError) as error:
    print(type(error).__name__ + ":", error)
"""
FULL = """
import errno, os, shutil
copy, room = shutil.copyfile, [1]
def copyfile(source, target):
    if room.pop() == 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
    room.append(0)
    return copy(source, target)
shutil.copyfile = copyfile
"""
ELSEWHERE = """
from lmj_trainer import lease
lease._here, lease.RENEW_SECONDS, lease.EXPIRE_SECONDS = lambda: None, 0.5, 3.0
"""
"""As on a machine from which nobody can look at the others' processes."""
AGAIN = """
from lmj_trainer.pretrained import kept
print("later:", kept(JobSpec.model_validate_json(sys.argv[1])).model.source)
"""


def model(folder: Path, layers: int = 1, kind: str = "bert") -> Path:
    folder.mkdir()
    config = {"model_type": kind, "num_hidden_layers": layers, "hidden_size": 8, "num_attention_heads": 2, "vocab_size": 9}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n")
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * layers)
    (folder / "pytorch_model.bin").write_bytes(b"pickled")
    return folder


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    made = Hub()
    made.publish(MODEL, model(tmp_path / "first"))
    with made.serving():
        yield made


def start(hub: Hub, folder: Path, seconds: float = 60.0, program: str = PROGRAM, **changes: Any) -> "subprocess.Popen[str]":
    """A process that keeps the hub's model in the output folder ``folder / out``; the hub's own cache is empty in each."""
    spec = {
        "model": {"source": MODEL, **changes},
        "dataset": {"source": "/d.csv", "text": ["text"], "label": "label"},
        "recovery": {"startTimeoutSeconds": seconds / 0.8},
        "output": {"path": str(folder / "out")},
    }
    home = folder / f"home-{time.monotonic_ns()}"
    environment = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
    environment |= {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    command = [sys.executable, "-c", program, json.dumps(spec)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def told(process: "subprocess.Popen[str]") -> list[str]:
    out, err = process.communicate(timeout=120)
    assert out, err
    return out.splitlines()


def keep(hub: Hub, folder: Path, seconds: float = 60.0, **changes: Any) -> list[str]:
    return told(start(hub, folder, seconds, **changes))


@pytest.mark.parametrize("trouble", ["full", "no folder"])
def test_a_folder_that_has_no_room_ends_no_job(hub: Hub, tmp_path: Path, trouble: str) -> None:
    """It goes on with what the hub's client has on this machine, and a later start keeps the model."""
    commit, out = hub.branches[MODEL], tmp_path / "out"
    out.mkdir()
    if trouble == "no folder":
        (out / "pretrained").write_text("a file, where a folder should be")
    said = told(start(hub, tmp_path, program=(FULL if trouble == "full" else "") + PROGRAM + AGAIN))
    assert said[0] == f"say: fetching {MODEL} at commit {commit}"
    assert said[1].startswith(f"say: warning: the model {MODEL} cannot be kept in {out / 'pretrained'}: ")
    cache = Path(said[2].removeprefix("kept: ").removesuffix(" None"))
    assert (cache.name, said[3]) == (commit, f"later: {cache}"), "the first weights are read from there"
    assert (cache / "model.safetensors").read_bytes() == (tmp_path / "first" / "model.safetensors").read_bytes()
    if trouble == "no folder":
        (out / "pretrained").unlink()
    else:
        assert list((out / "pretrained").iterdir()) == [], "room is what was lacking"
    assert keep(hub, tmp_path)[-1] == f"kept: {out}/pretrained/someone--tiny None"


def test_a_copy_whose_process_died_goes_when_it_is_old(hub: Hub, tmp_path: Path) -> None:
    pretrained = tmp_path / "out" / "pretrained"
    old, new = pretrained / ".fetching-old", pretrained / ".fetching-new"
    for _ in range(2):  # the second time the model is there
        for site in (old, new):
            site.mkdir(parents=True, exist_ok=True)
            (site / "model.safetensors").write_text("half")
        os.utime(old, (0, 0))
        keep(hub, tmp_path)
        assert sorted(path.name for path in pretrained.iterdir()) == [new.name, "someone--tiny"], "another rank may be at work"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_was_fetched_once_is_asked_for_no_more(hub: Hub, tmp_path: Path) -> None:
    commit = hub.branches[MODEL]
    folder = tmp_path / "out" / "pretrained" / "someone--tiny"
    assert keep(hub, tmp_path) == [f"say: fetching {MODEL} at commit {commit}", f"kept: {folder} None"]
    kept = content(folder)
    assert set(kept) == {"config.json", "tokenizer_config.json", "vocab.txt", "model.safetensors", "lmj-origin.json"}
    assert json.loads(kept["lmj-origin.json"]) == {"source": MODEL, "revision": None, "commit": commit}
    assert kept["model.safetensors"] == (tmp_path / "first" / "model.safetensors").read_bytes()
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name], "nothing half-made is left"

    hub.asked.clear()
    hub.publish(MODEL, model(tmp_path / "second", layers=2))  # the branch moves
    assert keep(hub, tmp_path) == [f"kept: {folder} None"]
    hub.always = 429
    assert keep(hub, tmp_path) == [f"kept: {folder} None"]
    assert (hub.asked, content(folder)) == ([], kept)


def test_it_is_kept_at_the_commit_that_the_branch_had(hub: Hub, tmp_path: Path) -> None:
    first = hub.branches[MODEL]
    hub.publish(MODEL, model(tmp_path / "second", layers=2))
    folder = tmp_path / "out" / "pretrained"
    assert keep(hub, tmp_path, revision=first)[-1] == f"kept: {folder}/someone--tiny@{first} None"
    assert json.loads((folder / f"someone--tiny@{first}" / "config.json").read_text())["num_hidden_layers"] == 1
    assert keep(hub, tmp_path)[-1] == f"kept: {folder}/someone--tiny None"
    assert json.loads((folder / "someone--tiny" / "config.json").read_text())["num_hidden_layers"] == 2


def test_ranks_that_fetch_at_once_have_one_folder(hub: Hub, tmp_path: Path) -> None:
    ranks = [start(hub, tmp_path) for _ in range(2)]
    folder = tmp_path / "out" / "pretrained"
    assert [told(rank)[-1] for rank in ranks] == [f"kept: {folder}/someone--tiny None"] * 2
    assert [path.name for path in folder.iterdir()] == ["someone--tiny"]
    assert sorted(hub.sent) == ["config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"], "each once"


def half_sent(hub: Hub, file: str) -> None:
    """Waits until the hub has sent half of ``file`` to somebody."""
    until = time.monotonic() + 100
    while file not in hub.sent:
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("told_apart", [True, False], ids=["same machine", "another machine"])
def test_when_who_fetches_is_killed_another_does(hub: Hub, tmp_path: Path, told_apart: bool) -> None:
    folder = tmp_path / "out" / "pretrained"
    hub.slow = threading.Event()
    program = PROGRAM if told_apart else ELSEWHERE + PROGRAM
    first = start(hub, tmp_path, program=program)
    half_sent(hub, "model.safetensors")
    second = start(hub, tmp_path, program=program)
    assert second.stdout is not None
    waits = second.stdout.readline()
    assert waits.startswith(f"say: waits for the model {MODEL}: process {first.pid} on ")
    assert not (folder / "someone--tiny").exists(), "half of it is not it"

    first.kill()
    first.communicate(timeout=60)
    hub.sent.clear()
    hub.slow.set()
    said = told(second)
    assert said[-1] == f"kept: {folder}/someone--tiny None"
    why = "is gone" if told_apart else "has not been heard of for 3 s"
    assert [line for line in said if line.endswith(f"{why}: takes over the model {MODEL}")], said
    kept = content(folder / "someone--tiny")
    for name in ("model.safetensors", "config.json", "vocab.txt"):
        assert kept[name] == (tmp_path / "first" / name).read_bytes()
    assert hub.sent.count("model.safetensors") == 1
    assert [path.name for path in folder.iterdir()] == ["someone--tiny"]


def test_a_model_that_arrives_torn_is_none(hub: Hub, tmp_path: Path) -> None:
    hub.torn = True
    said = keep(hub, tmp_path, seconds=2.0)
    assert said[-1].startswith(f"OutageError: no model {MODEL} of revision "), said
    assert "the hub cannot be reached: peer closed connection" in said[-1]
    assert hub.sent.count("model.safetensors") > 1, "it is tried again"
    assert list((tmp_path / "out" / "pretrained").iterdir()) == []
    hub.torn = False
    assert keep(hub, tmp_path)[-1] == f"kept: {tmp_path}/out/pretrained/someone--tiny None"
    kept = content(tmp_path / "out" / "pretrained" / "someone--tiny")
    assert kept["model.safetensors"] == (tmp_path / "first" / "model.safetensors").read_bytes()


def test_it_is_told_how_many_bytes_there_are_of_how_many(hub: Hub, tmp_path: Path) -> None:
    large = model(tmp_path / "large")
    with (large / "model.safetensors").open("wb") as file:
        file.truncate(30_000_000)
    commit = hub.publish(MODEL, large)
    hub.slow = threading.Event()
    ranks = [start(hub, tmp_path)]
    half_sent(hub, "model.safetensors")
    ranks.append(start(hub, tmp_path))
    for rank in ranks:
        assert rank.stdout is not None
    fetching = f"fetching {MODEL} at commit {commit}"
    first, second = (iter(rank.stdout.readline, "") for rank in ranks if rank.stdout is not None)
    # The client counts in pieces of 10 MiB, of which half of the file has one.
    assert f"say: {fetching}: 10.5 of 30.0 MB\n" == next(line for line in first if " 10." in line)
    line = next(line for line in second if " 10." in line)
    assert line.startswith(f"say: waits for the model {MODEL}: process {ranks[0].pid} on ")
    assert line.endswith(f" s ({fetching}: 10.5 of 30.0 MB)\n")
    hub.slow.set()
    assert [told(rank)[-1].startswith("kept: ") for rank in ranks] == [True, True]


@pytest.mark.parametrize(
    ("some", "all_", "said"),
    [(0, 0, "0.0 MB"), (5e5, 2.5e6, "0.5 of 2.5 MB"), (1e8, 4.4e9, "0.1 of 4.4 GB"), (3e6, 1e6, "3.0 MB"), (2e9, 0, "2.0 GB")],
)
def test_amounts_have_a_unit(some: float, all_: float, said: str) -> None:
    assert amount(some, all_) == said


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_the_hub_does_not_have_for_us_is_a_user_s_mistake(hub: Hub, tmp_path: Path, status: int) -> None:
    hub.always = status
    [line] = keep(hub, tmp_path)
    assert line.startswith(f"UserError: no model {MODEL}: there is no such file or folder, and the hub says: ")
    assert not list((tmp_path / "out").rglob("*.safetensors"))


def test_a_model_of_a_type_that_nobody_knows_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    hub.publish(MODEL, model(tmp_path / "second", kind="t6"))
    [line] = keep(hub, tmp_path)
    assert "is of type 't6'" in line
    assert not [path for path in hub.asked if path.endswith(".safetensors")]


@pytest.mark.parametrize(("status", "seconds"), [(429, 1), (500, 1), (503, 7)])
def test_a_hub_that_has_no_time_is_asked_again_when_it_wishes(hub: Hub, tmp_path: Path, status: int, seconds: int) -> None:
    hub.answers = [(status, {"Retry-After": str(seconds)})]
    said = keep(hub, tmp_path)
    assert said[0].startswith(f"say: no model {MODEL}: the hub answers {status}")
    assert f"; tries again in {seconds} s" in said[0]
    assert "; tries again in 2 s" in said[1] or seconds < 7, "a word every five seconds"
    assert said[-1].startswith("kept: ")


def test_a_hub_that_is_gone_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    other = Hub(commits=hub.commits, branches=hub.branches)
    with other.serving():
        pass  # a port where nobody listens now
    process = start(other, tmp_path)
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first.startswith(f"say: no model {MODEL}: ")
    assert "the hub cannot be reached" in first
    assert "tries again in" in first
    with other.serving():
        assert told(process)[-1].startswith("kept: ")


def test_the_patience_has_an_end_that_is_no_user_s_mistake(hub: Hub, tmp_path: Path) -> None:
    hub.always = 503
    said = keep(hub, tmp_path, seconds=3.0)
    assert said[-1].startswith(f"OutageError: no model {MODEL}: the hub answers 503")
    assert any("tries again in" in line for line in said)


class Clock:
    """A clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.tried: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, outages: list[OutageError], seconds: float) -> list[str]:
        said: list[str] = []

        def ask() -> str:
            self.tried.append(round(self.now, 3))
            if outages:
                raise outages.pop(0)
            return "there"

        assert patiently(ask, seconds, said.append, lambda: self.now, self.sleep) == "there"
        return said


def test_it_is_asked_less_and_less_often() -> None:
    clock = Clock()
    said = clock.wait([OutageError("gone") for _ in range(8)], 600)
    assert clock.tried == [0, 1, 3, 7, 15, 31, 61, 91, 121]
    assert said[0] == "gone; tries again in 1 s, for 600 s more"
    assert len(said) == 1 + 1 + 1 + 2 + 4 + 6 + 6 + 6, "a word every five seconds"


def test_it_is_asked_when_it_wishes_and_for_no_longer_than_agreed() -> None:
    clock = Clock()
    clock.wait([OutageError("busy", 40.0), OutageError("busy", 0.0)], 600)
    assert clock.tried == [0, 40, 42]
    clock = Clock()
    with pytest.raises(OutageError, match="last"):
        clock.wait([OutageError("busy", 9999.0), OutageError("last")], 50)
    assert clock.tried == [0, 50]
    clock = Clock()

    def wrong() -> str:
        raise UserError("no such model")

    with pytest.raises(UserError):
        patiently(wrong, 60, print, lambda: clock.now, clock.sleep)
    assert clock.now == 0
