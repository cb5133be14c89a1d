"""The kinds of workers."""

from typing import Any

import pytest
from tests.planned import job_spec

from lmj_api.spec import LiveMigrationJob
from lmj_trainer.agent import main
from lmj_trainer.agent.kind import WorkerKind, worker_kind


def test_what_a_trainer_is_given_follows_from_the_job() -> None:
    assert worker_kind(job_spec(2)) == WorkerKind(["worker"], ["fork-server"], ["--memory-fd"], saves=True)


class Looked(Exception):  # noqa: N818 - it names what happened
    pass


@pytest.mark.parametrize(("rank", "saves", "expected"), [(0, True, True), (1, True, False), (0, False, False)])
async def test_one_agent_reads_the_checkpoints(
    monkeypatch: pytest.MonkeyPatch, rig: Any, rank: int, saves: bool, expected: bool
) -> None:
    async def look(*arguments: object) -> None:
        raise Looked

    monkeypatch.setattr(main, "look", look)
    supervisor = rig("ready wait", rank=rank).supervisor
    job = LiveMigrationJob.model_validate(
        {"metadata": {"name": "tiny"}, "spec": job_spec(2).model_dump(by_alias=True, mode="json")}
    )
    kind = WorkerKind(["worker"], None, [], saves=saves)
    if expected:
        with pytest.raises(Looked):
            await main.begin(supervisor, job, kind)
        return
    await main.begin(supervisor, job, kind)
    assert (supervisor.state.scanned, supervisor.state.checkpoints) == (True, [])
