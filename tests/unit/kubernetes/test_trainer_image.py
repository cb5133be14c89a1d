"""An operator that is upgraded in the middle of a job: the job's pods stay of one image, because workers of one view speak one protocol."""

from dataclasses import replace
from typing import Any

import pytest
from backend_fixture import Fixture
from cluster_jobs import SETTINGS, job, pod_body

from lmj_operator.backend.kubernetes.backend import KubernetesBackend
from lmj_operator.backend.kubernetes.canaries import turns_to_knock
from lmj_operator.backend.kubernetes.start_trouble import event_lists
from lmj_operator.backend.kubernetes.status_store import StatusStore
from lmj_operator.plan import CreatePod

OLD = SETTINGS.trainer_image
NEW = "registry.example/lmj-trainer:2"


@pytest.fixture
async def upgraded(at: Fixture) -> KubernetesBackend:
    """The next operator's backend for the same job."""
    store = StatusStore(at.api, at.api.objects["livemigrationjobs", "tiny"], 2.0, at.clock)  # type: ignore[arg-type]
    settings, lists, turns = replace(SETTINGS, trainer_image=NEW), event_lists(), turns_to_knock()
    return KubernetesBackend(job(), at.api, at.cache, store, at.session, settings, at.keys, lists, turns, at.clock)  # type: ignore[arg-type]


def pod(name: str, image: str | None, phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    body = pod_body(name, f"uid of {name}", phase=phase)
    body["metadata"] |= metadata
    (agent,) = body["spec"]["containers"]
    body["spec"]["containers"] = [{"name": "sidecar", "image": "other:9"}, {**agent, "image": image}]
    return body


async def image_of_the_next(at: Fixture, backend: KubernetesBackend) -> str:
    await backend.observe()
    await backend.apply(CreatePod(1, 2))
    containers = at.api.objects["pods", "tiny-r1-2"]["spec"]["containers"]
    return str(next(c["image"] for c in containers if c["name"] == "trainer"))


async def test_a_pod_that_joins_others_has_their_image(at: Fixture, upgraded: KubernetesBackend) -> None:
    at.cache.put_pod(pod("tiny-r0-1", OLD))
    assert await image_of_the_next(at, upgraded) == OLD


async def test_the_oldest_of_them_says_which(at: Fixture, upgraded: KubernetesBackend) -> None:
    at.cache.put_pod(pod("tiny-r0-2", NEW, creationTimestamp="2026-01-01T00:00:09Z"))
    at.cache.put_pod(pod("tiny-s-1", OLD, creationTimestamp="2026-01-01T00:00:01Z"))
    assert await image_of_the_next(at, upgraded) == OLD


@pytest.mark.parametrize(
    "other",
    [
        pod("tiny-r0-1", OLD, "Pending"),
        pod("tiny-r0-1", OLD, "Failed"),
        pod("tiny-r0-1", OLD, deletionTimestamp="2026-01-01T00:00:05Z"),
        pod("tiny-r0-1", None),
        pod("tiny-r0-1", OLD, ownerReferences=[{"uid": "of a job before", "controller": True}]),
    ],
    ids=["waits, perhaps for its image", "ended", "ends", "has none", "of another run"],
)
async def test_one_that_it_joins_not_says_nothing(at: Fixture, upgraded: KubernetesBackend, other: dict[str, Any]) -> None:
    at.cache.put_pod(other)
    assert await image_of_the_next(at, upgraded) == NEW


async def test_the_template_s_image_is_the_template_s(at: Fixture, upgraded: KubernetesBackend) -> None:
    at.cache.put_pod(pod("tiny-r0-1", OLD))
    upgraded.job = job(template={"spec": {"containers": [{"name": "trainer", "image": "mine:3"}]}})
    assert await image_of_the_next(at, upgraded) == "mine:3"


async def test_a_pod_that_waits_is_not_outdated_by_the_operator_s_new_image(at: Fixture, upgraded: KubernetesBackend) -> None:
    at.cache.put_pod(pod("tiny-r0-1", OLD))
    await at.backend.apply(CreatePod(1, 2))
    waiting = at.api.objects["pods", "tiny-r1-2"]
    waiting["status"] = {"phase": "Pending"}
    at.cache.put_pod(waiting)
    upgraded.job = upgraded.job.model_copy(update={"metadata": upgraded.job.metadata.model_copy(update={"generation": 2})})
    seen = {p.name: p for p in (await upgraded.observe()).pods}
    assert not seen["tiny-r1-2"].outdated
