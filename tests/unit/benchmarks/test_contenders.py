"""What the benchmarks run of this project is the engine as it is now: its parts that a benchmark stands in for fit."""

import json
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

TINY = {"layers": 2, "hidden": 32, "vocabulary": 100, "batch": 8, "micro_batches": 2, "length": 8}


@pytest.mark.parametrize("arguments", [[], ["replicas"]], ids=["stages", "replicas"])
def test_the_pipeline_makes_steps_and_checkpoints(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    from group import Group

    environment = {"BENCH_WORKLOAD": json.dumps(TINY), "BENCH_CHECKPOINT": str(tmp_path)}
    with Group("this pipeline", "ours.py", *arguments, environment=environment) as ours:
        assert ours.slowest(6) > 0
        # One more turn: what the checkpoint of the fifth step came to is told in it.
        assert ours.slowest(1) > 0
    assert list(tmp_path.iterdir())


def test_the_pipeline_makes_steps_behind_relays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    from group import Group
    from relay_ways import relays

    with relays() as pair:
        environment = {"BENCH_WORKLOAD": json.dumps(TINY), "BENCH_RELAYS": f"{pair.near}{os.pathsep}{pair.far}"}
        before = pair.spent
        with Group("relayed", "ours.py", environment=environment) as ours:
            assert ours.slowest(200) > 0
        assert pair.spent > before
