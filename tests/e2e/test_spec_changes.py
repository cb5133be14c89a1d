"""Changes of a job's spec, as users make them one after the other: after each, what is declared is what is there."""

import random
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from operator_fixture import Watched, condition, generation, refusal, wait_until_followed
from operator_jobs import ClusterJob, wait_for

from lmj_operator.plan.report.conditions import NOT_ENFORCED

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

QUIET_SECONDS = 20.0
STANDING = {
    "livemigrationjob.lmj.dev/tiny",
    "networkpolicy.networking.k8s.io/tiny-trainers",
    "poddisruptionbudget.policy/tiny-trainers",
    "service/tiny-trainers",
}
"""What is there of a job besides its pods, until it ends."""

REFUSED_BY_RULES: dict[str, tuple[dict[str, Any], str]] = {
    "micro-batches": ({"pipeline": {"microBatches": 4}}, "pipeline.microBatches cannot be changed after the job is made"),
    "model": ({"model": {"labels": ["bad", "good"]}}, "model cannot be changed after the job is made"),
    "dataset": ({"dataset": {"source": "other.csv"}}, "dataset cannot be changed after the job is made"),
    "training": ({"training": {"learningRate": 0.1}}, "training can only be changed while suspend is true"),
    "output": ({"output": {"path": "elsewhere"}}, "output can only be changed while suspend is true"),
    "encryption": ({"network": {"encryption": "Required"}}, "network.encryption can only be changed while suspend is true"),
    "checkpoints": ({"checkpoint": {"path": "elsewhere"}}, "checkpoint.path can only be changed while suspend is true"),
}
"""Changes of a running job, and what kubectl says to them."""

REFUSED_BY_SCHEMA: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"training": {"epoch": 3}}, 'unknown field "spec.training.epoch"'),
    "wrong type": ({"training": {"epochs": "three"}}, "spec.training.epochs"),
    "too small": ({"pipeline": {"stages": 0}}, "spec.pipeline.stages"),
    "no such word": ({"cleanPodPolicy": "Some"}, 'supported values: "All", "Running", "None"'),
    "not divisible": ({"pipeline": {"microBatches": 3}}, "training.batchSize must be a multiple of pipeline.microBatches"),
    "too many ranks": (
        {"pipeline": {"stages": 2, "microBatches": 4}, "dataParallel": {"shards": 1024, "replicas": 1024}},
        "pipeline.stages times dataParallel.replicas is the number of ranks, at most 1024",
    ),
    "too many replicas": (
        {"dataParallel": {"shards": 2, "replicas": 2, "maxReplicas": 1}},
        "dataParallel.replicas is at most dataParallel.maxReplicas",
    ),
    "a hot standby of replicas": (
        {"dataParallel": {"shards": 2, "replicas": 2}, "recovery": {"hotStandby": True}},
        "recovery.hotStandby and recovery.memorySnapshot keep what other replicas hold anyway",
    ),
    "memory snapshots of replicas": (
        {"dataParallel": {"shards": 2, "replicas": 2}, "recovery": {"memorySnapshot": {"everySteps": 5}}},
        "recovery.hotStandby and recovery.memorySnapshot keep what other replicas hold anyway",
    ),
    "no label": ({"dataset": {"label": None}}, "dataset.label is the column of the label"),
    "packed rows of labels": ({"dataset": {"packing": True}}, "dataset.packing is for model.task CausalLM"),
    "hidden tokens of labels": ({"dataset": {"mlmProbability": 0.2}}, "dataset.mlmProbability is for model.task MaskedLM"),
    "rows that are cut off a stream": (
        {"dataset": {"streaming": {}, "splits": {"validationFraction": 0.1}}},
        "dataset.splits.validationFraction does not go with dataset.streaming: no rows are cut off",
    ),
    "a stream of a table": ({"dataset": {"streaming": {}}}, "streaming reads Parquet by row groups"),
    "a metric of another task": (
        {"training": {"metricForBestModel": "Perplexity"}},
        "training.metricForBestModel Perplexity is for model.task CausalLM, MaskedLM",
    ),
    "an option of another schedule": (
        {"training": {"scheduleOptions": {"cycles": 2}}},
        "training.scheduleOptions.cycles is for schedule CosineWithRestarts",
    ),
    "no fall": (
        {"training": {"schedule": "Polynomial", "learningRate": 1e-8}},
        "training.scheduleOptions.endLearningRate is less than training.learningRate",
    ),
    "momentum of another optimizer": ({"training": {"momentum": 0.9}}, "training.momentum is for optimizer SGD"),
    "a tracker without a server": (
        {"output": {"path": "x", "trackers": [{"kind": "MLflow", "project": "p"}]}},
        "MLflow needs the address of its tracking server",
    ),
    "two origins": ({"model": {"source": "bert-base-uncased"}}, "set exactly one of source"),
    "nothing to train on": ({"dataset": {"splits": {"validationFraction": 0.5, "testFraction": 0.5}}}, "leave no training rows"),
}


