"""Real launchers: a process dies, and all ranks go on from memory, with the bits of a run that was not disturbed."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.unit.launch.memory.runs import KILL, Runs
from tests.unit.launch.memory.test_plain import PLAIN

from lmj_api.protocol import EventKind, WorkerPhase
from lmj_trainer.launch.memory.folder import snapshots
from lmj_trainer.launch.memory.transfer import MOST_FAILURES

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


async def go_on(ranks: Any, tmp_path: Path) -> None:
    script = KILL.replace('KILLED = ""', 'KILLED = "1:14"') + PLAIN.replace('os.environ["OUT"]', '"killed"')
    ranks.write("script.py", script)
    await ranks.begin(2, "script.py", memory={"every": 3})
    ranks.view()
    await ranks.eventually(lambda: ranks.state(1).worker.phase is WorkerPhase.EXITED)
    await ranks.until(WorkerPhase.READY)
    assert [snapshots(tmp_path / f"memory-{rank}")[0].path.name for rank in (0, 1)] == ["step-12-view-1"] * 2
    await ranks.start(1)
    await ranks.until(WorkerPhase.READY, WorkerPhase.READY)
    ranks.view()
    await ranks.eventually(lambda: ranks.written("killed.json"))
    await ranks.eventually(lambda: snapshots(tmp_path / "memory-1")[0].path.name == "step-30-view-2")


async def test_a_killed_process_costs_no_more_than_the_steps_since_the_snapshot(ranks: Any, tmp_path: Path) -> None:
    """With warm processes."""
    await go_on(ranks, tmp_path)
    runs = Runs(tmp_path / "torchrun", PLAIN, 2)
    assert runs.run(out="alone") == 0, runs.said
    assert json.loads(ranks.written("killed.json")) == json.loads((tmp_path / "torchrun" / "alone.json").read_text())


async def test_the_same_where_processes_start_cold(cold_ranks: Any, tmp_path: Path) -> None:
    await go_on(cold_ranks, tmp_path)


LOST = """

def lose_at(step):
    \"\"\"The pod of a rank is lost at a step: it says so, and computes no more.\"\"\"
    import time
    if LOST == (os.environ["RANK"], step) and os.environ["LMJ_VIEW"] == "1":
        open("reached", "w").close()
        time.sleep(600)
"""


def losing(rank: int, step: int, out: str) -> str:
    """The plain script, whose ``rank`` waits at ``step`` to be killed with its pod."""
    at = f'LOST = ("{rank}", {step})'
    return at + LOST + PLAIN.replace("kill_at(", "lose_at(").replace('os.environ["OUT"]', f'"{out}"')


async def lose(ranks: Any, rank: int, tmp_path: Path) -> None:
    """The pod of ``rank`` is gone, with all its memory; another without any takes its place."""
    await ranks.eventually(lambda: ranks.written("reached") is not None and (tmp_path / "reached").exists())
    await ranks.eventually(lambda: snapshots(tmp_path / f"memory-{1 - rank}")[0].step == 12)
    os.kill(ranks.state(rank).worker.pid, signal.SIGKILL)
    await ranks.eventually(lambda: ranks.state(rank).worker.phase is WorkerPhase.EXITED)
    await ranks.eventually(lambda: ranks.state(1 - rank).worker.phase is WorkerPhase.READY)
    shutil.rmtree(tmp_path / f"memory-{rank}")
    await ranks.start(rank)
    await ranks.until(WorkerPhase.READY, WorkerPhase.READY)


def undisturbed(tmp_path: Path) -> Any:
    runs = Runs(tmp_path / "torchrun", PLAIN, 2)
    assert runs.run(out="alone") == 0, runs.said
    return json.loads((tmp_path / "torchrun" / "alone.json").read_text())


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_lost_pods_memory_comes_from_another(ranks: Any, tmp_path: Path, rank: int) -> None:
    """The leader of the views is lost, or the other: its random numbers are on the other's node, too."""
    ranks.write("script.py", losing(rank, 14, "lost"))
    await ranks.begin(2, "script.py", memory={"every": 3})
    ranks.view()
    await lose(ranks, rank, tmp_path)
    ranks.view()
    await ranks.eventually(lambda: ranks.written("lost.json"))
    assert [event.progress.step for event in ranks.events(0, EventKind.JOINED)] in ([0, 12], [12])
    assert json.loads(ranks.written("lost.json")) == undisturbed(tmp_path)


async def test_a_node_that_cannot_take_it_over_is_asked_no_more(ranks: Any, tmp_path: Path) -> None:
    """Its place is taken: after three views without a start all go on without memory."""
    ranks.write("script.py", losing(1, 14, "lost"))
    await ranks.begin(2, "script.py", memory={"every": 3})
    ranks.view()
    await lose(ranks, 1, tmp_path)
    ranks.write("memory-1/step-12-view-1", "in the way")
    for _ in range(MOST_FAILURES):
        view = ranks.view().number
        await ranks.eventually(lambda view=view: any(event.view == view for event in ranks.events(1, EventKind.LOST_PEER)))
        assert "step-12-view-1 did not come from rank 0 to rank 1" in ranks.events(1, EventKind.LOST_PEER)[-1].message
        await ranks.until(WorkerPhase.READY, WorkerPhase.READY)
    ranks.view()
    await ranks.eventually(lambda: ranks.written("lost.json"))
