"""What belongs to one rank alone is on every node, and what goes wrong with that harms neither training nor the snapshot."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.launch.memory.runs import Runs
from tests.unit.launch.memory.test_plain import PLAIN

from lmj_trainer.launch.memory import exchange
from lmj_trainer.launch.memory.exchange import Exchange
from lmj_trainer.launch.memory.folder import snapshots
from lmj_trainer.launch.memory.place import Place

TWO_NODES = """
import os
os.environ |= {"LMJ_MEMORY_DIR": os.environ["LMJ_MEMORY_DIR"] + os.environ["RANK"], "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
"""
"""Each of torchrun's processes takes itself for the only one of its node."""
NO_ROOM = """
from lmj_trainer.launch.memory import folder
if os.environ["RANK"] == "1":
    folder.room = lambda _: 0
"""


def place(tmp_path: Path, world: int = 2) -> Place:
    return Place(folder=tmp_path, every=1, restore=None, view=1, rank=0, world=world, part=0, parts=1)


@pytest.mark.integration
def test_each_node_has_what_each_rank_has_alone(tmp_path: Path) -> None:
    runs = Runs(tmp_path, TWO_NODES + PLAIN, 2)
    assert runs.run(out="out", every=3) == 0, runs.said
    first, second = (snapshots(tmp_path / f"memory{node}") for node in (0, 1))
    assert [found.step for found in first] == [found.step for found in second] == [30, 27]
    assert all(found.whole for found in (*first, *second))
    for name in ("rank-0.pt", "rank-1.pt"):
        assert (first[0].path / name).read_bytes() == (second[0].path / name).read_bytes()
    assert (first[0].path / "rank-0.pt").read_bytes() != (first[0].path / "rank-1.pt").read_bytes()


@pytest.mark.integration
def test_a_node_without_room_holds_up_nobody(tmp_path: Path) -> None:
    runs = Runs(tmp_path, TWO_NODES + NO_ROOM + PLAIN, 2)
    assert runs.run(out="out", every=3) == 0, runs.said
    assert runs.said.count("in memory failed") == 10
    found = snapshots(tmp_path / "memory0")
    assert [(each.step, each.whole) for each in found] == [(30, False), (27, False)]
    alone = Runs(tmp_path / "alone", PLAIN, 2)
    assert alone.run(out="out") == 0, alone.said
    assert json.loads((tmp_path / "out.json").read_text()) == json.loads((tmp_path / "alone" / "out.json").read_text())


@pytest.mark.integration
def test_what_is_too_much_stays_on_its_node(tmp_path: Path) -> None:
    more = PLAIN.replace("lmj.state(model, optimizer, schedule)", "lmj.state(model, optimizer, schedule, per_rank=(Much(),))")
    much = """
class Much:
    def state_dict(self):
        import torch
        return {"much": torch.zeros((33 << 20) // 4)}
    def load_state_dict(self, state):
        pass
"""
    runs = Runs(tmp_path, TWO_NODES + much + more, 2)
    assert runs.run(out="out", every=15) == 0, runs.said
    assert runs.said.count("takes 33 MiB, which 2 ranks do not give to each other") == 2
    assert [(each.step, each.whole) for each in snapshots(tmp_path / "memory0")] == [(30, False), (15, False)]


def test_without_a_process_group_nothing_is_given(tmp_path: Path) -> None:
    assert Exchange(place(tmp_path)).swap({"rng": b"1"}) == {}


def test_what_goes_wrong_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    asked = []

    def refuse(**_: object) -> None:
        asked.append(1)
        raise RuntimeError("no\ngloo")

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "new_group", refuse)
    it = Exchange(place(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert it.swap({"rng": b"1"}) == it.swap({"rng": b"1"}) == {}
    assert [record.getMessage() for record in caplog.records] == [
        "ranks no longer exchange what each has alone: no gloo; a lost pod's is lost with it"
    ]
    assert len(asked) == 1
    assert Exchange(place(tmp_path, world=1)).swap({"rng": b"1"}) == {}
    assert len(asked) == 1, "where there is one node there is nothing to exchange"


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=9), max_size=3), st.integers(0, 9))
def test_files_are_packed_and_unpacked(files: dict[str, bytes], filled: int) -> None:
    assert exchange._unpacked(exchange._packed(files) + bytes(filled)) == files
