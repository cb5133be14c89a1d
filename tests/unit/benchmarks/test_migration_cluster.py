"""What the benchmark of moves between nodes trains, and what it takes for its goal."""

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from jobs import job_document

from lmj_api.spec import LiveMigrationJob

if sys.platform != "linux":
    pytest.skip("the benchmark reads /proc", allow_module_level=True)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import migration_cluster

    return migration_cluster


@pytest.mark.parametrize(("stages", "layers"), [(1, 6), (2, 12)])
def test_the_job_is_one_that_a_server_takes(bench: ModuleType, stages: int, layers: int) -> None:
    document = job_document(Path("out"))
    document["spec"].update(bench.spec_of(document["spec"], stages))
    spec = LiveMigrationJob.model_validate(document).spec
    assert spec.model.scratch is not None
    assert (spec.model.scratch.layers, spec.model.scratch.hidden_size, spec.pipeline.stages) == (layers, 768, stages)


def test_texts_are_as_long_as_what_is_taken_of_them(bench: ModuleType, tmp_path: Path) -> None:
    bench.write_texts(tmp_path / "data.csv", rows=3)
    header, *rows = (tmp_path / "data.csv").read_text().splitlines()
    assert header == "text,label"
    assert [len(row.split(",")[0].split()) for row in rows] == [bench.LENGTH] * 3


@pytest.fixture
def move(bench: ModuleType) -> Callable[..., object]:
    def made(way: str, pause: float, total: float = 5.0, again: int = 0) -> object:
        cost = {"pause": pause, "longest": pause, "total": total, "rate": 0.9, "again": again, "step": 5.0, "unrest": 0.1}
        return bench.Move(way, "BERT-base", 2, 0, **cost)

    return made


def test_the_goal_is_the_live_moves(bench: ModuleType, move: Callable[..., object]) -> None:
    goals = bench.judged([move(bench.LIVE, 0.8), move(bench.LIVE, 0.9), move(bench.LIVE, 1.1), move(bench.STOP, 4.2)], "1gbit")
    assert [(g.measured, g.met) for g in goals] == [(0, True), (0.9, True)]


def test_moves_with_encryption_are_judged_by_those_without(bench: ModuleType, move: Callable[..., object]) -> None:
    live = [move(bench.LIVE, 0.5, total) for total in (10.0, 10.0, 30.0)]

    def met(*totals: float, again: int = 0) -> list[bool]:
        return [g.met for g in bench.judged([*live, *(move(bench.ENCRYPTED, 9.0, total, again) for total in totals)], "1gbit")]

    assert met(11.0, 11.0, 2.0) == [True, True, True]
    assert met(11.1, 11.1, 2.0) == [True, True, False]
    assert met(10.0, again=1) == [False, True, True]


def test_ways_take_turns(bench: ModuleType) -> None:
    def turns(**options: int) -> object:
        return bench.turns(Namespace(**options))

    live, encrypted, stop = bench.LIVE, bench.ENCRYPTED, bench.STOP
    assert turns(moves=4, encrypted=4, stops=1) == [(live, 2), (encrypted, 2), (encrypted, 2), (live, 2), (stop, 1)]
    assert turns(moves=3, encrypted=0, stops=0) == [(live, 2), (live, 1)]
    assert turns(moves=1, encrypted=1, stops=0) == [(live, 1), (encrypted, 1)]
