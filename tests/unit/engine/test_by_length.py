"""Batches of rows of similar length: the same whoever computes them, and after any failure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lmj_api.identity import differences
from lmj_api.layout import Layout
from lmj_api.spec import LiveMigrationJob
from lmj_api.view import Resume
from lmj_trainer.checkpoint.identity import state_digest
from lmj_trainer.dataset.prepared import prepare
from lmj_trainer.strategy.batches import Batches

from .small_job import losses, start, weights
from .test_replicas import Workers, learn_the_same, of

pytestmark = pytest.mark.integration


@pytest.fixture
def uneven(job: LiveMigrationJob, tmp_path: Path) -> LiveMigrationJob:
    """The small job with texts of 1 to 12 words."""
    rows = [("this one is good" if i % 2 else "bad").split() + ["is"] * (i * 5 % 9) for i in range(80)]
    text = "".join(f"{' '.join(row)},{'np'[i % 2]}\n" for i, row in enumerate(rows))
    (tmp_path / "data.csv").write_text("text,label\n" + text)
    return job


def by_length(job: LiveMigrationJob) -> LiveMigrationJob:
    training = job.spec.training.model_copy(update={"group_by_length": True})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})


def test_stages_and_replicas_learn_what_one_process_does(
    uneven: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, one, four = (of(uneven, tmp_path / name, n, n) for name, n in (("plain", 1), ("one", 1), ("four", 2)))
    learn_the_same(by_length(one), by_length(four), monkeypatch)
    Workers(plain, monkeypatch).run(start())
    assert losses(plain) != losses(one)
    assert state_digest(plain.spec) != state_digest(by_length(one).spec)
    (difference,) = differences(plain.spec, by_length(plain).spec, finished=False)
    assert (difference.path, difference.continuable) == ("training.groupByLength", False)


def test_a_view_that_breaks_changes_no_batch(uneven: LiveMigrationJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, broken = (by_length(of(uneven, tmp_path / name, 2)) for name in ("whole", "broken"))
    Workers(whole, monkeypatch).run(start())
    group = Workers(broken, monkeypatch)
    group.run(start(), until=6)
    group.run(Resume(step=6, told_by=1), ranks=[1], number=2)
    assert losses(broken) == losses(whole)
    assert all(torch.equal(tensor, weights(broken)[name]) for name, tensor in weights(whole).items())


def test_an_epoch_has_each_row_once_and_less_padding(uneven: LiveMigrationJob) -> None:
    job = by_length(uneven)
    prepared = prepare(job.spec, Layout.of(job.spec).cache, print)
    padded = {}
    for each in (uneven, job):
        batches = Batches(prepared, each.spec, torch.device("cpu"))
        for epoch in range(2):
            rows = np.concatenate([part for step in range(4) for shard in batches.train(4 * epoch + step) for part in shard])
            assert sorted(rows) == list(range(64))
        parts = [part for step in range(12) for shard in batches.train(step) for part in shard]
        padded[each.spec.training.group_by_length] = sum(batches.inputs("train", part).input_ids.numel() for part in parts)
    assert padded[True] < 0.85 * padded[False]
