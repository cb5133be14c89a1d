"""Real launchers: a process dies, and all ranks go on from memory, with the bits of a run that was not disturbed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.launch.memory.runs import KILL, Runs
from tests.unit.launch.memory.test_plain import PLAIN

from lmj_api.protocol import WorkerPhase
from lmj_trainer.launch.memory.folder import snapshots

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