def endless(job: ClusterJob) -> None:
    # A schedule that has no length: another number of steps is another rate for all of them else, and so another job.
    job.spec["training"] |= {"maxSteps": 1_000_000, "epochs": 1_000_000, "schedule": "Constant"}
    job.spec["checkpoint"] = {"everySteps": 100}


def trainer_of(job: ClusterJob) -> dict[str, Any]:
    """The trainer's container in the job's template."""
    found: dict[str, Any] = job.spec["template"]["spec"]["containers"][0]
    return found


def assert_actual(job: ClusterJob) -> None:
    """What is there is what the spec declares, for a job that trains or is suspended and had no failure."""
    wait_until_followed(job)
    status = job.status
    stages, suspended = job.spec["pipeline"]["stages"], bool(job.spec.get("suspend"))
    assert status["phase"] == ("Suspended" if suspended else "Running"), job.describe()
    # This cluster's network enforces no policy, which is told of jobs that live for long enough.
    assert {c["type"] for c in status["conditions"] if c["status"] == "True"} - {NOT_ENFORCED} == (
        {"Suspended"} if suspended else {"Available", "Progressing"}
    )
    serials = {int(rank): serial for rank, serial in status["serials"].items()}
    pods = set() if suspended else {f"pod/tiny-r{rank}-{serials[rank]}" for rank in range(stages)}
    assert set(job.left()) == STANDING | pods
    assert (status["restarts"], status["stepsLost"], status.get("incidents", [])) == (0, 0, [])


def assert_pods_as_declared(job: ClusterJob) -> None:
    """The pods that are there were made from the newest template."""
    labels, wanted = job.spec["template"]["metadata"]["labels"], trainer_of(job).get("resources")
    for pod in job.get("pods")["items"]:
        assert labels.items() <= pod["metadata"]["labels"].items()
        trainer = pod["spec"]["containers"][0]
        assert trainer["name"] == "trainer"
        assert wanted is None or trainer["resources"] == wanted
        carried = pod["metadata"]["annotations"]["lmj.dev/job-spec"]
        assert f'"keep":{job.spec["checkpoint"].get("keep", 3)}' in carried


def suspend(job: ClusterJob, wanted: bool) -> None:
    job.spec["suspend"] = wanted
    job.apply()
    job.wait_for_phase("Suspended" if wanted else "Running")


def test_a_running_job_follows_what_may_change_and_keeps_from_the_rest(operator: Watched) -> None:
    with operator.job() as job:
        endless(job)
        job.apply()
        job.wait_for_step(10)
        before = job.pods()
        changes: list[Callable[[], object]] = [
            lambda: job.spec["checkpoint"].update(keep=5),
            lambda: job.spec.update(recovery={"maxRestarts": 2, "backoffSeconds": 0.5}),
            lambda: job.spec.update(cleanPodPolicy="All", ttlSecondsAfterFinished=3600, activeDeadlineSeconds=3600),
            lambda: job.spec["template"]["metadata"]["labels"].update(team="blue"),
            lambda: trainer_of(job).update(resources={"requests": {"cpu": "10m"}}),
        ]
        for change in changes:
            change()
            job.apply()
            assert_actual(job)
            assert job.pods() == before, "no change of these restarts what trains"

        at = generation(job)
        for spec, says in REFUSED_BY_RULES.values():
            assert says in refusal(job, **spec)
        assert generation(job) == at

        # A bad value that no schema sees: the job goes on as it was, says so, and is well again when it is taken back.
        job.spec["template"]["spec"]["restartPolicy"] = "Always"
        job.apply()
        wait_for("the refusal", lambda: condition(job, "ChangeRefused").get("status") == "True", job.describe)
        refused = condition(job, "ChangeRefused")
        assert refused["message"] == "spec.template.spec.restartPolicy: must be Never: the operator replaces pods that end"
        step = job.step
        job.wait_for_step(step + 10)
        assert (job.status["phase"], job.pods()) == ("Running", before)
        del job.spec["template"]["spec"]["restartPolicy"]
        job.apply()
        wait_for("well again", lambda: condition(job, "ChangeRefused")["status"] == "False", job.describe)
        assert_actual(job)
        assert job.events().count("ChangeRefused") == 1

        suspend(job, True)
        assert_actual(job)
        saved = job.status["checkpoint"]["step"]
        assert saved == job.step, "nothing is lost by a suspension"
        job.spec["training"]["maxSteps"] = saved + 500
        job.apply()
        assert_actual(job)
        suspend(job, False)
        assert_actual(job)
        assert_pods_as_declared(job)
        assert job.status["serials"] == {"0": 2, "1": 2}

        job.wait_for_phase("Succeeded")
        wait_for("the workload gone", lambda: job.left() == ["livemigrationjob.lmj.dev/tiny"], job.describe)
        assert job.step == saved + 500
        assert sorted(job.losses()) == list(range(1, saved + 501))
        job.spec["ttlSecondsAfterFinished"] = 0
        job.apply()
        job.wait_until_gone()


