"""Tasks of many jobs: whose turn it is to compute, to make objects and to make passes."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest
from cluster_jobs import job_body
from job_world import SECONDS, World, count, passes, until

from lmj_api.spec import LiveMigrationJob
from lmj_operator.backend.kubernetes.api import LARGE_AT_ONCE
from lmj_operator.backend.kubernetes.backend import KubernetesBackend
from lmj_operator.backend.kubernetes.build.pod import build_pod
from lmj_operator.backend.kubernetes.cluster_job import checked_job, read_job
from lmj_operator.backend.kubernetes.lane import Lane
from lmj_operator.backend.kubernetes.settings import Settings
from lmj_operator.backend.rounds import ROUNDS, SLICES
from lmj_operator.backend.turns import JOB, Turns
from lmj_operator.controller import job_task
from lmj_operator.plan import Observed, Plan, plan

pytestmark = pytest.mark.integration


async def test_a_job_whose_pods_bring_news_without_end_makes_few_passes_and_another_waits_for_none_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_task, "PASSES_AT_ONCE", 5)
    monkeypatch.setattr(job_task, "START_SECONDS", 0.0)
    await world.put(job_body())
    loud = world.controller._tasks["team", "tiny"].job

    async def make_noise() -> None:
        while True:
            loud.wake()
            await asyncio.sleep(0)

    noise = asyncio.create_task(make_noise())
    began = asyncio.get_running_loop().time()
    await until(lambda: passes(world) >= 5)
    await asyncio.sleep(3 * job_task.PASS_SECONDS)
    quiet = job_body("quiet")
    quiet["metadata"]["uid"] = "22222222-2222-3333-4444-555555555555"
    world.api.objects["livemigrationjobs", "quiet"] = quiet
    seconds = asyncio.get_running_loop().time() - began
    assert 5 < passes(world) <= 6 + seconds / job_task.PASS_SECONDS
    await world.controller.job_seen("ADDED", quiet)
    before = asyncio.get_running_loop().time()
    await until(lambda: "quiet-r1-1" in world.api.names("pods"))
    assert asyncio.get_running_loop().time() - before < 1
    noise.cancel()


async def test_passes_of_jobs_that_fail_again_and_again_are_few_of_all_of_them_together(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane(10.0)
    world.share(stuck=lane)
    monkeypatch.setattr(job_task, "START_SECONDS", 0.0)
    row = {"restartsWithoutProgress": 4, "restartStep": 7, "restarts": 4, "phase": "Recovering", "started": 1.0}
    names = [f"stuck-{number}" for number in range(3)]
    for name in [*names, "tiny"]:
        body = job_body(name)
        body["metadata"]["uid"] = str(uuid5(NAMESPACE_URL, name))
        body["status"] = row if name != "tiny" else {}
        world.api.objects["livemigrationjobs", name] = body
        await world.controller.job_seen("ADDED", body)
    jobs = [world.controller._tasks["team", name].job for name in [*names, "tiny"]]
    waited = list[str]()
    wait = lane.wait

    async def noted(pieces: int = 1) -> None:
        waited.append(JOB.get()[1])
        await wait(pieces)

    monkeypatch.setattr(lane, "wait", noted)

    async def make_noise() -> None:
        while True:
            for job in jobs:
                job.wake()
            await asyncio.sleep(0.01)

    noise = asyncio.create_task(make_noise())
    await until(lambda: len(waited) >= 9)
    noise.cancel()
    assert set(waited) == set(names)
    assert max(waited.count(name) for name in names) <= 4, "in turns"
    leaving = {**job_body(names[0])["metadata"], "uid": jobs[0]._metadata["uid"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    before = waited.count(names[0])
    await world.controller.job_seen("MODIFIED", {**job_body(names[0]), "metadata": leaving, "status": row})
    done = count(world, "done")
    for _ in range(5):
        jobs[0].wake()
        await asyncio.sleep(0.1)
    assert count(world, "done") > done
    assert waited.count(names[0]) <= before + 1, "one that is deleted need not wait"


@pytest.mark.parametrize(("template", "most"), [(None, SLICES), ({"metadata": {"annotations": {"note": "x" * 20_000}}}, 1)])
async def test_of_many_jobs_that_have_news_at_once_few_compute_in_as_many_rounds_as_an_answer_needs(
    world: World, monkeypatch: pytest.MonkeyPatch, template: dict[str, Any] | None, most: int
) -> None:
    rounds, seen = 0, list[tuple[str, int]]()

    def noted(observed: Observed, now: float) -> Plan:
        seen.append(("plan", rounds))
        return plan(observed, now)

    def read(body: dict[str, Any]) -> LiveMigrationJob:
        seen.append(("read", rounds))
        return read_job(body)

    def checked(job: LiveMigrationJob, settings: Settings) -> LiveMigrationJob:
        seen.append(("check", rounds))
        return checked_job(job, settings)

    def build(*arguments: Any) -> dict[str, Any]:
        seen.append(("build", rounds))
        return build_pod(*arguments)

    monkeypatch.setattr("lmj_operator.reconcile.plan", noted)
    monkeypatch.setattr("lmj_operator.backend.kubernetes.creation.build_pod", build)

    async def count() -> None:
        nonlocal rounds
        while len(world.api.names("pods")) < 40:
            rounds += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(job_task, "read_job", read)
    if template is not None:  # else both halves are one slice
        monkeypatch.setattr(job_task, "checked_job", checked)
    counting = asyncio.create_task(count())
    bodies = [job_body(f"job-{number}", template=template) for number in range(20)]
    for number, body in enumerate(bodies):
        body["metadata"]["uid"] = f"22222222-2222-3333-4444-{number:012}"
        world.api.objects["livemigrationjobs", body["metadata"]["name"]] = body
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*(world.controller.job_seen("ADDED", body) for body in bodies))
        await counting
    assert {what for what, _ in seen} >= {"plan", "read", "build"}
    assert len(seen) >= 80
    long = [at for what, at in seen if template is None or what != "plan"]
    assert max(sum(begin <= at < begin + ROUNDS for at in long) for begin in long) == most, (
        "in that many rounds a probe is answered"
    )


async def test_a_changed_spec_is_read_when_it_is_the_turn_of_its_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.put(job_body())
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    readers = list[str]()

    def read(body: dict[str, Any]) -> LiveMigrationJob:
        task = asyncio.current_task()
        assert task is not None
        readers.append(task.get_name())
        return read_job(body)

    monkeypatch.setattr(job_task, "read_job", read)
    body = job_body(checkpoint={"keep": 7})
    body["metadata"]["generation"] = 2
    await world.put(body)
    await until(lambda: world.status.observed_generation == 2)
    assert readers == ["job team/tiny"], "the task of the watch, on which all jobs wait, has only heard of it"


async def test_nobody_waits_behind_first_passes_of_jobs_with_large_templates(world: World) -> None:
    world.share(starts=Turns(1, 1))
    ended = asyncio.Event()

    async def hold() -> None:
        JOB.set(("elsewhere", "slow"))
        async with world.api.large.taken():
            await ended.wait()

    holding = [asyncio.create_task(hold()) for _ in range(LARGE_AT_ONCE)]
    note = {"metadata": {"annotations": {"note": "x" * 20_000}}}
    for name, template in {"large": note, "second": note, "tiny": {}}.items():
        body = job_body(name, template=template)
        body["metadata"]["uid"] = str(uuid5(NAMESPACE_URL, name))
        world.api.objects["livemigrationjobs", name] = body
        await world.controller.job_seen("ADDED", body)
        if template:
            await until(partial(world.has_begun, name))
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    ended.set()
    await asyncio.gather(*holding)
    await until(lambda: len(world.api.names("pods")) == 6)


async def test_a_job_whose_agents_say_much_waits_for_its_turn_to_look_at_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, saved = Turns(1, 1), list[bool]()
    world.share(large_looks=looks)
    monkeypatch.setattr(KubernetesBackend, "sees_much", True)
    apply = world.api.apply

    async def noted(*arguments: Any, **options: Any) -> dict[str, Any]:
        saved.append(("team", "tiny") in looks._held)
        return await apply(*arguments, **options)

    monkeypatch.setattr(world.api, "apply", noted)
    async with looks.taken():  # another job looks
        await world.put(job_body())
        await asyncio.sleep(0.1)
        assert world.api.calls == []
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    assert saved
    assert not any(saved), "what was seen is not kept for calls"


async def test_a_job_waits_for_its_turn_to_make_its_objects(world: World) -> None:
    assert world.controller.place is not None
    turns = Turns(1, 1)
    world.controller.place = replace(world.controller.place, starts=turns)
    async with turns.taken():  # another job is at it
        await world.put(job_body())
        await asyncio.sleep(0.1)
        assert world.api.calls == []
    await until(lambda: world.api.names("pods") == ["tiny-r0-1", "tiny-r1-1"])
    async with turns.taken():  # once it has begun it waits for no other
        before = passes(world)
        world.controller.cache.drop_pod(world.api.objects["pods", "tiny-r0-1"])
        await until(lambda: passes(world) > before)
