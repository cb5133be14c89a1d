"""The job's objects besides its pods are as they should be, whoever deletes or changes them; a job at rest costs no call."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import pytest
from backend_fixture import Fixture
from cluster_jobs import SETTINGS, error, job

from lmj_api.status import JobStatus
from lmj_operator.backend.kubernetes.backend import CHILDREN_AGAIN_SECONDS
from lmj_operator.backend.kubernetes.children import AGAIN_SECONDS, HELD_SECONDS, Children
from lmj_operator.backend.kubernetes.resources import BUDGETS, POLICIES, SERVICES, Resource
from lmj_operator.plan import CreatePod

KINDS = {resource.plural: resource for resource in (SERVICES, POLICIES, BUDGETS)}


def key_of(kind: str) -> tuple[str, str]:
    return kind, "tiny-trainers"


def told(at: Fixture, kind: str) -> None:
    """The watch reports the object as it is: its metadata."""
    resource, thing = KINDS[kind], at.api.objects[key_of(kind)]
    at.cache.children.put(resource, {"metadata": copy.deepcopy(thing["metadata"])})


def delete(at: Fixture, kind: str) -> dict[str, Any]:
    """As ``kubectl delete`` and the watch would."""
    thing = at.api.objects.pop(key_of(kind))
    at.cache.children.drop(KINDS[kind], thing)
    return thing


def change(at: Fixture, kind: str, **parts: Any) -> None:
    """As ``kubectl edit`` and the watch would."""
    thing = at.api.objects[key_of(kind)]
    at.api._store(key_of(kind), {**thing, **parts, "metadata": {**thing["metadata"], **parts.get("metadata", {})}})
    told(at, kind)


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """But for what the server writes."""
    server = ("uid", "resourceVersion", "creationTimestamp")
    plain = [{**o, "metadata": {k: v for k, v in o["metadata"].items() if k not in server}} for o in (left, right)]
    return plain[0] == plain[1]


@pytest.fixture
async def begun(at: Fixture) -> Fixture:
    await at.backend.apply(CreatePod(0, 1))
    await at.backend.write_status(JobStatus(started=at.clock.now))
    for kind in KINDS:
        told(at, kind)
    at.woken.clear()
    at.api.calls.clear()
    return at


async def test_they_are_made_at_the_same_time(at: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    apply, begun, everything = at.api.apply, set[str](), asyncio.Event()

    async def together(resource: Resource, body: dict[str, Any], **options: Any) -> dict[str, Any]:
        begun.add(resource.plural)
        if begun == KINDS.keys():
            everything.set()
        await everything.wait()
        return await apply(resource, body, **options)

    monkeypatch.setattr(at.api, "apply", together)
    async with asyncio.timeout(10):
        await at.backend.apply(CreatePod(0, 1))
    assert at.api.names("pods") == ["tiny-r0-1"]


async def test_a_job_at_rest_costs_no_call(begun: Fixture) -> None:
    for _ in range(5):
        for kind in KINDS:
            told(begun, kind)
        await begun.backend.observe()
    assert (begun.api.calls, begun.woken) == ([], [])


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_deleted_by_hand_is_made_again(begun: Fixture, kind: str) -> None:
    gone = delete(begun, kind)
    assert begun.woken == [("team", "tiny")]
    await begun.backend.observe()
    assert same(begun.api.objects[key_of(kind)], gone)
    told(begun, kind)
    begun.api.calls.clear()
    await begun.backend.observe()
    assert begun.api.calls == []


async def test_what_is_deleted_for_an_object_of_before_is_not_news(begun: Fixture) -> None:
    begun.cache.children.drop(SERVICES, {"metadata": {**begun.api.objects[key_of("services")]["metadata"], "uid": "before"}})
    await begun.backend.observe()
    assert (begun.api.calls, begun.woken) == ([], [])


@pytest.mark.parametrize("kind", ["services", "networkpolicies", "poddisruptionbudgets"])
async def test_what_is_changed_by_hand_is_put_back(begun: Fixture, kind: str) -> None:
    before = copy.deepcopy(begun.api.objects[key_of(kind)])
    change(begun, kind, spec={"open": "to all"})
    assert begun.woken == [("team", "tiny")]
    await begun.backend.observe()
    assert same(begun.api.objects[key_of(kind)], before)
    assert begun.calls("patch", kind) == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_labels_that_are_taken_off_are_put_back(begun: Fixture, kind: str) -> None:
    """To a watch of the label an object without it is gone."""
    before = copy.deepcopy(begun.api.objects[key_of(kind)])
    begun.api.objects[key_of(kind)]["metadata"]["labels"] = {}
    begun.cache.children.drop(KINDS[kind], before)
    await begun.backend.observe()
    assert same(begun.api.objects[key_of(kind)], before)
    assert begun.api.objects[key_of(kind)]["metadata"]["uid"] == before["metadata"]["uid"]


async def test_a_status_that_changes_is_no_change(begun: Fixture) -> None:
    """Of a kind with a generation: the budget's status is written whenever a pod comes or goes."""
    begun.api.objects[key_of("poddisruptionbudgets")]["metadata"]["generation"] = 1
    told(begun, "poddisruptionbudgets")
    await begun.backend.observe()
    begun.api.calls.clear()
    begun.woken.clear()
    change(begun, "poddisruptionbudgets", status={"currentHealthy": 2})
    await begun.backend.observe()
    assert (begun.api.calls, begun.woken) == ([], [])


