"""Which snapshot the nodes of a view go on from, and the agent's folder of them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from lmj_trainer.agent.memory_folder import memory_folder
from lmj_trainer.launch.memory.choice import held, newest_of_all, variables
from lmj_trainer.launch.memory.folder import begin
from lmj_trainer.launch.words import Word, WordKind

OLD, NEW, AGAIN = "step-9-view-1", "step-10-view-1", "step-5-view-2"


@pytest.mark.parametrize(
    ("have", "chosen"),
    [
        ([[NEW, OLD], [NEW, OLD]], NEW),
        ([[NEW, OLD], [OLD]], OLD),
        ([[NEW, AGAIN], [NEW, AGAIN]], AGAIN),
        ([[NEW], []], None),
        ([[NEW], [OLD]], None),
        ([], None),
        ([["../x", OLD], ["../x", OLD]], OLD),
    ],
)
def test_the_newest_that_all_have(have: list[list[str]], chosen: str | None) -> None:
    assert newest_of_all(have) == chosen


def test_what_a_node_holds_and_what_its_processes_are_told(tmp_path: Path) -> None:
    assert held(None) == held(str(tmp_path / "none")) == ()
    for step in (5, 10):
        begin(tmp_path, step, 1).complete("none")
    begin(tmp_path, 15, 1)
    assert held(str(tmp_path)) == (NEW,)
    assert variables("/m", 7, None) == {"LMJ_MEMORY_DIR": "/m", "LMJ_MEMORY_EVERY": "7"}
    assert variables("/m", 7, NEW)["LMJ_MEMORY_RESTORE"] == f"/m/{NEW}"


def test_a_word_names_no_path() -> None:
    with pytest.raises(ValidationError):
        Word(kind=WordKind.START, memory="../step-1-view-1")


def test_a_folder_goes_with_its_agent_and_those_of_dead_agents_go_too(tmp_path: Path) -> None:
    (tmp_path / "lmj-memory-of-a-dead-one").mkdir()
    (tmp_path / "somebody-elses").mkdir()
    with memory_folder(tmp_path) as first, memory_folder(tmp_path) as second:
        (first / "file").write_text("1")
        assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name, "somebody-elses"}
    assert [path.name for path in tmp_path.iterdir()] == ["somebody-elses"]
