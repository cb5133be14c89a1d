"""Machines that share no volume have the same commits and the same rows: those of the first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.memory import MemoryStore

from lmj_api.layout import Layout
from lmj_api.spec import JobSpec
from lmj_trainer import pretrained
from lmj_trainer.agreed import agreed
from lmj_trainer.dataset.pin import Pin
from lmj_trainer.errors import OutageError, UserError
from lmj_trainer.fetched import fetch
from lmj_trainer.store import posix, registry
from lmj_trainer.store.port import Ref

RESULTS = "s3://bucket/run"
FIRST, SECOND = "1" * 40, "2" * 40


@pytest.fixture(autouse=True)
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.STORES, "s3", lambda uri: posix.folder(tmp_path / "results"))


def silent(line: str) -> None:
    pass


def test_the_first_decides() -> None:
    assert agreed(RESULTS, "a thing", FIRST) == FIRST
    assert agreed(RESULTS, "a thing", SECOND) == FIRST
    assert agreed(RESULTS, "another", SECOND) == SECOND
    assert agreed(None, "a thing", SECOND) == SECOND


def test_storage_that_does_not_answer_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: Ref, content: bytes) -> bool:
        raise OSError("it does not answer")

    monkeypatch.setattr(Ref, "create", away)
    with pytest.raises(OutageError, match=r"^what the job's machines have as a thing cannot be told: it does not answer$"):
        agreed(RESULTS, "a thing", FIRST)


def on_machine(job: Any, folder: Path, **changes: Any) -> JobSpec:
    spec: JobSpec = job(**changes).spec
    return spec.model_copy(update={"output": spec.output.model_copy(update={"path": RESULTS, "scratch": str(folder)})})


def test_rows_that_were_replaced_meanwhile_are_not_trained_with(job: Any, tmp_path: Path) -> None:
    rows = MemoryStore()
    rows.put("train.csv", [b"review,sentiment\na,good\n"])
    spec = {name: on_machine(job, tmp_path / name, dataset__source="s3://rows/train.csv") for name in ("one", "two")}
    fetch(spec["one"], silent, open_=lambda uri: Ref(rows))
    rows.put("train.csv", [b"review,sentiment\nb,good\n"])
    with pytest.raises(UserError, match=r"dataset\.source s3://rows/train\.csv: is not what the run began with: put it back"):
        fetch(spec["two"], silent, open_=lambda uri: Ref(rows))
    assert not any(Layout.of(spec["two"]).fetched.iterdir()), "else it would be taken for the run's"
    fetch(spec["one"], silent, open_=lambda uri: Ref(rows))
    rows.put("train.csv", [b"review,sentiment\na,good\n"])
    found = fetch(spec["two"], silent, open_=lambda uri: Ref(rows))
    assert Path(found.dataset.source).read_bytes() == b"review,sentiment\na,good\n"


def test_the_commit_of_a_dataset_is_the_first_s(tmp_path: Path) -> None:
    one, two = (Pin(tmp_path / name / "dataset=me--rows", "me/rows", None, RESULTS) for name in ("one", "two"))
    assert one.keep(FIRST) == FIRST
    assert two.keep(SECOND) == FIRST
    assert two.commit() == FIRST


def test_the_commit_of_a_model_is_the_first_s(job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    def snapshot(source: str, revision: str | None, patterns: object, bars: object = None) -> Path:
        asked.append(revision)
        folder = tmp_path / "hub" / (revision or SECOND)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"model_type": "bert", "of": folder.name}))
        return folder

    monkeypatch.setattr(pretrained, "_snapshot", snapshot)
    agreed(RESULTS, "the commit of me--tiny", FIRST)
    spec = on_machine(job, tmp_path / "two", model={"source": "me/tiny", "labels": ["a", "b"]})
    kept = pretrained.keep(spec, silent, agree=lambda what, content: agreed(RESULTS, what, content))
    assert asked == [None, FIRST]
    assert json.loads((Path(str(kept.model.source)) / "config.json").read_text())["of"] == FIRST
