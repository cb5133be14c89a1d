"""``lmj.Client`` against a real cluster: a job is made, waited for, told of, suspended, moved, logged and deleted."""

from collections.abc import Iterator

import pytest
from operator_fixture import Watched
from operator_jobs import DEADLINE, ClusterJob, wait_for

import lmj

pytestmark = pytest.mark.e2e


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    """One that is not made yet: stages in a replica each, and room for a second replica."""
    with operator.job(stages=1) as made:
        made.spec["training"] |= {"maxSteps": 100_000, "epochs": 100_000}
        made.spec["dataParallel"] = {"shards": 2, "maxReplicas": 2}
        yield made


def test_a_job_is_looked_after_from_python(job: ClusterJob, operator: Watched) -> None:
    name = job.name
    with lmj.Client(kubeconfig=operator.target.kubeconfig, namespace=job.namespace) as client:
        with pytest.raises(lmj.NotFound, match=r"there is no such job"):
            client.get(name)
        made = client.create(lmj.Job.from_object(job.document))
        assert [found.name for found in client.list()] == [name]
        assert client.wait(name, timeout=DEADLINE, phases=[lmj.Phase.RUNNING]).uid == made.uid
        job.wait_for_step(20)

        assert client.scale(name, 2, timeout=DEADLINE).status.replicas == 2
        with pytest.raises(lmj.JobError, match=r"replicas 3 is more than shards 2: each replica needs a shard"):
            client.scale(name, 3)
        before = client.get(name).status.migrations
        assert client.migrate(name, [0], timeout=DEADLINE).status.migrations == before + 1

        lines = list(client.logs(name, rank=0, tail=0))
        assert lines
        assert {line.rank for line in lines} == {0}

        step = client.suspend(name, timeout=DEADLINE).result.steps
        assert step >= 20
        assert list(client.logs(name)) == [], "it has no pods"
        assert client.resume(name, timeout=DEADLINE).phase is lmj.Phase.RUNNING
        job.wait_for_step(step + 20)
        result = client.result(name)
        assert result.steps_lost == 0
        assert "Moved" in {incident.kind for incident in result.incidents}

        reasons: list[str] = []
        wait_for("its events", lambda: "Suspended" in told(client, name, reasons), job.describe, 30)
        assert reasons.index("Started") < reasons.index("Suspended")

        following = client.logs(name, rank=1, tail=1, follow=True)
        assert next(following).rank == 1
        assert client.delete(name)
        with pytest.raises(lmj.NotFound):
            for _ in following:
                pass
        with pytest.raises(lmj.NotFound):
            client.wait(name, timeout=DEADLINE)
    job.wait_until_gone()


def told(client: lmj.Client, name: str, reasons: list[str]) -> list[str]:
    reasons[:] = [event.reason for event in client.events(name)]
    return reasons


def test_a_mistake_that_the_cluster_finds_is_the_users(job: ClusterJob, operator: Watched) -> None:
    body = lmj.Job.from_object(job.document)
    with lmj.Client(kubeconfig=operator.target.kubeconfig, namespace=job.namespace) as client:
        client.create(body)
        with pytest.raises(lmj.ClusterError, match=r"409"):
            client.create(body)
        # Its parts are right, and what is between them is not looked at in a copy.
        wrong = body.model_copy(update={"name": "other", "training": lmj.Training(batch_size=3)})
        with pytest.raises(lmj.JobError, match=r"422 .*training.batch_size must be a multiple of pipeline.micro_batches"):
            client.create(wrong)
