"""``strategy: Command`` on a real cluster: killed, drained, without power, scaled by kubectl; its operator is killed in the middle of each."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from cluster.images import BASE
from command_jobs import (
    ACCELERATED,
    DDP,
    GLUE,
    SCRIPTS,
    Gate,
    Run,
    Script,
    assert_equal,
    command_document,
    load_weights,
    write_rows,
)
from operator_fixture import Watched, forget_volumes
from operator_jobs import ClusterJob, wait_for
from test_migration import drained

pytestmark = pytest.mark.e2e

MOUNTED = Path("/output")
"""The output volume, as pods see it."""
GATE = "gate"


class ScriptJob(ClusterJob):
    """A job that runs ``script``, with all that it reads and writes on the output volume."""

    gate: Gate
    script: Script

    @property
    def results(self) -> Path:
        """The folder that the script writes to."""
        assert self.output is not None
        return self.output / "out"

    def waits_after(self, step: int) -> None:
        """It is applied, and both ranks wait at the gate after ``step``."""
        self.gate.close(step)
        self.apply()
        self.reaches(step, 0, 1)

    def reaches(self, step: int, *ranks: int) -> None:
        """Until ``ranks`` wait at the gate after ``step``."""
        wait_for(f"ranks {ranks} after step {step}", lambda: self.gate.reached(step, *ranks), self.describe)


@contextmanager
def job_of(operator: Watched, script: Script, **spec: Any) -> Iterator[ScriptJob]:
    """A job that is not applied yet."""
    environment = operator.own.environment_mounts()
    inside = {"GATE": f"{MOUNTED}/{GATE}", "HF_HOME": f"{MOUNTED}/huggingface", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    env = [*environment.env, *({"name": name, "value": value} for name, value in inside.items())]
    trainer = {"name": "trainer", "env": env, "volumeMounts": environment.volume_mounts}
    template = {"metadata": {"labels": {}}, "spec": {"volumes": environment.volumes, "containers": [trainer]}}
    words = [word.replace("train.csv", f"{MOUNTED}/train.csv") for word in script.words(MOUNTED / "out")]
    document = command_document(words, "out", recovery={"nodeGoneSeconds": 5}, **spec)
    job = ScriptJob(operator.target, operator.process, template, document)
    job.script = script
    try:
        job.volumes()
        assert job.output is not None
        write_rows(job.output / "train.csv")
        job.gate = Gate(job.output / GATE)
        job.gate.folder.chmod(0o777)  # pods are not root
        yield job
    finally:
        job.remove()
        forget_volumes(job.target, job.namespace)


@pytest.fixture(scope="module")
def of_torchrun(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Script], Any]:
    """Final weights of ``torchrun`` with two processes on this machine."""

    def of(script: Script) -> Any:
        run = Run(tmp_path_factory.mktemp("torchrun"), script)
        run.whole()
        return run.weights()

    return of


def view(job: ClusterJob) -> list[int]:
    """Ranks that are in the view."""
    return [member["rank"] for member in (job.status.get("view") or {}).get("members", [])]


def restart(operator: Watched) -> None:
    """In the middle of something it is killed, and started again."""
    operator.process.kill()
    operator.process.start()


STEP = 22
"""In the last epoch of Accelerate's loop: in the middle of an earlier one it goes on with other random numbers, under ``torchrun`` too."""
BOTH = pytest.mark.parametrize("script", [GLUE, pytest.param(ACCELERATED, marks=pytest.mark.slow)], ids=["trainer", "accelerate"])


