"""Which snapshot the nodes of a view go on from, and the agent's folder of them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lmj_trainer.agent.memory_folder import memory_folder
from lmj_trainer.launch.memory.choice import Choice, Held, choose, held, step_in_memory, variables
from lmj_trainer.launch.memory.folder import begin, key_of, name_of
from lmj_trainer.launch.words import Word, WordKind

OLD, NEW, AGAIN = "step-9-view-1", "step-10-view-1", "step-5-view-2"


def have(*names: str, whole: bool = False, fetches: bool = True) -> Held:
    return Held(names, names if whole else (), fetches)


NOTHING = have()


@pytest.mark.parametrize(
    ("held", "chosen"),
    [
        ([have(NEW, OLD), have(NEW, OLD)], Choice(NEW)),
        ([have(NEW, OLD), have(OLD)], Choice(OLD)),
        ([have(NEW, AGAIN), have(NEW, AGAIN)], Choice(AGAIN)),
        ([have(NEW), NOTHING], Choice()),
        ([have(NEW), have(OLD)], Choice()),
        ([], Choice()),
        ([have("../x", OLD), have("../x", OLD)], Choice(OLD)),
        ([have(NEW, whole=True), NOTHING], Choice(NEW, {1: 0})),
        ([have(NEW, OLD, whole=True), have(OLD, whole=True)], Choice(NEW, {1: 0})),
        ([have(NEW, whole=True), have(fetches=False)], Choice()),
        ([have(NEW, OLD, whole=True), have(OLD, whole=True, fetches=False)], Choice(OLD)),
        ([have(NEW), have(NEW, whole=True), NOTHING], Choice(NEW, {2: 1})),
        ([NOTHING, NOTHING, have(NEW, whole=True), have(NEW, whole=True), NOTHING], Choice(NEW, {0: 2, 1: 3, 4: 2})),
        ([Held((NEW, OLD), (OLD,), True), have(OLD)], Choice(OLD)),
        ([Held((NEW, OLD), (OLD,), True), NOTHING], Choice(OLD, {1: 0})),
    ],
)
def test_the_newest_that_all_have_or_can_fetch(held: list[Held], chosen: Choice) -> None:
    assert choose(dict(enumerate(held))) == chosen


NAMES = st.lists(st.builds(name_of, st.integers(0, 3), st.integers(1, 2)), max_size=2, unique=True)


HELD = st.builds(
    lambda names, count, fetches: Held(tuple(names), tuple(names[:count]), fetches), NAMES, st.integers(0, 2), st.booleans()
)


@given(st.dictionaries(st.integers(0, 5), HELD))
def test_whatever_is_held_all_have_what_is_chosen_or_are_given_it_by_one_that_can(held: dict[int, Held]) -> None:
    choice = choose(held)
    if choice.name is None:
        assert choice.givers == {}
        return
    assert choice.givers.keys() == {rank for rank, one in held.items() if choice.name not in one.names}
    assert all(held[rank].fetches and choice.name in held[giver].whole for rank, giver in choice.givers.items())
    common = set.intersection(*(set(one.names) for one in held.values()))
    assert all((key_of(choice.name) or (0, 0)) >= (key_of(name) or (0, 0)) for name in common)


def put(root: Path, step: int, world: int, *ranks: int) -> None:
    writing = begin(root, step, 1, world=world)
    (writing.site / "model").write_text("m")
    for rank in ranks:
        writing.add(rank, {f"rng-{rank}": b"r"})
    writing.complete()


def test_what_is_of_another_place_alone_is_nothing(tmp_path: Path) -> None:
    put(tmp_path, 9, 3, 0, 1, 2)
    put(tmp_path, 10, 3, 2)
    assert held(tmp_path, [2], 3) == Held((NEW, OLD), (OLD,))
    assert held(tmp_path, [1], 3) == held(tmp_path, [2], 4) == held(tmp_path, [1, 2], 3) == Held((OLD,), (OLD,))


def test_another_one_gives_in_each_view() -> None:
    nodes = {0: have(NEW, whole=True), 1: have(), 2: have(NEW, whole=True), 3: have(NEW)}
    assert [choose(nodes, view).givers[1] for view in (1, 2, 3)] == [2, 0, 2]


def test_what_a_node_holds_and_what_its_processes_are_told(tmp_path: Path) -> None:
    assert held(None, [0], 1, True) == Held()
    assert held(tmp_path / "none", [0], 1, True) == Held((), (), True)
    put(tmp_path, 10, 1, 0)
    begin(tmp_path, 15, 1)
    assert held(tmp_path, [0], 1) == held(tmp_path, [5], 9) == Held((NEW,), (NEW,))
    assert variables(Path("/m"), 7, 20, None) == {"LMJ_MEMORY_DIR": "/m", "LMJ_MEMORY_EVERY": "7", "LMJ_MEMORY_WAIT": "20"}
    assert variables(Path("/m"), 7, 20, NEW)["LMJ_MEMORY_RESTORE"] == f"/m/{NEW}"


def test_the_step_of_a_snapshot_is_in_its_name() -> None:
    assert [step_in_memory(name) for name in (None, NEW, AGAIN)] == [0, 10, 5]


def test_a_word_names_no_path() -> None:
    with pytest.raises(ValidationError):
        Word(kind=WordKind.START, memory="../step-1-view-1")
    for name in ("../x", "/x", "a/../x", "a//x", ".x", "a/.x", "x/", "x\n", "a/.."):
        with pytest.raises(ValidationError):
            Word(kind=WordKind.FILE, name=name)
    assert Word(kind=WordKind.FILE, name="a_1/the model-00001.of.safetensors").name


def test_a_folder_goes_with_its_agent_and_those_of_dead_agents_go_too(tmp_path: Path) -> None:
    (tmp_path / "lmj-memory-of-a-dead-one").mkdir()
    (tmp_path / "somebody-elses").mkdir()
    with memory_folder(tmp_path) as first, memory_folder(tmp_path) as second:
        (first / "file").write_text("1")
        assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name, "somebody-elses"}
    assert [path.name for path in tmp_path.iterdir()] == ["somebody-elses"]
