"""Pods of a job that runs a user's script."""

from typing import Any

import pytest
from cluster_jobs import SETTINGS, script

from lmj_api.problems import SpecError
from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes.build import children
from lmj_operator.backend.kubernetes.build.grace import agent_seconds, grace_seconds
from lmj_operator.backend.kubernetes.build.pod import build_pod


def trainer(made: LiveMigrationJob) -> dict[str, Any]:
    container: dict[str, Any] = build_pod(made, SETTINGS, 0, 1)["spec"]["containers"][0]
    return container


def shared_memory(made: LiveMigrationJob) -> dict[str, Any]:
    (volume,) = [volume for volume in build_pod(made, SETTINGS, 0, 1)["spec"]["volumes"] if volume["name"] == "dshm"]
    found: dict[str, Any] = volume["emptyDir"]
    return found


def with_trainer(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **container}]}}


def test_the_job_in_the_pod_is_the_one_that_was_meant() -> None:
    made = script(command={"args": ["train.py"], "checkpoints": "runs/tiny/saved"})
    pod = build_pod(made, SETTINGS, 0, 1)
    read = LiveMigrationJob.model_validate_json(pod["metadata"]["annotations"]["lmj.dev/job-spec"])
    assert read.spec == made.spec
    assert read.spec.command is not None
    assert (read.spec.command.working_dir, read.spec.command.checkpoints) == ("/opt/lmj/examples", "/output/runs/tiny/saved")
    assert read.spec.training.threads is None, "each process gets its own"
    assert script(
        storage={"output": {"size": "1Gi"}, "data": {"claimName": "mine"}}
    ).spec.command == made.spec.command.model_copy(update={"working_dir": "/data", "checkpoints": None})


def test_it_asks_for_what_its_template_says_and_its_variables_are_there() -> None:
    token = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    resources = {"requests": {"cpu": "2", "nvidia.com/gpu": "4"}, "limits": {"nvidia.com/gpu": "4"}}
    made = trainer(script(template=with_trainer(env=[token], resources=resources)))
    assert made["resources"] == resources
    assert token in made["env"]
    assert "resources" not in trainer(script())


def test_shared_memory_has_a_limit_that_a_template_may_change() -> None:
    assert shared_memory(script()) == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert {"name": "dshm", "mountPath": "/dev/shm"} in trainer(script())["volumeMounts"]
    mine = {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Gi"}}
    assert shared_memory(script(template={"spec": {"volumes": [mine]}})) == mine["emptyDir"]
    limited = with_trainer(resources={"limits": {"memory": "32Gi"}})
    assert shared_memory(script(template=limited)) == {"medium": "Memory"}, "the container's limit counts for it too"


@pytest.mark.parametrize(("saves", "grace"), [(0, 60), (22.5, 60), (30, 75), (300.2, 616)])
def test_a_pod_that_is_told_to_end_has_the_time_that_its_script_saves_in(saves: float, grace: int) -> None:
    made = script(command={"args": ["train.py"], "saveSeconds": saves})
    assert build_pod(made, SETTINGS, 0, 1)["spec"]["terminationGracePeriodSeconds"] == grace_seconds(made, SETTINGS) == grace
    command = trainer(made)["command"]
    assert float(command[command.index("--grace") + 1]) == agent_seconds(made, SETTINGS) == grace - 5
    assert (grace - 5) / 2 >= saves, "its agent may let it go on for half of the time"


def test_a_template_may_say_another_time() -> None:
    made = script(template={"spec": {"terminationGracePeriodSeconds": 900}})
    assert build_pod(made, SETTINGS, 0, 1)["spec"]["terminationGracePeriodSeconds"] == 900


def test_its_claim_is_shared_where_the_job_may_have_several_pods() -> None:
    def mode(**parts: int) -> str:
        (claim,) = children.build_claims(script(dataParallel=parts))
        found: str = claim["spec"]["accessModes"][0]
        return found

    assert [mode(), mode(replicas=2), mode(maxReplicas=2)] == ["ReadWriteOnce", "ReadWriteMany", "ReadWriteMany"]


def test_checkpoints_where_no_pod_can_write_are_refused() -> None:
    with pytest.raises(SpecError, match=r"spec\.command\.checkpoints: /data/saved is on no volume that the pods can write"):
        script(command={"args": ["train.py"], "checkpoints": "/data/saved"})


def test_pods_share_the_output() -> None:
    with pytest.raises(SpecError, match=r"spec\.storage\.output: missing; 2 ranks share"):
        script(dataParallel={"replicas": 2}, storage={})


def test_pods_of_a_script_know_each_other_by_rank_alone() -> None:
    made = script(dataParallel={"replicas": 3})
    labels = [build_pod(made, SETTINGS, rank, 1)["metadata"]["labels"] for rank in range(3)]
    assert [(label["lmj.dev/rank"], label["lmj.dev/stage"]) for label in labels] == [("0", "0"), ("1", "0"), ("2", "0")]
