"""How checkpoints are judged beside PyTorch's and beside a plain copy, and what the benchmark's loads count."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SHAPES = ((2, 1), (1, 1), (3, 1), (2, 2))


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "benchmarks"))
    import checkpoint

    return checkpoint


def met(
    checkpoint: ModuleType,
    turns: list[dict[str, tuple[float, float, float]]] | None = None,
    overlapped: float = 0.005,
    **of_loads: Any,
) -> list[bool]:
    """Whether each goal is, by stall, whole time and processor time of this project, ``dcp.async_save`` and a plain copy."""
    rounds = [
        {name: checkpoint.Saved(*took) for name, took in turn.items()} for turn in (turns or [took(checkpoint, 0.1, 2.0, 0.9)])
    ]
    values = {"seconds": [1.0] * 4, "read": 1.0, "equal": True} | of_loads
    loads = [
        [
            checkpoint.Loaded(stages, replicas, values["seconds"][place], values["read"] * replicas, values["equal"])
            for place, (stages, replicas) in enumerate(SHAPES)
        ]
    ]
    beside = {checkpoint.OURS: overlapped, checkpoint.ASYNC: 0.3, checkpoint.STAGED: 0.1}
    return [goal.met for goal in checkpoint.goals(rounds, [beside], loads)]


def took(checkpoint: ModuleType, stall: float, whole: float, processor: float) -> dict[str, tuple[float, float, float]]:
    """A round in which a plain copy stalls 0.1 s and takes 2 s, and ``dcp.async_save`` stalls 0.75 s."""
    return {
        checkpoint.OURS: (stall, whole, processor),
        checkpoint.ASYNC: (0.75, 3.0, 2.0),
        checkpoint.PLAIN: (0.1, 2.0, 0.9),
    }


def test_all_goals_are_met_where_it_is_as_quick_as_a_plain_copy(checkpoint: ModuleType) -> None:
    assert met(checkpoint) == [True] * 11


@pytest.mark.parametrize(
    ("turn", "short"),
    [((0.12, 2.0, 0.9), []), ((0.14, 2.0, 0.9), [2]), ((0.1, 2.0, 1.36), [3]), ((0.1, 2.3, 0.9), [4])],
)
def test_what_is_short(checkpoint: ModuleType, turn: tuple[float, float, float], short: list[int]) -> None:
    found = met(checkpoint, [took(checkpoint, *turn)])
    assert [place for place, each in enumerate(found) if not each] == short


def test_what_is_short_of_loads(checkpoint: ModuleType) -> None:
    assert [place for place, each in enumerate(met(checkpoint, overlapped=0.011)) if not each] == [1]
    assert [place for place, each in enumerate(met(checkpoint, overlapped=0.043)) if not each] == [0, 1]
    assert [place for place, each in enumerate(met(checkpoint, seconds=[1.0, 1.2, 1.0, 1.2])) if not each] == [5, 9]
    assert [place for place, each in enumerate(met(checkpoint, read=1.06)) if not each] == [6, 8]
    assert [place for place, each in enumerate(met(checkpoint, equal=False)) if not each] == [10]


@pytest.mark.integration
def test_each_byte_that_is_read_is_counted_and_another_bit_is_seen(checkpoint: ModuleType, tmp_path: Path) -> None:
    import loading

    config = checkpoint.BertConfig(**checkpoint.TINY)
    folder, tensors, size = loading.written(config, 2, tmp_path)
    once, twice = (loading.Shape(config, 3, replicas).load(folder, tensors, size) for replicas in (1, 2))
    assert once.equal
    assert 1 <= once.read < 1.3
    assert twice.read == 2 * once.read
    tensors[next(iter(tensors))].view(-1)[0] += 1
    assert not loading.Shape(config, 3, 1).load(folder, tensors, size).equal


@pytest.mark.integration
def test_every_way_saves_the_state(checkpoint: ModuleType, tmp_path: Path) -> None:
    import saving_ways as ways

    config = checkpoint.BertConfig(**checkpoint.TINY)
    state = ways.make_state(config, range(3))
    ways.fill(state)
    for number, way in enumerate(ways.WAYS):
        made = way(state, tmp_path / str(number))
        for _ in range(2):
            saved = made.save()
            assert 0 < saved.stall <= saved.whole
            files = [path for path in made.place.rglob("*") if path.is_file()]
            assert sum(path.stat().st_size for path in files) >= sum(t.nbytes for _, t in state.tensors())
