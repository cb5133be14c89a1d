"""A pod whose labels somebody changed is the same pod, and gets them back."""

from typing import Any

import pytest
from backend_fixture import Fixture
from cluster_jobs import error, running

from lmj_api.status import JobStatus, Promotion
from lmj_operator.backend.kubernetes.cache import job_key
from lmj_operator.backend.kubernetes.pod_labels import AGAIN_SECONDS
from lmj_operator.plan import CreatePod

JOB, ROLE, RANK, SERIAL = "lmj.dev/job", "lmj.dev/role", "lmj.dev/rank", "lmj.dev/serial"


def labels_of(at: Fixture, name: str) -> dict[str, str]:
    found: dict[str, str] = at.api.objects["pods", name]["metadata"]["labels"]
    return found


def relabel(at: Fixture, name: str, **changes: str | None) -> dict[str, Any]:
    """As ``kubectl label`` and the watch would: a watch of a label says of a pod that has lost it that it is gone."""
    pod = at.api.objects["pods", name]
    before = {**pod, "metadata": {**pod["metadata"], "labels": dict(pod["metadata"]["labels"])}}
    for key, value in changes.items():
        if value is None:
            pod["metadata"]["labels"].pop(f"lmj.dev/{key}", None)
        else:
            pod["metadata"]["labels"][f"lmj.dev/{key}"] = value
    if JOB in pod["metadata"]["labels"]:
        at.cache.put_pod(pod)
    else:
        at.cache.drop_pod(before)
    return pod


@pytest.mark.parametrize("rank", [0, None], ids=["a rank's", "a standby"])
async def test_a_pod_that_lost_its_label_is_seen_and_gets_it_back(at: Fixture, rank: int | None) -> None:
    await at.backend.apply(CreatePod(rank, 1))
    [name] = at.api.names("pods")
    await at.backend.observe()
    made = dict(labels_of(at, name))
    at.woken.clear()
    relabel(at, name, job=None)
    assert at.woken == [("team", "tiny")]
    assert [pod.name for pod in (await at.backend.observe()).pods] == [name]
    assert labels_of(at, name) == made
    before = len(at.api.calls)
    await at.backend.observe()
    assert len(at.api.calls) == before
    assert at.calls("create", "pods") == 1


async def test_a_job_finds_its_pod_again_whose_labels_went_while_no_operator_was_there(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    at.cache.drop_pod(at.cache.pods(("team", "tiny"))[0])
    del at.api.objects["pods", "tiny-r0-1"]["metadata"]["labels"]
    await at.backend.write_status(JobStatus.model_validate({"ranks": [{"rank": 0, "state": "Running", "pod": "tiny-r0-1"}]}))
    assert [pod.name for pod in (await at.backend.observe()).pods] == ["tiny-r0-1"]
    assert labels_of(at, "tiny-r0-1")[JOB] == "tiny"


async def test_a_pod_that_is_called_another_jobs_is_still_this_ones(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    relabel(at, "tiny-r0-1", job="other")
    assert [pod.name for pod in (await at.backend.observe()).pods] == ["tiny-r0-1"]
    assert labels_of(at, "tiny-r0-1")[JOB] == "tiny"


async def test_a_role_that_was_changed_is_put_back_for_the_budget_selects_by_it(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.apply(CreatePod(None, 1))
    relabel(at, "tiny-r0-1", role="standby")
    relabel(at, "tiny-s-1", role=None)
    seen = {pod.name: pod.unlisted for pod in (await at.backend.observe()).pods}
    assert seen == {"tiny-r0-1": False, "tiny-s-1": True}
    assert (labels_of(at, "tiny-r0-1")[ROLE], labels_of(at, "tiny-s-1")[ROLE]) == ("member", "standby")


async def test_a_standby_that_became_a_rank_gets_the_labels_of_that_rank_back(at: Fixture) -> None:
    await at.backend.apply(CreatePod(None, 1))
    await at.backend.write_status(JobStatus(promotions=[Promotion(pod="tiny-s-1", rank=1, serial=4)]))
    [seen] = (await at.backend.observe()).pods
    assert seen.unlisted, "the plan has it enlisted, and nobody before it"
    relabel(at, "tiny-s-1", job=None, role="member", rank="1", serial="4")
    await at.backend.observe()
    found = labels_of(at, "tiny-s-1")
    assert {key: found[key] for key in (JOB, ROLE, RANK, SERIAL)} == {JOB: "tiny", ROLE: "member", RANK: "1", SERIAL: "4"}
    assert (found["lmj.dev/stage"], found["lmj.dev/replica"]) == ("1", "0")


async def test_labels_that_are_taken_off_again_and_again_are_not_fought_for_all_the_time(at: Fixture) -> None:
    await at.backend.apply(CreatePod(0, 1))
    at.api.refuse["patch", "pods"] = [error(500)]
    for _ in range(5):
        relabel(at, "tiny-r0-1", job="other")
        assert [pod.name for pod in (await at.backend.observe()).pods] == ["tiny-r0-1"]
    assert at.calls("patch", "pods") == 1
    at.clock.now += AGAIN_SECONDS
    await at.backend.observe()
    assert (at.calls("patch", "pods"), labels_of(at, "tiny-r0-1")[JOB]) == (2, "tiny")


def test_a_pod_is_known_by_its_name() -> None:
    pod = running()
    pod["metadata"]["labels"] = {}
    assert job_key(pod) == ("team", "tiny")
