"""What one object can do to all who read it: nested deeper than a parser can follow, it is cut before it is parsed."""

import asyncio
import json
from typing import Any

import kopf
import pytest
from aiohttp import web
from cluster_jobs import SETTINGS, cluster_job, job_body
from hypothesis import given
from hypothesis import strategies as st
from served import served

from lmj_api.problems import SpecError
from lmj_operator.backend.kubernetes.nesting import DEEPEST, parsed, shallow
from lmj_operator.backend.kubernetes.resources import JOBS
from lmj_operator.controller.session import session_of

pytestmark = pytest.mark.integration

LEVELS = 9_000
"""A real API server takes no more than 10,000."""


def nested(levels: int, inner: str = '"x"') -> str:
    return '{"a":' * levels + inner + "}" * levels


def deep_job(levels: int = LEVELS) -> str:
    """A job as the API server has it; what was set is also in ``managedFields``, as deep."""
    body = job_body()
    body["spec"]["template"] = {"spec": "DEEP"}
    body["metadata"]["managedFields"] = [{"fieldsV1": "DEEP"}]
    return json.dumps(body).replace('"DEEP"', nested(levels))


JSON = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(alphabet='ab"\\[]{}é', max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(alphabet='a"\\[{}]', max_size=3), inner, max_size=4)
    ),
    max_leaves=20,
)


def cut(value: Any, levels: int) -> Any:
    """As it must be cut."""
    if isinstance(value, dict | list) and levels == 0:
        return None
    if isinstance(value, dict):
        return {key: cut(part, levels - 1) for key, part in value.items()}
    return [cut(part, levels - 1) for part in value] if isinstance(value, list) else value


@given(JSON, st.integers(1, 4), st.booleans())
def test_what_is_too_deep_is_null_and_the_rest_is_as_it_was(value: Any, deepest: int, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert json.loads(shallow(data, deepest)) == cut(value, deepest)
    if cut(value, deepest) == value:
        assert shallow(data, deepest) == data


def test_what_parsers_give_up_on_is_cut_in_time() -> None:
    with pytest.raises(RecursionError):
        json.loads(nested(100_000))
    assert json.loads(shallow(nested(100_000).encode())) == json.loads(nested(DEEPEST, "null"))
    assert json.loads(shallow(deep_job().encode()))["metadata"]["name"] == "tiny"
    broken = b"[" * 1000
    assert shallow(broken) == b"[" * DEEPEST + b"null"


@given(st.one_of(JSON, st.floats(allow_nan=False), st.integers(-(10**40), 10**40)), st.booleans())
def test_what_is_not_too_deep_is_parsed_as_by_the_standard_library(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert parsed(data) == json.loads(data)


def test_what_is_too_deep_is_parsed_as_it_was_cut() -> None:
    assert parsed(deep_job().encode()) == json.loads(shallow(deep_job().encode()))
    assert parsed(b'"\\ud800"') == "\ud800", "half of a pair, which the fast parser refuses"
    for broken in (b"", b"[", b"[" * 1000, b"{'a': 1}", b"\xff"):
        with pytest.raises(ValueError, match=r"Expecting|decode"):
            parsed(broken)


def test_a_job_that_is_cut_is_refused_in_a_line() -> None:
    with pytest.raises(SpecError, match=r"^spec\.template: nested deeper than 64 levels$"):
        cluster_job(json.loads(shallow(deep_job().encode())), SETTINGS)


def kind(plural: str, name: str, *, namespaced: bool) -> dict[str, Any]:
    return {"name": plural, "singularName": name.lower(), "namespaced": namespaced, "kind": name, "verbs": ["list", "watch"]}


class Server:
    """Two jobs: one nested too deep, and another. A list has both, and so has a watch."""

    def __init__(self) -> None:
        other = job_body("other")
        other["metadata"]["uid"] = "22222222-2222-3333-4444-555555555555"
        self.jobs = [deep_job(), json.dumps(other)]
        self.listed = asyncio.Event()
        """The list was heard, and a watch may begin: Kopf hands on the newest news of each object alone."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/livemigrationjobs") and "watch" not in request.query:
            items = ",".join(self.jobs)
            text = f'{{"kind":"LiveMigrationJobList","metadata":{{"resourceVersion":"1"}},"items":[{items}]}}'
            return web.Response(text=text, content_type="application/json")
        if request.path.endswith("/livemigrationjobs"):
            answer = web.StreamResponse()
            await answer.prepare(request)
            await self.listed.wait()
            for job in self.jobs:
                await answer.write(f'{{"type":"MODIFIED","object":{job}}}\n'.encode())
            await asyncio.sleep(20)
            return answer
        # Kopf looks for the kinds that there are, for namespaces too.
        version = {"groupVersion": "lmj.dev/v1alpha1", "version": "v1alpha1"}
        answers: dict[str, dict[str, Any]] = {
            "/api": {"versions": ["v1"]},
            "/api/v1": {"resources": [kind("namespaces", "Namespace", namespaced=False)]},
            "/apis": {"groups": [{"name": "lmj.dev", "preferredVersion": version, "versions": [version]}]},
            "/apis/lmj.dev/v1alpha1": {"resources": [kind("livemigrationjobs", "LiveMigrationJob", namespaced=True)]},
        }
        if request.path in answers:
            return web.json_response(answers[request.path])
        return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)


async def test_our_own_lists_and_watches_tell_of_such_a_job_and_of_all_others() -> None:
    server = Server()
    async with served(server.handle) as api:
        page = await api.list(JOBS, None, {})
        assert [job["metadata"]["name"] for job in page["items"]] == ["tiny", "other"]
        server.listed.set()
        watch = api.watch(JOBS, None, {})
        assert [(await anext(watch))[1]["metadata"]["name"] for _ in range(2)] == ["tiny", "other"]
        await watch.aclose()  # type: ignore[attr-defined]


async def test_kopf_tells_of_such_a_job_and_of_all_others_and_lives() -> None:
    heard: asyncio.Queue[tuple[str | None, str]] = asyncio.Queue()
    registry = kopf.OperatorRegistry()
    server, stop = Server(), asyncio.Event()
    async with served(server.handle) as api:

        @kopf.on.login(registry=registry)
        async def login(**_: Any) -> kopf.AiohttpSession:
            return await session_of(api._client.configuration)

        @kopf.on.event("lmj.dev", "v1alpha1", "livemigrationjobs", registry=registry)
        async def job(type: str | None, body: kopf.Body, **_: Any) -> None:  # noqa: A002 - Kopf calls it so
            heard.put_nowait((type, body["metadata"]["name"]))

        settings = kopf.OperatorSettings()
        settings.posting.enabled, settings.scanning.disabled = False, True
        running = asyncio.create_task(
            kopf.operator(registry=registry, settings=settings, identity="x", standalone=True, clusterwide=True, stop_flag=stop)  # type: ignore[arg-type]
        )
        async with asyncio.timeout(30):
            listed = {await heard.get() for _ in range(2)}
            server.listed.set()
            watched = {await heard.get() for _ in range(2)}
        assert not running.done()
        assert (listed, watched) == ({(None, "tiny"), (None, "other")}, {("MODIFIED", "tiny"), ("MODIFIED", "other")})
        stop.set()
        await asyncio.wait_for(running, 30)