async def test_an_operator_that_starts_anew_writes_each_once(begun: Fixture) -> None:
    begun.backend.children = Children(begun.api, begun.cache.children, SETTINGS)  # type: ignore[arg-type]
    for _ in range(3):
        await begun.backend.observe()
    assert sorted(call[:2] for call in begun.api.calls) == [
        ("patch", "networkpolicies"),
        ("patch", "poddisruptionbudgets"),
        ("patch", "services"),
    ]


@pytest.mark.parametrize(("owner", "wins"), [("ours", True), ("another's", False)])
async def test_fields_that_somebody_else_set_are_taken_back_in_our_own_objects_alone(
    begun: Fixture, monkeypatch: pytest.MonkeyPatch, owner: str, wins: bool
) -> None:
    """A server refuses an apply to fields of another's, unless it is forced."""
    apply = begun.api.apply

    async def conflicting(
        resource: Resource, body: dict[str, Any], *, subresource: str | None = None, force: bool = False
    ) -> Any:
        if resource is POLICIES and not force:
            raise error(409, "Conflict", "conflict with kubectl-edit")
        return await apply(resource, body, subresource=subresource, force=force)

    monkeypatch.setattr(begun.api, "apply", conflicting)
    change(begun, "networkpolicies", spec={"open": "to all"})
    if owner != "ours":
        begun.api.objects[key_of("networkpolicies")]["metadata"]["ownerReferences"] = []
    begun.clock.now += 1
    assert [p.name for p in (await begun.backend.observe()).pods] == ["tiny-r0-1"]
    assert (begun.api.objects[key_of("networkpolicies")]["spec"] != {"open": "to all"}) == wins


async def test_what_cannot_be_put_back_is_tried_again_later_and_keeps_no_other(begun: Fixture) -> None:
    begun.api.refuse["patch", "services"] = [error(500)]
    delete(begun, "services")
    delete(begun, "networkpolicies")
    for _ in range(5):
        assert [p.name for p in (await begun.backend.observe()).pods] == ["tiny-r0-1"]
    assert (begun.calls("patch", "services"), begun.api.names("networkpolicies")) == (1, ["tiny-trainers"])
    begun.clock.now += CHILDREN_AGAIN_SECONDS
    await begun.backend.observe()
    assert begun.api.names("services") == ["tiny-trainers"]


@pytest.mark.parametrize("how", [change, delete])
async def test_what_is_changed_again_and_again_is_not_fought_for_all_the_time(
    begun: Fixture, caplog: pytest.LogCaptureFixture, how: Callable[[Fixture, str], object]
) -> None:
    """Another controller may change it whenever it sees it, and each write of ours is news to it."""
    for _ in range(20):
        if key_of("services") in begun.api.objects:
            how(begun, "services")
        await begun.backend.observe()
    assert begun.calls("patch", "services") == 1
    for _ in range(5):
        begun.clock.now += AGAIN_SECONDS
        await begun.backend.observe()
        how(begun, "services")
    assert begun.calls("patch", "services") == 6
    assert caplog.text.count("services/tiny-trainers of the job was deleted or changed") == 1
    begun.clock.now += AGAIN_SECONDS
    await begun.backend.observe()
    begun.clock.now += HELD_SECONDS
    how(begun, "services")
    await begun.backend.observe()
    assert caplog.text.count("services/tiny-trainers of the job was deleted or changed") == 2


async def test_one_that_is_fought_for_keeps_no_other_and_a_new_spec_is_followed_at_once(begun: Fixture) -> None:
    for _ in range(2):
        change(begun, "poddisruptionbudgets", spec={"minAvailable": 0})
        await begun.backend.observe()
    delete(begun, "services")
    begun.backend.job = job(pipeline={"stages": 1, "microBatches": 2})
    await begun.backend.observe()
    assert (begun.calls("patch", "poddisruptionbudgets"), begun.api.names("services")) == (2, ["tiny-trainers"])


async def test_one_that_is_changed_before_it_is_put_right_is_news_once(begun: Fixture) -> None:
    for _ in range(5):
        change(begun, "services")
    assert begun.woken == [("team", "tiny")]
    await begun.backend.observe()
    change(begun, "services")
    assert begun.woken == [("team", "tiny")] * 2


async def test_a_pod_that_is_made_later_finds_all_that_it_needs(begun: Fixture) -> None:
    """As when a job was suspended, and they were deleted meanwhile: nobody looked then."""
    for kind in KINDS:
        delete(begun, kind)
    await begun.backend.apply(CreatePod(1, 1))
    assert all(begun.api.names(kind) for kind in KINDS)


async def test_nothing_is_made_again_for_a_job_that_is_deleted(begun: Fixture) -> None:
    begun.backend.deleted = True
    delete(begun, "services")
    await begun.backend.observe()
    assert begun.api.names("services") == []


async def test_only_what_is_known_is_listed_as_known(begun: Fixture) -> None:
    known = begun.cache.children.known(SERVICES, "team")
    assert [thing["metadata"]["name"] for thing in known] == ["tiny-trainers"]
    assert begun.cache.children.known(SERVICES, None) == known
    assert begun.cache.children.known(SERVICES, "other") == []