@BOTH
def test_a_killed_process_is_started_again_and_goes_on(
    operator: Watched, of_torchrun: Callable[[Script], Any], script: Script
) -> None:
    with job_of(operator, script) as job:
        job.waits_after(STEP)
        pods = [entry["pod"] for entry in job.status["ranks"]]
        operator.process.kill()
        kill = f"import os; os.kill({job.gate.pid(1)}, 9)"
        job.kubectl("exec", "-n", job.namespace, pods[1], "-c", "trainer", "--", "python", "-c", kill)
        operator.process.start()
        wait_for("the restart", lambda: job.status["restarts"] == 1, job.describe)
        job.gate.open()
        job.wait_for_phase("Succeeded")
        assert [entry["pod"] for entry in job.status["ranks"]] == pods
        assert job.gate.steps() == [*range(1, STEP + 1), *range(21, script.steps + 1)]
        assert_equal(load_weights(job.results), of_torchrun(script))


@pytest.mark.slow
@BOTH
def test_a_drained_node_is_left_and_no_step_is_lost(
    operator: Watched, of_torchrun: Callable[[Script], Any], script: Script
) -> None:
    with job_of(operator, script) as job:
        job.waits_after(STEP)
        node = job.status["ranks"][1]["node"]
        with drained(job, node) as end:
            restart(operator)
            wait_for("the move", lambda: job.status["migrations"] == 1, job.describe)
            assert "drained" in end()
        assert job.status["ranks"][1]["node"] != node
        job.gate.open()
        job.wait_for_phase("Succeeded")
        status = job.status
        assert (status["restarts"], status["migrations"]) == (0, 1), job.describe()
        # The Trainer saves as a step begins, and does that step all the same: it is done again.
        again = [STEP + 1] if script is GLUE else []
        assert job.gate.steps() == [*range(1, STEP + 1), *again, *range(STEP + 1, script.steps + 1)]
        assert_equal(load_weights(job.results), of_torchrun(script))


@pytest.mark.slow
def test_the_operator_is_killed_and_the_script_does_not_notice(operator: Watched, of_torchrun: Callable[[Script], Any]) -> None:
    with job_of(operator, DDP) as job:
        job.waits_after(12)
        operator.process.kill()
        job.gate.close(22)
        job.reaches(22, 0, 1)
        operator.process.start()
        job.gate.open()
        job.wait_for_phase("Succeeded")
        assert (job.status["restarts"], job.status["view"]["number"]) == (0, 1)
        assert job.gate.steps() == list(range(1, DDP.steps + 1))
        assert_equal(load_weights(job.results), of_torchrun(DDP))


