"""Live migration on a real cluster: ranks leave a node that is drained, and nothing is lost whoever dies meanwhile."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from cluster import Cluster
from cluster_fixture import Target
from operator_fixture import Watched, watched_operator
from operator_jobs import DEADLINE, ClusterJob, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def operator(cluster: Target, own_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched_operator(cluster, own_cluster, tmp_path_factory.mktemp("migration")) as operator:
        yield operator


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    """A job without end, and without checkpoints to speak of: what it loses cannot be had from them."""
    with operator.job() as made:
        made.spec["training"] |= {"maxSteps": 100_000, "epochs": 100_000}
        made.spec["checkpoint"] = {"everySteps": 100_000}
        made.spec["recovery"] = {"nodeGoneSeconds": 5}
        made.apply()
        made.wait_for_step(20)
        yield made


def nodes(job: ClusterJob) -> list[str]:
    return [rank["node"] for rank in job.status["ranks"]]


def pods(job: ClusterJob) -> list[str]:
    return [member["pod"] for member in job.status["view"]["members"]]


def assert_nothing_lost(job: ClusterJob, moves: int) -> None:
    """Training goes on, every step is there once, and ``moves`` were made."""
    job.wait_for_phase("Running")
    at = job.step
    job.wait_for_step(at + 20)
    status = job.status
    assert (status["migrations"], status["stepsLost"]) == (moves, 0), job.describe()
    losses = job.losses()
    assert sorted(losses) == list(range(1, max(losses) + 1))


def migrate(job: ClusterJob, *options: str) -> str:
    """What ``lmj migrate`` says."""
    command = [sys.executable, "-m", "lmj_operator.cli.main", "migrate", job.name, "-n", job.namespace, *options]
    path = f"{job.target.kubectl_program.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(job.target.kubeconfig), "PATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_drained_node_is_left_and_the_drain_returns(job: ClusterJob) -> None:
    node = nodes(job)[1]
    begin = time.monotonic()
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s", f"--pod-selector=lmj.dev/job={job.name}")
    try:
        said = job.target.kubectl("drain", node, *options, seconds=200)
        print(said, f"{time.monotonic() - begin:.1f} s")
        assert node not in nodes(job)
        assert_nothing_lost(job, moves=1)
        status = job.status
        assert status["restarts"] == 0
        moved = [incident for incident in status["incidents"] if incident["kind"] == "Moved"]
        assert [incident["rank"] for incident in moved] == [1]
        assert moved[0]["stepsLost"] == 0
        print(moved[0]["message"], moved[0]["recovery"], moved[0]["seconds"])
    finally:
        job.target.kubectl("uncordon", node)


def test_both_ranks_move_when_asked(job: ClusterJob) -> None:
    before = pods(job)
    said = migrate(job, "--rank", "0", "--rank", "1")
    assert said.count("moved at step") == 2, said
    assert job.status["migrations"] == 2
    assert not set(before) & set(pods(job))
    assert_nothing_lost(job, moves=2)


def test_the_operator_is_killed_while_a_rank_moves_to_a_node_that_was_named(job: ClusterJob, operator: Watched) -> None:
    # The scheduler would rather have the free one.
    node = nodes(job)[0]
    job.kubectl("annotate", "lmj", "-n", job.namespace, job.name, f"lmj.dev/migrate=1 to={node} now")
    wait_for("a follower", lambda: bool(job.status.get("followers")), job.describe)
    operator.process.kill()
    operator.process.start()
    wait_for("the move", lambda: job.status["migrations"] == 1, job.describe)
    assert nodes(job)[1] == node
    assert_nothing_lost(job, moves=1)


def test_the_target_loses_power_while_a_rank_moves(job: ClusterJob, own_cluster: Cluster) -> None:
    before = pods(job)
    # Where no member runs: its power takes nobody but the follower.
    free = next(name for name in own_cluster.node_names() if name not in nodes(job))
    others = [name for name in own_cluster.node_names() if name != free and name != nodes(job)[1]]
    for name in others:
        job.target.kubectl("taint", "node", name, "test=full:NoSchedule")
    try:
        job.kubectl("annotate", "lmj", "-n", job.namespace, job.name, "lmj.dev/migrate=1 now")
        wait_for("the follower's node", lambda: any(f.get("node") == free for f in job.status.get("followers", [])), job.describe)
        own_cluster.power_cut(free)
        at = job.step
        job.wait_for_step(at + 50)
        assert pods(job) == before
        assert (job.status["migrations"], job.status["stepsLost"]) == (0, 0)
    finally:
        for name in others:
            job.target.kubectl("taint", "node", name, "test:NoSchedule-")
        own_cluster.power_on(free)
    wait_for("the move after all", lambda: job.status["migrations"] == 1, job.describe)
    assert_nothing_lost(job, moves=1)
