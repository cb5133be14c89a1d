"""Object storage on a real cluster: a Secret leads the pods there, and no volume has any of it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bucket_fixture import lead
from cluster import Cluster
from jobs import write_data
from operator_fixture import Watched, wait_for_words
from operator_jobs import ClusterJob, wait_for
from renewable_server import RenewableServer
from s3_server import S3Server, serving

from lmj_trainer.checkpoint.scan import survey
from lmj_trainer.store.registry import open_place

from .undisturbed_fixture import STEPS, Undisturbed

pytestmark = pytest.mark.e2e


@pytest.fixture
def server(own_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Pods reach it at this machine's address."""
    with serving(tmp_path, host=own_cluster.host) as server:
        lead(server, monkeypatch)
        yield server


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    with operator.job() as made:
        yield made


@pytest.mark.slow
def test_all_pods_die_and_the_next_ones_go_on_from_the_bucket(
    job: ClusterJob, server: S3Server, undisturbed_of: Callable[[int], Undisturbed]
) -> None:
    place = f"{server.bucket('jobs')}/{job.namespace}"
    job.spec["checkpoint"] = {"everySteps": 20, "path": place, "secretName": "bucket"}
    job.apply()

    wait_for_words(job, 'secret "bucket" not found')
    job.secret("bucket", server.environment)

    def saved() -> int:
        return max((found.info.step for found in survey(open_place(place), None) if found.info.problem is None), default=0)

    wait_for("a checkpoint", lambda: saved() >= 40, job.describe)
    job.kubectl("delete", "pods", "--all", "-n", job.namespace, "--force", "--grace-period=0")
    job.wait_for_phase("Succeeded")
    status = job.status
    assert status["view"]["number"] > 1
    assert status["view"]["resume"]["checkpoint"].startswith("step-"), job.describe()
    assert job.losses() == undisturbed_of(STEPS).job.losses()
    assert saved() == STEPS
    assert job.output is not None
    assert not (job.output / job.spec["output"]["path"] / "checkpoints").exists()
    assert server.secret not in job.operator.said() + str(job.get("pods,events,lmj"))


@pytest.mark.slow
def test_rows_in_a_bucket_are_read_with_the_keys_of_the_secret(
    job: ClusterJob, server: S3Server, undisturbed_of: Callable[[int], Undisturbed], tmp_path: Path
) -> None:
    write_data(tmp_path / "data.csv")
    place = server.bucket("rows")
    (open_place(place) / "data.csv").put([(tmp_path / "data.csv").read_bytes()])
    job.spec["dataset"]["source"] = f"{place}/data.csv"
    job.spec["checkpoint"] = {"everySteps": 20, "secretName": "bucket"}
    job.secret("bucket", server.environment)
    job.apply()
    job.wait_for_step(40)
    (open_place(place) / "data.csv").delete()
    job.kubectl("delete", "pods", "--all", "-n", job.namespace, "--force", "--grace-period=0")
    job.wait_for_phase("Succeeded")
    assert job.losses() == undisturbed_of(STEPS).job.losses()
    assert server.secret not in job.operator.said() + str(job.get("pods,events,lmj"))


@pytest.mark.slow
def test_data_and_results_are_in_a_bucket_and_no_pod_shares_a_volume(
    job: ClusterJob, server: S3Server, undisturbed_of: Callable[[int], Undisturbed], tmp_path: Path
) -> None:
    write_data(tmp_path / "data.csv")
    place = server.bucket("jobs")
    (open_place(place) / "data.csv").put([(tmp_path / "data.csv").read_bytes()])
    results = open_place(f"{place}/{job.namespace}")
    job.spec["dataset"]["source"] = f"{place}/data.csv"
    job.spec["output"]["path"] = str(results)
    job.spec["checkpoint"] = {"everySteps": 20, "secretName": "bucket"}
    del job.spec["storage"]
    job.secret("bucket", server.environment)
    job.apply()

    def saved() -> int:
        return max((f.info.step for f in survey(results / "checkpoints", None) if f.info.problem is None), default=0)

    wait_for("a checkpoint", lambda: saved() >= 20, job.describe)
    claims = [
        volume for pod in job.get("pods")["items"] for volume in pod["spec"]["volumes"] if "persistentVolumeClaim" in volume
    ]
    assert not claims
    rank_0 = str(job.status["ranks"][0]["pod"])
    job.kubectl("delete", "pod", rank_0, "-n", job.namespace, "--force", "--grace-period=0")
    wait_for("another pod of rank 0", lambda: job.status["view"]["number"] > 1, job.describe)
    wait_for("a later checkpoint", lambda: saved() >= 60, job.describe)
    job.kubectl("delete", "pods", "--all", "-n", job.namespace, "--force", "--grace-period=0")
    job.wait_for_phase("Succeeded")
    whole = undisturbed_of(STEPS).job
    recorded = [json.loads(line) for line in (results / "metrics.jsonl").get().splitlines()]
    assert [line["step"] for line in recorded] == list(range(1, STEPS + 1))
    assert {line["step"]: line["loss"] for line in recorded} == whole.losses()
    assert (results / "model" / "model.safetensors").get() == (whole.output / "model" / "model.safetensors").read_bytes()
    assert server.secret not in job.operator.said() + str(job.get("pods,events,lmj"))


@pytest.mark.slow
def test_a_secret_that_is_renewed_is_taken_by_pods_that_run(
    job: ClusterJob, own_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RenewableServer("s3", tmp_path, own_cluster.host) as server:
        lead(server, monkeypatch)
        place = f"{server.server.bucket('jobs')}/{job.namespace}"
        job.spec["checkpoint"] = {"everySteps": 200, "path": place, "secretName": "bucket"}
        job.spec["training"]["maxSteps"] = 200_000
        job.secret("bucket", server.environment)
        job.apply()

        def newest() -> int:
            return int((job.status.get("checkpoint") or {}).get("step", 0))

        def stale() -> dict[str, str]:
            return next((c for c in job.status["conditions"] if c["type"] == "CheckpointStale"), {"status": "Unknown"})

        wait_for("a checkpoint", lambda: newest() > 0, job.describe)
        pods = job.pods()
        server.renew()
        wait_for("the refusal is told", lambda: stale()["status"] == "True", job.describe)
        assert stale()["reason"] == "CredentialsRefused"
        assert ": renew the Secret bucket; the newest is of step " in stale()["message"]
        at, before = job.step, newest()
        wait_for("training goes on", lambda: job.step > at + 100, job.describe)
        job.secret("bucket", server.environment)
        wait_for("another checkpoint", lambda: newest() > before, job.describe)
        wait_for("nothing is stale", lambda: stale()["status"] == "False", job.describe)
        assert job.pods() == pods
        status = job.status
        assert (status.get("restarts", 0), status["view"]["number"]) == (0, 1)
        said = job.operator.said() + str(job.get("pods,events,lmj"))
        assert server.environment["AWS_SECRET_ACCESS_KEY"] not in said