def test_what_the_schema_refuses_is_said_in_words(operator: Watched) -> None:
    with operator.job() as job:
        calls = len(operator.proxy.calls)
        for spec, says in REFUSED_BY_SCHEMA.values():
            assert says in refusal(job, **spec)
        assert operator.writes(calls, job) == []


def test_more_stages_than_layers_fail_once_with_the_trainer_s_own_line(operator: Watched) -> None:
    line = "pipeline.stages 2 is more than the model's 1 layers: use 1 stages at most"
    with operator.job() as job:
        job.spec["model"]["scratch"]["layers"] = 1
        job.apply()
        job.wait_for_phase("Failed")
        wait_for(
            "no pod at work", lambda: not [p for p in job.get("pods")["items"] if p["status"]["phase"] == "Running"], job.describe
        )
        status = job.status
        assert status["message"] == line
        assert condition(job, "Failed") | {"lastTransitionTime": ""} == {
            "type": "Failed",
            "status": "True",
            "reason": "Failed",
            "message": line,
            "lastTransitionTime": "",
            "observedGeneration": 1,
        }
        told = [event for event in job.get("events")["items"] if event["reason"] == "Failed" and event["type"] == "Warning"]
        assert [event["message"] for event in told if event["involvedObject"]["kind"] == "LiveMigrationJob"] == [line]
        assert (status["restarts"], status["serials"]) == (0, {"0": 1, "1": 1})
        # A finished job takes no orders, but says that it has seen them.
        job.spec["cleanPodPolicy"] = "All"
        job.apply()
        wait_for("the pods gone", lambda: not job.pods(), job.describe)
        wait_for("the new generation", lambda: job.status["observedGeneration"] == 2, job.describe)
        assert job.status["phase"] == "Failed"


def unschedulable(job: ClusterJob) -> None:
    job.spec["placement"] = {"nodeSelector": {"no": "such-node"}}


def no_image(job: ClusterJob) -> None:
    # An address of this machine at which nothing listens: no registry is asked.
    trainer_of(job)["image"] = "127.0.0.1:9/none:1"


def no_volume(job: ClusterJob) -> None:
    job.spec["storage"]["output"]["size"] = "100Gi"


