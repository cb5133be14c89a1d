"""Live migration on a real cluster: ranks leave a node that is drained, and nothing is lost whoever dies meanwhile."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import yaml
from cluster import Cluster
from jobs import Job
from operator_fixture import Watched, condition
from operator_jobs import DEADLINE, ClusterJob, wait_for

pytestmark = pytest.mark.e2e


# Where the rate is no function of the length, one run is the beginning of every longer one.
TRAINING = {"maxSteps": 100_000, "epochs": 100_000, "schedule": "Constant", "warmupRatio": 0}


@pytest.fixture
def new_job(operator: Watched) -> Iterator[ClusterJob]:
    """A job without end that is not applied yet, without checkpoints to speak of: what it loses cannot be had from them."""
    with operator.job() as made:
        made.spec["training"] |= TRAINING
        made.spec["checkpoint"] = {"everySteps": 100_000}
        # A pod whose node loses power while its container is made may never start, though the node comes back.
        made.spec["recovery"] = {"nodeGoneSeconds": 5, "startTimeoutSeconds": 120}
        yield made


@pytest.fixture
def job(new_job: ClusterJob) -> ClusterJob:
    """The same, which trains."""
    new_job.apply()
    new_job.wait_for_step(20)
    return new_job


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[int, float]]]:
    """Losses of jobs: in the end they are compared with those of a run on this machine that nobody disturbed."""
    told: list[dict[int, float]] = []
    yield told
    steps = max(map(len, told), default=0)
    if steps == 0:
        return
    left_alone = Job(tmp_path_factory.mktemp("undisturbed"))
    document = yaml.safe_load(left_alone.file.read_text())
    document["spec"]["training"] |= {**TRAINING, "maxSteps": steps}
    left_alone.file.write_text(yaml.safe_dump(document))
    done = left_alone.run()
    assert done.returncode == 0, done.stdout + done.stderr
    expected = left_alone.losses()
    for losses in told:
        assert losses == {step: expected[step] for step in range(1, len(losses) + 1)}


def nodes(job: ClusterJob) -> list[str]:
    return [rank["node"] for rank in job.status["ranks"]]


def pods(job: ClusterJob) -> list[str]:
    return [member["pod"] for member in job.status["view"]["members"]]


def assert_nothing_lost(job: ClusterJob, moves: int, learned: list[dict[int, float]] | None = None) -> None:
    """Training goes on, every step is there once, and ``moves`` were made; what was learned is to be compared as of ``learned``."""
    job.wait_for_phase("Running")
    at = job.step
    job.wait_for_step(at + 20)
    status = job.status
    assert (status["migrations"], status["stepsLost"]) == (moves, 0), job.describe()
    losses = job.losses()
    assert sorted(losses) == list(range(1, max(losses) + 1))
    if learned is not None:
        learned.append(losses)


def migrate(job: ClusterJob, *options: str) -> str:
    """What ``lmj migrate`` says."""
    command = [sys.executable, "-m", "lmj_operator.cli.main", "migrate", job.name, "-n", job.namespace, *options]
    path = f"{job.target.kubectl_program.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "KUBECONFIG": str(job.target.kubeconfig), "PATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def drained(job: ClusterJob, node: str) -> Iterator[Callable[[], str]]:
    """``kubectl drain`` of the job's pods; the call waits for its end and gives what it said. The node is as before in the end."""
    options = ["--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s", f"--pod-selector=lmj.dev/job={job.name}"]
    command = [str(job.target.kubectl_program), f"--kubeconfig={job.target.kubeconfig}", "drain", node, *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end() -> str:
        said, _ = process.communicate(timeout=200)
        assert process.returncode == 0, said
        return said

    try:
        yield end
    finally:
        process.kill()
        process.communicate()
        job.target.kubectl("uncordon", node)


def assert_it_tells(job: ClusterJob, rank: int, node: str, *, live: bool = True) -> None:
    """The status says that ``rank`` moved from ``node`` for its sake, at no cost, and proves that a live copy was right."""
    status = job.status
    assert node not in nodes(job)
    assert status["restarts"] == 0
    moved = [incident for incident in status["incidents"] if incident["kind"] == "Moved"]
    assert [(i["rank"], i["node"], i["stepsLost"]) for i in moved] == [(rank, node, 0)]
    incident = moved[0]
    print(incident["message"], incident["recovery"], incident["seconds"])
    if live:
        copied = incident["copied"]
        assert copied["done"] == copied["size"] > 0
        assert copied["gradients"] > 0
        assert len(copied["digest"]) == 32
        assert copied["inSyncStep"] <= incident["step"]
    # The pause begins with the last update before the move, which may be earlier than the operator's notice, from which "seconds" counts.
    assert 0 <= incident["pauseSeconds"] < 30
    assert 0 <= incident["seconds"] < 120


def test_a_drained_node_is_left_and_the_drain_returns(job: ClusterJob, learned: list[dict[int, float]]) -> None:
    node = nodes(job)[1]
    budget = job.get(f"poddisruptionbudget/{job.name}-trainers")
    assert budget["status"]["disruptionsAllowed"] == 0
    begin = time.monotonic()
    with drained(job, node) as end:
        wait_for("its word on it", lambda: condition(job, "Migrating").get("status") == "True", job.describe)
        print(condition(job, "Migrating")["message"])
        said = end()
        print(said, f"{time.monotonic() - begin:.1f} s")
        # The pod was evicted by nobody: the operator ended it when its rank had gone.
        assert "violate the pod's disruption budget" in said
        assert_nothing_lost(job, 1, learned)
        assert_it_tells(job, 1, node)


@pytest.mark.slow
def test_a_drain_returns_although_the_operator_is_killed_while_the_rank_moves(
    job: ClusterJob, operator: Watched, learned: list[dict[int, float]]
) -> None:
    node = nodes(job)[1]
    with drained(job, node) as end:
        for state in ("Starting", "Copying", "InSync"):
            # Each is there for a moment only: whichever comes, it has no operator then.
            wait_for(state, lambda state=state: _further(job, state), job.describe)  # type: ignore[misc]
            operator.process.kill()
            operator.process.start()
        end()
        assert_nothing_lost(job, 1, learned)
        assert_it_tells(job, 1, node)


def _further(job: ClusterJob, state: str) -> bool:
    """Whether the move came as far as ``state``."""
    order = ["Pending", "Starting", "Copying", "InSync"]
    status = job.status
    followers = [f["state"] for f in status.get("followers", [])]
    return status["migrations"] == 1 or any(order.index(f) >= order.index(state) for f in followers)


@pytest.mark.slow
def test_a_drain_returns_although_the_target_loses_power(
    job: ClusterJob, own_cluster: Cluster, learned: list[dict[int, float]]
) -> None:
    node = nodes(job)[1]
    free = next(name for name in own_cluster.node_names() if name not in nodes(job))
    with drained(job, node) as end:
        wait_for("the follower's node", lambda: any(f.get("node") == free for f in job.status.get("followers", [])), job.describe)
        own_cluster.power_cut(free)
        try:
            end()
            assert_nothing_lost(job, 1, learned)
            assert_it_tells(job, 1, node)
        finally:
            own_cluster.power_on(free)


@pytest.mark.slow
def test_a_drain_through_a_checkpoint_returns(new_job: ClusterJob, learned: list[dict[int, float]]) -> None:
    job = new_job
    job.spec["migration"] = {"strategy": "Checkpoint"}
    job.apply()
    job.wait_for_step(20)
    node = nodes(job)[1]
    with drained(job, node) as end:
        end()
        wait_for("the rank elsewhere", lambda: job.status["phase"] == "Running" and node not in nodes(job), job.describe)
        assert_nothing_lost(job, 1, learned)
        assert_it_tells(job, 1, node, live=False)
        assert "through a checkpoint" in json.dumps(job.status["incidents"])


@pytest.mark.slow
def test_the_rank_of_a_deleted_pod_moves_first(job: ClusterJob, learned: list[dict[int, float]]) -> None:
    pod = pods(job)[1]
    job.kubectl("delete", "pod", "-n", job.namespace, pod, "--wait=false")
    wait_for("its rank to move", lambda: job.status["migrations"] == 1, job.describe)
    wait_for("it to be gone", lambda: pod not in job.kubectl("get", "pods", "-n", job.namespace, "-o", "name"), job.describe)
    assert_nothing_lost(job, 1, learned)
    assert job.status["restarts"] == 0


@pytest.mark.slow
def test_a_rank_follows_its_placement(job: ClusterJob, own_cluster: Cluster, learned: list[dict[int, float]]) -> None:
    node = nodes(job)[1]
    free = next(name for name in own_cluster.node_names() if name not in nodes(job))
    job.target.kubectl("label", "node", free, "test/pool=fast")
    try:
        job.spec["placement"] = {"stages": [{"stage": 1, "nodeSelector": {"test/pool": "fast"}}]}
        job.apply()
        wait_for("the move", lambda: job.status["migrations"] == 1, job.describe)
        assert nodes(job)[1] == free
        assert_nothing_lost(job, 1, learned)
        assert_it_tells(job, 1, node)
    finally:
        job.target.kubectl("label", "node", free, "test/pool-")


@pytest.mark.slow
@pytest.mark.parametrize("taint", ["test/maintenance=soon:NoExecute", "karpenter.sh/disrupted:NoSchedule"])
def test_a_tainted_node_is_left(new_job: ClusterJob, learned: list[dict[int, float]], taint: str) -> None:
    job = new_job
    # A pod that tolerates it for a while is ended after that while, and moves in it.
    stays = {"key": "test/maintenance", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 150}
    job.spec["template"]["spec"]["tolerations"] = [stays]
    job.apply()
    job.wait_for_step(20)
    node = nodes(job)[1]
    job.target.kubectl("taint", "node", node, taint)
    try:
        wait_for("the move", lambda: job.status["migrations"] == 1, job.describe)
        assert_nothing_lost(job, 1, learned)
        assert_it_tells(job, 1, node)
    finally:
        job.target.kubectl("taint", "node", node, f"{taint.partition('=')[0].partition(':')[0]}:{taint.rpartition(':')[2]}-")


@pytest.mark.slow
def test_both_ranks_move_when_asked(job: ClusterJob) -> None:
    before = pods(job)
    said = migrate(job, "--rank", "0", "--rank", "1")
    assert said.count("moved at step") == 2, said
    assert job.status["migrations"] == 2
    assert not set(before) & set(pods(job))
    assert_nothing_lost(job, moves=2)


@pytest.mark.slow
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


@pytest.mark.slow
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
