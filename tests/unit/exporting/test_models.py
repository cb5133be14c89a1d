"""What is exported of models that began with a saved one: all files are those of the end of training."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.small_job import Line, make, start, view
from tests.unit.engine.test_whole import SIZES, job_of, make_source
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from lmj_trainer.__main__ import main

pytestmark = pytest.mark.integration

CASES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "cannot be cut": ("albert", AutoModelForSequenceClassification, {}),
    "no padding token": ("gpt_neox", AutoModelForSequenceClassification, {"source": {"pad_token_id": None}}),
    "writes": ("gpt_neox", AutoModelForCausalLM, {"model": {"task": "CausalLM"}, "dataset": {"label": None}}),
    "one table of tokens at both ends": ("gpt2", AutoModelForCausalLM, {"model": {"task": "CausalLM"}, "dataset": {"label": None}}),
    "adapters of a saved model": ("bert", AutoModelForSequenceClassification, {"model": {"lora": {"r": 2, "dropout": 0.1}}}),
    "adapters and one table": (
        "gpt2",
        AutoModelForCausalLM,
        {"model": {"task": "CausalLM", "lora": {"r": 2, "dropout": 0.1}}, "dataset": {"label": None}},
    ),
}  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(("kind", "auto", "changes"), CASES.values(), ids=CASES)
def test_files_are_those_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, auto: Any, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(os, "setpriority", lambda *_: None)
    monkeypatch.setitem(SIZES, "bert", {})
    monkeypatch.setitem(SIZES, "gpt2", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 40})
    parts = dict(changes)
    source = make_source(tmp_path / kind, kind, auto, **parts.pop("source", {}))
    job = job_of(tmp_path / "job", source, **parts)
    assert make(job, Line()).run(view(1, start())).value == "Completed"
    output = tmp_path / "job" / "out"
    assert main(["export", str(output), "--to", str(tmp_path / "model")]) == 0
    assert files(tmp_path / "model") == files(output / "model")
    if "lora" in changes.get("model", {}):
        assert files(tmp_path / "model" / "adapter") == files(output / "adapter")