def test_kubectl_scales_a_script(operator: Watched) -> None:
    with job_of(operator, DDP, dataParallel={"replicas": 2, "minReplicas": 1, "maxReplicas": 3}) as job:
        job.waits_after(10)
        job.kubectl("scale", f"lmj/{job.name}", "-n", job.namespace, "--replicas=3")
        restart(operator)
        job.reaches(11, 0, 1, 2)
        wait_for("three replicas", lambda: job.status["replicas"] == 3, job.describe)
        job.gate.close(20)
        job.reaches(20, 0, 1, 2)
        job.kubectl("scale", f"lmj/{job.name}", "-n", job.namespace, "--replicas=2")
        restart(operator)
        job.reaches(21, 0, 1)
        job.gate.open()
        job.wait_for_phase("Succeeded")
        assert (job.status["restarts"], job.status["stepsLost"]) == (0, 0)
        assert job.gate.steps() == list(range(1, DDP.steps + 1))
        assert job.gate.worlds() == [2] * 10 + [3] * 10 + [2] * 20
        files = job.results.glob("samples-*.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        for epoch in range(4):
            seen = [sample for line in lines if (line["step"] - 1) // 10 == epoch for sample in line["samples"]]
            assert sorted(seen) == list(range(120))


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_without_power_takes_one_replica(operator: Watched, own_cluster: Cluster, rank: int) -> None:
    with job_of(operator, DDP, dataParallel={"replicas": 2, "minReplicas": 1}) as job:
        job.waits_after(10)
        ranks = job.status["ranks"]
        node = ranks[rank]["node"]
        assert node != ranks[1 - rank]["node"], "replicas are spread over nodes"
        own_cluster.power_cut(node)
        restart(operator)
        try:
            # The one that is left goes on alone, from the checkpoint ...
            wait_for("a step of one process", lambda: job.gate.worlds()[-1:] == [1], job.describe)
            # ... and has the other beside it again, on a node that has power.
            job.reaches(11, 0, 1)
            wait_for("both", lambda: job.gate.worlds()[-1:] == [2] and view(job) == [0, 1], job.describe)
        finally:
            own_cluster.power_on(node)
        assert job.status["ranks"][rank]["node"] != node
        job.gate.open()
        job.wait_for_phase("Succeeded")
        assert job.gate.steps()[:12] == [*range(1, 11), 11, 11]
        assert job.gate.steps()[12:] == list(range(12, DDP.steps + 1))
        assert job.gate.worlds()[10:12] == [1, 2]
        assert load_weights(job.results)


@pytest.mark.slow
def test_a_lost_nodes_memory_comes_from_another_though_the_operator_is_killed(
    operator: Watched, own_cluster: Cluster, of_torchrun: Callable[[Script], Any]
) -> None:
    step = 17  # the newest checkpoint is of step 15
    with job_of(operator, GLUE, dataParallel={"replicas": 2, "minReplicas": 2}, command={"memory": {"every": 1}}) as job:
        job.waits_after(step)
        node = job.status["ranks"][1]["node"]
        own_cluster.power_cut(node)
        try:
            wait_for("its loss", lambda: job.status["phase"] != "Running", job.describe)
            operator.process.kill()
            job.gate.open()
            operator.process.start()
            job.wait_for_phase("Succeeded")
        finally:
            own_cluster.power_on(node)
        steps = job.gate.steps()
        assert len(steps) <= GLUE.steps + 1, str(steps)
        assert sorted(set(steps)) == list(range(1, GLUE.steps + 1))
        assert_equal(load_weights(job.results), of_torchrun(GLUE))


FETCH = """
git config --global --add safe.directory '*'
git init --quiet /code && cd /code
git fetch --quiet --depth 1 file:///output/repository "$REVISION" && git checkout --quiet FETCH_HEAD
"""


def repository(folder: Path) -> str:
    """A revision that has the scripts; at the newest one they cannot run."""

    def git(*words: str) -> str:
        who = ["-c", "user.name=somebody", "-c", "user.email=somebody@lmj.invalid"]
        return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()

    shutil.copytree(SCRIPTS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "they run")
    revision = git("rev-parse", "HEAD")
    (folder / DDP.file).write_text("raise SystemExit('this revision cannot run')\n")
    git("commit", "--quiet", "-a", "-m", "they do not")
    return revision


@pytest.mark.slow
def test_its_code_is_a_revision_of_a_git_repository(operator: Watched, of_torchrun: Callable[[Script], Any]) -> None:
    """As the guide has it: an init container fetches it."""
    with job_of(operator, DDP) as job:
        assert job.output is not None
        environment = operator.own.environment_mounts()
        code = {"name": "code", "mountPath": "/code"}
        fetching = {
            "name": "code",
            "image": BASE,
            "command": ["sh", "-ec", FETCH],
            "env": [*environment.env, {"name": "REVISION", "value": repository(job.output / "repository")}],
            "volumeMounts": [*environment.volume_mounts, code, {"name": "output", "mountPath": "/output"}],
        }
        spec = job.spec["template"]["spec"]
        spec["initContainers"] = [fetching]
        spec["volumes"] = [*spec["volumes"], {"name": "code", "emptyDir": {}}]
        trainer = spec["containers"][0]
        trainer["volumeMounts"] = [*trainer["volumeMounts"], code]
        job.spec["command"] |= {"args": [DDP.file, *job.spec["command"]["args"][1:]], "workingDir": "/code"}
        job.apply()
        job.wait_for_phase("Succeeded")
        assert job.gate.steps() == list(range(1, DDP.steps + 1))
        assert_equal(load_weights(job.results), of_torchrun(DDP))
