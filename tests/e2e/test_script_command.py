"""``strategy: Command`` with real processes: a user's script ends with the weights that ``torchrun`` gives it, whoever dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from pathlib import Path

import pytest
import torch
from command_jobs import ALL, DDP, GLUE, CommandJob, Run, Script, assert_equal
from jobs import DEADLINE, wait_until
from moving import migrating

pytestmark = pytest.mark.e2e

Weights = Callable[[str], dict[str, torch.Tensor]]
SCRIPTS = ("trainer", "accelerate")


class Victim(StrEnum):
    """What is killed, of rank 1."""

    PROCESS = "a process of the script"
    LAUNCHER = "the worker that started it"
    POD = "the agent with all that it has"

    def pid(self, job: CommandJob) -> int:
        match self:
            case Victim.PROCESS:
                return job.gate.pid(1)
            case Victim.LAUNCHER:
                return job.launcher(1)
            case Victim.POD:
                return job.agent(1)

    def kill(self, job: CommandJob) -> None:
        pid = self.pid(job)
        if self is Victim.POD:
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def of_torchrun(tmp_path_factory: pytest.TempPathFactory) -> Weights:
    """Final weights of a script that ``torchrun`` ran with two processes and nobody disturbed."""

    @cache
    def of(name: str) -> dict[str, torch.Tensor]:
        run = Run(tmp_path_factory.mktemp(name), ALL[name])
        run.whole()
        return run.weights()

    return of


def middle(script: Script) -> int:
    """A step in the middle of a run, and between two checkpoints."""
    return script.steps // 2 + 2


def checkpointed(step: int) -> int:
    """The newest step that is saved when ``step`` is done."""
    return step - step % 5


SLOW = pytest.mark.slow
KILLED = [
    pytest.param(
        name, victim, marks=() if (name == "trainer") == (victim is Victim.PROCESS) else SLOW, id=f"{name}-{victim.value}"
    )
    for name in SCRIPTS
    for victim in Victim
]
"""Of each script and each victim; one of each for every change."""


@pytest.mark.parametrize("name", [name if name == "ddp" else pytest.param(name, marks=SLOW) for name in ALL])
def test_it_ends_as_under_torchrun(tmp_path: Path, of_torchrun: Weights, name: str) -> None:
    job = CommandJob(tmp_path, ALL[name])
    with job.started() as process:
        job.finish(process)
    status = job.status()
    assert (status["restarts"], status["incidents"]) == (0, [])
    assert job.gate.steps() == list(range(1, job.script.steps + 1))
    assert set(job.gate.worlds()) == {2}
    assert_equal(job.weights(), of_torchrun(name))
    if name == "ddp":
        assert (status["progress"]["step"], status["progress"]["steps"]) == (40, 40)


@pytest.mark.parametrize(("name", "victim"), KILLED)
def test_what_is_killed_is_started_again_and_goes_on(tmp_path: Path, of_torchrun: Weights, name: str, victim: Victim) -> None:
    job = CommandJob(tmp_path, ALL[name])
    step = middle(job.script)
    job.gate.close(step)
    with job.started() as process:
        wait_until(lambda: job.gate.reached(step, 0, 1), process)
        before = job.gate.alive()
        victim.kill(job)
        wait_until(lambda: job.status()["restarts"] == 1 and not before & job.gate.alive(), process)
        job.gate.open()
        job.finish(process)
    status = job.status()
    assert status["restarts"] == 1
    assert [incident["rank"] for incident in status["incidents"]] == [1]
    told = status["incidents"][0]["message"]
    print(told)
    if victim is not Victim.POD:
        assert "SIGKILL" in told
    newest = checkpointed(step)
    assert job.gate.steps() == [*range(1, step + 1), *range(newest + 1, job.script.steps + 1)]
    assert_equal(job.weights(), of_torchrun(name))


@pytest.mark.parametrize("victim", [None, *(pytest.param(victim, marks=SLOW) for victim in Victim)])
@pytest.mark.parametrize("name", [pytest.param("accelerate", marks=SLOW), "trainer"])
def test_the_operator_is_killed_too_and_started_again(
    tmp_path: Path, of_torchrun: Weights, name: str, victim: Victim | None
) -> None:
    job = CommandJob(tmp_path, ALL[name])
    step = middle(job.script)
    job.gate.close(step)
    with job.started() as process:
        wait_until(lambda: job.gate.reached(step, 0, 1), process)
        if victim is not None:
            victim.kill(job)
        process.kill()
        process.communicate(timeout=DEADLINE)
        # On this machine a run's pods end with it.
        wait_until(lambda: not job.processes() and not job.gate.alive())
    assert not (job.output / "model.safetensors").exists()
    job.gate.open()
    with job.started() as process:
        job.finish(process)
    assert job.gate.steps()[-1] == job.script.steps
    assert_equal(job.weights(), of_torchrun(name))


@pytest.mark.parametrize("victim", [Victim.PROCESS, pytest.param(Victim.POD, marks=SLOW)])
def test_with_memory_it_goes_on_from_its_newest_step(tmp_path: Path, of_torchrun: Weights, victim: Victim) -> None:
    """And not from its newest checkpoint; a new pod takes the step over from the other one."""
    job = CommandJob(tmp_path, GLUE, command={"memory": {"every": 1}})
    step = middle(job.script)
    assert checkpointed(step) < step - 1
    job.gate.close(step)
    with job.started() as process:
        wait_until(lambda: job.gate.reached(step, 0, 1), process)
        before = job.gate.alive()
        victim.kill(job)
        wait_until(lambda: job.status()["restarts"] == 1 and not before & job.gate.alive(), process)
        job.gate.open()
        job.finish(process)
    steps = job.gate.steps()
    assert len(steps) <= job.script.steps + 1, str(steps)
    assert sorted(set(steps)) == list(range(1, job.script.steps + 1))
    assert_equal(job.weights(), of_torchrun("trainer"))


FAILS = "the configuration is wrong: code 7"


def test_a_script_that_fails_ends_the_job_with_its_code_and_its_last_words(tmp_path: Path) -> None:
    job = CommandJob(
        tmp_path, Script("ends.py", ("7",), 0), recovery={"maxRestarts": 0}, dataParallel={"replicas": 1, "minReplicas": 1}
    )
    with job.started() as process:
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, out + err
    status = job.status()
    assert status["phase"] == "Failed"
    assert "exit code 7" in status["message"], status["message"]
    assert FAILS in status["message"], status["message"]
    assert status["message"] in err


@pytest.mark.parametrize("code", [2, pytest.param(3, marks=SLOW)])
def test_no_exit_code_of_a_script_has_another_meaning(tmp_path: Path, code: int) -> None:
    """A worker of the project's own says by these that it is the user's mistake, or that it was asked to end."""
    job = CommandJob(
        tmp_path, Script("ends.py", (str(code),), 0), recovery={"maxRestarts": 1}, dataParallel={"replicas": 1, "minReplicas": 1}
    )
    with job.started() as process:
        out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1, out + err
    status = job.status()
    assert (status["phase"], status["restarts"]) == ("Failed", 1)
    assert f"exit code {code}" in status["message"], status["message"]


def test_a_script_that_says_nothing_completes(tmp_path: Path) -> None:
    job = CommandJob(tmp_path, Script("ends.py", ("0",), 0))
    with job.started() as process:
        job.finish(process)
    assert job.status()["restarts"] == 0
    again = job.start()
    out, err = again.communicate(timeout=DEADLINE)
    assert again.returncode == 0, out + err
    assert "finished already, nothing to do" in out


@SLOW
def test_more_and_fewer_replicas_while_it_trains(tmp_path: Path) -> None:
    job = CommandJob(tmp_path, DDP, dataParallel={"replicas": 2, "minReplicas": 1, "maxReplicas": 3})
    job.gate.close(10)
    with job.started() as process:
        wait_until(lambda: job.gate.reached(10, 0, 1), process)
        with scaling(job, 3) as scale:
            wait_until(lambda: job.gate.reached(11, 0, 1, 2), process)
            said, _ = scale.communicate(timeout=DEADLINE)
            assert scale.returncode == 0, said
        job.gate.close(20)
        wait_until(lambda: job.gate.reached(20, 0, 1, 2), process)
        with scaling(job, 2) as scale:
            wait_until(lambda: job.gate.reached(21, 0, 1), process)
            said, _ = scale.communicate(timeout=DEADLINE)
            assert scale.returncode == 0, said
        job.gate.open()
        job.finish(process)
    assert (job.status()["restarts"], job.status()["stepsLost"]) == (0, 0)
    assert job.gate.steps() == list(range(1, 41)), "each was left where it had just saved"
    assert job.gate.worlds() == [2] * 10 + [3] * 10 + [2] * 20
    lines = [json.loads(line) for rank in range(3) for line in (job.output / f"samples-{rank}.jsonl").read_text().splitlines()]
    for epoch in range(4):
        seen = [sample for line in lines if (line["step"] - 1) // 10 == epoch for sample in line["samples"]]
        assert sorted(seen) == list(range(120)), "each sample once an epoch, however many shared it"


def scaling(job: CommandJob, replicas: int) -> subprocess.Popen[str]:
    """``lmj scale``: it ends when so many train."""
    command = [sys.executable, "-m", "lmj_operator.cli.main", "scale", str(job.output), "--replicas", str(replicas)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("name", ["accelerate", pytest.param("trainer", marks=SLOW)])
def test_a_script_that_saves_when_told_moves_without_a_step_lost(tmp_path: Path, of_torchrun: Weights, name: str) -> None:
    # The Trainer's newest checkpoint is found for it, and tells where it goes on: in so short a run it names no step itself.
    job = CommandJob(tmp_path, ALL[name], **({"command": {"checkpoints": "out"}} if name == "trainer" else {}))
    step = middle(job.script)
    job.gate.close(step)
    with job.started() as process:
        wait_until(lambda: job.gate.reached(step, 0, 1), process)
        pod = job.status()["ranks"][1]["pod"]
        before = job.gate.alive()
        with migrating(job, 1) as asked:
            # It returns when the script goes on, so the gate has to be open by then, and not while anybody saves.
            wait_until(lambda: not before & job.gate.alive() and job.gate.alive() != set(), process)
            job.gate.open()
            out, err = asked.communicate(timeout=DEADLINE)
        assert asked.returncode == 0, out + err
        assert job.status()["ranks"][1]["pod"] != pod
        job.finish(process)
    status = job.status()
    assert (status["restarts"], status["migrations"]) == (0, 1)
    # The Trainer tells its steps every five seconds at most: what the status makes of them is near, the gate has them all.
    assert status["stepsLost"] <= (2 if name == "trainer" else 0)
    assert [(i["kind"], i["rank"]) for i in status["incidents"]] == [("Moved", 1)]
    # The Trainer saves as a step begins, and does that step all the same: it is done again.
    again = [step + 1] if name == "trainer" else []
    assert job.gate.steps() == [*range(1, step + 1), *again, *range(step + 1, job.script.steps + 1)]
    assert_equal(job.weights(), of_torchrun(name))


def test_two_processes_in_one_pod(tmp_path: Path, of_torchrun: Weights) -> None:
    job = CommandJob(tmp_path, GLUE, command={"processesPerNode": 2}, dataParallel={"replicas": 1, "minReplicas": 1})
    step = middle(job.script)
    job.gate.close(step)
    with job.started() as process:
        wait_until(lambda: job.gate.reached(step, 0, 1), process)
        os.kill(job.gate.pid(1), signal.SIGKILL)
        wait_until(lambda: job.status()["restarts"] == 1, process)
        job.gate.open()
        job.finish(process)
    assert set(job.gate.worlds()) == {2}
    assert_equal(job.weights(), of_torchrun("trainer"))


@SLOW
def test_two_processes_in_each_of_two_pods(tmp_path: Path) -> None:
    run = Run(tmp_path / "torchrun", DDP, processes=4)
    with run.started() as alone:
        # One of four is sometimes aborted by torch as it ends, with all done ("terminate called without an active exception"): 3 times of 37.
        said, _ = alone.communicate(timeout=DEADLINE)
    assert run.gate.steps() == list(range(1, DDP.steps + 1)), said
    job = CommandJob(tmp_path / "job", DDP, command={"processesPerNode": 2})
    with job.started() as process:
        job.finish(process)
    assert set(job.gate.worlds()) == {4}
    assert_equal(job.weights(), run.weights())
