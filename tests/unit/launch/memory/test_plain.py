"""A plain loop, and one of Accelerate, with two lines more: killed and gone on from memory, they end with the bits of an undisturbed run."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.launch.memory.runs import Runs

import lmj
from lmj_trainer.launch.memory import folder as memory
from lmj_trainer.launch.memory import plain
from lmj_trainer.launch.memory.folder import snapshots

PLAIN = """
import json, os, random, torch
import torch.distributed as dist
import lmj

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
random.seed(rank)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
done = lmj.state(model, optimizer, schedule)
for number in range(done, 30):
    data = torch.Generator().manual_seed(1000 * number + rank)
    loss = (model(torch.randn(4, 8, generator=data)) * random.random()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    kill_at(number + 1)
    lmj.step()
if rank == 0:
    json.dump({"weights": [p.tolist() for p in model.parameters()], "loss": loss.item(), "draw": torch.rand(1).item()},
              open(os.environ["OUT"] + ".json", "w"))
dist.destroy_process_group()
"""
ACCELERATE = """
import json, os, torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
import lmj

set_seed(3)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(DROPOUT), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
data = torch.utils.data.TensorDataset(torch.randn(40, 8))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, schedule, loader = accelerator.prepare(model, optimizer, schedule, loader)
done = lmj.state(accelerator=accelerator)
number = done
for epoch in range(done // len(loader), 3):
    loader.set_epoch(epoch)
    part = accelerator.skip_first_batches(loader, done % len(loader)) if epoch == done // len(loader) else loader
    for [rows] in part:
        loss = model(rows).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        number += 1
        kill_at(number)
        lmj.step()
if accelerator.is_main_process:
    json.dump({"weights": [p.tolist() for p in model.parameters()], "loss": loss.item(),
               "iteration": accelerator.project_configuration.iteration},
              open(os.environ["OUT"] + ".json", "w"))
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("script", "processes", "kill"),
    [(PLAIN, 1, "0:14"), (PLAIN, 2, "1:14"), (ACCELERATE.replace("DROPOUT", "0"), 2, "0:8")],
    ids=["plain-1", "plain-2", "accelerate-2"],
)
def test_killed_and_gone_on_from_memory(tmp_path: Path, script: str, processes: int, kill: str) -> None:
    runs = Runs(tmp_path, script, processes)
    assert runs.run(out="alone") == 0, runs.said
    assert runs.run(out="killed", every=3, kill=kill) != 0
    newest = runs.newest()
    assert newest.step == (12 if kill.endswith("14") else 6)
    owners = {file.rank for file in newest.files if file.name.startswith(("rank", "random"))}
    assert owners == set(range(processes))
    assert newest.whole
    assert runs.run(out="killed", every=3, view=2, restore=newest.path) == 0, runs.said
    assert "snapshot" not in runs.said
    assert json.loads((tmp_path / "killed.json").read_text()) == json.loads((tmp_path / "alone.json").read_text())


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMJ_MEMORY_DIR", str(tmp_path / "memory"))
    monkeypatch.setenv("LMJ_MEMORY_EVERY", "2")
    monkeypatch.delenv("LMJ_MEMORY_RESTORE", raising=False)
    monkeypatch.setattr(plain, "_loops", [])
    return tmp_path / "memory"


def test_without_memory_both_lines_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LMJ_MEMORY_DIR", raising=False)
    assert lmj.state(torch.nn.Linear(2, 2)) == 0
    lmj.step()


def test_a_step_without_a_state_is_refused(here: Path) -> None:
    with pytest.raises(lmj.JobError, match=r"lmj\.step was called before lmj\.state"):
        lmj.step()
    lmj.state()
    with pytest.raises(lmj.JobError, match="called before"):
        lmj.state()


def test_objects_of_each_rank_and_random_numbers_come_back(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Place:
        at = 0

        def state_dict(self) -> dict[str, Any]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, Any], /) -> None:
            self.at = state["at"]

    model, loader = torch.nn.Linear(2, 2), Place()
    assert lmj.state(model, per_rank=(loader,)) == 0
    for _ in range(2):
        loader.at += 1
        lmj.step()
    drawn = torch.rand(3)
    [newest] = snapshots(here)
    assert newest.step == 2
    monkeypatch.setenv("LMJ_MEMORY_RESTORE", str(newest.path))
    monkeypatch.setattr(plain, "_loops", [])
    other, again = torch.nn.Linear(2, 2), Place()
    assert lmj.state(other, per_rank=(again,)) == 2
    assert again.at == 2
    assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(other.weight, model.weight)
    monkeypatch.setattr(plain, "_loops", [])
    with pytest.raises(lmj.JobError, match="has 1 objects and 2 are given"):
        lmj.state(other, other)


def test_no_room_is_one_line_and_the_script_goes_on(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memory, "room", lambda _: 1000)
    lmj.state(torch.nn.Linear(2, 2))
    lmj.step()
    lmj.step()
    assert "the snapshot of step 2 in memory failed" in caplog.text
    assert len(caplog.text.splitlines()) == 1
    assert snapshots(here) == []


def test_the_package_names_the_code_that_is_there() -> None:
    assert importlib.import_module(lmj.memory._CODE) is plain