def test_what_has_to_wait_says_for_what_and_since_when_and_does_nothing_else(operator: Watched) -> None:
    begin = time.time()
    with operator.job(1) as nowhere, operator.job(1) as imageless, operator.job(1) as homeless:
        unschedulable(nowhere)
        no_image(imageless)
        no_volume(homeless)
        expected = {
            nowhere: ("Unschedulable", ("tiny-r0-1", "affinity/selector")),
            imageless: ("ImagePullBackOff", ("tiny-r0-1", "127.0.0.1:9/none:1")),
            homeless: ("Unschedulable", ("tiny-r0-1", "PersistentVolumeClaim", "tiny-output")),
        }
        for job in expected:
            endless(job)
            job.apply()
        since = {}
        for job, (reason, words) in expected.items():

            def says(job: ClusterJob = job, words: tuple[str, ...] = words) -> bool:
                told = condition(job, "PodsWaiting")
                # At first a pod may wait for its claims too, which are bound a moment later.
                return told.get("status") == "True" and all(word in told["message"] for word in words)

            wait_for("the condition", says, job.describe)
            told = condition(job, "PodsWaiting")
            assert told["reason"] == reason
            since[job] = told["lastTransitionTime"]
            assert begin - 2 <= datetime.fromisoformat(since[job]).timestamp() <= time.time() + 1

        calls = len(operator.proxy.calls)
        time.sleep(QUIET_SECONDS)  # what is tested is that nothing happens
        writes = operator.writes(calls, *expected)
        assert len(writes) <= 4, [(call.method, call.path) for call in writes]  # what a pod waits for may be put into other words
        assert all(call.target.subresource == "status" or call.target.resource == "events" for call in writes)
        for job, (reason, _) in expected.items():
            told = condition(job, "PodsWaiting")
            assert (told["status"], told["reason"], told["lastTransitionTime"]) == ("True", reason, since[job])
            assert (job.status["phase"], job.status["restarts"], list(job.pods())) == ("Pending", 0, ["tiny-r0-1"])
            assert job.events().count(reason) == 1

        # What was declared wrong is put right: the pod that waits for it goes, and costs no restart.
        nowhere.spec["placement"] = {"nodeSelector": {}}
        del trainer_of(imageless)["image"]
        size = "100Gi"
        operator.own.shared_volume(f"late-{homeless.namespace}", size)
        for job in (nowhere, imageless):
            job.apply()
        for job, pod in ((nowhere, "tiny-r0-2"), (imageless, "tiny-r0-2"), (homeless, "tiny-r0-1")):
            job.wait_for_phase("Running")
            assert condition(job, "PodsWaiting")["status"] == "False"
            assert list(job.pods()) == [pod]
            assert (job.status["restarts"], job.status.get("incidents", [])) == (0, [])
            job.kubectl("delete", "lmj", "tiny", "-n", job.namespace, "--wait=false")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_any_sequence_of_changes_ends_where_the_last_one_says(operator: Watched, seed: int) -> None:
    pick = random.Random(seed)

    def keep(job: ClusterJob) -> None:
        job.spec["checkpoint"]["keep"] = pick.randint(1, 9)

    def budgets(job: ClusterJob) -> None:
        job.spec["recovery"] = {"maxRestarts": pick.randint(0, 9), "nodeGoneSeconds": pick.randint(5, 90)}

    def ends(job: ClusterJob) -> None:
        job.spec["cleanPodPolicy"] = pick.choice(["All", "Running", "None"])
        job.spec["ttlSecondsAfterFinished"] = pick.randint(100, 1000)

    def labels(job: ClusterJob) -> None:
        job.spec["template"]["metadata"]["labels"] = {"team": pick.choice(["blue", "red", "green"])}

    def resources(job: ClusterJob) -> None:
        trainer_of(job)["resources"] = {"requests": {"cpu": f"{pick.randint(1, 50)}m"}}

    def pause(job: ClusterJob) -> None:
        job.spec["suspend"] = not job.spec.get("suspend", False)

    def bad(job: ClusterJob) -> None:
        good = dict(trainer_of(job))
        trainer_of(job)["command"] = ["true"]
        job.apply()
        wait_for("the refusal", lambda: condition(job, "ChangeRefused").get("status") == "True", job.describe)
        trainer_of(job).clear()
        trainer_of(job).update(good)

    def refused(job: ClusterJob) -> None:
        spec, says = REFUSED_BY_RULES[pick.choice(["micro-batches", "model", "dataset"])]
        assert says in refusal(job, **spec)

    # At least one suspension, and its end.
    changes = [pause, pause, *pick.choices([keep, budgets, ends, labels, resources, bad, refused], k=6)]
    pick.shuffle(changes)
    with operator.job() as job:
        endless(job)
        job.apply()
        job.wait_for_step(10)
        pods = job.pods()
        for number, change in enumerate(changes, 1):
            change(job)
            job.apply()
            job.wait_for_phase("Suspended" if job.spec.get("suspend") else "Running")
            print(f"{number}. {change.__name__}: generation {generation(job)}, step {job.step}")
            assert_actual(job)
            if change is pause:
                pods = job.pods()
                assert_pods_as_declared(job)
            assert job.pods() == pods
        step = job.step
        job.wait_for_step(step + 10)
        job.kubectl("delete", "lmj", "tiny", "-n", job.namespace, "--timeout=60s")
        job.wait_until_gone()
