"""Jobs that somebody made to stop the operator, beside one of somebody else: they are refused in a line, and it gets its pods."""

import asyncio
import json
import time
from typing import Any
from unittest import mock

import aiohttp
import kopf
import pytest
from aiohttp import web
from cluster_jobs import SETTINGS, MemoryKeys, job_body
from kubernetes.aio.client import Configuration
from served import served

from lmj_api.size import MOST_VALUES
from lmj_operator.controller.controller import Controller, registry
from lmj_operator.controller.job_task import Place
from lmj_operator.controller.metrics import Metrics
from lmj_operator.controller.notes import Notebook
from lmj_operator.controller.operator import JOBS_AT_ONCE, kopf_settings

pytestmark = pytest.mark.integration

DEEP = '{"a":' * 9_000 + "1" + "}" * 9_000
MOST = "the most that a job may have: put what is large into a ConfigMap or on a volume, and name that"
BIG = {"spec": {"x": "a" * 1_300_000}}
REFUSED = {
    "deep": ({"template": {"spec": "DEEP"}}, "spec.template: nested deeper than 64 levels"),
    **{f"large-{number}": ({"template": BIG}, f"spec.template: more than 256 KiB, {MOST}") for number in range(30)},
    "many": ({"template": {f"k{n}": 1 for n in range(MOST_VALUES + 1)}}, f"spec.template: more than 10,000 values, {MOST}"),
    "labels": ({"template": {"metadata": {"labels": [1]}}}, "spec.template.metadata.labels: a mapping is needed, not a list"),
    "groups": (
        {"recovery": {"rules": [{"logPattern": "(a+)+b", "action": "Fail"}]}},
        "spec.recovery.rules[0].logPattern: '(a+)+b': groups are not supported: write alternatives out, as in 'one error|another', "
        "and ( as \\(",
    ),
}


def job_text(name: str, number: int, spec: dict[str, Any]) -> str:
    body = job_body(name, **spec)
    body["metadata"]["uid"] = f"11111111-2222-3333-4444-{number:012}"
    return json.dumps(body).replace('"DEEP"', DEEP)


def _kind(plural: str, name: str, *, namespaced: bool) -> dict[str, Any]:
    return {"name": plural, "singularName": name.lower(), "namespaced": namespaced, "kind": name, "verbs": ["list", "watch"]}


_VERSION = {"groupVersion": "lmj.dev/v1alpha1", "version": "v1alpha1"}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"versions": ["v1"]},
    "/api/v1": {"resources": [_kind("namespaces", "Namespace", namespaced=False)]},
    "/apis": {"groups": [{"name": "lmj.dev", "preferredVersion": _VERSION, "versions": [_VERSION]}]},
    "/apis/lmj.dev/v1alpha1": {"resources": [_kind("livemigrationjobs", "LiveMigrationJob", namespaced=True)]},
}


class Server:
    """All the jobs, in pages."""

    def __init__(self) -> None:
        specs = [(name, spec) for name, (spec, _) in REFUSED.items()]
        self.jobs = [job_text(name, number, spec) for number, (name, spec) in enumerate([*specs, ("good", {})])]
        self.said: dict[str, str] = {}
        """The message of each job's status."""
        self.pods: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in DISCOVERY:
            return web.json_response(DISCOVERY[request.path])
        if request.method == "GET" and request.path.endswith("/livemigrationjobs"):
            return await self._watch(request) if "watch" in request.query else self._list(request)
        if request.method in ("PATCH", "POST"):
            body = json.loads(await request.read())
            if request.path.endswith("/status"):
                self.said[body["metadata"]["name"]] = body["status"].get("message", "")
            if request.path.endswith("/pods"):
                self.pods.append(body["metadata"]["name"])
            body["metadata"] = {"uid": "u", "resourceVersion": "2", **body["metadata"]}
            return web.json_response(body)
        return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)

    def _list(self, request: web.Request) -> web.Response:
        limit, at = int(request.query["limit"]), int(request.query.get("continue", 0))
        more = f'"continue":"{at + limit}",' if at + limit < len(self.jobs) else ""
        found = ",".join(self.jobs[at : at + limit])
        text = f'{{"apiVersion":"lmj.dev/v1alpha1","items":[{found}],"kind":"LiveMigrationJobList","metadata":{{{more}"resourceVersion":"1"}}}}'
        return web.Response(text=text, content_type="application/json")

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await asyncio.sleep(60)
        return answer


async def test_they_are_refused_in_a_line_and_the_job_of_another_gets_its_pods() -> None:
    server, controller, stop = Server(), Controller(), asyncio.Event()
    assert len(server.jobs) > JOBS_AT_ONCE, "there is a second page"
    async with served(server.handle) as api, aiohttp.ClientSession() as session:
        metrics, notebook = Metrics(controller.phases, controller.replicas), Notebook(api)
        controller.place = Place(api, controller.cache, session, SETTINGS, MemoryKeys(), metrics, notebook)
        controller.informed.set()
        host = api._client.configuration.host
        began = time.monotonic()

        async def find(made: Configuration) -> str:
            made.host = host
            return "default"

        with mock.patch("lmj_operator.controller.controller.find", find):
            running = asyncio.create_task(
                kopf.operator(
                    registry=registry(controller),
                    settings=kopf_settings(),
                    identity="x",  # type: ignore[arg-type]
                    standalone=True,
                    clusterwide=True,
                    stop_flag=stop,
                )
            )
            async with asyncio.timeout(60):
                while not (server.said.keys() >= REFUSED.keys() and len(server.pods) == 2):
                    assert not running.done(), f"it ended after {time.monotonic() - began:.1f} s"
                    await asyncio.sleep(0.05)
        assert {name: server.said[name] for name in REFUSED} == {name: line for name, (_, line) in REFUSED.items()}
        assert sorted(server.pods) == ["good-r0-1", "good-r1-1"]
        stop.set()
        await asyncio.wait_for(running, 30)
        await controller.close()
