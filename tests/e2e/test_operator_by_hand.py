"""What people do to a job's objects with kubectl, on a real cluster: the job trains on, and all is as it was; another's job ends nothing."""

import json
import signal
from collections.abc import Iterator

import pytest
from operator_fixture import Watched, condition, wait_for_words
from operator_jobs import ClusterJob, wait_for

pytestmark = pytest.mark.e2e

KINDS = ("service/tiny-trainers", "networkpolicy/tiny-trainers", "poddisruptionbudget/tiny-trainers")
LEVELS = 3_000


@pytest.fixture
def job(operator: Watched) -> Iterator[ClusterJob]:
    with operator.job() as made:
        made.spec["training"] |= {"maxSteps": 100_000, "epochs": 100_000}
        made.apply()
        made.wait_for_step(20)
        yield made


def there(job: ClusterJob) -> dict[str, str]:
    """The job's other objects, with their uids."""
    found = job.get("services,networkpolicies,poddisruptionbudgets")["items"]
    return {
        f"{o['kind'].lower()}/{o['metadata']['name']}": o["metadata"]["uid"] for o in found if "tiny" in o["metadata"]["name"]
    }


def trains_on(job: ClusterJob) -> None:
    job.wait_for_step(job.step + 20)
    assert (job.status["phase"], job.status["restarts"], job.status["incidents"]) == ("Running", 0, []), job.describe()


def test_what_is_deleted_or_changed_by_hand_is_put_back(job: ClusterJob, operator: Watched) -> None:
    before = there(job)
    assert sorted(before) == sorted(KINDS)
    job.kubectl("delete", *KINDS, "-n", job.namespace)
    wait_for("all of them again", lambda: sorted(there(job)) == sorted(KINDS), job.describe, 30)
    assert not before.items() & there(job).items()

    policy = "networkpolicy/tiny-trainers"
    spec = job.get(policy)["spec"]
    job.kubectl("patch", policy, "-n", job.namespace, "--type=merge", "-p", '{"spec":{"ingress":[{}]}}')
    wait_for("the policy as it was", lambda: job.get(policy)["spec"] == spec, job.describe, 30)
    for name in (*KINDS, "pod/tiny-r1-1"):
        job.kubectl("label", name, "-n", job.namespace, "lmj.dev/job-")
    for name in (*KINDS, "pod/tiny-r1-1"):
        labelled = lambda name=name: job.get(name)["metadata"]["labels"].get("lmj.dev/job") == "tiny"  # noqa: E731
        wait_for(f"the label of {name}", labelled, job.describe, 30)
    trains_on(job)
    calls = len(operator.proxy.calls)
    trains_on(job)
    kinds = {call.target.resource for call in operator.writes(calls, job)}
    assert kinds <= {"livemigrationjobs", "events"}, "what is put back is not written again and again"


@pytest.mark.slow
def test_a_job_that_is_suspended_and_lost_its_objects_comes_back(job: ClusterJob) -> None:
    job.spec["suspend"] = True
    job.apply()
    job.wait_for_phase("Suspended")
    job.kubectl("delete", *KINDS, "-n", job.namespace)
    job.spec["suspend"] = False
    job.apply()
    job.wait_for_phase("Running")
    job.wait_for_step(job.step + 20)
    assert sorted(there(job)) == sorted(KINDS)


@pytest.mark.slow
def test_what_keeps_a_pod_from_being_created_is_told_in_the_kubelets_words(operator: Watched) -> None:
    with operator.job() as made:
        trainer = made.spec["template"]["spec"]["containers"][0]
        trainer["volumeMounts"] = [*trainer["volumeMounts"], {"name": "extra", "mountPath": "/mnt/extra"}]
        volumes = made.spec["template"]["spec"]["volumes"]
        made.spec["template"]["spec"]["volumes"] = [*volumes, {"name": "extra", "secret": {"secretName": "no-such-secret"}}]
        made.apply()

        wait_for_words(made, 'secret "no-such-secret" not found')
        assert condition(made, "PodsWaiting")["reason"] == "FailedMount"
        made.kubectl("create", "secret", "generic", "no-such-secret", "-n", made.namespace, "--from-literal=a=b")
        made.wait_for_phase("Running", "Succeeded")


def test_a_job_that_is_nested_too_deep_is_refused_and_ends_nobody(job: ClusterJob, operator: Watched) -> None:
    document = json.loads(json.dumps(job.document))
    document["metadata"]["name"] = "deep"
    document["spec"]["template"] = {"spec": "DEEP"}
    text = json.dumps(document).replace('"DEEP"', '{"a":' * LEVELS + '"x"' + "}" * LEVELS)
    job.kubectl("create", "-f", "-", "--validate=false", stdin=text.encode())
    message = "{.status.phase}: {.status.message}"
    for number in (None, signal.SIGKILL):
        if number is not None:
            operator.process.kill(number)
            operator.process.start()

        def refused() -> bool:
            said = job.kubectl("get", "lmj/deep", "-n", job.namespace, "-o", f"jsonpath={message}")
            return said.startswith("Failed: spec.template") and said.endswith("nested deeper than 64 levels")

        wait_for("the refusal", refused, job.describe, 60)
        trains_on(job)
