"""The real ``lmj run`` on an output folder that has results: of the same job, of another one, and of one that is to be longer."""

import json
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, last_json
from parity_jobs import make_data, make_job, make_model
from ranks import group, run

pytestmark = pytest.mark.e2e

STEPS = 40


def sets(**values: object) -> list[str]:
    return [part for name, value in values.items() for part in ("--set", f"training.{name}={value}")]


def files(output: Path) -> dict[str, bytes]:
    names = ("metrics.jsonl", "evaluation.json", ".lmj/status.json", ".lmj/job.json", ".job.json")
    return {name: (output / name).read_bytes() for name in names}


def evaluated(output: Path) -> list[tuple[str, int]]:
    found: list[dict[str, Any]] = json.loads((output / "evaluation.json").read_text())
    return [(result["split"], result["step"]) for result in found]


def rates(job: Job) -> dict[int, float]:
    return {line["step"]: line["learningRate"] for line in map(json.loads, job.metrics.read_text().splitlines())}


@pytest.mark.slow
def test_a_finished_folder(tmp_path: Path) -> None:
    job = Job(tmp_path)
    done = job.run(*sets(maxSteps=STEPS))
    assert done.returncode == 0, done.stdout + done.stderr
    before, losses = files(job.output), job.losses()

    same = job.run(*sets(maxSteps=STEPS, threads=2))
    assert (same.returncode, same.stdout.startswith("finished already, nothing to do")) == (0, True), same.stdout + same.stderr
    for option in ((), ("--continue",)):
        other = job.run(*sets(maxSteps=STEPS, learningRate=0.002, seed=3), *option)
        assert other.returncode == 2, other.stdout + other.stderr
        assert other.stdout == ""
        assert "training.seed 0 → 3" in other.stderr
        assert len(other.stderr.splitlines()) == 1
    longer = job.run(*sets(maxSteps=STEPS + 20))
    assert longer.returncode == 2
    assert "training.maxSteps 40 → 60" in longer.stderr
    assert "--continue" in longer.stderr
    shorter = job.run(*sets(maxSteps=STEPS - 20), "--continue")
    assert shorter.returncode == 2
    assert "40 steps are trained already, and the job has 20" in shorter.stderr
    assert files(job.output) == before, "whoever was refused changed nothing"

    goes_on = job.run(*sets(maxSteps=STEPS + 20), "--continue", "-o", "json")
    assert goes_on.returncode == 0, goes_on.stdout + goes_on.stderr
    result = last_json(goes_on.stdout)
    assert (result["steps"], result["stepsLost"]) == (STEPS + 20, 0)
    assert "goes on from step 40 of 60 (training.maxSteps 40 → 60)" in goes_on.stdout
    after = job.losses()
    assert sorted(after) == list(range(1, STEPS + 21))
    assert {step: loss for step, loss in after.items() if step <= STEPS} == losses
    assert (job.output / "metrics.jsonl").read_bytes().startswith(before["metrics.jsonl"])
    assert [result for result in evaluated(job.output) if result[0] == "test"] == [("test", STEPS), ("test", STEPS + 20)]
    assert rates(job)[STEPS + 1] == pytest.approx(0.001 * 20 / 60)
    assert rates(job)[STEPS] == pytest.approx(0.001 * 1 / 40)
    for option in ((), ("--continue",)):
        again = job.run(*sets(maxSteps=STEPS + 20), *option)
        assert (again.returncode, again.stdout.startswith("finished already, nothing to do")) == (0, True), again.stderr

    fresh = job.run(*sets(maxSteps=STEPS), "--fresh")
    assert fresh.returncode == 0, fresh.stdout + fresh.stderr
    assert f"what was in {job.output} is in {job.output}/earlier-1 now" in fresh.stdout
    assert job.losses() == losses, "the same bits as the first time"
    assert (
        max(json.loads(line)["step"] for line in (job.output / "earlier-1/metrics.jsonl").read_text().splitlines()) == STEPS + 20
    )
    assert (job.output / "earlier-1/model/model.safetensors").is_file()


def test_an_unfinished_folder(tmp_path: Path) -> None:
    job = Job(tmp_path)
    process = job.start(*sets(maxSteps=400))
    job.wait_for_step(30, process)
    process.terminate()
    out, err = job.end(process)
    assert process.returncode == 130, out + err
    before = files(job.output)
    reached = max(job.losses())

    other = job.run(*sets(maxSteps=400, learningRate=0.002))
    assert other.returncode == 2, other.stdout + other.stderr
    assert "training.learningRate 0.001 → 0.002" in other.stderr
    assert files(job.output) == before

    process = job.start(*sets(maxSteps=reached + 40, learningRate=0.002, schedule="Constant"), "--continue")
    job.wait_for_step(reached + 5, process)
    process.terminate()
    out, err = job.end(process)
    assert process.returncode == 130, out + err
    resumed = job.run(*sets(maxSteps=reached + 40, learningRate=0.002, schedule="Constant"))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert sorted(job.losses()) == list(range(1, reached + 41))
    assert (job.output / "metrics.jsonl").read_bytes().startswith(before["metrics.jsonl"])
    assert {rate for step, rate in rates(job).items() if step > reached} == {0.002}


@pytest.mark.slow
def test_a_worker_that_nobody_looked_for_leaves_another_job_s_results_alone(tmp_path: Path) -> None:
    """As on a cluster, where a new object may name the folder of another."""
    job = make_job(tmp_path / "out", make_data(tmp_path / "d.csv"), make_model(tmp_path / "model", "bert"), 1)
    run(job, tmp_path / "first")
    metrics = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    model = tmp_path / "out" / "model" / "model.safetensors"
    weights = model.read_bytes()
    training = job.spec.training.model_copy(update={"learning_rate": 0.002})
    other = job.model_copy(update={"spec": job.spec.model_copy(update={"training": training})})
    says = r"ended with 2:[\s\S]*error: .*/out has the results of another job \(training\.learningRate 0\.001 → 0\.002\): choose another"
    with group(other, tmp_path / "second") as ranks, pytest.raises(AssertionError, match=says):
        ranks.start()
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == metrics
    assert model.read_bytes() == weights
    # The same one is there at once: it has nothing to do but its end.
    with group(job, tmp_path / "third") as ranks:
        ranks.start()
