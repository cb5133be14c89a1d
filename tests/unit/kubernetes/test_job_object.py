"""What is kept of jobs that are large: little, and of those that are too large why they are refused."""

import asyncio
import contextlib
import copy
import json
import time
import tracemalloc
from typing import Any, cast

import kopf
import pytest
from cluster_jobs import SETTINGS, cluster_job, job_body
from hypothesis import given
from hypothesis import strategies as st

from lmj_api.names import MIGRATE
from lmj_api.problems import SpecError
from lmj_operator.backend.kubernetes import pages
from lmj_operator.backend.kubernetes.job_object import LARGE, kept, kept_event, packed_spec
from lmj_operator.backend.kubernetes.packed import LONG, unpacked
from lmj_operator.backend.kubernetes.pages import page
from lmj_operator.controller.controller import Controller, registry

TOO_LARGE = r"^spec\.template: more than 256 KiB, the most that a job may have: put what is large into a ConfigMap"


def large_job(size: int, number: int = 0, **spec: Any) -> bytes:
    """A job as the API server has it; what was set is told again by an annotation."""
    body = job_body(f"large-{number}", template={"spec": {"x": "a" * size}}, **spec)
    body["metadata"]["annotations"] = {MIGRATE: "1", "note": "b" * LARGE}
    body["metadata"]["labels"] = {f"label-{n}": "c" for n in range(1000)}
    body["metadata"]["managedFields"] = [{"fieldsV1": {"f:spec": {}}}]
    return json.dumps(body).encode()


def job_of(body: dict[str, Any]) -> Any:
    """What a task of the job makes of the object."""
    return cluster_job({"metadata": body["metadata"], "spec": json.loads(unpacked(packed_spec(body["spec"])))}, SETTINGS)


def list_of(jobs: list[bytes]) -> bytes:
    head = b'{"apiVersion":"lmj.dev/v1alpha1","items":['
    return head + b",".join(jobs) + b'],"kind":"LiveMigrationJobList","metadata":{"continue":"x[{\\"","resourceVersion":"7"}}'


def test_a_large_job_is_kept_as_text_and_is_the_same_job() -> None:
    body = kept(large_job(100_000))
    assert set(body["metadata"]) == {
        "annotations",
        "name",
        "namespace",
        "uid",
        "generation",
        "resourceVersion",
        "creationTimestamp",
    }
    assert body["metadata"]["annotations"] == {MIGRATE: "1"}
    assert len(body["spec"]) == 2
    assert job_of(body) == cluster_job(json.loads(large_job(100_000)), SETTINGS)


def test_one_that_is_too_large_is_kept_as_the_reason_and_goes_in_its_time() -> None:
    body = kept(large_job(1_300_000, ttlSecondsAfterFinished=60))
    assert len(json.dumps(body)) < 1000
    with pytest.raises(SpecError, match=TOO_LARGE):
        job_of(body)
    assert json.loads(unpacked(packed_spec(body["spec"])))["ttlSecondsAfterFinished"] == 60


def test_an_event_has_what_is_kept_and_one_of_another_kind_is_as_it_was() -> None:
    line = b'{"type":"MODIFIED","object":' + large_job(1_300_000) + b"}"
    event = json.loads(kept_event(line))
    assert (event["type"], event["object"]["metadata"]["name"]) == ("MODIFIED", "large-0")
    assert len(kept_event(line)) < 1000
    other = {"type": "ADDED", "object": {"kind": "Namespace", "metadata": {"name": "x" * LARGE}}}
    assert json.loads(kept_event(json.dumps(other).encode())) == other
    small = json.dumps({"type": "ADDED", "object": job_body()}).encode()
    assert kept_event(small) == small


async def test_a_page_of_large_jobs_takes_little_memory_and_no_long_turn() -> None:
    dense = large_job(0).replace(b'""', b"[" + b"{}," * 200_000 + b"{}]", 1)
    jobs = [large_job(1_300_000, number) for number in range(8)] + [dense, json.dumps(job_body()).encode()]
    data, turns, longest = list_of(jobs), 0, 0.0

    async def look() -> None:
        nonlocal turns, longest
        while True:
            began = time.monotonic()
            await asyncio.sleep(0)
            turns, longest = turns + 1, max(longest, time.monotonic() - began)

    looking = asyncio.create_task(look())
    tracemalloc.start()
    found = await page(data, kept)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    looking.cancel()
    assert held < 1 << 20
    assert [item["metadata"]["name"] for item in found["items"]] == [f"large-{n}" for n in range(8)] + ["large-0", "tiny"]
    assert (found["kind"], found["metadata"]) == ("LiveMigrationJobList", {"continue": 'x[{"', "resourceVersion": "7"})
    assert found["items"][-1] == job_body()
    assert turns > len(jobs)
    assert longest < 1, "in all it takes a second"


TEXT = st.text(alphabet='ab"\\[]{},:é', max_size=5)
JSON = st.recursive(
    st.one_of(st.none(), st.integers(), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(TEXT, JSON, max_size=3), max_size=4), st.dictionaries(TEXT, JSON, max_size=3), st.booleans())
def test_a_large_page_is_what_it_is_as_a_whole(found: list[dict[str, Any]], metadata: dict[str, Any], ascii_only: bool) -> None:
    value = {"metadata": metadata, "items": found, "kind": "List", "x": [1, "[{"], "y": {"z": [[{}]]}}
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    before, pages.LARGE_PAGE = pages.LARGE_PAGE, 0
    try:
        assert asyncio.run(page(data, json.loads)) == value
    finally:
        pages.LARGE_PAGE = before


def test_a_long_spec_is_packed_and_read_again() -> None:
    small, large = job_body(), job_body(template={"metadata": {"annotations": {"note": "é" * LONG}}})
    assert json.loads(packed_spec(small["spec"])) == small["spec"]
    text = packed_spec(large["spec"])
    assert len(text) < LONG / 10
    assert json.loads(unpacked(text)) == large["spec"]
    held = kept(json.dumps({"kind": "LiveMigrationJob", **large, "status": {"message": "x" * LARGE}}).encode())
    assert packed_spec(held["spec"]) == text
    assert packed_spec(held["spec"]) is packed_spec(held["spec"])
    assert json.loads(unpacked(packed_spec(held["spec"]))) == large["spec"]


async def test_kopf_keeps_nothing_large_of_a_job_that_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, seen = Controller(), list[dict[str, Any]]()
    controller.informed.set()

    async def job_seen(kind: str | None, body: dict[str, Any]) -> None:
        seen.append(copy.deepcopy(body))
        if kind == "ADDED":
            raise RuntimeError("some mistake")

    monkeypatch.setattr(controller, "job_seen", job_seen)
    (handler,) = registry(controller)._watching.get_all_handlers()
    for kind in ("MODIFIED", "ADDED"):
        thing = {**job_body(), "status": {"phase": "Running"}}
        thing["metadata"] = {**thing["metadata"], "managedFields": [{"manager": "x"}]}
        whole = copy.deepcopy(thing)
        with contextlib.suppress(RuntimeError):
            await handler.fn(type=kind, body=kopf.Body(thing), event=cast(kopf.RawEvent, {"type": kind, "object": thing}))
        del whole["metadata"]["managedFields"]
        assert seen.pop() == whole
        assert thing == {key: whole[key] for key in ("apiVersion", "kind", "metadata") if key in whole}
