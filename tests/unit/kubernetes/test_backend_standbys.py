"""Pods without a rank."""

import pytest
from backend_fixture import Fixture
from cluster_jobs import error, job, running

from lmj_api.status import JobStatus, StandbyState, StandbyStatus
from lmj_operator.backend.port import ActionError
from lmj_operator.plan import CreatePod, EnlistPod


async def test_a_standby_is_made_and_its_labels_follow_what_it_becomes(at: Fixture) -> None:
    await at.backend.apply(CreatePod(None, 3))
    made = at.api.objects["pods", "tiny-s-3"]
    assert made["metadata"]["labels"]["lmj.dev/role"] == "standby"
    assert "lmj.dev/rank" not in made["metadata"]["labels"]
    (seen,) = (await at.backend.observe()).pods
    assert (seen.name, seen.rank, seen.serial, seen.unlisted) == ("tiny-s-3", None, 3, True)
    for _ in range(2):
        await at.backend.apply(EnlistPod("tiny-s-3", 1, 5))
    labels = at.api.objects["pods", "tiny-s-3"]["metadata"]["labels"]
    assert {key: labels[f"lmj.dev/{key}"] for key in ("role", "rank", "serial")} == {"role": "member", "rank": "1", "serial": "5"}
    assert not (await at.backend.observe()).pods[0].unlisted
    await at.backend.apply(EnlistPod("tiny-s-4", 1, 6))  # gone meanwhile
    assert at.api.names("pods") == ["tiny-s-3"]


async def test_labels_that_cannot_be_set_now_are_an_action_error(at: Fixture) -> None:
    await at.backend.apply(CreatePod(None, 1))
    at.api.refuse["patch", "pods"] = [error(500, "InternalError", "no labels")]
    with pytest.raises(ActionError, match="no labels"):
        await at.backend.apply(EnlistPod("tiny-s-1", 1, 2))
    assert (await at.backend.observe()).pods[0].unlisted


async def test_a_standby_that_the_cache_lacks_is_looked_for_unless_it_was_never_made(at: Fixture) -> None:
    at.api.objects["pods", "tiny-s-1"] = running("tiny-s-1")
    wanted = [StandbyStatus(pod="tiny-s-1", state=StandbyState.WARM), StandbyStatus(pod="tiny-s-2")]
    await at.backend.write_status(JobStatus(standbys=wanted))
    assert [p.name for p in (await at.backend.observe()).pods] == ["tiny-s-1"]
    assert at.calls("get", "pods") == 1


async def test_a_standby_that_is_made_from_another_template_by_now_is_outdated(at: Fixture) -> None:
    await at.backend.apply(CreatePod(None, 1))
    assert not (await at.backend.observe()).pods[0].outdated
    at.backend.job = job(template={"metadata": {"labels": {"team": "other"}}})
    at.backend.job = at.backend.job.model_copy(update={"metadata": at.backend.job.metadata.model_copy(update={"generation": 2})})
    assert (await at.backend.observe()).pods[0].outdated
