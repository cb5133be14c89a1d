"""The operator's keys are changed, and lost, while a job trains on a real cluster."""

import signal
from collections.abc import Iterator

import pytest
from operator_fixture import Watched
from operator_jobs import ClusterJob, wait_for

from lmj_operator.backend.kubernetes.keys import FIRST
from lmj_operator.backend.kubernetes.trust import trusted_by
from lmj_operator.backend.signing_key import SigningKey

pytestmark = pytest.mark.e2e


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    with operator.job() as made:
        made.spec["training"] |= {"maxSteps": 100_000, "epochs": 100_000}
        made.spec["checkpoint"] = {"everySteps": 100_000}
        made.apply()
        made.wait_for_step(20)
        yield made


def trust(job: ClusterJob) -> dict[str, tuple[str, ...]]:
    """Whom each pod trusts, by its name; of those that are not on their way out."""
    pods = [pod for pod in job.get("pods")["items"] if "deletionTimestamp" not in pod["metadata"]]
    return {pod["metadata"]["name"]: trusted_by(pod["spec"]) for pod in pods}


def key(operator: Watched, name: str) -> SigningKey:
    return SigningKey.of_pem((operator.process.keys / name).read_bytes())


def test_no_secret_is_made_in_the_namespace_of_a_job(job: ClusterJob) -> None:
    assert job.get("secrets")["items"] == []


def test_a_pod_trusts_the_key_that_was_the_newest_when_it_was_made(job: ClusterJob, operator: Watched) -> None:
    old = key(operator, FIRST).public
    assert trust(job) == {"tiny-r0-1": (old,), "tiny-r1-1": (old,)}
    new = SigningKey.generate()
    (operator.process.keys / "0002.pem").write_bytes(new.pem())
    wait_for("the new key", lambda: f"new pods trust {new.public}" in operator.process.said(), job.describe, 120)
    job.kubectl("delete", "pod/tiny-r1-1", "-n", job.namespace)
    expected = {"tiny-r0-1": (old,), "tiny-r1-2": (new.public,)}
    wait_for("the next pod", lambda: trust(job) == expected, job.describe, 120)
    job.wait_for_step(job.step + 20)


@pytest.mark.slow
def test_pods_whose_key_is_gone_are_replaced_with_their_last_checkpoint(job: ClusterJob, operator: Watched) -> None:
    old = trust(job)["tiny-r0-1"]
    operator.process.kill(signal.SIGTERM)
    for file in operator.process.keys.iterdir():
        file.unlink()
    at = job.step
    operator.process.start()
    wait_for("other pods", lambda: sorted(trust(job)) == ["tiny-r0-2", "tiny-r1-2"], job.describe, 120)
    new = (key(operator, FIRST).public,)
    assert new != old
    assert trust(job) == {"tiny-r0-2": new, "tiny-r1-2": new}
    job.wait_for_step(at + 20)
    status = job.status
    counts = tuple(status[name] for name in ("restarts", "restartsBefore", "disruptions", "stepsLost"))
    assert counts == (2, 2, 2, 0), "none of the budget's: " + job.describe()
    assert any("no key that its agent obeys" in incident["message"] for incident in status["incidents"]), status["incidents"]
