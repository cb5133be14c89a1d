"""How the comparison of pipelines judges its rounds."""

import json
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import rounds

    return rounds


def measured(rounds: ModuleType, factor: float = 1.0, ours: float = 11.9, **others: float) -> list[dict[str, float]]:
    """A round beside each peer, on a machine where two at once take 1.15 times as long as one; all ``factor`` times as slow."""
    peers = dict(zip(rounds.PEERS, (13.0, 12.9, 20.8), strict=True)) | others
    shared = {rounds.ALONE: 20.0, rounds.BUSY: 23.0, rounds.OURS: ours}
    return [{name: seconds * factor for name, seconds in (shared | {peer: took}).items()} for peer, took in peers.items()]


def test_cores_that_share_memory_are_no_fault_of_the_pipeline(rounds: ModuleType) -> None:
    done = measured(rounds)
    # Of half a process alone it takes 1.19 times as long.
    assert rounds.of_ideal(done, rounds.OURS) == pytest.approx(11.9 * 2 / 23)
    assert [goal.met for goal in rounds.goals(done)] == [True] * 4
    assert rounds.of_ideal(done, rounds.BUSY) == 2


def test_a_bubble_of_more_than_a_twentieth_is_short(rounds: ModuleType) -> None:
    assert [goal.met for goal in rounds.goals(measured(rounds, ours=12.07))] == [True] * 4
    assert [goal.met for goal in rounds.goals(measured(rounds, ours=12.08))] == [False, True, True, True]


@pytest.mark.parametrize("number", range(3))
def test_a_peer_that_is_ahead_is_named(rounds: ModuleType, number: int) -> None:
    peer = list(rounds.PEERS)[number]
    ahead = 11.9 * rounds.ON_PAR.get(peer, 1.0) - (0.01 if peer in rounds.ON_PAR else 0.0)
    short = [goal for goal in rounds.goals(measured(rounds, **{peer: ahead})) if not goal.met]
    assert [goal.name for goal in short] == [f"step time of {peer}, over this pipeline's"]


def test_a_peer_with_as_small_a_bubble_may_be_on_par(rounds: ModuleType) -> None:
    (peer,) = rounds.ON_PAR
    assert all(goal.met for goal in rounds.goals(measured(rounds, **{peer: 11.9 * 0.951})))


def test_each_round_is_compared_with_itself(rounds: ModuleType) -> None:
    one = [goal.measured for goal in rounds.goals(measured(rounds))]
    slower = [goal.measured for goal in rounds.goals([*measured(rounds), *measured(rounds, 2.0), *measured(rounds, 5.0)])]
    assert slower == pytest.approx(one)


def test_short_is_the_exit_code_and_in_the_file(
    rounds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import report

    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    assert report.report("x", rounds.goals(measured(rounds)), {}) == 0
    done = measured(rounds, ours=12.5)
    assert report.report("x", rounds.goals(done), {"rounds": done}) == 1
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines() if "two busy" in line] == ["ok", "short"]
    stored = json.loads((tmp_path / "results" / "x.json").read_text())
    assert [goal["met"] for goal in stored["goals"]] == [False, True, True, True]
    assert stored["details"]["rounds"] == done


def test_the_table_has_a_line_of_each(rounds: ModuleType) -> None:
    lines = rounds.table(measured(rounds)).splitlines()
    assert len(lines) == 1 + 3 + len(rounds.PEERS)
    assert lines[3].split() == ["this", "pipeline", "11.90", "11.90", "to", "11.90", f"{11.9 / 11.5:.3f}"]


CONTENDER = """
import json, os, sys
rank = int(os.environ["RANK"])
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    print(json.dumps({"times": [rank + 1.0, rank + 2.0][: int(line)]}), flush=True)
"""


def test_a_step_ends_with_its_slowest_rank_and_single_processes_count_equally(
    rounds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import group

    (tmp_path / "fake.py").write_text(CONTENDER)
    monkeypatch.setattr(group, "CONTENDERS", tmp_path)
    with group.Group("fake", "fake.py") as made:
        assert made.slowest(1) == 2.0
        assert made.slowest(2) == 2.5
        assert made.mean(1) == 1.5
        assert made.one(1) == 1.0
        processes = made._ranks
    assert all(process.poll() is not None for process in processes)


def test_slower_than_another_commit_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "tools"):
        monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / folder))
    import against

    def met(*quotients: float) -> bool:
        return bool(against.verdict([{"base": 8.0, against.OURS: 8.0 * q} for q in quotients], "base").met)

    assert met(0.9, 1.005, 2.0)
    assert not met(0.9, 1.02, 1.02)
