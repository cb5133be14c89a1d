"""A rank of any replica dies at any moment of a step, of a join or of a leave: nothing is lost, and nothing is changed."""

import os
import signal
import subprocess
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import pytest
import yaml
from faults import last_step
from jobs import Job, wait_until
from moving import SETTINGS, agent, assert_as_undisturbed, leave, worker_of
from test_chaos import running
from test_replicas import Replicated, go_on

from lmj_api.protocol import WorkerPhase
from lmj_operator.backend.local.store import RunStore, Scale

pytestmark = pytest.mark.e2e


class Moment(StrEnum):
    """Where in a step a worker dies: ``dying/sitecustomize.py`` knows these by their values."""

    EXCHANGE = "sums"
    """It has sent some of its sums."""
    RESULTS = "sum"
    """It has sent some of the results."""
    PREPARED = "prepared"
    """It has said that it is prepared; the leader: it has heard that another is."""
    COMMITTED = "commit"
    """It has heard of the commit; the leader: one other has."""
    LEAVING = "leaving"
    """The same, of the last step before a view of other members."""


class Mortal:
    """A job of which workers die when they are told to."""

    def __init__(self, job: Replicated, stages: int, replicas: int, orders: Path, process: subprocess.Popen[str]) -> None:
        self.job, self._stages, self._replicas, self._orders, self._process = job, stages, replicas, orders, process

    def dies(self, rank: int, moment: Moment) -> None:
        """The worker of ``rank`` dies at ``moment``, and all train again; at LEAVING the first replica alone."""
        print(f"step {last_step(self.job)}: rank {rank} dies, {moment}", flush=True)
        before, order = self._view(), self._orders / f"{rank}-{moment}"
        order.touch()
        if moment is Moment.LEAVING:
            self.job.scale(1)
        wait_until(lambda: not order.exists(), self._process)
        self._wait_for(1 if moment is Moment.LEAVING else self._replicas, before)

    def _view(self) -> int:
        number: int = self.job.status()["view"]["number"]
        return number

    def _wait_for(self, replicas: int, before: int) -> None:
        """Until the first ``replicas`` train, and no other, in a view after ``before``: what is known may be old."""

        def train() -> bool:
            members = [member["rank"] for member in self.job.status()["view"]["members"]]
            return self._view() > before and self.job.trains(replicas) and members == list(range(replicas * self._stages))

        wait_until(train, self._process)
        go_on(self.job, self._process)

    def dies_while_one_joins(self, rank: int) -> None:
        """The worker of ``rank`` dies while all replicas but the first copy it."""
        job, process, before = self.job, self._process, self._view()
        print(f"step {last_step(job)}: rank {rank} dies while a replica joins", flush=True)
        # Not by the command, which returns when both train.
        RunStore(job.output / ".lmj").write_scale(Scale(replicas=self._replicas))
        wait_until(lambda: _copies(job, rank), process)
        os.kill(worker_of(job, job.status()["ranks"][rank]["pod"]), signal.SIGKILL)
        self._wait_for(self._replicas, before)


def _copies(job: Job, rank: int) -> bool:
    """Whether the worker of ``rank``, or for a member of the view that of any rank that joins, has part of the state."""
    status = job.status()
    members = {member["rank"] for member in status["view"]["members"]}
    wanted = [entry for entry in status["ranks"] if entry["rank"] not in members]
    joining = [entry["pod"] for entry in wanted if rank in members or entry["rank"] == rank]
    with suppress(OSError):  # its agent does not answer yet
        return any(pod and agent(job, pod).worker.phase is WorkerPhase.FOLLOWING for pod in joining)
    return False


def adapting(job: Replicated) -> Replicated:
    document = yaml.safe_load(job.file.read_text())
    document["spec"]["model"]["lora"] = {"r": 4, "alpha": 8, "dropout": 0.1, "targetModules": ["query", "dense"]}
    job.file.write_text(yaml.safe_dump(document))
    return job


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of those that are to die."""
    folder = tmp_path / "dying"
    folder.mkdir()
    monkeypatch.setenv("LMJ_DYING", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("dying")), prepend=os.pathsep)
    return folder


MAKE = {"full": lambda job: job, "lora": adapting}
CASES = [
    pytest.param("full", 1, 2, [0], id="brief"),
    pytest.param("full", 1, 2, [0, 1], id="full"),
    pytest.param("full", 1, 3, [0, 1, 2], id="three replicas"),
    pytest.param("full", 2, 2, [0, 1, 2, 3], id="two stages"),
    pytest.param("lora", 1, 2, [0, 1], id="adapters"),
    pytest.param("lora", 2, 2, [0, 1, 2, 3], id="adapters, two stages"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "stages", "replicas", "victims"), CASES)
def test_a_death_at_any_moment_costs_nothing(
    tmp_path: Path, orders: Path, what: str, stages: int, replicas: int, victims: list[int]
) -> None:
    def make(folder: Path) -> Replicated:
        return MAKE[what](Replicated(folder, stages))

    job = make(tmp_path / "disturbed")
    with running(job, 100_000, *SETTINGS) as process:
        wait_until(lambda: last_step(job) > 3, process)
        job.scale(replicas)
        mortal = Mortal(job, stages, replicas, orders, process)
        for rank in victims:
            for moment in (Moment.EXCHANGE, Moment.RESULTS, Moment.PREPARED, Moment.COMMITTED):
                mortal.dies(rank, moment)
        for rank in victims:
            mortal.dies(rank, Moment.LEAVING)
            mortal.dies_while_one_joins(rank)
        leave(job, process, last_step(job) + 10)
    status = job.status()
    assert status["stepsLost"] == 0
    assert_as_undisturbed(job, make, tmp_path / "undisturbed")
