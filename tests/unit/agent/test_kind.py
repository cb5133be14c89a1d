"""The kinds of workers."""

import asyncio
from typing import Any

import pytest
from tests.planned import job_spec

from lmj_api.spec import JobSpec, LiveMigrationJob
from lmj_trainer.agent import main
from lmj_trainer.agent.kind import WorkerKind, worker_kind


def test_what_a_trainer_is_given_follows_from_the_job() -> None:
    assert worker_kind(job_spec(2)) == WorkerKind(["worker"], ["fork-server"], ["--memory-fd"], saves=True)


def script(*args: str) -> JobSpec:
    document = {"strategy": "Command", "command": {"args": list(args)}, "output": {"path": "out"}}
    return JobSpec.model_validate(document)


@pytest.mark.parametrize(
    ("args", "server"),
    [(["train.py"], ["fork-server", "--script"]), (["-m", "train"], ["fork-server", "--script"]), (["bash", "train.sh"], None)],
)
def test_what_a_launcher_is_given(args: list[str], server: list[str] | None) -> None:
    assert worker_kind(script(*args)) == WorkerKind(["launch"], server, [], saves=False, scripted=True)


def test_a_worker_is_told_of_its_place_and_of_no_key() -> None:
    words = ["--job", "j", "--rank", "1", "--pod", "p", "--dir", "d", "--uid", "u", "--trust=-key", "--trust=other"]
    arguments = main.parser().parse_args(words)
    assert (arguments.uid, arguments.trust) == ("u", ["-key", "other"]), "a key may begin as an option does"
    for kind in (worker_kind(script("train.py")), worker_kind(job_spec(2))):
        launched = main.program(kind, arguments, {}, lambda: None).arguments(3)
        assert launched == ["--job", "j", "--rank", "1", "--pod", "p", "--incarnation", "3"]


class Looked(Exception):  # noqa: N818 - it names what happened
    pass


@pytest.mark.parametrize(("rank", "saves", "expected"), [(0, True, True), (1, True, False)])
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


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_look_for_what_nobody_saves_is_answered_at_once(rig: Any, rank: int) -> None:
    it = rig("ready wait", rank=rank)
    job = LiveMigrationJob.model_validate(
        {"metadata": {"name": "tiny"}, "spec": script("train.py").model_dump(by_alias=True, mode="json", exclude_unset=True)}
    )
    looking = asyncio.create_task(main.begin(it.supervisor, job, worker_kind(job.spec)))
    await it.until(lambda state: state.scanned)
    it.supervisor.looks.ask(3)
    await it.until(lambda state: state.looked == 3)
    assert it.state.checkpoints == []
    looking.cancel()
