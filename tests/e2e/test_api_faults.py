"""Between the operator and the API server calls are late, lost, refused, answered with old news: a job ends as it does without."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from cluster import Cluster
from cluster.faults import CutWatch, Delay, Drop, Refuse, Rule, Stale
from cluster_fixture import Target
from jobs import Job
from operator_fixture import Watched, watched_operator
from operator_jobs import KILL_WORKERS, ClusterJob, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

STEPS = 60
SEED = 20
WRITES = frozenset({"create", "update", "patch", "delete"})

FAULTS: dict[str, Sequence[Rule]] = {
    "late": [Rule(Delay(0.1, 2.0), chance=0.5)],
    "lost": [Rule(Drop(), chance=0.2), Rule(Drop(forwarded=True), verbs=WRITES, chance=0.3)],
    "conflicts": [Rule(Refuse(409), verbs=WRITES, chance=0.4)],
    "errors": [Rule(Refuse(500), chance=0.1), Rule(Refuse(500, forwarded=True), verbs=WRITES, chance=0.2)],
    "busy": [Rule(Refuse(429, retry_after=1), chance=0.3)],
    "watches": [Rule(CutWatch(1), chance=0.7)],
    "old-news": [Rule(Stale(), chance=0.5), Rule(Refuse(409), verbs=frozenset({"patch"}), chance=0.3)],
}
"""A kind of fault each, heavily."""

ALL = [Rule(rule.fault, rule.verbs, rule.path, rule.chance / 5) for rules in FAULTS.values() for rule in rules]
"""All of them, one call in three or so."""


@pytest.fixture(scope="module")
def operator(cluster: Target, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched_operator(cluster, own_cluster, tmp_path_factory.mktemp("operator"), seed=SEED) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses without a cluster, and so without its faults."""
    job = Job(tmp_path_factory.mktemp("undisturbed"))
    done = job.run("--set", f"training.maxSteps={STEPS}", "--plain")
    assert done.returncode == 0, done.stderr
    return job.losses()


def prepared(job: ClusterJob) -> ClusterJob:
    job.spec["training"]["maxSteps"] = STEPS
    return job


def assert_made_once(operator: Watched, job: ClusterJob, since: int) -> None:
    """By what the server says that it did, whether the operator heard of it or not."""
    done = Counter(call.target.resource for call in operator.writes(since, job) if call.answered == 201)
    assert {kind: number for kind, number in done.items() if kind != "events"} == {
        "networkpolicies": 1,
        "poddisruptionbudgets": 1,
        "services": 1,
        "persistentvolumeclaims": 1,
        "pods": 2,
    }
    assert job.status["serials"] == {"0": 1, "1": 1}


def assert_ends_the_same(operator: Watched, job: ClusterJob, rules: Sequence[Rule], seed: int, losses: dict[int, float]) -> None:
    since = len(operator.proxy.calls)
    operator.proxy.program(rules, seed)
    # Its lists and watches, which stand for minutes, are to meet the faults too.
    operator.process.kill(signal.SIGTERM)
    operator.process.start()
    try:
        prepared(job).apply()
        job.wait_for_phase("Succeeded")
        struck = Counter(f"{call.fault} {call.target.verb}" for call in operator.proxy.calls[since:] if call.fault)
        print(f"{len(operator.proxy.calls) - since} calls, faults: {dict(struck)}")
        assert struck
        # The last writes of the job's life meet the same faults.
        wait_for("the workload gone", lambda: job.left() == ["livemigrationjob.lmj.dev/tiny"], job.describe)
        wait_for("its last status", lambda: bool(job.status.get("cleaned")), job.describe)
    finally:
        operator.proxy.program([])
    status = job.status
    assert (status["progress"]["step"], status["restarts"], status["stepsLost"]) == (STEPS, 0, 0)
    assert status.get("incidents", []) == []
    assert status["view"]["number"] == 1
    assert_made_once(operator, job, since)
    assert job.losses() == losses


def test_a_job_ends_the_same_with_faults_of_every_kind(operator: Watched, undisturbed: dict[int, float]) -> None:
    with operator.job() as job:
        assert_ends_the_same(operator, job, ALL, SEED, undisturbed)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_job_ends_the_same_with_many_faults_of_one_kind(operator: Watched, undisturbed: dict[int, float], kind: str) -> None:
    with operator.job() as job:
        assert_ends_the_same(operator, job, FAULTS[kind], SEED + 1, undisturbed)


@pytest.mark.parametrize("seed", [int(os.environ.get("LMJ_FAULT_SEED", "30"))])
def test_worker_and_operator_are_killed_while_calls_fail(operator: Watched, tmp_path: Path, seed: int) -> None:
    local = Job(tmp_path / "local")
    done = local.run("--set", "training.maxSteps=1500", "--set", "training.epochs=1000", "--plain")
    assert done.returncode == 0, done.stderr
    with operator.job() as job:
        job.spec["training"] |= {"maxSteps": 1500, "epochs": 1000}
        operator.proxy.program(ALL, seed)
        try:
            job.apply()
            job.wait_for_step(50)
            pods = job.pods()
            said = job.kubectl("exec", "-n", job.namespace, "tiny-r0-1", "--", "python", "-c", KILL_WORKERS)
            assert said.startswith("killed")
            operator.process.kill(signal.SIGKILL)
            operator.process.start()
            wait_for("the incident", lambda: bool(job.status.get("incidents")), job.describe)
            job.wait_for_phase("Running", "Succeeded")
            assert job.pods() == pods
            job.wait_for_phase("Succeeded")
        finally:
            operator.proxy.program([])
        status = job.status
        assert (status["restarts"], [incident["kind"] for incident in status["incidents"]]) == (1, ["WorkerExited"])
        assert status["serials"] == {"0": 1, "1": 1}
        assert job.losses() == local.losses()
